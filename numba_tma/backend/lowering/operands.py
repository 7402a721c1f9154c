"""The operand kinds of the instruction table: their accepted types, and their registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import Builder, Context, TypingError, Value, VectorType, types
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.ptx._instruction import vector_of


@dataclass(frozen=True)
class Operand:
    """How one operand kind is typed (`accept`) and lowered to registers (`lower`)."""

    constraint: str
    accept: Callable[[types.Type, str], types.Type]
    lower: Callable[[Any, Any, types.Type, Any], list[Any]]


def _scalar(numba_type: types.Type, constraint: str) -> Operand:
    def accept(given: types.Type, where: str) -> types.Type:
        plain = types.unliteral(given)
        if isinstance(plain, (types.Integer, types.IntEnumMember, types.Boolean)):
            return numba_type
        if isinstance(numba_type, types.Integer):
            raise TypingError(f"{where} takes an integer ({numba_type}), not {given}")
        if isinstance(plain, types.Number):
            return numba_type
        raise TypingError(f"{where} takes a number ({numba_type}), not {given}")

    return Operand(constraint, accept, lambda context, builder, typ, value: [value])


def _is_object(given: types.Type, kind: str) -> bool:
    return (
        isinstance(given, compiler.ObjectType) and getattr(given.cls, "shared_kind", None) == kind
    )


def _shared(kinds: tuple[str, ...], expected: str) -> Operand:
    def accept(given: types.Type, where: str) -> types.Type:
        if any(_is_object(given, kind) for kind in kinds):
            return given
        if "tile" in kinds and isinstance(given, types.Array):
            return given
        if isinstance(types.unliteral(given), types.Integer):
            return types.uint32
        raise TypingError(f"{where} takes {expected}, not {given}")

    def lower(context: Context, builder: Builder, typ: types.Type, value: Value) -> list[Any]:
        if isinstance(typ, compiler.ObjectType):
            return [compiler.get_field(builder, typ, value, "address")]
        if isinstance(typ, types.Array):
            data = context.make_array(typ)(context, builder, value).data
            shared = builder.addrspacecast(data, data.type.pointee.as_pointer(3))
            return [builder.ptrtoint(shared, compiler.I32)]
        return [value]

    return Operand("r", accept, lower)


def _accept_global(given: types.Type, where: str) -> types.Type:
    if isinstance(given, types.Array):
        return given
    if isinstance(types.unliteral(given), types.Integer):
        return types.uint64
    raise TypingError(f"{where} takes an array in global memory or its address, not {given}")


def _lower_global(context: Context, builder: Builder, typ: types.Type, value: Value) -> list[Any]:
    if isinstance(typ, types.Array):
        value = builder.ptrtoint(
            context.make_array(typ)(context, builder, value).data, compiler.I64
        )
    return [value]


def _accept_map(given: types.Type, where: str) -> types.Type:
    if isinstance(given, TensorMapType):
        return given
    raise TypingError(f"{where} takes a TensorMap, not {given}")


def _accept_editable(given: types.Type, where: str) -> types.Type:
    if _accept_map(given, where).editable:
        return given
    raise TypingError(
        f"{where}: {given} is not in global memory, where a kernel could edit it; give an element "
        "of a TensorMapArray"
    )


def _accept_descriptor(given: types.Type, where: str) -> types.Type:
    if isinstance(given, TensorMapType):
        return _accept_editable(given, where)
    if _is_object(given, "tile"):
        return given
    if isinstance(types.unliteral(given), types.Integer):
        return types.uint64
    raise TypingError(
        f"{where} takes a TensorMap in global memory, or a shared tile of 128 bytes, not {given}"
    )


def _lower_descriptor(
    context: Context, builder: Builder, typ: types.Type, value: Value
) -> list[Any]:
    if isinstance(typ, TensorMapType):
        return [builder.ptrtoint(value, compiler.I64)]
    if isinstance(typ, compiler.ObjectType):
        return [builder.zext(compiler.get_field(builder, typ, value, "address"), compiler.I64)]
    return [value]


def _accept_coordinates(given: types.Type, where: str) -> types.Type:
    if isinstance(given, types.BaseTuple) and 1 <= len(given) <= 5:
        if all(isinstance(types.unliteral(t), types.Integer) for t in given):
            return types.UniTuple(types.int32, len(given))
    raise TypingError(
        f"{where} takes a tuple of 1 to 5 integers in the array's axis order, not {given}"
    )


def _accept_offsets(given: types.Type, where: str) -> types.Type:
    if isinstance(given, types.BaseTuple) and 1 <= len(given) <= 3:
        if all(isinstance(types.unliteral(t), types.Integer) for t in given):
            literal = [t.literal_value for t in given if isinstance(t, types.IntegerLiteral)]
            if all(0 <= offset < 1 << 16 for offset in literal):
                return types.UniTuple(types.uint16, len(given))
    raise TypingError(
        f"{where} takes a tuple of 1 to 3 integers from 0 to 65535, one per spatial axis in the "
        f"array's axis order, not {given}"
    )


def _lower_coordinates(
    context: Context, builder: Builder, typ: types.Type, value: Value
) -> list[Any]:
    # The hardware counts axes from the innermost; no other place reverses them.
    return [builder.extract_value(value, i) for i in reversed(range(len(typ)))]


def _accept_hint(given: types.Type, where: str) -> types.Type:
    if isinstance(types.unliteral(given), (types.Integer, types.IntEnumMember)):
        return types.uint64
    raise TypingError(f"{where} takes a CachePolicy or a createpolicy result, not {given}")


def _accept_immediate(given: types.Type, where: str) -> types.Type:
    if isinstance(given, types.IntegerLiteral):
        return given
    raise TypingError(f"{where} is part of the instruction and must be a literal, not {given}")


def _accept_registers(given: types.Type, where: str) -> types.Type:
    count = _accept_immediate(given, where).literal_value
    if count % 8 or not 24 <= count <= 256:
        raise TypingError(
            f"{where} is {count}; a thread can have 24 to 256 registers, in multiples of 8"
        )
    return given


def _accept_exponent(given: types.Type, where: str) -> types.Type:
    exponent = _accept_immediate(given, where).literal_value
    if not 0 <= exponent <= 15:
        raise TypingError(f"{where} is {exponent}; the exponent is 0 to 15")
    return given


def _accept_b128(given: types.Type, where: str) -> types.Type:
    if isinstance(given, types.BaseTuple) and len(given) == 2:
        if all(isinstance(types.unliteral(t), types.Integer) for t in given):
            return types.UniTuple(types.uint64, 2)
    raise TypingError(f"{where} takes a tuple of two 64-bit halves, the lower first, not {given}")


def _vector(element: types.Type, constraint: str, count: int) -> Operand:
    expected = types.UniTuple(element, count)

    def accept(given: types.Type, where: str) -> types.Type:
        if given == VectorType(element, count):
            return given
        if isinstance(given, types.BaseTuple) and len(given) == count:
            if all(isinstance(types.unliteral(t), types.Number) for t in given):
                return expected
        raise TypingError(f"{where} takes a tuple of {count} numbers ({element}), not {given}")

    def lower(context: Context, builder: Builder, typ: types.Type, value: Value) -> list[Any]:
        return [builder.extract_value(value, i) for i in range(count)]

    return Operand(constraint, accept, lower)


#: An (index, limit) in place of a `Predicate`: index < limit, compared beside the instruction. LLVM
#: then neither moves the comparison nor keeps its result in a register.
BELOW = types.UniTuple(types.int32, 2)


def _lower_predicate(
    context: Context, builder: Builder, typ: types.Type, value: Value
) -> list[Any]:
    if typ == BELOW:
        return list(value)
    return [builder.zext(value, compiler.I32)]


#: Kinds of one register: Numba type and inline-asm constraint. Results of rows have these, too.
SCALARS: dict[str, tuple[types.Type, str]] = {
    "u16": (types.uint16, "h"),
    "u32": (types.uint32, "r"),
    "i32": (types.int32, "r"),
    "u64": (types.uint64, "l"),
    "f32": (types.float32, "f"),
    "f64": (types.float64, "d"),
}

#: Kinds other than vectors of registers.
OPERANDS: dict[str, Operand] = {
    **{kind: _scalar(*scalar) for kind, scalar in SCALARS.items()},
    "Predicate": Operand("r", _scalar(types.boolean, "").accept, _lower_predicate),
    "ClusterAddress": _scalar(types.uint32, "r"),
    "TensorMemoryAddress": _scalar(types.uint32, "r"),
    "BarrierAddress": _shared(("barrier",), "a Barrier (or its shared-memory address)"),
    "TileAddress": _shared(("tile",), "a tile in shared memory"),
    "SharedAddress": _shared(("barrier", "tile"), "a Barrier, or a tile in shared memory"),
    "GlobalAddress": Operand("l", _accept_global, _lower_global),
    "TensorMapOperand": Operand(
        "l", _accept_map, lambda c, builder, t, value: [builder.ptrtoint(value, compiler.I64)]
    ),
    "EditableTensorMap": Operand(
        "l", _accept_editable, lambda c, builder, t, value: [builder.ptrtoint(value, compiler.I64)]
    ),
    "DescriptorAddress": Operand("l", _accept_descriptor, _lower_descriptor),
    "Coordinates": Operand("r", _accept_coordinates, _lower_coordinates),
    "Offsets": Operand("h", _accept_offsets, _lower_coordinates),
    "CacheHint": Operand("l", _accept_hint, lambda context, builder, typ, value: [value]),
    "Immediate": Operand("", _accept_immediate, lambda context, builder, typ, value: []),
    "RegisterCount": Operand("", _accept_registers, lambda context, builder, typ, value: []),
    "ScaleExponent": Operand("", _accept_exponent, lambda context, builder, typ, value: []),
    "b128": Operand(
        "l", _accept_b128, lambda c, builder, t, v: [builder.extract_value(v, i) for i in range(2)]
    ),
}


def operand_of(kind: str, choices: Mapping[str, Any]) -> Operand:
    """Return the operand of a kind in a call with these choices."""
    vector = vector_of(kind, choices)
    if vector is None:
        return OPERANDS[kind]
    element, count = vector
    return _vector(*SCALARS[element], count)
