"""tcgen05_mma and tcgen05_copy in kernels: one instruction for each step along K, or each atom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    I64,
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
from numba_tma.backend.lowering.instructions import emit, type_call
from numba_tma.backend.lowering.matrix_descriptor import descriptor_words
from numba_tma.device.matrix_descriptor import MatrixDescriptor
from numba_tma.device.shared import SharedTile
from numba_tma.device.tensor_products import (
    both_scales,
    operand_rule,
    tcgen05_copy,
    tcgen05_mma,
)
from numba_tma.device.tensor_tile import TensorTile
from numba_tma.host.architectures import TCGEN05, refusal
from numba_tma.host.matrix_layout import CHUNK_BYTES, MatrixLayout
from numba_tma.host.scale_layout import COPY_SHAPE
from numba_tma.host.tensor_products import (
    Scales,
    TensorProductCall,
    check_copy,
    product_call,
)
from numba_tma.host.tensor_tiles import TensorLayout, TensorScales, tensor_scales
from numba_tma.ptx import TABLE

U32, U64 = types.uint32, types.uint64
_FALSE = types.literal(False)
_BIT = ir.IntType(1)


def _is(typ: types.Type, cls: type) -> bool:
    return isinstance(typ, ObjectType) and typ.cls is cls


def _tensor_layout(name: str, typ: types.Type) -> TensorLayout:
    if not _is(typ, TensorTile):
        raise TypingError(f"{name} takes a tile in tensor memory, not {typ}")
    layout: TensorLayout = typ.static[0]
    return layout


def _shared_layout(name: str, typ: types.Type) -> MatrixLayout:
    if _is(typ, MatrixDescriptor):
        layout: MatrixLayout = typ.static[0]
        return layout
    if _is(typ, SharedTile):
        try:
            return MatrixLayout(typ.static[0], "K", "tcgen05")
        except ValueError as error:
            raise TypingError(f"tcgen05_mma({name}=...): {error}") from None
    raise TypingError(operand_rule(name, typ))


def _require_target(what: str) -> None:
    if error := refusal(what, TCGEN05, compiler.compile_target()):
        raise TypingError(f"{error}; on Hopper use wgmma, whose accumulators are fragments")


def _is_none(typ: types.Type) -> bool:
    return typ is types.none or (isinstance(typ, types.Omitted) and typ.value is None)


def _literal(given: dict[str, types.Type], name: str) -> Any:
    typ = given.get(name, types.none)
    return None if _is_none(typ) else compiler.static_of(typ, f"tcgen05_mma({name}=...)")


def _scales(given: dict[str, types.Type]) -> Scales | None:
    pair = [given.get(name, types.none) for name in ("a_scale", "b_scale")]
    if all(map(_is_none, pair)):
        return None
    if any(map(_is_none, pair)):
        raise TypingError(both_scales())
    a, b = (
        _tensor_layout(f"tcgen05_mma({name}=...)", typ)
        for name, typ in zip(("a_scale", "b_scale"), pair)
    )
    if not isinstance(a, TensorScales) or not isinstance(b, TensorScales):
        raise TypingError(
            f"tcgen05_mma: a_scale is {a} and b_scale is {b}; scale factors are tmem.scales(tile)"
        )
    return a, b


def _call(
    accumulator: types.Type, a: types.Type, b: types.Type, given: dict[str, types.Type]
) -> TensorProductCall:
    """Return the instructions of a call, from the types of its arguments."""
    try:
        return product_call(
            _tensor_layout("tcgen05_mma(accumulator=...)", accumulator),
            a.static[0] if _is(a, TensorTile) else _shared_layout("a", a),
            _shared_layout("b", b),
            _scales(given),
            negate_a=bool(_literal(given, "negate_a")),
            negate_b=bool(_literal(given, "negate_b")),
            k_steps=_literal(given, "k_steps"),
            scale_input_d=_literal(given, "scale_input_d"),
        )
    except ValueError as error:
        raise TypingError(str(error)) from None


def _operand_types(call: TensorProductCall, given: dict[str, types.Type]) -> dict[str, types.Type]:
    """Return the types of the row's operands."""
    operands = {
        "d": U32,
        "a": U32 if call.row.endswith("_tmem") else U64,
        "b": U64,
        "idesc": U32,
        **({"scale_a": U32, "scale_b": U32} if call.scaled else {}),
        "enable_input_d": types.boolean,
        "kind": types.literal(call.kind),
        "cta_group": types.literal(call.product.cta_group),
    }
    if not _is_none(given.get("scale_input_d", types.none)):
        operands["scale_input_d"] = types.literal(_literal(given, "scale_input_d"))
    return operands


