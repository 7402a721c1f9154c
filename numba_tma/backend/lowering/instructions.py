"""The rows of the instruction table in kernels: a call's types, and its inline assembly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    Builder,
    Context,
    Signature,
    TypingError,
    Value,
    VectorType,
    ir,
    pack,
    types,
    unpack,
)
from numba_tma.backend.lowering.operands import SCALARS, operand_of
from numba_tma.host.architectures import architecture_of
from numba_tma.ptx._instruction import (
    Instruction,
    InstructionForm,
    choice_text,
    conflict_text,
    vector_of,
)

#: Operands of a row by name: Numba type and LLVM value, which is None for a literal.
Operands: TypeAlias = "dict[str, tuple[types.Type, Value | None]]"

_LLVM = {
    "b": ir.IntType(1),
    "h": ir.IntType(16),
    "r": ir.IntType(32),
    "l": ir.IntType(64),
    "f": ir.FloatType(),
    "d": ir.DoubleType(),
}


#: Bits of the registers that instructions with a predicate return.
_BITS = {"h": 16, "r": 32}


def _returned(row: Instruction, choices: Mapping[str, Any]) -> tuple[types.Type, str, int]:
    """Return the Numba type of a result, the constraint of its registers and their number."""
    if row.returns == "None":
        return types.void, "", 0
    if row.returns == "bool":
        return types.boolean, "b", 1
    if vector := vector_of(row.returns, choices):
        element, count = vector
        numba_type, constraint = SCALARS[element]
        return types.UniTuple(numba_type, count), constraint, count
    return *SCALARS[row.returns], 1


def _choose(row: Instruction, name: str, given: types.Type) -> types.Type:
    """Return the type of an argument, or raise if PTX has no such value."""
    if isinstance(given, types.Literal) and given.literal_value in row.choices[name]:
        return given
    shown = repr(given.literal_value) if isinstance(given, types.Literal) else str(given)
    raise TypingError(f"{row.name}({name}=...) {choice_text(row, name)}, not {shown}")


def is_absent(typ: types.Type) -> bool:
    """Whether an optional operand is absent."""
    return typ is types.none or (isinstance(typ, types.Omitted) and typ.value is None)


def type_call(row: Instruction, given: dict[str, types.Type]) -> types.Type:
    """Type a call of `row`: the arguments as the instruction takes them, or a TypingError."""
    compiler.require_targets(f"{row.name}()", row.targets)
    if "coordinates" in given:  # their number chooses the form
        operand_of(row.operands["coordinates"], {}).accept(
            given["coordinates"], f"{row.name}(coordinates=...)"
        )
    chosen = {
        name: _choose(row, name, typ)
        for name, typ in given.items()
        if name in row.choices and not is_absent(typ)
    }
    choices = _values(chosen)
    form = _form(row, given, choices)
    if row.since or row.apart:
        if form.conflict is not None:
            raise TypingError(conflict_text(form))
        compiler.require_targets(f"{form.name.replace('[', '() [')}", form.targets)
    compiler.require_isa(f"{row.name}()", form.isa)
    args = []
    for name, typ in given.items():
        if is_absent(typ) and row.defaults.get(name, 0) is None:
            args.append(typ)
        elif name in chosen:
            args.append(chosen[name])
        else:
            operand = operand_of(row.operands[name], choices)
            args.append(operand.accept(typ, f"{row.name}({name}=...)"))
    if "offsets" in given and len(given["offsets"]) != len(given["coordinates"]) - 2:
        raise TypingError(
            f"{row.name}: {len(given['offsets'])} offsets for {len(given['coordinates'])} "
            "coordinates; give one per spatial axis: every axis but the first and the last"
        )
    return compiler.signature(_returned(row, choices)[0], *args)


def _form(
    row: Instruction, given: Mapping[str, types.Type], choices: Mapping[str, Any]
) -> InstructionForm:
    """Return the form of a row that a call selects."""
    rank = len(given["coordinates"]) if row.ranks and "coordinates" in given else None
    passed = (n for n, typ in given.items() if row.defaults.get(n, 0) is None and n not in choices)
    return InstructionForm(
        row, rank, dict(choices), frozenset(n for n in passed if not is_absent(given[n]))
    )


def _values(literals: Mapping[str, types.Type]) -> dict[str, Any]:
    return {name: typ.literal_value for name, typ in literals.items()}


#: Functions with `emit`'s parameters, called before a row is emitted: debug mode checks copies.
HOOKS: list[Callable[..., None]] = []
#: Functions of a row's result, and then the parameters of `HOOKS`, called after it is emitted.
AFTER: list[Callable[..., None]] = []
#: The rows that debug mode leaves out.
LEFT_OUT: set[str] = set()


def emit(
    row: Instruction,
    context: Context,
    builder: Builder,
    given: Operands,
    in_place: bool = False,
) -> Any:
    """Emit `row` with its operands, given as (Numba type, LLVM value) by name.

    A pure row can be kept `in_place`: LLVM then does not move it, so that the live ranges of its
    operands and its result stay as written.
    """
    if row.name in LEFT_OUT:
        return context.get_dummy_value()
    for hook in HOOKS:
        hook(row, context, builder, given)
    result = _emit(row, context, builder, given, in_place)
    for hook in AFTER:
        hook(result, row, context, builder, given)
    return result


def _emit(
    row: Instruction, context: Context, builder: Builder, given: Operands, in_place: bool
) -> Any:
    choices = _values(
        {n: typ for n, (typ, _) in given.items() if n in row.choices and not is_absent(typ)}
    )
    result_type, result_constraint, results = _returned(row, choices)
    values: list[Any] = []
    constraints = [f"={result_constraint}"] * results
    names: dict[str, str] = {}
    rank = predicate = halves = None
    for name, (typ, value) in given.items():
        if is_absent(typ):
            continue
        kind = row.operands[name]
        if name in choices:
            names[name] = str(choices[name])
            continue
        operand = operand_of(kind, choices)
        if not operand.constraint:
            names[name] = str(typ.literal_value)
            continue
        registers = operand.lower(context, builder, typ, value)
        first = len(constraints)
        texts = [f"${first + i}" for i in range(len(registers))]
        if kind == "Coordinates":
            rank = len(registers)
        if kind in ("Coordinates", "Offsets") or vector_of(kind, choices):
            names[name] = "{" + ", ".join(texts) + "}"
        elif kind == "Predicate":
            names[name], predicate = "p", texts
        elif kind == "b128":
            names[name], halves = "q", texts
        else:
            names[name] = texts[0]
        values += registers
        constraints += [operand.constraint] * len(registers)
    vector = isinstance(result_type, types.UniTuple)
    shown = [f"${i}" for i in range(results)]
    apart = shown.pop() if row.returns.endswith("and1") else ""
    result = "{" + ", ".join(shown) + "}" if vector else "$0"
    written = {"result": result, "apart": apart, "predicate": "$0"}
    text = row.text(names | written, set(names), rank)
    text = to_own_block(text, compiler.compile_target())
    if halves is not None:  # LLVM has no 128-bit registers
        text = f"{{ .reg .b128 q; mov.b128 q, {{{', '.join(halves)}}}; {text} }}"
    if predicate is not None:  # inline asm has no predicate operands
        compared = (
            f"lt.s32 p, {', '.join(predicate)}" if predicate[1:] else f"ne.u32 p, {predicate[0]}, 0"
        )
        zeros = "".join(f"mov.b{_BITS[result_constraint]} ${i}, 0; " for i in range(results))
        text = f"{{ .reg .pred p; setp.{compared}; {zeros}{text} }}"
        constraints[:results] = [f"=&{result_constraint}"] * results
    if not row.pure:
        constraints.append("~{memory}")
    asm = ir.InlineAsm(
        ir.FunctionType(_llvm_result(result_constraint, results), [v.type for v in values]),
        text,
        ",".join(constraints),
        side_effect=not row.pure,
    )
    # readnone: two reads of one special register become one instruction. convergent: LLVM does not
    # duplicate a barrier into divergent branches.
    attributes = ["readnone", "nounwind"] if row.pure and not in_place else []
    if row.convergent:
        attributes.append("convergent")
    value = builder.call(asm, values, attrs=tuple(attributes))
    if not results:
        return context.get_dummy_value()
    if vector:
        several = results > 1
        parts = [builder.extract_value(value, i) if several else value for i in range(results)]
        return context.make_tuple(builder, result_type, parts)
    return value


def to_own_block(text: str, target: str) -> str:
    """Return a load from global memory with the destination that the target executes best.

    A load without ``.multicast::cluster`` writes to the executing block. Its destination is named
    ``.shared::cluster``, or ``.shared::cta`` on targets where the former calls a driver routine.
    """
    alone = "multicast::cluster" not in text and "cta_group" not in text
    if alone and architecture_of(target).loads_to_cta:
        return text.replace(".shared::cluster.global", ".shared::cta.global")
    return text


def _llvm_result(constraint: str, count: int) -> Any:
    if count == 0:
        return ir.VoidType()
    return _LLVM[constraint] if count == 1 else ir.LiteralStructType([_LLVM[constraint]] * count)


def _is_elementwise(row: Instruction) -> bool:
    """Whether a row computes one number from numbers alone, and so takes vectors, too."""
    kinds = {row.returns, *row.operands.values()}
    return row.pure and not row.convergent and bool(row.operands) and kinds <= set(SCALARS)


def _type_elementwise(row: Instruction, given: dict[str, types.Type]) -> types.Type:
    """Type a call of `row` for each lane of vectors; a number is broadcast to every lane."""
    lanes = {typ.count for typ in given.values() if isinstance(typ, VectorType)}
    if len(lanes) > 1:
        raise TypingError(
            f"{row.name}: vectors of {' and '.join(map(str, sorted(lanes)))} elements do not go "
            "together: give vectors of one length, and numbers"
        )
    scalars = {n: t.dtype if isinstance(t, VectorType) else t for n, t in given.items()}
    scalar = type_call(row, scalars)
    (count,) = lanes
    args = [
        VectorType(kind, count) if isinstance(typ, VectorType) else kind
        for kind, typ in zip(scalar.args, given.values())
    ]
    for expected, (name, typ) in zip(args, given.items()):
        if isinstance(typ, VectorType) and typ != expected:
            raise TypingError(f"{row.name}({name}=...) takes {expected}, not {typ}")
    return compiler.signature(VectorType(scalar.return_type, count), *args)


def _emit_elementwise(
    row: Instruction, context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    count = sig.return_type.count
    kinds = [t.dtype if isinstance(t, VectorType) else t for t in sig.args]
    columns = [
        unpack(builder, a) if isinstance(t, VectorType) else [a] * count
        for t, a in zip(sig.args, args)
    ]
    names = list(sig.pysig.parameters)
    return pack(
        builder,
        [emit(row, context, builder, dict(zip(names, zip(kinds, e)))) for e in zip(*columns)],
    )


def register(row: Instruction, function: Callable[..., Any]) -> None:
    """Let kernels call `function` for the instruction `row`."""
    elementwise = _is_elementwise(row)

    def typer(**given: types.Type) -> types.Type:
        if elementwise and any(isinstance(typ, VectorType) for typ in given.values()):
            return _type_elementwise(row, given)
        return type_call(row, given)

    def lower(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
        if isinstance(sig.return_type, VectorType):
            return _emit_elementwise(row, context, builder, sig, args)
        return emit(row, context, builder, dict(zip(sig.pysig.parameters, zip(sig.args, args))))

    compiler.instruction_function(function, typer, lower)
