"""The compile-time checks of a copy's operands: a map, a tile, coordinates, an operation.

The rules see the types of a kernel's arguments, and literals. They skip the simulator, where
`numba_tma.simulator.checks` has the values.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from numba_tma.backend.interface import Unknown, class_of, compile_time
from numba_tma.device.barrier import PairBarrier
from numba_tma.device.shared import SharedTile
from numba_tma.host.boxes import WITHOUT_SLICE, copies_of
from numba_tma.host.dtypes import reduction_violation
from numba_tma.host.layout import Tile
from numba_tma.host.packed_rules import unpacked_store
from numba_tma.host.tensor_map import TensorMap, maker_of, wrong_mode
from numba_tma.host.tensor_map_array import TensorMapArray
from numba_tma.simulator import BadOperand, require_integers


def tile_of(given: object) -> Tile | None:
    """Return the tile of a shared tile; None for a plain address."""
    return given.tile if isinstance(given, Unknown) and given.cls is SharedTile else None


def is_sequence(given: object) -> TypeGuard[Unknown]:
    """Return whether an operand is one sequence of a ragged map."""
    return isinstance(given, Unknown) and getattr(given.cls, "shared_kind", None) == "map"


def is_map(given: object) -> TypeGuard[Unknown]:
    """Return whether an operand is a tensor map, ragged or not."""
    return isinstance(given, Unknown) and issubclass(given.cls or object, TensorMap)


@compile_time
def require_map(what: str, given: object) -> None:
    """Raise unless `given` is a map or a sequence; passing the array is the usual mistake."""
    if not isinstance(given, Unknown) or is_map(given) or is_sequence(given):
        return
    if given.cls is TensorMapArray:
        raise BadOperand(f"{what}: tensor_map is {given}; index it: give maps[i]")
    raise BadOperand(
        f"{what}: tensor_map is {given}; pass tensor_map(array, tile) to the kernel, not the array"
    )


@compile_time
def require_tiled_map(what: str, tensor_map: object, otherwise: str) -> None:
    """Raise unless a map is one of `tensor_map`; `otherwise` is the repair."""
    require_map(what, tensor_map)
    if is_map(tensor_map) and tensor_map.mode != "tiled":
        raise BadOperand(f"{what} takes maps of tensor_map, not {tensor_map}: {otherwise}")


@compile_time
def require_reduction(what: str, tensor_map: object, op: str) -> None:
    """Raise unless `op` is a literal, and the map's element type has the reduction."""
    if isinstance(op, Unknown):
        raise BadOperand(
            f"{what}: op is part of the instruction, so a literal such as 'add', not {op}"
        )
    if isinstance(tensor_map, Unknown):
        copied = tensor_map.tensor_map if is_sequence(tensor_map) else tensor_map
        check_reduction(what, copied, op)


def check_reduction(what: str, tensor_map: Any, op: object) -> None:
    """Raise if the map's element type is known and lacks the reduction."""
    if tensor_map.tile is not None:
        if violation := reduction_violation(tensor_map.tile.dtype, op):
            raise BadOperand(f"{what}: {violation}")


def check_copy(what: str, tensor_map: Any, tile: object, coords: Any, mode: str = "tiled") -> None:
    """Raise when a tile, a map and literal coordinates cannot go together."""
    rank, box, held = tensor_map.rank, tensor_map.tile, tile_of(tile)
    coordinates = coords.elements
    require_integers(f"{what}: coords", coordinates, coords)
    if box is not None and tensor_map.mode != mode:
        raise BadOperand(f"{what}: {wrong_mode(str(tensor_map), tensor_map.mode)}")
    sliced = bool(tensor_map.interleave) and mode == "tiled"
    if rank is not None and rank - sliced != len(coordinates):
        raise BadOperand(
            f"{what}: {len(coordinates)} coordinates for {tensor_map}, which has rank {rank}; give "
            f"one coordinate per axis, in the array's axis order{WITHOUT_SLICE if sliced else ''}"
        )
    if box is not None and held is not None and box != held:
        raise BadOperand(
            f"{what}: the map copies {box} but the tile in shared memory is {held}; make the map "
            f"with {maker_of(mode)}(array, {held}) or the tile from the "
            "map's box"
        )
    if box is None:
        if held is not None and not copies_of(held).is_one_box:
            count = copies_of(held).count
            needed = f"{count} copies" if count > 1 else f"coordinates in {held.dtype.word}"
            raise BadOperand(
                f"{what}: {held} takes {needed}, but of {tensor_map} only the rank is known, and "
                "so one copy: leave the signature of the device function out"
            )
        return
    inner = coordinates[-1] if coordinates else 0
    if sliced or not isinstance(inner, int):
        return  # the innermost coordinate is in whole slices, or known at run time only
    if inner % (unit := box.dtype.coordinate_unit):
        raise BadOperand(
            f"{what}: the innermost coordinate is {inner}, which is {box.dtype.nbytes(inner)} B "
            f"into the row; TMA needs a multiple of {box.dtype.nbytes(unit)} B (on the GPU this is "
            f"an illegal instruction): use a multiple of {unit} elements"
        )
    copies = tensor_map.copies
    if copies is not None and copies.fold and inner % copies.part:
        raise BadOperand(
            f"{what}: the innermost coordinate is {inner}; a map with fold=True moves parts of "
            f"{copies.part} elements: use a multiple of {copies.part}, or a map without fold"
        )


