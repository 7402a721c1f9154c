"""Relaxed accesses of several threads to one word: atomics, a reduction, a load."""

from __future__ import annotations

import numpy as np

from numba_tma import simulator
from numba_tma.ptx._instruction import (
    ClusterAddress,
    GlobalAddress,
    global_bytes,
    instruction,
    u32,
)

__all__ = [
    "atom_inc", "ld_relaxed_sys_global_u32", "red_shared_cluster_add_u32", "atom_add_u32",
    "atom_exch_b32",
]  # fmt: skip


@instruction("atom.global.inc.u32 {result}, [{counter}], {limit};", isa=(2, 0), sm=80)
def atom_inc(counter: GlobalAddress, limit: u32) -> u32:
    """Add 1 to a 32-bit counter, which wraps to 0 after `limit`; return the old value.

    Executed by any thread. Relaxed, at device scope.
    """
    return simulator.atomic_inc(global_bytes(counter, 4), limit)


@instruction("ld.relaxed.sys.global.u32 {result}, [{source}];", isa=(6, 0), sm=80)
def ld_relaxed_sys_global_u32(source: GlobalAddress) -> u32:
    """Return a 32-bit word of global memory that another GPU or the host may write.

    The address is a multiple of 4 B. Executed by any thread. Relaxed, at system scope: orders no
    other access.
    """
    return simulator.relaxed_read(global_bytes(source, 4))


@instruction(
    "red.relaxed.cluster.shared::cluster.add.u32 [{location}], {value};", isa=(7, 8), sm=90
)
def red_shared_cluster_add_u32(location: ClusterAddress, value: u32) -> None:
    """Add `value` atomically to the 32-bit word at a cluster address.

    The address is a multiple of 4 B. An address of the block's own shared memory is a cluster
    address too. Executed by any thread. Relaxed, at cluster scope: orders no other access.
    """
    simulator.shared_cluster_reduce(location, np.uint32(value), "add")


@instruction("atom.global.add.u32 {result}, [{location}], {value};", isa=(1, 1), sm=80)
def atom_add_u32(location: GlobalAddress, value: u32) -> u32:
    """Add `value` to a 32-bit word of global memory; return the old value.

    The address is a multiple of 4 B. Executed by any thread. Relaxed, at device scope.
    """
    return simulator.atomic_replace(global_bytes(location, 4), lambda old: old + int(value))


@instruction("atom.global.exch.b32 {result}, [{location}], {value};", isa=(1, 1), sm=80)
def atom_exch_b32(location: GlobalAddress, value: u32) -> u32:
    """Write `value` to a 32-bit word of global memory; return the old value.

    The address is a multiple of 4 B. Executed by any thread. Relaxed, at device scope.
    """
    return simulator.atomic_replace(global_bytes(location, 4), lambda old: int(value))