def _type_mma(accumulator: types.Type, a: types.Type, b: types.Type, **given: types.Type) -> Any:
    _require_target("tcgen05_mma()")
    accumulate = given["accumulate"]
    if not isinstance(types.unliteral(accumulate), types.Boolean):
        raise TypingError(f"tcgen05_mma(accumulate=...) takes a bool, not {accumulate}")
    call = _call(accumulator, a, b, given)
    type_call(TABLE[call.row], _operand_types(call, given))
    return signature(types.void, accumulator, a, b, *given.values())


def _lower_mma(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    names = list(sig.pysig.parameters)
    typed, values = dict(zip(names, sig.args)), dict(zip(names, args))
    given = dict(list(typed.items())[3:])
    accumulator, a, b = sig.args[:3]
    call = _call(accumulator, a, b, given)
    operands = _operand_types(call, given)
    accumulate = given["accumulate"]
    first = values["accumulate"]
    if isinstance(accumulate, types.BooleanLiteral):
        first = ir.Constant(_BIT, accumulate.literal_value)
    words = {name: _words(builder, typed[name], values[name]) for name in ("a", "b")}
    for i, step in enumerate(call.steps):
        emitted = {
            "d": _moved(builder, typed["accumulator"], values["accumulator"], 0),
            "a": _start(builder, words["a"], step.a),
            "b": _start(builder, words["b"], step.b),
            "idesc": ir.Constant(I32, step.idesc),
            "enable_input_d": ir.Constant(_BIT, 1) if i else first,
        }
        if call.scaled:
            for name, columns in (("a", step.scale_a), ("b", step.scale_b)):
                scale = f"{name}_scale"
                emitted[f"scale_{name}"] = _moved(builder, typed[scale], values[scale], columns)
        if i:
            operands.pop("scale_input_d", None)
        row = {name: (typ, emitted.get(name)) for name, typ in operands.items()}
        emit(TABLE[call.row], context, builder, row)
    return context.get_dummy_value()


def _words(builder: Builder, typ: types.Type, value: Value) -> tuple[Value, ...]:
    """Return the address of a tile in tensor memory, or the two words of a descriptor."""
    if _is(typ, TensorTile):
        return (get_field(builder, typ, value, "address"),)
    if _is(typ, SharedTile):
        layout = MatrixLayout(typ.static[0], "K", "tcgen05")
        return descriptor_words(builder, layout, get_field(builder, typ, value, "address"))
    return get_field(builder, typ, value, "lo"), get_field(builder, typ, value, "hi")


def _start(builder: Builder, words: tuple[Value, ...], offset: int) -> Value:
    """Return where a step's operand begins: an address, or the 64 bits of a descriptor."""
    if len(words) == 1:
        return builder.add(words[0], ir.Constant(I32, offset))
    low = builder.add(words[0], ir.Constant(I32, offset // CHUNK_BYTES))
    return _wide(builder, low, words[1])


def _wide(builder: Builder, low: Value, high: Value) -> Value:
    upper = builder.shl(builder.zext(high, I64), ir.Constant(I64, 32))
    return builder.or_(builder.zext(low, I64), upper)


def _moved(builder: Builder, typ: types.Type, value: Value, columns: int) -> Value:
    return builder.add(get_field(builder, typ, value, "address"), ir.Constant(I32, columns))


# --------------------------------------------------------------------------- scale factors


def _copied(scales: types.Type, tile: types.Type) -> TensorScales:
    layout = _tensor_layout("tcgen05_copy(scales=...)", scales)
    if not _is(tile, SharedTile):
        raise TypingError(f"tcgen05_copy(tile=...) takes a shared tile, not {tile}")
    held = tile.static[0]
    block, group = getattr(layout, "block", None), getattr(layout, "cta_group", 1)
    try:
        return check_copy(layout, tensor_scales(held, block, group), held)
    except ValueError as error:
        raise TypingError(str(error)) from None


def _type_copy(scales: types.Type, tile: types.Type) -> Any:
    _require_target("tcgen05_copy()")
    _copied(scales, tile)
    return signature(types.void, scales, tile)


def _lower_copy(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    layout = _copied(*sig.args)
    address = get_field(builder, sig.args[1], args[1], "address")
    # Bits above the 18 of an address would run into the next field.
    start = builder.and_(builder.lshr(address, ir.Constant(I32, 4)), ir.Constant(I32, 0x3FFF))
    for column, offset in layout.atoms():
        moved = builder.add(start, ir.Constant(I32, offset // CHUNK_BYTES))
        operands = {
            "taddr": (U32, _moved(builder, sig.args[0], args[0], column)),
            "source": (U64, _wide(builder, moved, ir.Constant(I32, layout.source.high))),
            "shape": (types.literal(COPY_SHAPE), None),
            "cta_group": (types.literal(layout.cta_group), None),
        }
        emit(TABLE["tcgen05_cp"], context, builder, operands)
    return context.get_dummy_value()


compiler.instruction_function(tcgen05_mma, _type_mma, _lower_mma)
compiler.instruction_function(tcgen05_copy, _type_copy, _lower_copy)