def check_pair(what: str, barrier: object, cta_group: object) -> None:
    """Raise unless a load's `cta_group` is a literal, and that of its barrier."""
    if cta_group not in (None, 1, 2) or isinstance(cta_group, bool | Unknown):
        shown = cta_group if isinstance(cta_group, Unknown) else repr(cta_group)
        raise BadOperand(
            f"{what}(cta_group=...) is part of the instruction: the literal 1, or 2 for a CTA "
            f"pair, not {shown}"
        )
    if class_of(barrier) is PairBarrier and cta_group != 2:
        raise BadOperand(
            f"{what}: the barrier is that of a CTA pair's stage, in the even block, but the load "
            f"has cta_group={cta_group or 1}, whose barrier is in its own block: give cta_group=2"
        )


def check_rows(what: str, tensor_map: Any, tile: object, rows: Any, column: object) -> None:
    """Raise when a map, a tile, row numbers and a column cannot go together.

    Both the compiler and the simulator call it.
    """
    if getattr(tensor_map, "mode", "gather") != "gather":
        raise BadOperand(f"{what}: {wrong_mode(str(tensor_map), tensor_map.mode)}")
    box, held = tensor_map.tile, getattr(tile, "tile", None)
    if held is not None and held != box:
        raise BadOperand(
            f"{what}: the map copies {box} but the tile in shared memory is {held}; make the map "
            f"with gather_map(array, {held}) or the tile from the map's"
        )
    stores = what.endswith("scatter")
    if stores and tensor_map.partial_rows:
        raise BadOperand(f"{what}: {tensor_map.partial_rows}")
    numbers = rows.elements if isinstance(rows, Unknown) else rows
    if isinstance(numbers, tuple):
        if len(numbers) != box.shape[0]:
            raise BadOperand(
                f"{what}: {len(numbers)} row numbers for a tile of {box.shape[0]} rows; give one "
                "for each, and -1 for a row of a load that is not needed"
            )
        for place, number in enumerate(numbers):
            if isinstance(number, int) and number < 0 and stores:
                raise BadOperand(
                    f"{what}: the number of row {place} is {number}; a store never starts before "
                    "the tensor (on the GPU this is an illegal instruction): give a number past "
                    "its end to a row that is not stored"
                )
    if isinstance(column, int) and column * box.itemsize % 16:
        raise BadOperand(
            f"{what}: the column is {column}, which is {column * box.itemsize} B into the row; TMA "
            "needs a multiple of 16 B (on the GPU this is an illegal instruction): use a multiple "
            f"of {box.dtype.chunk} elements"
        )


def check_store(what: str, tensor_map: Any, coords: Any) -> None:
    """Raise when a store through a map would trap, or write beside its target."""
    kind = "reduction" if what.endswith("reduce") else "store"
    if tensor_map.partial_rows:
        raise BadOperand(f"{what}: {tensor_map.partial_rows}")
    if tensor_map.tile is not None and (wrong := unpacked_store(tensor_map.tile.dtype)):
        raise BadOperand(f"{what}: {wrong}")
    for axis, coordinate in enumerate(coords.elements):
        if isinstance(coordinate, int) and coordinate < 0:
            raise BadOperand(
                f"{what}: the coordinate of axis {axis} is {coordinate}; a {kind} starts inside or "
                "past the tensor, never before it (on the GPU this is an illegal instruction): "
                "move the tile to 0 and store less of it"
            )
