"""The methods of a tensor map in kernels: what the simulator runs, declared for the compiler.

Their signatures and what they promise stand in `numba_tma.host.tensor_map.TensorMap` and
`numba_tma.host.im2col.Im2colMap`, which call these bodies; their lowerings have the same names.
"""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.backend.interface import native
from numba_tma.device.barrier import pair_barrier
from numba_tma.device.copy_rules import check_pair
from numba_tma.device.gather import gather as gather
from numba_tma.device.gather import prefetch_rows as prefetch_rows
from numba_tma.device.gather import scatter as scatter
from numba_tma.device.sequence import RaggedSequence
from numba_tma.host.annotations import Coordinates, Integer
from numba_tma.host.im2col_rules import MAX_HALO
from numba_tma.host.ragged import RaggedTensorMap
from numba_tma.host.tensor_map import TensorMap
from numba_tma.ptx import (
    cp_async_bulk_prefetch_tensor,
    cp_async_bulk_tensor_im2col_load,
    cp_async_bulk_tensor_im2col_load_cta_group,
    cp_async_bulk_tensor_im2col_store,
    cp_async_bulk_tensor_im2col_w_128_load,
    cp_async_bulk_tensor_im2col_w_load,
    cp_async_bulk_tensor_load,
    cp_async_bulk_tensor_load_cta_group,
    cp_async_bulk_tensor_store,
    cp_reduce_async_bulk_tensor,
    fence_proxy_tensormap_acquire,
    prefetch_tensormap,
)
from numba_tma.ptx._instruction import BarrierAddress, CacheHint, TileAddress, address
from numba_tma.ptx.blackwell import CtaGroup
from numba_tma.ptx.reduce import TensorReduction


@native
def load(
    tensor_map: TensorMap,
    tile: TileAddress,
    coords: Coordinates,
    barrier: BarrierAddress,
    cache_hint: CacheHint = None,
    multicast: int | None = None,
    cta_group: CtaGroup = 1,
) -> None:
    """Run `TensorMap.load`: one instruction per box of the tile."""
    simulator.check_copy(tensor_map, tile, coords, barrier)
    check_pair("TensorMap.load", barrier, cta_group)
    for offset, moved in tensor_map.copies.each(coords):
        start_load(
            address(tile) + offset, tensor_map, moved, barrier, cache_hint, multicast, cta_group
        )


def start_load(
    destination: int,
    tensor_map: TensorMap,
    coords: Coordinates,
    barrier: BarrierAddress,
    cache_hint: CacheHint,
    multicast: int | None,
    cta_group: CtaGroup,
) -> None:
    """Start one copy of a load (simulator); with `cta_group` 2 on the even block's barrier."""
    if cta_group == 2:
        cp_async_bulk_tensor_load_cta_group(
            destination, tensor_map, coords, pair_barrier(barrier), 2, cache_hint, multicast
        )
    else:
        cp_async_bulk_tensor_load(destination, tensor_map, coords, barrier, cache_hint, multicast)


@native
def store(
    tensor_map: TensorMap, tile: TileAddress, coords: Coordinates, cache_hint: CacheHint = None
) -> None:
    """Run `TensorMap.store`: one instruction per box of the tile."""
    simulator.check_copy(tensor_map, tile, coords)
    for offset, moved in tensor_map.copies.each(coords):
        cp_async_bulk_tensor_store(tensor_map, moved, address(tile) + offset, cache_hint)


@native
def fence_acquire(tensor_map: TensorMap) -> None:
    """Run `TensorMap.fence_acquire`."""
    fence_proxy_tensormap_acquire(tensor_map, "gpu")


@native
def reduce(
    tensor_map: TensorMap,
    tile: TileAddress,
    coords: Coordinates,
    op: TensorReduction,
    cache_hint: CacheHint = None,
) -> None:
    """Run `TensorMap.reduce`: one instruction per box of the tile."""
    simulator.check_copy(tensor_map, tile, coords)
    for offset, moved in tensor_map.copies.each(coords):
        cp_reduce_async_bulk_tensor(tensor_map, moved, address(tile) + offset, op, cache_hint)


@native
def prefetch_tile(tensor_map: TensorMap, coords: Coordinates, cache_hint: CacheHint = None) -> None:
    """Run `TensorMap.prefetch_tile`: one instruction per box of the tile."""
    simulator.check_coordinates(tensor_map, coords)
    for _, moved in tensor_map.copies.each(coords):
        cp_async_bulk_prefetch_tensor(tensor_map, moved, cache_hint)


@native
def load_im2col(
    tensor_map: TensorMap,
    tile: TileAddress,
    coords: Coordinates,
    offsets: Coordinates,
    barrier: BarrierAddress,
    cache_hint: CacheHint = None,
    multicast: int | None = None,
    cta_group: CtaGroup = 1,
) -> None:
    """Run `Im2colMap.load_im2col`."""
    mode = tensor_map.mode if tensor_map.mode in MAX_HALO else "im2col"
    simulator.check_copy(tensor_map, tile, coords, barrier, mode=mode)
    check_pair("TensorMap.load_im2col", barrier, cta_group)
    home = pair_barrier(barrier) if cta_group == 2 else barrier
    if mode != "im2col":
        if len(offsets) != 1:
            raise simulator.BadOperand(
                f"TensorMap.load_im2col: {len(offsets)} offsets for {tensor_map}, which walks "
                "along W alone: give (w,), and add the others to the coordinates"
            )
        wide = cp_async_bulk_tensor_im2col_w_load
        load_pixels = wide if mode == "im2col_w" else cp_async_bulk_tensor_im2col_w_128_load
        load_pixels(
            *(tile, tensor_map, coords, home, 0, offsets[0], cache_hint, multicast),
            2 if cta_group == 2 else None,
        )
    elif cta_group == 2:
        cp_async_bulk_tensor_im2col_load_cta_group(
            tile, tensor_map, coords, home, offsets, 2, cache_hint, multicast
        )
    else:
        cp_async_bulk_tensor_im2col_load(
            tile, tensor_map, coords, barrier, offsets, cache_hint, multicast
        )


@native
def store_im2col(
    tensor_map: TensorMap, tile: TileAddress, coords: Coordinates, cache_hint: CacheHint = None
) -> None:
    """Run `Im2colMap.store_im2col`."""
    simulator.check_copy(tensor_map, tile, coords, mode="im2col")
    cp_async_bulk_tensor_im2col_store(tensor_map, coords, tile, cache_hint)


@native
def prefetch(tensor_map: TensorMap) -> None:
    """Run `TensorMap.prefetch`."""
    prefetch_tensormap(tensor_map)


@native
def sequence(tensor_map: RaggedTensorMap, start: Integer, length: Integer) -> RaggedSequence:
    """Run `RaggedTensorMap.sequence`."""
    return RaggedSequence(tensor_map, start, length)
