"""How kernels hold a share of a row in registers: the compiled half of `row_share`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    I64,
    Builder,
    Context,
    Signature,
    Value,
    VectorType,
    ir,
    pack,
    signature,
    types,
    unpack,
)
from numba_tma.backend.lowering import unaligned_share
from numba_tma.backend.lowering.elements import floats_to_pair, pair_to_floats
from numba_tma.backend.lowering.instructions import emit
from numba_tma.backend.lowering.operands import BELOW
from numba_tma.backend.lowering.unaligned_share import Row
from numba_tma.device import row_share
from numba_tma.device.share import Share
from numba_tma.ptx import TABLE

FLOAT, I16 = ir.FloatType(), ir.IntType(16)
_FLOATS = types.float32


def _share(typ: types.Type, function: str) -> Share:
    share: Share = compiler.static_of(typ, f"{function}(share=...)")
    return share


def _packed(share: Share) -> VectorType:
    return VectorType(types.uint32, share.words)


def _vector(share: Share) -> VectorType:
    return VectorType(_FLOATS, share.values)


# ------------------------------------------------------------------------------ accesses


def _is_there(builder: Builder, share: Share, k: int, first: Value, limit: Value) -> Any:
    index = builder.add(first, ir.Constant(I32, k * share.step))
    return builder.icmp_signed("<", index, limit)


def _accesses(
    builder: Builder, share: Share, nbytes: int, location: Value, first: Value, limit: Value
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the address of each access, `nbytes` long, and its condition if it has one."""
    kind = location.type
    wide = builder.sext(first, kind) if kind == I64 else first
    unit = nbytes * share.unit_elements // share.lanes  # bytes of what `first` counts
    base = builder.add(location, builder.mul(wide, ir.Constant(kind, unit)))
    for k in range(share.count):
        condition: dict[str, Any] = {}
        if k:
            condition["offset"] = types.literal(k * share.step * nbytes), None
        if not share.whole:
            step = share.step * share.lanes // share.unit_elements
            index = builder.add(first, ir.Constant(I32, k * step))
            condition["condition"] = BELOW, (index, limit)
        yield base, condition


