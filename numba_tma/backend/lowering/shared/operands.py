"""The typers' checks of a copy's operands: a map, a tile, an operation."""

from __future__ import annotations

from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import ObjectType, TypingError, signature, types
from numba_tma.backend.lowering.types import TensorMapArrayType, TensorMapType
from numba_tma.device.shared import SharedTile, require_reduction, require_tiled_map
from numba_tma.host.dtypes import reduction_violation
from numba_tma.host.layout import Tile


def tile_of(typ: types.Type) -> Tile | None:
    """Return the tile of a shared tile's type; None for a plain address."""
    return typ.static[0] if isinstance(typ, ObjectType) and typ.cls is SharedTile else None


def require_map(what: str, given: types.Type) -> None:
    """Raise unless `given` is a TensorMap; passing the array itself is the usual mistake."""
    if isinstance(given, TensorMapArrayType):
        raise TypingError(f"{what}: tensor_map is {given}; index it: give maps[i]")
    sequence = getattr(getattr(given, "cls", None), "shared_kind", None) == "map"
    if not isinstance(given, TensorMapType) and not sequence:
        raise TypingError(
            f"{what}: tensor_map is {given}; pass tensor_map(array, tile) to the kernel, not the "
            "array"
        )


def check_reduction(what: str, tensor_map: types.Type, op: types.Type) -> None:
    """Raise a TypingError if the map's element type is known and lacks the operation."""
    if tensor_map.tile is not None:
        value = op.literal_value if isinstance(op, types.Literal) else op
        if violation := reduction_violation(tensor_map.tile.dtype, value):
            raise TypingError(f"{what}: {violation}")


def _type_require_tiled_map(what: Any, tensor_map: Any, otherwise: Any) -> Any:
    name = compiler.static_of(what, "what")
    require_map(name, tensor_map)
    if getattr(tensor_map, "mode", "tiled") != "tiled":
        raise TypingError(
            f"{name} takes maps of tensor_map, not {tensor_map}: {otherwise.literal_value}"
        )
    return signature(types.void, what, tensor_map, otherwise)


def _type_require_reduction(what: Any, tensor_map: Any, op: Any) -> Any:
    require_map(compiler.static_of(what, "what"), tensor_map)
    name, of = (
        compiler.static_of(what, "what"),
        getattr(tensor_map, "field_types", (tensor_map,))[0],
    )
    try:
        compiler.static_of(op, "op")
    except TypingError:
        raise TypingError(
            f"{name}: op is part of the instruction, so a literal such as 'add', not {op}"
        ) from None
    check_reduction(name, of, op)
    return signature(types.void, what, tensor_map, op)


def _lower_nothing(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return context.get_dummy_value()


compiler.instruction_function(require_tiled_map, _type_require_tiled_map, _lower_nothing)
compiler.instruction_function(require_reduction, _type_require_reduction, _lower_nothing)
