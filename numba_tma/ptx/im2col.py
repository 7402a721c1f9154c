"""cp.async.bulk.tensor in im2col mode: columns of pixels, as a convolution reads its input."""

from __future__ import annotations

from typing import get_args

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

    `coordinates` are those of the first pixel, before `offsets` are added, and of its first
    channel: (image, spatial axes..., channel) in the array's axis order. The pixel lies in the
    map's pixel box. From there the copy walks over the box as the map's strides say, along the last
    spatial axis first and into the next image at the end, and takes at each place the pixel that
    lies `offsets` further: one per spatial axis, in the array's order, never negative. Pixels and
    channels outside the tensor are filled. The first channel times the item size is a multiple of
    16 B, and the destination aligned to 128 B or as the swizzle asks.

    The copy completes the bytes of the whole tile on `barrier`. With `multicast`, a bit for each
    block of the cluster, tile and bytes arrive at the same addresses in each of those blocks.
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

    The walk and the alignment are those of the load, without offsets. What lies outside the tensor
    is not written, but for the rest of a 16-byte chunk at a pixel's end. Coordinates are never
    negative, and the map's pixel box lies inside the tensor: no lower corner is negative, no upper
    corner positive. The copy belongs to the executing thread's next bulk group. Executed by one
    thread, after every writer of the source has executed `fence_proxy_async` and synchronised with
    it.
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

    Each element of the tensor becomes `operation` of itself and the tile's element, under the rules
    of `cp_reduce_async_bulk_tensor`: the map's element type decides what is legal
    (`DType.reductions`). All else is as for `cp_async_bulk_tensor_im2col_store`. Executed by one
    thread.
    """
    simulator.check_choice("operation", operation, get_args(TensorReduction))
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
    """Bring the pixels that a load with these operands would copy into the L2 cache.

    Nothing tells when they are there. Executed by one thread. Orders nothing.
    """
    simulator.cp_async_bulk_prefetch_tensor_im2col(tensor_map, coordinates, offsets)
