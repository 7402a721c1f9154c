"""Products and copies of tcgen05 in kernels: an instruction for each step along K, or each copy."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

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
from numba_tma.backend.lowering.instructions import emit, is_absent, type_call
from numba_tma.backend.lowering.matrix_descriptor import descriptor_words
from numba_tma.device.matrix_descriptor import MatrixDescriptor
from numba_tma.device.shared import SharedTile
from numba_tma.device.tensor_products import (
    both_scales,
    operand_rule,
    tcgen05_copy,
    tcgen05_mma,
    tcgen05_mma_ws,
)
from numba_tma.device.tensor_tile import TensorTile
from numba_tma.host.architectures import TCGEN05, product_refusal
from numba_tma.host.matrix_layout import CHUNK_BYTES, MatrixLayout
from numba_tma.host.scale_layout import COPY_HIGH
from numba_tma.host.tensor_products import (
    ProductOptions,
    Scales,
    TensorCopy,
    TensorProductCall,
    copy_call,
    product_call,
)
from numba_tma.host.tensor_tiles import TensorLayout, TensorScales
from numba_tma.ptx import TABLE

U32, U64 = types.uint32, types.uint64
#: Types of arguments by name.
Given: TypeAlias = "dict[str, types.Type]"
#: A function of kernels that starts products.
Multiply: TypeAlias = Callable[..., None]
_BIT = ir.IntType(1)


def _is(typ: types.Type, cls: type) -> bool:
    return isinstance(typ, ObjectType) and typ.cls is cls


def _tensor_layout(name: str, typ: types.Type) -> TensorLayout:
    if not _is(typ, TensorTile):
        raise TypingError(f"{name} takes a tile in tensor memory, not {typ}")
    layout: TensorLayout = typ.static[0]
    return layout


def _shared_layout(what: str, name: str, typ: types.Type) -> MatrixLayout:
    if _is(typ, MatrixDescriptor):
        layout: MatrixLayout = typ.static[0]
        return layout
    if _is(typ, SharedTile):
        try:
            return MatrixLayout(typ.static[0], "K", "tcgen05")
        except ValueError as error:
            raise TypingError(f"{what}({name}=...): {error}") from None
    raise TypingError(operand_rule(what, name, typ))


def _require_target(what: str) -> None:
    if error := product_refusal(what, TCGEN05, compiler.compile_target()):
        raise TypingError(error)


def _options(function: Multiply, given: Given) -> ProductOptions:
    """Return the literals among the arguments of a call, or their defaults."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in ProductOptions.__dataclass_fields__:
            typ = given.get(name, types.none)
            what = f"{function.__name__}({name}=...)"
            found[name] = parameter.default if is_absent(typ) else compiler.static_of(typ, what)
    return ProductOptions(**found)


def _scales(given: Given) -> Scales | None:
    pair = [given.get(name, types.none) for name in ("a_scale", "b_scale")]
    if all(map(is_absent, pair)):
        return None
    if any(map(is_absent, pair)):
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


#: Operands of the rows that a call passes on as they are, by the function's names.
_PASSED = {"disable_output_lanes": "disable_output_lane", "zero_columns": "zero_column_mask"}


def _call(function: Multiply, given: Given) -> TensorProductCall:
    """Return the instructions of a call, from the types of its arguments."""
    what = function.__name__
    a, metadata = given["a"], given.get("a_metadata", types.none)
    try:
        call = product_call(
            _tensor_layout(f"{what}(accumulator=...)", given["accumulator"]),
            a.static[0] if _is(a, TensorTile) else _shared_layout(what, "a", a),
            _shared_layout(what, "b", given["b"]),
            _scales(given),
            None if is_absent(metadata) else _tensor_layout(f"{what}(a_metadata=...)", metadata),
            _options(function, given),
        )
    except ValueError as error:
        raise TypingError(str(error)) from None
    if problem := call.refuses(_passed(given)):
        raise TypingError(problem)
    return call


def _passed(given: Given) -> dict[str, str]:
    """Return the row's names of what a call passes on, each with the function's name."""
    return {
        row: name for name, row in _PASSED.items() if not is_absent(given.get(name, types.none))
    }


