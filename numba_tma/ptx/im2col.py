"""cp.async.bulk.tensor in im2col mode: columns of pixels, as a convolution reads its input."""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.ptx._instruction import (
    BarrierAddress,
    CacheHint,
    Coordinates,
    Offsets,
    TensorMapOperand,
    TileAddress,
    address,
    instruction,
    u16,
)
from numba_tma.ptx.reduce import TensorReduction

__all__ = [
    "cp_async_bulk_tensor_im2col_load", "cp_async_bulk_tensor_im2col_store",
    "cp_reduce_async_bulk_tensor_im2col", "cp_async_bulk_prefetch_tensor_im2col",
]  # fmt: skip

RANKS = (3, 4, 5)


@instruction(
    "cp.async.bulk.tensor.RANKd.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
    "<multicast:.multicast::cluster><cache_hint:.L2::cache_hint>"
    " [{destination}], [{tensor_map}, {coordinates}], [{barrier}], {offsets}"
    "<multicast:, {multicast}><cache_hint:, {cache_hint}>;",
    isa=(8, 0),
    sm=90,
    ranks=RANKS,
)
def cp_async_bulk_tensor_im2col_load(
    destination: TileAddress,
    tensor_map: TensorMapOperand,
    coordinates: Coordinates,
    barrier: BarrierAddress,
    offsets: Offsets,
    cache_hint: CacheHint = None,
    multicast: u16 | None = None,
) -> None:
    """Start to copy a column of pixels from global to shared memory.

    `coordinates` are (image, spatial axes..., channel) in the array's axis order: the first pixel,
    before `offsets` are added, and its first channel. The first pixel lies in the map's pixel box.
    From there the copy traverses the box in steps of the map's strides, the last spatial axis
    fastest, and continues in the next image at the end of the box. At each position it takes the
    pixel that lies `offsets` further. `offsets` has one value per spatial axis, in the array's
    order, none negative. Pixels and channels outside the tensor are filled. The first channel times
    the item size is a multiple of 16 B. The destination is aligned to 128 B, or as the swizzle
    requires.

    The copy completes the bytes of the whole tile on `barrier`. With `multicast`, which has a bit
    for each block of the cluster, tile and bytes arrive at the same addresses in each selected
    block.

    Executed by one thread. Orders nothing.
    """
    simulator.cp_async_bulk_tensor_im2col_load(
        address(destination), tensor_map, coordinates, address(barrier), offsets, multicast
    )


@instruction(
    "cp.async.bulk.tensor.RANKd.global.shared::cta.im2col_no_offs.bulk_group"
    "<cache_hint:.L2::cache_hint>"
    " [{tensor_map}, {coordinates}], [{source}]<cache_hint:, {cache_hint}>;",
    isa=(8, 0),
    sm=90,
    ranks=RANKS,
)
def cp_async_bulk_tensor_im2col_store(
    tensor_map: TensorMapOperand,
    coordinates: Coordinates,
    source: TileAddress,
    cache_hint: CacheHint = None,
) -> None:
    """Start to copy a column of pixels from shared memory to global memory.

    Traversal and alignment are those of `cp_async_bulk_tensor_im2col_load`, without offsets.
    Elements outside the tensor are not written, except for the rest of a 16-byte chunk at a pixel's
    end. Coordinates are never negative. The map's pixel box lies inside the tensor: no lower corner
    is negative, no upper corner positive. The copy belongs to the executing thread's current bulk
    group. Executed by one thread, after every writer of the source has executed `fence_proxy_async`
    and synchronised with the executing thread.
    """
    simulator.cp_async_bulk_tensor_im2col_store(tensor_map, coordinates, address(source))


@instruction(
    "cp.reduce.async.bulk.tensor.RANKd.global.shared::cta.{operation}.im2col_no_offs.bulk_group"
    "<cache_hint:.L2::cache_hint>"
    " [{tensor_map}, {coordinates}], [{source}]<cache_hint:, {cache_hint}>;",
    isa=(8, 0),
    sm=90,
    ranks=RANKS,
)
def cp_reduce_async_bulk_tensor_im2col(
    tensor_map: TensorMapOperand,
    coordinates: Coordinates,
    source: TileAddress,
    operation: TensorReduction,
    cache_hint: CacheHint = None,
) -> None:
    """Start to combine a column of pixels in shared memory with the pixels in global memory.

    Each element of the tensor becomes `operation` of itself and the tile's element, by the rules of
    `cp_reduce_async_bulk_tensor`: the map's element type decides which operations are legal
    (`DType.reductions`). All else is as for `cp_async_bulk_tensor_im2col_store`. Executed by one
    thread.
    """
    simulator.cp_reduce_async_bulk_tensor_im2col(
        tensor_map, coordinates, address(source), operation
    )


@instruction(
    "cp.async.bulk.prefetch.tensor.RANKd.L2.global.im2col<cache_hint:.L2::cache_hint>"
    " [{tensor_map}, {coordinates}], {offsets}<cache_hint:, {cache_hint}>;",
    isa=(8, 0),
    sm=90,
    ranks=RANKS,
)
def cp_async_bulk_prefetch_tensor_im2col(
    tensor_map: TensorMapOperand,
    coordinates: Coordinates,
    offsets: Offsets,
    cache_hint: CacheHint = None,
) -> None:
    """Prefetch the pixels of a `cp_async_bulk_tensor_im2col_load` into the L2 cache.

    The operands are those of the load. Completion cannot be observed. Executed by one thread.
    Orders nothing.
    """
    simulator.cp_async_bulk_prefetch_tensor_im2col(tensor_map, coordinates, offsets)
