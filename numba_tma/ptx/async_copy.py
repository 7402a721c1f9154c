"""cp.async: 4, 8 or 16 bytes per thread from global to shared memory, without the copy engine.

Each thread starts its own copies, which complete in any order. The thread waits for them in groups,
or an mbarrier tracks them for other threads. The copies write like ordinary stores: before the copy
engine reads the bytes, a thread that has waited for them executes `fence_proxy_async`.

The rows omit PTX's L2 cache hint, which ptxas of CUDA 13 compiles to an illegal instruction on an
H200.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.ptx._instruction import (
    BarrierAddress,
    GlobalAddress,
    Immediate,
    Predicate,
    TileAddress,
    address,
    global_bytes,
    instruction,
    u32,
)

__all__ = [
    "cp_async_ca", "cp_async_cg", "cp_async_ca_ignore_src", "cp_async_cg_ignore_src",
    "cp_async_ca_conditional", "cp_async_cg_conditional", "cp_async_commit_group",
    "cp_async_wait_group", "cp_async_wait_all", "cp_async_mbarrier_arrive",
    "cp_async_mbarrier_arrive_noinc",
]  # fmt: skip

#: Bytes of one copy; ``.cg`` always copies 16.
Size: TypeAlias = Literal[4, 8, 16]
#: Bytes of the L2 prefetch around the source.
PrefetchSize: TypeAlias = Literal[64, 128, 256]

_CA = (
    "cp.async.ca.shared.global<prefetch_size:.L2::{prefetch_size}B>"
    " [{destination}], [{source}], {nbytes}"
)
_CG = (
    "cp.async.cg.shared.global<prefetch_size:.L2::{prefetch_size}B> [{destination}], [{source}], 16"
)
_SRC_SIZE = "<src_size:, {src_size}>"
_IGNORE = ", {ignore_src}"
_END = ";"
_SINCE = {"64": ((7, 4), 80), "128": ((7, 4), 80), "256": ((7, 4), 80)}


@instruction(_CA + _SRC_SIZE + _END, isa=(7, 0), sm=80, since=_SINCE)
def cp_async_ca(
    destination: TileAddress,
    source: GlobalAddress,
    nbytes: Size,
    src_size: u32 | None = None,
    prefetch_size: PrefetchSize | None = None,
) -> None:
    """Start to copy `nbytes` from global to shared memory, through L1.

    Both addresses are multiples of `nbytes`. With `src_size` only the first `src_size` bytes are
    read, and zeros fill the rest. Executed by any thread, for itself. Orders nothing, not even the
    copies of one thread among each other.
    """
    _copy("cp_async_ca", destination, source, nbytes, src_size)


@instruction(_CG + _SRC_SIZE + _END, isa=(7, 0), sm=80, since=_SINCE)
def cp_async_cg(
    destination: TileAddress,
    source: GlobalAddress,
    src_size: u32 | None = None,
    prefetch_size: PrefetchSize | None = None,
) -> None:
    """Start to copy 16 bytes from global to shared memory, bypassing L1.

    Both addresses are multiples of 16 B. With `src_size` only the first `src_size` bytes are read,
    and zeros fill the rest. Executed by any thread, for itself. Orders nothing.
    """
    _copy("cp_async_cg", destination, source, 16, src_size)


@instruction(_CA + _IGNORE + _END, isa=(7, 5), sm=80)
def cp_async_ca_ignore_src(
    destination: TileAddress,
    source: GlobalAddress,
    nbytes: Size,
    ignore_src: Predicate,
    prefetch_size: PrefetchSize | None = None,
) -> None:
    """Start to copy `nbytes` through L1; if `ignore_src` is true, write zeros instead.

    If `ignore_src` is true, the source is not read. Both addresses are multiples of `nbytes`.
    Executed by any thread, for itself. Orders nothing.
    """
    _copy("cp_async_ca_ignore_src", destination, source, nbytes, 0 if ignore_src else None)


@instruction(_CG + _IGNORE + _END, isa=(7, 5), sm=80)
def cp_async_cg_ignore_src(
    destination: TileAddress,
    source: GlobalAddress,
    ignore_src: Predicate,
    prefetch_size: PrefetchSize | None = None,
) -> None:
    """Start to copy 16 bytes, bypassing L1; if `ignore_src` is true, write zeros instead.

    If `ignore_src` is true, the source is not read. Both addresses are multiples of 16 B. Executed
    by any thread, for itself. Orders nothing.
    """
    _copy("cp_async_cg_ignore_src", destination, source, 16, 0 if ignore_src else None)


@instruction("@{condition} " + _CA + _SRC_SIZE + _END, isa=(7, 0), sm=80, since=_SINCE)
def cp_async_ca_conditional(
    destination: TileAddress,
    source: GlobalAddress,
    nbytes: Size,
    condition: Predicate,
    src_size: u32 | None = None,
    prefetch_size: PrefetchSize | None = None,
) -> None:
    """Start to copy `nbytes` through L1 if `condition` is true; otherwise do nothing.

    If `condition` is false, the destination keeps its contents: no zeros are written. The
    instruction is predicated, without a branch. All else is as for `cp_async_ca`. Executed by any
    thread, for itself. Orders nothing.
    """
    if condition:
        _copy("cp_async_ca_conditional", destination, source, nbytes, src_size)


@instruction("@{condition} " + _CG + _SRC_SIZE + _END, isa=(7, 0), sm=80, since=_SINCE)
def cp_async_cg_conditional(
    destination: TileAddress,
    source: GlobalAddress,
    condition: Predicate,
    src_size: u32 | None = None,
    prefetch_size: PrefetchSize | None = None,
) -> None:
    """Start to copy 16 bytes, bypassing L1, if `condition` is true; otherwise do nothing.

    If `condition` is false, the destination keeps its contents: no zeros are written. The
    instruction is predicated, without a branch. All else is as for `cp_async_cg`. Executed by any
    thread, for itself. Orders nothing.
    """
    if condition:
        _copy("cp_async_cg_conditional", destination, source, 16, src_size)


def _copy(
    what: str,
    destination: TileAddress,
    source: GlobalAddress,
    nbytes: int,
    src_size: int | None,
) -> None:
    read = nbytes if src_size is None else int(src_size)
    simulator.cp_async(what, address(destination), global_bytes(source, read), nbytes, read)


# ------------------------------------------------------------------------------- waits


@instruction("cp.async.commit_group;", isa=(7, 0), sm=80)
def cp_async_commit_group() -> None:
    """Close the executing thread's current group of cp.async copies; the group may be empty.

    Bulk copies have groups of their own (`cp_async_bulk_commit_group`). Orders nothing.
    """
    simulator.cp_async_commit_group()


@instruction("cp.async.wait_group {pending};", isa=(7, 0), sm=80)
def cp_async_wait_group(pending: Immediate) -> None:
    """Wait until all but the `pending` newest groups of the executing thread are complete.

    The bytes of the complete groups are then visible to that thread, and to other threads after
    they have synchronised with it. Uncommitted copies are not waited for. Executed by the thread
    that copied.
    """
    simulator.cp_async_wait_group(pending)


@instruction("cp.async.wait_all;", isa=(7, 0), sm=80)
def cp_async_wait_all() -> None:
    """Wait for all cp.async copies of the executing thread, committed or not.

    The bytes are then visible to that thread, and to other threads after they have synchronised
    with it.
    """
    simulator.cp_async_wait_all()


@instruction("cp.async.mbarrier.arrive.shared::cta.b64 [{barrier}];", isa=(7, 8), sm=80)
def cp_async_mbarrier_arrive(barrier: BarrierAddress) -> None:
    """Add an arrival at `barrier` for the completion of the executing thread's copies.

    The phase expects one more arrival at once. The arrival is made when all cp.async copies that
    the thread has started are complete. The count of `mbarrier_init` does not include this arrival,
    and the thread still makes its own arrival, after this instruction. Executed by each thread that
    copied. Orders those copies before accesses after a wait for the phase, and nothing else. Does
    not wait.
    """
    simulator.cp_async_mbarrier_arrive(address(barrier))


@instruction("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{barrier}];", isa=(7, 8), sm=80)
def cp_async_mbarrier_arrive_noinc(barrier: BarrierAddress) -> None:
    """Arrive at `barrier` when all cp.async copies of the executing thread are complete.

    The count of `mbarrier_init` includes this arrival. A thread that signals nothing else makes no
    other arrival. Executed by each thread that copied. Orders those copies before accesses after a
    wait for the phase, and nothing else. Does not wait.
    """
    simulator.cp_async_mbarrier_arrive_noinc(address(barrier))
