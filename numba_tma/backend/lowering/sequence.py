"""How kernels copy within a sequence of a ragged map: the compiled half of `sequence`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    Builder,
    Context,
    ObjectType,
    Signature,
    TypingError,
    Value,
    get_field,
    ir,
    signature,
    types,
)
from numba_tma.backend.lowering.copies import Place, emit_copies, in_order, is_pair, pair_load
from numba_tma.backend.lowering.instructions import type_call
from numba_tma.backend.lowering.types import (
    RAGGED_METHODS,
    RaggedTensorMapType,
)
from numba_tma.device import copies
from numba_tma.device.copy_rules import check_copy, check_pair, check_reduction, check_store
from numba_tma.device.sequence import RaggedSequence, only_stores
from numba_tma.ptx import TABLE
from numba_tma.ptx._instruction import Instruction

_LOAD, _STORE = TABLE["cp_async_bulk_tensor_load"], TABLE["cp_async_bulk_tensor_store"]
_PAIR_LOAD = TABLE["cp_async_bulk_tensor_load_cta_group"]
_REDUCE = TABLE["cp_reduce_async_bulk_tensor"]
_PREFETCH = TABLE["cp_async_bulk_prefetch_tensor"]


def _type_sequence(self: RaggedTensorMapType, start: types.Type, length: types.Type) -> Any:
    for name, given in (("start", start), ("length", length)):
        if not isinstance(types.unliteral(given), types.Integer):
            raise TypingError(f"RaggedTensorMap.sequence({name}=...) takes an integer, not {given}")
    result = ObjectType(RaggedSequence, (), (self, types.int32, types.int32))
    return signature(result, self, types.int32, types.int32)


def _lower_sequence(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    return compiler.make_object(context, builder, sig.return_type, list(args))


RAGGED_METHODS["sequence"] = compiler.NativeMethod(
    "RaggedTensorMap", "sequence", _type_sequence, _lower_sequence
)
compiler.LOWERED.add(copies.sequence)


def _place(context: Context, builder: Builder, typ: ObjectType, sequence: Any) -> Place:
    """Return where boxes of the sequence lie in the tensor that the hardware sees."""
    ragged = typ.field_types[0]
    start, length = (get_field(builder, typ, sequence, name) for name in ("start", "length"))
    extent = ir.Constant(I32, ragged.extent)

    def place(coords: list[Any]) -> tuple[types.Type, Any]:
        result = list(coords)
        # Rows from `length` on get coordinates from `extent` on, which lie outside.
        result[ragged.axis] = builder.add(builder.sub(extent, length), result[ragged.axis])
        result.insert(0, builder.add(start, length))
        if ragged.encoding == "wrap":
            result.insert(0, extent)
        return in_order(context, builder)(result)

    return place


def _check_row(what: str, ragged: RaggedTensorMapType, coords: types.Type) -> None:
    row = coords[ragged.axis]
    if isinstance(row, types.IntegerLiteral) and row.literal_value < 0:
        raise TypingError(
            f"{what}: the coordinate of axis {ragged.axis} is {row.literal_value}; a tile starts "
            "in its sequence or past it, since the rows before belong to another"
        )


def _typed(row: Instruction, self: types.Type, given: dict[str, Any]) -> Any:
    """Type the instruction of a method; `given` has its operands in the order of the parameters."""
    args = type_call(row, {"tensor_map": self.field_types[0], **given}).args
    return signature(types.void, self, *args[1:])


def _check(what: str, ragged: Any, tile: types.Type, coords: types.Type, reads: bool) -> None:
    if reads and ragged.encoding == "shift":
        raise TypingError(f"{what}: {only_stores(ragged.rank)}")
    compiler.run_rule(check_copy, what, ragged, tile, coords)
    _check_row(what, ragged, coords)
    if not reads:
        compiler.run_rule(check_store, what, ragged, coords)


def _type_load(
    self: types.Type,
    tile: types.Type,
    coords: types.Type,
    barrier: types.Type,
    cache_hint: types.Type = types.none,
    multicast: types.Type = types.none,
    cta_group: types.Type = types.none,
) -> Any:
    what = "RaggedTensorMap.load"
    compiler.run_rule(check_pair, what, barrier, cta_group)
    given = {"destination": tile, "coordinates": coords, "barrier": barrier}
    given |= {"cache_hint": cache_hint, "multicast": multicast}
    sig = _typed(_LOAD, self, given)
    if is_pair(cta_group):
        _typed(_PAIR_LOAD, self, given | {"cta_group": cta_group})
    _check(what, self.field_types[0], tile, coords, reads=True)
    return signature(types.void, *sig.args, cta_group)


def _type_store(
    self: types.Type, tile: types.Type, coords: types.Type, cache_hint: types.Type = types.none
) -> Any:
    given = {"source": tile, "coordinates": coords, "cache_hint": cache_hint}
    sig = _typed(_STORE, self, given)
    _check("RaggedTensorMap.store", self.field_types[0], tile, coords, reads=False)
    return sig


def _type_reduce(
    self: types.Type,
    tile: types.Type,
    coords: types.Type,
    op: types.Type,
    cache_hint: types.Type = types.none,
) -> Any:
    what, ragged = "RaggedTensorMap.reduce", self.field_types[0]
    compiler.run_rule(check_reduction, what, ragged, op)
    given = {"source": tile, "coordinates": coords, "operation": op, "cache_hint": cache_hint}
    sig = _typed(_REDUCE, self, given)
    _check(what, ragged, tile, coords, reads=False)
    return sig


def _type_prefetch_tile(
    self: types.Type, coords: types.Type, cache_hint: types.Type = types.none
) -> Any:
    sig = _typed(_PREFETCH, self, {"coordinates": coords, "cache_hint": cache_hint})
    _check("RaggedTensorMap.prefetch_tile", self.field_types[0], None, coords, reads=True)
    return sig


def _lower_copy(row: Instruction, *names: str) -> Any:
    def lower(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
        typ = sig.args[0]
        given = dict(zip(names, zip(sig.args[1:], args[1:])))
        tensor_map = get_field(builder, typ, args[0], "tensor_map")
        given["tensor_map"] = typ.field_types[0], tensor_map
        place = _place(context, builder, typ, args[0])
        if is_pair(given.pop("cta_group", (types.none, None))[0]):
            given = pair_load(context, builder, given)
            return emit_copies(_PAIR_LOAD, context, builder, given, place)
        return emit_copies(row, context, builder, given, place)

    return lower


for _name, _typer, _row, _operands in (
    ("load", _type_load, _LOAD, "destination coordinates barrier cache_hint multicast cta_group"),
    ("store", _type_store, _STORE, "source coordinates cache_hint"),
    ("reduce", _type_reduce, _REDUCE, "source coordinates operation cache_hint"),
    ("prefetch_tile", _type_prefetch_tile, _PREFETCH, "coordinates cache_hint"),
):
    _lower = _lower_copy(_row, *_operands.split())
    compiler.native_method(RaggedSequence, _name, _typer, _lower)
