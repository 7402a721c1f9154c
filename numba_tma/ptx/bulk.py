"""cp.async.bulk: copies of contiguous bytes between memories, by the copy engine."""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.ptx._instruction import (
    BarrierAddress,
    CacheHint,
    ClusterAddress,
    GlobalAddress,
    Immediate,
    TileAddress,
    address,
    global_bytes,
    instruction,
    u16,
    u32,
)

__all__ = [
    "cp_async_bulk_load", "cp_async_bulk_copy_cluster", "cp_async_bulk_store",
    "cp_async_bulk_prefetch", "cp_async_bulk_commit_group", "cp_async_bulk_wait_group",
    "cp_async_bulk_wait_group_read",
]  # fmt: skip


@instruction(
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    "<multicast:.multicast::cluster><cache_hint:.L2::cache_hint>"
    " [{destination}], [{source}], {nbytes}, [{barrier}]"
    "<multicast:, {multicast}><cache_hint:, {cache_hint}>;",
    isa=(8, 0),
    sm=90,
)
def cp_async_bulk_load(
    destination: TileAddress,
    source: GlobalAddress,
    nbytes: u32,
    barrier: BarrierAddress,
    cache_hint: CacheHint = None,
    multicast: u16 | None = None,
) -> None:
    """Start to copy `nbytes` contiguous bytes from global to shared memory.

    `nbytes` and both addresses are multiples of 16 B. The copy completes `nbytes` on `barrier`.

    With `multicast` the bytes arrive in several blocks of the cluster; bit r of `multicast` selects
    the block of rank r. The bytes arrive at the offset of `destination` in each selected block, and
    complete on the barrier at the offset of `barrier` there. Each selected block expects `nbytes`,
    and its memory is ready before the copy starts.

    Executed by one thread. Orders nothing: `fence_proxy_async` and a synchronisation must stand
    between generic writes to the destination and the copy.
    """
    simulator.cp_async_bulk_load(
        address(destination), global_bytes(source, nbytes), address(barrier), multicast
    )


@instruction(
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    " [{destination}], [{source}], {nbytes}, [{barrier}];",
    isa=(8, 0),
    sm=90,
)
def cp_async_bulk_copy_cluster(
    destination: ClusterAddress, source: TileAddress, nbytes: u32, barrier: ClusterAddress
) -> None:
    """Start to copy `nbytes` of this block's shared memory to that of a block of the cluster.

    `destination` and `barrier` are addresses as `mapa` returns them. Both lie in the same block,
    which expects the bytes. `nbytes` and both data addresses are multiples of 16 B.

    Executed by one thread, after every writer of the source has executed `fence_proxy_async` and
    synchronised with the executing thread. No bulk group counts the copy: the source is known to be
    read only after a wait on `barrier`. The other block must not exit before the bytes have
    arrived. Orders nothing.
    """
    simulator.cp_async_bulk_copy_cluster(
        int(destination), address(source), int(nbytes), int(barrier)
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
    current bulk group. Executed by one thread, after every writer of the source has executed
    `fence_proxy_async` and synchronised with the executing thread.
    """
    simulator.cp_async_bulk_store(global_bytes(destination, nbytes), address(source))


@instruction(
    "cp.async.bulk.prefetch.L2.global<cache_hint:.L2::cache_hint>"
    " [{source}], {nbytes}<cache_hint:, {cache_hint}>;",
    isa=(8, 0),
    sm=90,
)
def cp_async_bulk_prefetch(
    source: GlobalAddress, nbytes: u32, cache_hint: CacheHint = None
) -> None:
    """Start to prefetch `nbytes` contiguous bytes of global memory into the L2 cache.

    `nbytes` and the address are multiples of 16 B. Executed by one thread. A hint: its completion
    cannot be observed or waited for, and it orders nothing.
    """
    simulator.cp_async_bulk_prefetch(global_bytes(source, nbytes))


@instruction("cp.async.bulk.commit_group;", isa=(8, 0), sm=90)
def cp_async_bulk_commit_group() -> None:
    """Close the executing thread's current bulk group, which may be empty. Orders nothing."""
    simulator.cp_async_bulk_commit_group()


@instruction("cp.async.bulk.wait_group {pending};", isa=(8, 0), sm=90)
def cp_async_bulk_wait_group(pending: Immediate) -> None:
    """Wait until at most `pending` of the thread's newest bulk groups are incomplete.

    The writes of the older groups are then visible to the executing thread. Executed by the thread
    that issued the stores.
    """
    simulator.cp_async_bulk_wait_group(pending)


@instruction("cp.async.bulk.wait_group.read {pending};", isa=(8, 0), sm=90)
def cp_async_bulk_wait_group_read(pending: Immediate) -> None:
    """Wait until all but the `pending` newest bulk groups have read their sources.

    The shared memory of the older groups can then be reused. Their writes to global memory may be
    incomplete. Executed by the thread that issued the stores.
    """
    simulator.cp_async_bulk_wait_group_read(pending)
