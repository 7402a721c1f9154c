"""cp.async: 4, 8 or 16 bytes per thread from global to shared memory, without the copy engine.

Each thread starts copies of its own, which end in any order. It waits for them in groups, or lets
an mbarrier track them for other threads. The copies write like ordinary stores: before the copy
engine reads the bytes, a thread that has waited for them executes `fence_proxy_async`.

The rows omit PTX's L2 cache hint: the code that ptxas of CUDA 13 makes of it is an illegal
instruction on an H200.
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

#: Bytes that one copy writes; ``.cg`` writes 16.
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

    Both addresses are multiples of `nbytes`. The first `src_size` bytes are read; the rest is
    filled with zeros. Executed by any thread, for itself. Orders nothing, copies of the same
    thread among each other included.
    """
    _copy("cp_async_ca", destination, source, nbytes, src_size)


@instruction(_CG + _SRC_SIZE + _END, isa=(7, 0), sm=80, since=_SINCE)
def cp_async_cg(
    destination: TileAddress,
    source: GlobalAddress,
    src_size: u32 | None = None,
    prefetch_size: PrefetchSize | None = None,
) -> None:
    """Start to copy 16 bytes from global to shared memory, past L1.

    Both addresses are multiples of 16. The first `src_size` bytes are read; the rest is filled
    with zeros. Executed by any thread, for itself. Orders nothing.
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
    """Start to copy `nbytes` through L1, or to write zeros if `ignore_src` is true.

    Nothing is read then. Both addresses are multiples of `nbytes`. Executed by any thread, for
    itself. Orders nothing.
    """
    _copy("cp_async_ca_ignore_src", destination, source, nbytes, 0 if ignore_src else None)


@instruction(_CG + _IGNORE + _END, isa=(7, 5), sm=80)
def cp_async_cg_ignore_src(
    destination: TileAddress,
    source: GlobalAddress,
    ignore_src: Predicate,
    prefetch_size: PrefetchSize | None = None,
) -> None:
    """Start to copy 16 bytes past L1, or to write zeros if `ignore_src` is true.

    Nothing is read then. Both addresses are multiples of 16. Executed by any thread, for itself.
    Orders nothing.
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
    """Start to copy `nbytes` through L1 if `condition` is true; else do nothing at all.

    Without the copy the destination keeps what it held: no zeros. Otherwise as `cp_async_ca`,
    but with no branch. Executed by any thread, for itself. Orders nothing.
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
    """Start to copy 16 bytes past L1 if `condition` is true; else do nothing at all.

    Without the copy the destination keeps what it held: no zeros. Otherwise as `cp_async_cg`,
    but with no branch. Executed by any thread, for itself. Orders nothing.
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
    """Close the executing thread's current group of cp.async copies; it may be empty.

    Bulk copies are in groups of their own (`cp_async_bulk_commit_group`). Orders nothing.
    """
    simulator.cp_async_commit_group()


@instruction("cp.async.wait_group {pending};", isa=(7, 0), sm=80)
def cp_async_wait_group(pending: Immediate) -> None:
    """Wait until all but the `pending` newest groups of the executing thread are complete.

    Their bytes are then visible to that thread; others see them after they have synchronised
    with it. Executed by the thread that copied. Copies that were never committed are not
    waited for.
    """
    simulator.cp_async_wait_group(pending)


@instruction("cp.async.wait_all;", isa=(7, 0), sm=80)
def cp_async_wait_all() -> None:
    """Wait for all cp.async copies of the executing thread, committed or not.

    Their bytes are then visible to that thread; others see them after they have synchronised
    with it.
    """
    simulator.cp_async_wait_all()


@instruction("cp.async.mbarrier.arrive.shared::cta.b64 [{barrier}];", isa=(7, 8), sm=80)
def cp_async_mbarrier_arrive(barrier: BarrierAddress) -> None:
    """Let `barrier` wait for the executing thread's copies, beyond the arrivals that it expects.

    The phase expects one arrival more at once, and gets it when all cp.async copies that the
    thread has started are complete: the count of `mbarrier_init` does not include it, and the
    thread still makes its own arrival, after this. Executed by each thread that copied. Orders
    those copies before what waits for the phase, and nothing else. Does not wait.
    """
    simulator.cp_async_mbarrier_arrive(address(barrier))


@instruction("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{barrier}];", isa=(7, 8), sm=80)
def cp_async_mbarrier_arrive_noinc(barrier: BarrierAddress) -> None:
    """Arrive at `barrier` when all cp.async copies of the executing thread are complete.

    The count of `mbarrier_init` includes this arrival: with nothing else to tell, it is the only
    one that the thread makes. Executed by each thread that copied. Orders those copies before
    what waits for the phase, and nothing else. Does not wait.
    """
    simulator.cp_async_mbarrier_arrive_noinc(address(barrier))
