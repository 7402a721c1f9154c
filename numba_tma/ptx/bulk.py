"""cp.async.bulk: contiguous bytes between global and shared memory, moved by the copy engine."""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.ptx._instruction import (
    BarrierAddress,
    CacheHint,
    GlobalAddress,
    Immediate,
    TileAddress,
    address,
    global_bytes,
    instruction,
    u32,
)


@instruction(
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes<cache_hint:.L2::cache_hint>"
    " [{destination}], [{source}], {nbytes}, [{barrier}]<cache_hint:, {cache_hint}>;",
    isa=(8, 0),
    sm=90,
)
def cp_async_bulk_load(
    destination: TileAddress,
    source: GlobalAddress,
    nbytes: u32,
    barrier: BarrierAddress,
    cache_hint: CacheHint = None,
) -> None:
    """Start to copy `nbytes` contiguous bytes from global to shared memory.

    `nbytes` and both addresses are multiples of 16 B. The copy completes `nbytes` on `barrier`.
    Executed by one thread. Orders nothing; generic writes to the destination need
    `fence_proxy_async` and a synchronisation before.
    """
    simulator.cp_async_bulk_load(
        address(destination), global_bytes(source, nbytes), address(barrier)
    )


@instruction(
    "cp.async.bulk.global.shared::cta.bulk_group<cache_hint:.L2::cache_hint>"
    " [{destination}], [{source}], {nbytes}<cache_hint:, {cache_hint}>;",
    isa=(8, 0),
    sm=90,
)
def cp_async_bulk_store(
    destination: GlobalAddress, source: TileAddress, nbytes: u32, cache_hint: CacheHint = None
) -> None:
    """Start to copy `nbytes` contiguous bytes from shared to global memory.

    `nbytes` and both addresses are multiples of 16 B. The copy belongs to the executing thread's
    next bulk group. Executed by one thread, after every writer of the source has executed
    `fence_proxy_async` and synchronised with it.
    """
    simulator.cp_async_bulk_store(global_bytes(destination, nbytes), address(source))


@instruction("cp.async.bulk.commit_group;", isa=(8, 0), sm=90)
def cp_async_bulk_commit_group() -> None:
    """Close the executing thread's current bulk group; it may be empty. Orders nothing."""
    simulator.cp_async_bulk_commit_group()


@instruction("cp.async.bulk.wait_group {pending};", isa=(8, 0), sm=90)
def cp_async_bulk_wait_group(pending: Immediate) -> None:
    """Wait until at most `pending` of the thread's newest bulk groups are incomplete.

    The writes of the others have been made visible to the executing thread, the one that stored.
    """
    simulator.cp_async_bulk_wait_group(pending)


@instruction("cp.async.bulk.wait_group.read {pending};", isa=(8, 0), sm=90)
def cp_async_bulk_wait_group_read(pending: Immediate) -> None:
    """Wait until all but the `pending` newest bulk groups have read their sources.

    Enough to use the shared memory again; says nothing of the writes to global memory. Executed by
    the thread that stored.
    """
    simulator.cp_async_bulk_wait_group_read(pending)
