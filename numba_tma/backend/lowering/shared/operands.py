"""What the typers of copies ask of their operands: a map, a tile, an operation."""

from __future__ import annotations

from numba_tma.backend.compiler import ObjectType, TypingError, types
from numba_tma.backend.lowering.types import TensorMapArrayType, TensorMapType
from numba_tma.device.shared import SharedTile
from numba_tma.host.dtypes import reduction_violation
from numba_tma.host.layout import Tile


def tile_of(typ: types.Type) -> Tile | None:
    """Return the tile of a shared tile's type; None for a plain address."""
    return typ.static[0] if isinstance(typ, ObjectType) and typ.cls is SharedTile else None


def require_map(what: str, given: types.Type) -> None:
    """Raise unless `given` is a TensorMap; an array in its place is the likeliest slip."""
    if isinstance(given, TensorMapArrayType):
        raise TypingError(f"{what}: tensor_map is {given}; index it: give maps[i]")
    sequence = getattr(getattr(given, "cls", None), "shared_kind", None) == "map"
    if not isinstance(given, TensorMapType) and not sequence:
        raise TypingError(
            f"{what}: tensor_map is {given}; pass tensor_map(array, tile) to the kernel, not the "
            "array"
        )


def check_reduction(what: str, tensor_map: types.Type, op: types.Type) -> None:
    """Raise a TypingError unless the element type of a map, if it is known, has an operation."""
    if tensor_map.tile is not None:
        value = op.literal_value if isinstance(op, types.Literal) else op
        if violation := reduction_violation(tensor_map.tile.dtype, value):
            raise TypingError(f"{what}: {violation}")
