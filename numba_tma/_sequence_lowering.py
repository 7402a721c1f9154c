"""How kernels copy within a sequence of a ragged map: the compiled half of `sequence`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from numba_tma import _compiler as compiler
from numba_tma import _shared_lowering as shared_lowering
from numba_tma._compiler import I32, ObjectType, TypingError, get_field, signature
from numba_tma.ptx import TABLE
from numba_tma.ptx._lowering import emit, type_call
from numba_tma.sequence import RaggedSequence, only_stores
from numba_tma.types import RAGGED_METHODS, RaggedTensorMapType, check_copy, check_store

_LOAD, _STORE = TABLE["cp_async_bulk_tensor_load"], TABLE["cp_async_bulk_tensor_store"]


def _type_sequence(self: RaggedTensorMapType, start: types.Type, length: types.Type) -> Any:
    for name, given in (("start", start), ("length", length)):
        if not isinstance(types.unliteral(given), types.Integer):
            raise TypingError(f"RaggedTensorMap.sequence({name}=...) takes an integer, not {given}")
    result = ObjectType(RaggedSequence, (), (self, types.int32, types.int32))
    return signature(result, self, types.int32, types.int32)


def _lower_sequence(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return compiler.make_object(context, builder, sig.return_type, list(args))


RAGGED_METHODS["sequence"] = compiler.NativeMethod(
    "RaggedTensorMap", "sequence", _type_sequence, _lower_sequence
)


def _coordinates(
    context: Any, builder: Any, typ: ObjectType, sequence: Any, coords: Any
) -> tuple[types.Type, Any]:
    """Return where a tile of the sequence lies in the tensor that the hardware sees."""
    ragged = typ.field_types[0]
    start, length = (get_field(builder, typ, sequence, name) for name in ("start", "length"))
    extent = ir.Constant(I32, ragged.extent)
    result = [builder.extract_value(coords, i) for i in range(ragged.rank)]
    # Rows from `length` on get coordinates from `extent` on, which lie outside.
    result[ragged.axis] = builder.add(builder.sub(extent, length), result[ragged.axis])
    result.insert(0, builder.add(start, length))
    if ragged.encoding == "wrap":
        result.insert(0, extent)
    kind = types.UniTuple(types.int32, len(result))
    return kind, context.make_tuple(builder, kind, result)


def _check_row(what: str, ragged: RaggedTensorMapType, coords: types.Type) -> None:
    row = coords[ragged.axis]
    if isinstance(row, types.IntegerLiteral) and row.literal_value < 0:
        raise TypingError(
            f"{what}: the coordinate of axis {ragged.axis} is {row.literal_value}; a tile starts "
            "in its sequence or past it, since the rows before belong to another"
        )


def _type_load(
    self: Any, tile: Any, coords: Any, barrier: Any, cache_hint: Any = types.none
) -> Any:
    what, ragged = "RaggedTensorMap.load", self.field_types[0]
    if ragged.encoding == "shift":
        raise TypingError(f"{what}: {only_stores(ragged.rank)}")
    given = {"destination": tile, "coordinates": coords, "barrier": barrier}
    sig = type_call(_LOAD, given | {"tensor_map": ragged, "cache_hint": cache_hint})
    check_copy(what, ragged, shared_lowering.tile_of(tile), coords)
    _check_row(what, ragged, coords)
    hint = [] if cache_hint is types.none else [sig.args[-1]]
    return signature(types.void, self, *sig.args[:3], *hint)


def _type_store(self: Any, tile: Any, coords: Any, cache_hint: Any = types.none) -> Any:
    what, ragged = "RaggedTensorMap.store", self.field_types[0]
    given = {"source": tile, "coordinates": coords}
    sig = type_call(_STORE, given | {"tensor_map": ragged, "cache_hint": cache_hint})
    check_copy(what, ragged, shared_lowering.tile_of(tile), coords)
    _check_row(what, ragged, coords)
    check_store(what, ragged, coords)
    hint = [] if cache_hint is types.none else [sig.args[-1]]
    return signature(types.void, self, *sig.args[:2], *hint)


def _lower_copy(row: Any, *names: str) -> Any:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        typ = sig.args[0]
        given = dict(zip(names, zip(sig.args[1:], args[1:])))
        given["coordinates"] = _coordinates(context, builder, typ, args[0], given["coordinates"][1])
        tensor_map = get_field(builder, typ, args[0], "tensor_map")
        given["tensor_map"] = typ.field_types[0], tensor_map
        return emit(row, context, builder, given)

    return lower


compiler.native_method(
    RaggedSequence,
    "load",
    _type_load,
    _lower_copy(_LOAD, "destination", "coordinates", "barrier", "cache_hint"),
)
compiler.native_method(
    RaggedSequence, "store", _type_store, _lower_copy(_STORE, "source", "coordinates", "cache_hint")
)