def _register_load(function: Any, space: str, location: types.Type, streams: bool = False) -> None:
    operand = "location" if space == "shared" else "source"

    def typer(
        share: types.Type, location_: types.Type, first: types.Type, limit: types.Type
    ) -> Any:
        static = _share(share, function.__name__)
        return signature(_packed(static), share, location, types.int32, types.int32)

    def by_name(**given: Any) -> Any:
        return typer(given["share"], given["location"], given["first"], given["limit"])

    def lower(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
        share = sig.args[0].static[0]
        row = TABLE[f"ld_{space}_{share.access}"]
        cache = _operands(share.load_operands) if streams else {}
        if not share.aligned and streams:
            return unaligned_share.load(context, builder, share, args[1:], cache)
        if not share.aligned and space == "global":
            return unaligned_share.load_anywhere(context, builder, share, args[1:])
        words: list[Any] = []
        for address, condition in _accesses(builder, share, share.width, *args[1:]):
            given = {operand: (location, address), **cache, **condition}
            loaded = emit(row, context, builder, given)
            if share.width == 2:
                loaded = builder.zext(loaded, I32)
            words += unpack(builder, loaded) if share.width > 4 else [loaded]
        return pack(builder, words)

    compiler.instruction_function(function, by_name, lower)


def _operands(given: dict[str, Any]) -> dict[str, tuple[types.Type, Any]]:
    """Return the operands of an instruction that are known when it is compiled."""
    found = {}
    for name, value in given.items():
        if isinstance(value, str):
            found[name] = types.literal(value), None
        else:
            found[name] = types.uint64, ir.Constant(I64, value)
    return found


_register_load(row_share.load_global, "global", types.int64, streams=True)
_register_load(row_share.load_cached, "global", types.int64)
_register_load(row_share.load_shared, "shared", types.uint32)


def _type_store(
    share: types.Type,
    location: types.Type,
    first: types.Type,
    limit: types.Type,
    packed: types.Type,
) -> Any:
    expected = _packed(_share(share, "store_global"))
    return signature(types.void, share, types.int64, types.int32, types.int32, expected)


def _lower_store(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    share = sig.args[0].static[0]
    *place, packed = args[1:]
    if not share.aligned:
        unaligned_share.store(context, builder, share, place, packed)
        return context.get_dummy_value()
    row, words = TABLE[f"st_global_{share.access}"], unpack(builder, packed)
    each = share.words // share.count
    for k, (address, condition) in enumerate(_accesses(builder, share, share.width, *place)):
        part = words[k * each : (k + 1) * each]
        if each > 1:
            value = {"values": (VectorType(types.uint32, each), pack(builder, part))}
        elif share.width == 2:
            value = {"value": (types.uint16, builder.trunc(part[0], I16))}
        else:
            value = {"value": (types.uint32, part[0])}
        given = {"destination": (types.uint64, address), **value, **condition}
        emit(row, context, builder, given)
    return context.get_dummy_value()


compiler.instruction_function(row_share.store_global, _type_store, _lower_store)


def _type_store_sums(
    share: types.Type,
    location: types.Type,
    first: types.Type,
    limit: types.Type,
    values: types.Type,
) -> Any:
    vector = _vector(_share(share, "store_sums"))
    return signature(types.void, share, types.int64, types.int32, types.int32, vector)


def _lower_store_sums(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    share = sig.args[0].static[0]
    *row_place, vector = args[1:]
    values, each = unpack(builder, vector), min(4, share.lanes)
    row = TABLE[f"st_global_v{each}_f32" if each > 1 else "st_global_f32"]
    for k, (start, place) in enumerate(_accesses(builder, share, 4 * share.lanes, *row_place)):
        for lane in range(0, share.lanes, each):
            part = values[k * share.lanes + lane :][:each]
            given: dict[str, Any] = {"destination": (types.uint64, start), **place}
            if lane:
                before = given["offset"][0].literal_value if "offset" in given else 0
                given["offset"] = types.literal(before + 4 * lane), None
            if each > 1:
                given["values"] = VectorType(_FLOATS, each), pack(builder, part)
            else:
                given["value"] = _FLOATS, part[0]
            emit(row, context, builder, given)
    return context.get_dummy_value()


compiler.instruction_function(row_share.store_sums, _type_store_sums, _lower_store_sums)


def _type_write_floats(
    share: types.Type,
    location: types.Type,
    first: types.Type,
    limit: types.Type,
    values: types.Type,
) -> Any:
    vector = _vector(_share(share, "write_floats"))
    return signature(types.void, share, types.uint32, types.int32, types.int32, vector)


def _lower_write_floats(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    share = sig.args[0].static[0]
    location, first, limit, vector = args[1:]
    values, each = unpack(builder, vector), 4 if share.aligned and share.lanes >= 4 else 1
    for lane in range(0, share.lanes, each):
        number = builder.add(first, ir.Constant(I32, lane))
        place = builder.add(location, builder.mul(number, ir.Constant(I32, 4)))
        part = values[lane : lane + each]
        given: dict[str, Any] = {"location": (types.uint32, place)}
        if each > 1:
            row, given["values"] = "st_shared_v4_f32", (VectorType(_FLOATS, 4), pack(builder, part))
        else:
            row, given["value"] = "st_shared_f32", (_FLOATS, part[0])
        with builder.if_then(builder.icmp_unsigned("<", number, limit)):  # 0 or more, and below
            emit(TABLE[row], context, builder, given)
    return context.get_dummy_value()


compiler.instruction_function(row_share.write_floats, _type_write_floats, _lower_write_floats)


# --------------------------------------------------------------------------- conversions


def _lower_to_float(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    share = sig.args[0].static[0]
    values: list[Any] = []
    for word in unpack(builder, args[1]):
        if share.dtype.itemsize == 4:
            values.append(builder.bitcast(word, FLOAT))
        else:
            values += pair_to_floats(context, builder, share.dtype, word)[: min(2, share.lanes)]
    return pack(builder, values)


def _lower_from_float(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    share = sig.args[0].static[0]
    values = unpack(builder, args[1])
    if share.dtype.itemsize == 4:
        return pack(builder, [builder.bitcast(v, I32) for v in values])
    if share.lanes == 1:
        zero = ir.Constant(FLOAT, 0.0)
        return pack(
            builder, [floats_to_pair(context, builder, share.dtype, v, zero) for v in values]
        )
    pairs = zip(values[::2], values[1::2])
    return pack(builder, [floats_to_pair(context, builder, share.dtype, *pair) for pair in pairs])


def _type_to_float(share: types.Type, packed: types.Type) -> Any:
    static = _share(share, "to_float")
    return signature(_vector(static), share, _packed(static))


def _type_from_float(share: types.Type, values: types.Type) -> Any:
    static = _share(share, "from_float")
    return signature(_packed(static), share, _vector(static))


compiler.instruction_function(row_share.to_float, _type_to_float, _lower_to_float)
compiler.instruction_function(row_share.from_float, _type_from_float, _lower_from_float)


# ------------------------------------------------------------------------ elements, sums


def _type_keep(
    share: types.Type, values: types.Type, first: types.Type, limit: types.Type, other: types.Type
) -> Any:
    vector = _vector(_share(share, "keep"))
    return signature(vector, share, vector, types.int32, types.int32, _FLOATS)


def _lower_keep(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    share = sig.args[0].static[0]
    _, vector, first, limit, other = args
    if share.whole:
        return vector
    if not share.aligned:
        row = Row(builder, share, first, limit)
        return pack(builder, unaligned_share.keep(builder, row, unpack(builder, vector), other))
    kept = []
    for i, value in enumerate(unpack(builder, vector)):
        if i % share.lanes == 0:
            there = _is_there(builder, share, i // share.lanes, first, limit)
        kept.append(builder.select(there, value, other))
    return pack(builder, kept)


compiler.instruction_function(row_share.keep, _type_keep, _lower_keep)


compiler.instruction_function(
    row_share.zeros,
    lambda share: signature(_vector(_share(share, "zeros")), share),
    lambda context, builder, sig, args: pack(
        builder, [ir.Constant(FLOAT, 0.0)] * sig.args[0].static[0].values
    ),
)


def _type_num_present(share: types.Type, first: types.Type, limit: types.Type) -> Any:
    _share(share, "num_present")
    return signature(_FLOATS, share, types.int32, types.int32)


def _lower_num_present(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    share = sig.args[0].static[0]
    if share.whole:
        return ir.Constant(FLOAT, float(share.values))
    if not share.aligned:
        present = unaligned_share.num_present(builder, Row(builder, share, *args[1:]))
        return builder.sitofp(present, FLOAT)
    total = ir.Constant(FLOAT, 0.0)
    for k in range(share.count):
        there = _is_there(builder, share, k, args[1], args[2])
        some, none = ir.Constant(FLOAT, float(share.lanes)), ir.Constant(FLOAT, 0.0)
        total = builder.fadd(total, builder.select(there, some, none))
    return total


compiler.instruction_function(row_share.num_present, _type_num_present, _lower_num_present)


def _type_weighted(share: types.Type, values: types.Type, weights: types.Type) -> Any:
    static = _share(share, "weighted")
    kinds = VectorType(_FLOATS, static.values), VectorType(_FLOATS, static.count)
    return signature(VectorType(_FLOATS, static.lanes), share, *kinds)


def _lower_weighted(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    share = sig.args[0].static[0]
    values, weights = unpack(builder, args[1]), unpack(builder, args[2])
    result = [ir.Constant(FLOAT, 0.0)] * share.lanes
    for i, value in enumerate(values):
        access, lane = divmod(i, share.lanes)
        terms = {"a": value, "b": weights[access], "c": result[lane]}
        given = {name: (_FLOATS, term) for name, term in terms.items()}
        result[lane] = emit(TABLE["fma_rn_f32"], context, builder, given)
    return pack(builder, result)


compiler.instruction_function(row_share.weighted, _type_weighted, _lower_weighted)


def _type_first_largest(
    share: types.Type, values: types.Type, first: types.Type, limit: types.Type
) -> Any:
    vector = _vector(_share(share, "first_largest"))
    return signature(VectorType(_FLOATS, 4), share, vector, types.int32, types.int32)


def _lower_first_largest(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    share = sig.args[0].static[0]
    _, vector, first, limit = args
    zero = ir.Constant(FLOAT, 0.0)
    best = ir.Constant(FLOAT, float("-inf"))
    column = ir.Constant(I32, 1 << 24)
    row = None if share.aligned else Row(builder, share, first, limit)
    base = builder.mul(first, ir.Constant(I32, share.unit_elements))
    for i, value in enumerate(unpack(builder, vector)):
        k, lane = divmod(i, share.lanes)
        larger = builder.fcmp_unordered(">", value, best)  # or either is a NaN
        number = builder.fcmp_ordered("ord", best, best)
        nothing = builder.icmp_signed("==", column, ir.Constant(I32, 1 << 24))
        taken = builder.or_(builder.and_(larger, number), nothing)
        if row:
            taken = builder.and_(taken, row.holds(k, lane))
        elif not share.whole:
            taken = builder.and_(taken, _is_there(builder, share, k, first, limit))
        best = builder.select(taken, value, best)
        here = builder.add(base, ir.Constant(I32, k * share.step * share.lanes + lane))
        column = builder.select(taken, here, column)
    return pack(builder, [best, builder.sitofp(column, FLOAT), zero, zero])


compiler.instruction_function(row_share.first_largest, _type_first_largest, _lower_first_largest)
