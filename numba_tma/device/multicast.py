"""Partitioned multicast: each block of a cluster loads one slice of a tile for all of them."""

from __future__ import annotations

from typing import Any

from numba_tma.backend.interface import Unknown, class_of, native
from numba_tma.device.copies import start_load
from numba_tma.device.copy_rules import check_copy, check_pair, require_map
from numba_tma.device.shared import SharedTile
from numba_tma.host.boxes import Copies
from numba_tma.host.layout import Tile
from numba_tma.host.ragged import RaggedTensorMap
from numba_tma.host.tensor_map import TensorMap, wrong_mode
from numba_tma.ptx import CachePolicy
from numba_tma.ptx._instruction import BarrierAddress
from numba_tma.ptx.blackwell import CtaGroup
from numba_tma.simulator import BadOperand

NO_SLICES = (
    "the blocks share the tiles of a map of tensor_map(array, slice); of a ragged one each block "
    "loads its own tile, with y.sequence(start, length).load(..., multicast=mask)"
)


@native
def load_partitioned(
    tensor_map: TensorMap,
    tile: SharedTile,
    coords: tuple[int, ...],
    barrier: BarrierAddress,
    rank: int,
    cache_hint: CachePolicy | int | None = None,
    multicast: int | None = None,
    cta_group: CtaGroup = 1,
) -> None:
    """Load this block's slice of `tile` into every block of the group.

    Executed by one thread of each block of the group. A slice is an n-th of the tile along its
    first axis, for a group of n blocks, and the map copies one slice. Together the blocks read the
    tile from global memory once. Each block receives the whole tile and expects ``tile.nbytes`` on
    its own `barrier`. Before any block calls this, all blocks have initialised their barriers and
    released their tiles, which a barrier of the cluster orders. No block exits before the copies
    complete.

    Parameters
    ----------
    tensor_map
        A map whose tile is one slice.
    tile, barrier
        In shared memory, at the same offset in every block of the group.
    coords
        First element of the whole tile in the tensor, the same for every block.
    rank
        Number of the slice that this block loads, from 0.
    cache_hint
        L2 eviction policy; None for the default.
    multicast
        The group: bit r is the block of rank r in the cluster. By default the ranks from 0 to the
        number of slices.
    cta_group
        That of `TensorMap.load`. With 2 the blocks of a group have one place in their CTA pairs,
        and the tile's bytes count on the barrier of each pair's even block.
    """
    check_pair("load_partitioned", barrier, cta_group)
    slices, box = check_slices(tensor_map, tile, coords, rank), tensor_map.tile
    ((_, moved),) = tensor_map.copies.each((coords[0] + rank * box.shape[0], *coords[1:]))
    start_load(
        tile.address + rank * box.shared_nbytes,
        tensor_map,
        moved,
        barrier,
        cache_hint,
        (1 << slices) - 1 if multicast is None else multicast,
        cta_group,
    )


def check_slices(tensor_map: Any, tile: Any, coords: object, rank: int) -> int:
    """Return into how many slices a tile is cut; raise unless the operands go together."""
    what = "load_partitioned"
    require_map(what, tensor_map)
    cls = class_of(tensor_map) or object
    if not issubclass(cls, TensorMap) or issubclass(cls, RaggedTensorMap):
        raise BadOperand(f"{what}: {NO_SLICES}, not {tensor_map}")
    if tensor_map.mode != "tiled":
        raise BadOperand(f"{what}: {wrong_mode(str(tensor_map), tensor_map.mode)}")
    if tensor_map.tile is None:
        raise BadOperand(
            f"{what}: nothing is known of the tile of {tensor_map}; pass tensor_map(array, slice) "
            "to the kernel"
        )
    if class_of(tile) is not SharedTile:
        raise BadOperand(f"{what}(tile=...) takes a SharedTile, not {tile}")
    try:
        slices = count_slices(tile.tile, tensor_map.copies)
    except ValueError as error:
        raise BadOperand(f"{what}: {error}") from None
    if isinstance(rank, Unknown):
        if not rank.is_integer:
            raise BadOperand(f"{what}(rank=...) takes an integer, not {rank}")
    elif not 0 <= rank < slices:
        raise BadOperand(f"{what}: rank is {rank}; the tile has the slices 0 to {slices - 1}")
    if isinstance(coords, Unknown) and coords.elements is not None:
        check_copy(what, tensor_map, None, coords)
    return slices


def count_slices(tile: Tile, copies: Copies) -> int:
    """Return into how many boxes a tile is cut along its first axis, or raise a ValueError."""
    box = copies.tile
    if copies.count > 1 or copies.fold:
        raise ValueError(
            f"a slice is one copy, unfolded, but the map moves {box} in "
            f"{'a folded one' if copies.fold else copies.count}: use a narrower tile"
        )
    slices, rest = divmod(tile.shape[0], box.shape[0])
    if (
        rest
        or (tile.shape[1:], tile.dtype, tile.swizzle) != (box.shape[1:], box.dtype, box.swizzle)
        or slices > 16
    ):
        raise ValueError(
            f"{tile} is not cut along its first axis into slices of {box}: the map's tile has an "
            "n-th of its rows, for a group of n blocks (1 to 16), and all else alike"
        )
    if slices > 1 and box.shared_nbytes % box.alignment:
        raise ValueError(
            f"a slice of {box} has {box.shared_nbytes} B; the next one would not start at a "
            f"multiple of {box.alignment} B, as the copy engine needs: use a tile with more rows, "
            "or fewer slices"
        )
    return slices
