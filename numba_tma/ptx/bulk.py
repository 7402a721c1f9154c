"""cp.async.bulk: contiguous bytes between memories, moved by the copy engine."""

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
    With `multicast`, bit r of which is the block of rank r in the cluster, the bytes arrive in each
    of those blocks, at the offset that `destination` has in this one, and are completed on the
    barrier that each has at the offset of `barrier`: every one of them expects `nbytes`, and its
    memory is ready before. Executed by one thread. Orders nothing; generic writes to the
    destination need `fence_proxy_async` and a synchronisation before.
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
    """Start to copy `nbytes` from this block's shared memory to that of a block of the cluster.

    `destination` and `barrier` lie in the same block, which expects the bytes; both are addresses
    as `mapa` returns them. `nbytes` and both addresses of data are multiples of 16 B. Executed by
    one thread, after every writer of the source has executed `fence_proxy_async` and synchronised
    with it. No group counts the copy: that the source has been read is known only where `barrier`
    was waited for. The other block may not exit before the bytes have come. Orders nothing.
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
    next bulk group. Executed by one thread, after every writer of the source has executed
    `fence_proxy_async` and synchronised with it.
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
    """Start to bring `nbytes` contiguous bytes of global memory into the L2 cache.

    `nbytes` and the address are multiples of 16 B. Executed by one thread. A hint: it completes
    nowhere, cannot be waited for and orders nothing.
    """
    simulator.cp_async_bulk_prefetch(global_bytes(source, nbytes))


@instruction("cp.async.bulk.commit_group;", isa=(8, 0), sm=90)
def cp_async_bulk_commit_group() -> None:
    """Close the executing thread's current bulk group; it may be empty. Orders nothing."""
    simulator.cp_async_bulk_commit_group()


@instruction("cp.async.bulk.wait_group {pending};", isa=(8, 0), sm=90)
def cp_async_bulk_wait_group(pending: Immediate) -> None:
    """Wait until at most `pending` of the thread's newest bulk groups are incomplete.

    The writes of the older groups are then visible to the executing thread, which stored.
    """
    simulator.cp_async_bulk_wait_group(pending)


@instruction("cp.async.bulk.wait_group.read {pending};", isa=(8, 0), sm=90)
def cp_async_bulk_wait_group_read(pending: Immediate) -> None:
    """Wait until all but the `pending` newest bulk groups have read their sources.

    The shared memory can then be reused; the writes to global memory may be incomplete. Executed
    by the thread that stored.
    """
    simulator.cp_async_bulk_wait_group_read(pending)
