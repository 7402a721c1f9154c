"""cp.async.bulk.tensor: boxes of 1- to 5-dimensional tensors, described by a tensor map."""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.ptx._instruction import (
    BarrierAddress,
    CacheHint,
    Coordinates,
    TensorMapOperand,
    TileAddress,
    address,
    instruction,
    u16,
)

__all__ = [
    "cp_async_bulk_tensor_load", "cp_async_bulk_tensor_store", "cp_async_bulk_prefetch_tensor",
    "prefetch_tensormap",
]  # fmt: skip

RANKS = (1, 2, 3, 4, 5)


@instruction(
    "cp.async.bulk.tensor.RANKd.shared::cluster.global.mbarrier::complete_tx::bytes"
    "<multicast:.multicast::cluster><cache_hint:.L2::cache_hint>"
    " [{destination}], [{tensor_map}, {coordinates}], [{barrier}]"
    "<multicast:, {multicast}><cache_hint:, {cache_hint}>;",
    isa=(8, 0),
    sm=90,
    ranks=RANKS,
)
def cp_async_bulk_tensor_load(
    destination: TileAddress,
    tensor_map: TensorMapOperand,
    coordinates: Coordinates,
    barrier: BarrierAddress,
    cache_hint: CacheHint = None,
    multicast: u16 | None = None,
) -> None:
    """Start to copy the box at `coordinates` from global to shared memory.

    Coordinates are elements in the array's axis order (innermost last), and may lie outside the
    tensor. Elements of the box outside the tensor are filled. The innermost coordinate times the
    item size is a multiple of 16 B. The destination is aligned to 128 B, or as the swizzle
    requires. The copy completes the bytes of the whole box on `barrier`.

    With `multicast` the box arrives in several blocks of the cluster; bit r of `multicast` selects
    the block of rank r. The box arrives at the offset of `destination` in each selected block, and
    completes on the barrier at the offset of `barrier` there. Each selected block expects the whole
    box, and its memory is ready before the copy starts.

    Executed by one thread. Orders nothing.
    """
    simulator.cp_async_bulk_tensor_load(
        address(destination), tensor_map, coordinates, address(barrier), multicast
    )


@instruction(
    "cp.async.bulk.tensor.RANKd.global.shared::cta.bulk_group<cache_hint:.L2::cache_hint>"
    " [{tensor_map}, {coordinates}], [{source}]<cache_hint:, {cache_hint}>;",
    isa=(8, 0),
    sm=90,
    ranks=RANKS,
)
def cp_async_bulk_tensor_store(
    tensor_map: TensorMapOperand,
    coordinates: Coordinates,
    source: TileAddress,
    cache_hint: CacheHint = None,
) -> None:
    """Start to copy a box from shared memory to `coordinates` in global memory.

    Elements outside the tensor are not written, except for the rest of a 16-byte chunk at a row's
    end. Coordinates are those of the load, and never negative: on a GPU a negative coordinate is an
    illegal instruction. Alignment is that of the load. The copy belongs to the executing thread's
    current bulk group. Executed by one thread, after every writer of the source has executed
    `fence_proxy_async` and synchronised with the executing thread.
    """
    simulator.cp_async_bulk_tensor_store(tensor_map, coordinates, address(source))


@instruction(
    "cp.async.bulk.prefetch.tensor.RANKd.L2.global<cache_hint:.L2::cache_hint>"
    " [{tensor_map}, {coordinates}]<cache_hint:, {cache_hint}>;",
    isa=(8, 0),
    sm=90,
    ranks=RANKS,
)
def cp_async_bulk_prefetch_tensor(
    tensor_map: TensorMapOperand, coordinates: Coordinates, cache_hint: CacheHint = None
) -> None:
    """Start to prefetch the box at `coordinates` into the L2 cache.

    Coordinates are those of the load. Executed by one thread. A hint: its completion cannot be
    observed or waited for, and it orders nothing.
    """
    simulator.cp_async_bulk_prefetch_tensor(tensor_map, coordinates)


@instruction("prefetch.tensormap [{tensor_map}];", isa=(8, 0), sm=90)
def prefetch_tensormap(tensor_map: TensorMapOperand) -> None:
    """Prefetch a tensor map into the descriptor cache before its first use.

    Executed by one thread. Orders nothing.
    """
    simulator.prefetch_tensormap(tensor_map)
