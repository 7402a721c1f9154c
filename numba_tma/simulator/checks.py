"""Checks that the compiler makes on a GPU, and the simulator when a thread reaches the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numba_tma.host.boxes import WITHOUT_SLICE
from numba_tma.host.host_only import not_in_shared_memory
from numba_tma.host.tensor_map import maker_of, wrong_mode
from numba_tma.simulator.errors import BadCoordinate, BadOperand
from numba_tma.simulator.thread import WARP_SIZE, current

if TYPE_CHECKING:
    from numba_tma.host.tensor_map import TensorMap


def check_block(what: str, minimum: int) -> None:
    """Raise unless the block has whole warps and at least `minimum` threads."""
    cta = current().cta
    threads = len(cta.threads)
    if any(extent > 1 for extent in cta.block_dim[1:]):
        raise BadOperand(
            f"{what}: the block has the dimensions {tuple(cta.block_dim)}; a kernel with it has "
            f"one-dimensional blocks of whole warps: launch blocks of {threads} threads"
        )
    if threads % WARP_SIZE or threads < minimum:
        raise BadOperand(
            f"{what}: the block has {threads} threads; it needs a multiple of {WARP_SIZE}, and at "
            f"least {minimum}"
        )


def check_copy(
    tensor_map: TensorMap,
    tile: Any,
    coords: Sequence[int],
    barrier: Any = None,
    mode: str = "tiled",
) -> None:
    """Raise unless a shared tile, a barrier and coordinates go together with a map."""
    check_coordinates(tensor_map, coords, mode)
    for role, operand in (("tile", tile), ("barrier", barrier)):
        kind = getattr(operand, "shared_kind", None)
        if kind is None and role == "tile" and not isinstance(operand, int | np.integer):
            _check_array(tensor_map, operand)
        kind = kind or role
        if kind != role:
            raise BadOperand(
                f"a copy with {tensor_map} takes {_TAKES[role]}, not {type(operand).__name__}: "
                f"a {kind} is given where the {role} belongs"
            )
    if barrier is None and tensor_map.partial_rows:
        raise BadOperand(f"a store through {tensor_map}: {tensor_map.partial_rows}")
    box = getattr(tile, "tile", tensor_map.tile)
    if box != tensor_map.tile:
        raise BadOperand(
            f"the map copies {tensor_map.tile} but the tile in shared memory is {box}; make the "
            f"map with {maker_of(mode)}(array, {box}) or the tile from "
            "the map's box"
        )


_TAKES = {
    "tile": "a tile in shared memory",
    "barrier": "a Barrier (or its shared-memory address)",
}


def _check_array(tensor_map: TensorMap, given: object) -> None:
    """Raise unless `given` is an array in the block's shared memory."""
    if not isinstance(given, np.ndarray):
        raise BadOperand(
            f"a copy with {tensor_map} takes {_TAKES['tile']}, not {type(given).__name__}: "
            + not_in_shared_memory("an array" if hasattr(given, "ndim") else type(given).__name__)
        )


def require_integers(name: str, coords: object, shown: object = None) -> None:
    """Raise unless `coords` is a tuple of integers; the compiler's `Unknown` says what it is.

    `shown` is what the error shows, where `coords` has only the elements of it.
    """
    if not isinstance(coords, tuple) or not all(map(_is_integer, coords)):
        raise BadOperand(
            f"{name} takes a tuple of 1 to 5 integers in the array's axis order, not "
            f"{coords if shown is None else shown}"
        )


def _is_integer(number: object) -> bool:
    if isinstance(number, int | np.integer):
        return not isinstance(number, bool)
    return getattr(number, "is_integer", None) is True  # the compiler's


def check_coordinates(tensor_map: TensorMap, coords: Sequence[int], mode: str = "tiled") -> None:
    """Raise unless a map has this mode and these coordinates."""
    require_integers("coords", coords)
    if tensor_map.mode != mode:
        raise BadOperand(f"a copy of another mode: {wrong_mode(str(tensor_map), tensor_map.mode)}")
    sliced = bool(tensor_map.interleave) and mode == "tiled"
    if len(coords) != tensor_map.rank - sliced:
        raise BadOperand(
            f"{len(coords)} coordinates for {tensor_map}, which has rank {tensor_map.rank}; give "
            f"one per axis, in the array's axis order{WITHOUT_SLICE if sliced else ''}"
        )
    if tensor_map.copies.fold and coords[-1] % tensor_map.copies.part:
        part = tensor_map.copies.part
        raise BadCoordinate(
            f"the innermost coordinate is {coords[-1]}; a map with fold=True moves parts of {part} "
            f"elements: use a multiple of {part}, or a map without fold. On a GPU this is an "
            "illegal instruction that loses the context"
        )
