"""The operand kinds of the instruction table: what each accepts, and how it is lowered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import types

from numba_tma import _compiler as compiler
from numba_tma._compiler import TypingError
from numba_tma.ptx._instruction import Instruction
from numba_tma.types import TensorMapType

_LLVM = {
    "b": ir.IntType(1),
    "h": ir.IntType(16),
    "r": ir.IntType(32),
    "l": ir.IntType(64),
    "f": ir.FloatType(),
}


@dataclass(frozen=True)
class Operand:
    """How one operand kind is typed (`accept`) and lowered to registers (`lower`)."""

    constraint: str
    accept: Callable[[types.Type, str], types.Type]
    lower: Callable[[Any, Any, types.Type, Any], list[Any]]


def _scalar(numba_type: types.Type, constraint: str) -> Operand:
    def accept(given: types.Type, where: str) -> types.Type:
        if isinstance(types.unliteral(given), (types.Number, types.Boolean)):
            return numba_type
        raise TypingError(f"{where} takes a number ({numba_type}), not {given}")

    return Operand(constraint, accept, lambda context, builder, typ, value: [value])


def _is_object(given: types.Type, kind: str) -> bool:
    return (
        isinstance(given, compiler.ObjectType) and getattr(given.cls, "shared_kind", None) == kind
    )


def _shared(kind: str, expected: str) -> Operand:
    def accept(given: types.Type, where: str) -> types.Type:
        if _is_object(given, kind) or (kind == "tile" and isinstance(given, types.Array)):
            return given
        if isinstance(types.unliteral(given), types.Integer):
            return types.uint32
        raise TypingError(f"{where} takes {expected}, not {given}")

    def lower(context: Any, builder: Any, typ: types.Type, value: Any) -> list[Any]:
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


def _lower_global(context: Any, builder: Any, typ: types.Type, value: Any) -> list[Any]:
    if isinstance(typ, types.Array):
        value = builder.ptrtoint(
            context.make_array(typ)(context, builder, value).data, compiler.I64
        )
    return [value]


def _accept_map(given: types.Type, where: str) -> types.Type:
    if isinstance(given, TensorMapType):
        return given
    raise TypingError(f"{where} takes a TensorMap, not {given}")


def _accept_coordinates(given: types.Type, where: str) -> types.Type:
    if isinstance(given, types.BaseTuple) and 1 <= len(given) <= 5:
        if all(isinstance(types.unliteral(t), types.Integer) for t in given):
            return types.UniTuple(types.int32, len(given))
    raise TypingError(
        f"{where} takes a tuple of 1 to 5 integers in the array's axis order, not {given}"
    )


def _lower_coordinates(context: Any, builder: Any, typ: types.Type, value: Any) -> list[Any]:
    # The hardware counts axes from the innermost; this is the one place that turns them round.
    return [builder.extract_value(value, i) for i in reversed(range(len(typ)))]


def _accept_hint(given: types.Type, where: str) -> types.Type:
    if isinstance(types.unliteral(given), (types.Integer, types.IntEnumMember)):
        return types.uint64
    raise TypingError(f"{where} takes a CachePolicy or a createpolicy result, not {given}")


def _accept_immediate(given: types.Type, where: str) -> types.Type:
    if isinstance(given, types.IntegerLiteral):
        return given
    raise TypingError(f"{where} is part of the instruction and must be a literal, not {given}")


OPERANDS: dict[str, Operand] = {
    "u32": _scalar(types.uint32, "r"),
    "i32": _scalar(types.int32, "r"),
    "u64": _scalar(types.uint64, "l"),
    "f32": _scalar(types.float32, "f"),
    "BarrierAddress": _shared("barrier", "a Barrier (or its shared-memory address)"),
    "TileAddress": _shared("tile", "a tile in shared memory"),
    "GlobalAddress": Operand("l", _accept_global, _lower_global),
    "TensorMapOperand": Operand(
        "l", _accept_map, lambda c, builder, t, value: [builder.ptrtoint(value, compiler.I64)]
    ),
    "Coordinates": Operand("r", _accept_coordinates, _lower_coordinates),
    "CacheHint": Operand("l", _accept_hint, lambda context, builder, typ, value: [value]),
    "Immediate": Operand("", _accept_immediate, lambda context, builder, typ, value: []),
}

_RETURNS = {
    "None": (types.void, ""),
    "bool": (types.boolean, "b"),
    "u32": (types.uint32, "r"),
    "i32": (types.int32, "r"),
    "u64": (types.uint64, "l"),
    "f32": (types.float32, "f"),
}


def _absent(typ: types.Type) -> bool:
    return typ is types.none or (isinstance(typ, types.Omitted) and typ.value is None)


def type_call(row: Instruction, given: dict[str, types.Type]) -> types.Type:
    """Type a call of `row`: the arguments as the instruction takes them, or a TypingError."""
    compiler.require_tma(f"{row.name}()") if row.sm >= 90 else None
    args = [
        t if _absent(t) else OPERANDS[row.operands[n]].accept(t, f"{row.name}({n}=...)")
        for n, t in given.items()
    ]
    return compiler.signature(_RETURNS[row.returns][0], *args)


def emit(row: Instruction, context: Any, builder: Any, given: dict[str, tuple[Any, Any]]) -> Any:
    """Emit `row` with its operands, given as (Numba type, LLVM value) by name."""
    result_constraint = _RETURNS[row.returns][1]
    values: list[Any] = []
    constraints = [f"={result_constraint}"] if result_constraint else []
    names: dict[str, str] = {}
    rank = None
    for name, (typ, value) in given.items():
        if _absent(typ):
            continue
        kind = row.operands[name]
        operand = OPERANDS[kind]
        registers = operand.lower(context, builder, typ, value)
        first = len(constraints)
        texts = [f"${first + i}" for i in range(len(registers))]
        if kind == "Immediate":
            names[name] = str(typ.literal_value)
        elif kind == "Coordinates":
            names[name] = "{" + ", ".join(texts) + "}"
            rank = len(registers)
        else:
            names[name] = texts[0]
        values += registers
        constraints += [operand.constraint] * len(registers)
    text = row.text(names | {"result": "$0", "predicate": "$0"}, set(names), rank)
    if not row.pure:
        constraints.append("~{memory}")
    result_type = _LLVM[result_constraint] if result_constraint else ir.VoidType()
    asm = ir.InlineAsm(
        ir.FunctionType(result_type, [v.type for v in values]),
        text,
        ",".join(constraints),
        side_effect=not row.pure,
    )
    # readnone: two reads of one special register are one instruction. convergent: LLVM does not
    # duplicate a meeting of threads into branches that they take apart.
    attributes = ("readnone", "nounwind") if row.pure else ("convergent",) if row.convergent else ()
    result = builder.call(asm, values, attrs=attributes)
    if row.returns == "None":
        return context.get_dummy_value()
    return result


def register(row: Instruction, function: Callable[..., Any]) -> None:
    """Let kernels call `function` for the instruction `row`."""
    names = list(row.operands)

    def typer(*given: types.Type) -> types.Type:
        return type_call(row, dict(zip(names, given)))

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit(row, context, builder, dict(zip(names, zip(sig.args, args))))

    compiler.instruction_function(function, typer, lower)