def _operand_types(call: TensorProductCall, given: Given) -> Given:
    """Return the types of the row's operands."""
    operands = {
        "d": U32,
        "a": U32 if call.row.endswith("_tmem") else U64,
        "b": U64,
        "idesc": U32,
        **({"sparse_metadata": U32} if call.product.sparse else {}),
        **({"scale_a": U32, "scale_b": U32} if call.scaled else {}),
        "enable_input_d": types.boolean,
        **{row: given[name] for row, name in _passed(given).items()},
        **{name: types.literal(value) for name, value in call.forms.items()},
    }
    if not is_absent(given.get("scale_input_d", types.none)):
        operands["scale_input_d"] = given["scale_input_d"]
    return operands


def _type_product(function: Multiply, given: Given) -> Any:
    what = function.__name__
    _require_target(f"{what}()")
    accumulate = given["accumulate"]
    if not isinstance(types.unliteral(accumulate), types.Boolean):
        raise TypingError(f"{what}(accumulate=...) takes a bool, not {accumulate}")
    call = _call(function, given)
    type_call(TABLE[call.row], _operand_types(call, given))
    return signature(types.void, *given.values())


def _lower_product(
    function: Multiply, context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    names = list(sig.pysig.parameters)
    given, values = dict(zip(names, sig.args)), dict(zip(names, args))
    call = _call(function, given)
    operands = _operand_types(call, given)
    accumulate = given["accumulate"]
    first = values["accumulate"]
    if isinstance(accumulate, types.BooleanLiteral):
        first = ir.Constant(_BIT, accumulate.literal_value)
    words = {name: _words(builder, given[name], values[name]) for name in ("a", "b")}
    passed = {row: values[name] for row, name in _passed(given).items()}

    def moved(name: str, columns: int) -> Value:
        return _moved(builder, given[name], values[name], columns)

    for i, step in enumerate(call.steps):
        emitted = {
            "d": moved("accumulator", 0),
            "a": _start(builder, words["a"], step.a),
            "b": _start(builder, words["b"], step.b),
            "idesc": ir.Constant(I32, step.idesc),
            "enable_input_d": ir.Constant(_BIT, 1) if i else first,
            **passed,
        }
        if call.scaled:
            emitted["scale_a"] = moved("a_scale", step.scale_a)
            emitted["scale_b"] = moved("b_scale", step.scale_b)
        if call.product.sparse:
            emitted["sparse_metadata"] = moved("a_metadata", step.metadata)
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


# ------------------------------------------------------------------- copies to tensor memory


def _copied(destination: types.Type, tile: types.Type) -> TensorCopy:
    layout = _tensor_layout("tcgen05_copy(destination=...)", destination)
    if not _is(tile, SharedTile):
        raise TypingError(f"tcgen05_copy(tile=...) takes a shared tile, not {tile}")
    try:
        return copy_call(layout, tile.static[0])
    except ValueError as error:
        raise TypingError(str(error)) from None


def _type_copy(destination: types.Type, tile: types.Type) -> Any:
    _require_target("tcgen05_copy()")
    _copied(destination, tile)
    return signature(types.void, destination, tile)


def _lower_copy(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    copies = _copied(*sig.args)
    address = get_field(builder, sig.args[1], args[1], "address")
    # Bits above the 18 of an address would run into the next field.
    start = builder.and_(builder.lshr(address, ir.Constant(I32, 4)), ir.Constant(I32, 0x3FFF))
    for column, offset in copies.places:
        moved = builder.add(start, ir.Constant(I32, offset // CHUNK_BYTES))
        operands = {
            "taddr": (U32, _moved(builder, sig.args[0], args[0], column)),
            "source": (U64, _wide(builder, moved, ir.Constant(I32, COPY_HIGH))),
            "shape": (types.literal(copies.shape), None),
            "cta_group": (types.literal(copies.cta_group), None),
        }
        emit(TABLE["tcgen05_cp"], context, builder, operands)
    return context.get_dummy_value()


def _register(function: Multiply) -> None:
    """Lower a function that starts products."""

    def type_product(
        accumulator: types.Type, a: types.Type, b: types.Type, **given: types.Type
    ) -> Any:
        return _type_product(function, {"accumulator": accumulator, "a": a, "b": b, **given})

    lower = functools.partial(_lower_product, function)
    compiler.instruction_function(function, type_product, lower)


_register(tcgen05_mma)
_register(tcgen05_mma_ws)
compiler.instruction_function(tcgen05_copy, _type_copy, _lower_copy)
