"""Loads and stores of columns of tensor memory, in tuples of constant length."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    Builder,
    Context,
    Signature,
    Value,
    VectorType,
    ir,
    signature,
    types,
)
from numba_tma.backend.lowering.elements import join_word, pair_to_floats
from numba_tma.backend.lowering.instructions import emit
from numba_tma.device.tensor_columns import claim_columns, load_columns, store_columns
from numba_tma.host.tensor_tiles import Accumulator, TensorOperand
from numba_tma.ptx import TABLE

U32 = types.uint32
#: Columns that one instruction moves. More would need as many consecutive registers, which the
#: assembler may not have free; the pieces of a load or a store share one wait.
AT_ONCE = 32
_LOAD, _WAIT = TABLE["tcgen05_ld_32x32b"], TABLE["tcgen05_wait_ld"]
#: Load and wait are one assembler statement, so that arithmetic on the registers stays behind it.
LOAD_AND_WAIT = dataclasses.replace(_LOAD, template=f"{_LOAD.template}\n\t{_WAIT.template}")


def _layout(typ: types.Type) -> Accumulator | TensorOperand:
    layout: Accumulator | TensorOperand = compiler.static_of(typ, "layout")
    return layout


def _element(layout: Accumulator | TensorOperand) -> types.Type:
    return getattr(types, layout.dtype.compute)


def _type_load(layout: Any, taddr: Any, num: Any) -> Any:
    count = compiler.static_of(num, "num")
    return signature(types.UniTuple(_element(_layout(layout)), count), layout, U32, num)


def _lower_load(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    result = sig.return_type
    dtype = _layout(sig.args[0]).dtype
    element = context.get_value_type(result.dtype)
    words = _loaded(context, builder, args[1], len(result))
    if dtype.itemsize == 2:
        parts = [pair_to_floats(context, builder, dtype, word)[0] for word in words]
    else:
        parts = [builder.bitcast(word, element) for word in words]
    return context.make_tuple(builder, result, parts)


def _loaded(context: Context, builder: Builder, taddr: Value, num: int) -> list[Value]:
    """Return `num` columns as words of 32 bits."""
    if num <= AT_ONCE:
        operands = {"taddr": (U32, taddr), "num": (types.literal(num), None)}
        loaded = emit(LOAD_AND_WAIT, context, builder, operands)
        return [builder.extract_value(loaded, i) for i in range(num)]
    lines, addresses = [], []
    for first in range(0, num, AT_ONCE):
        addresses.append(builder.add(taddr, ir.Constant(I32, first)))
        registers = ", ".join(f"${i}" for i in range(first, first + AT_ONCE))
        place = f"${num + len(addresses) - 1}"
        names = {"num": str(AT_ONCE), "result": f"{{{registers}}}", "taddr": place}
        lines.append(_LOAD.text(names, set(names), None))
    # Earlier loads write their registers before later ones read their addresses.
    constraints = ["=&r"] * num + ["r"] * len(addresses) + ["~{memory}"]
    asm = ir.InlineAsm(
        ir.FunctionType(ir.LiteralStructType([I32] * num), [I32] * len(addresses)),
        "\n\t".join([*lines, _WAIT.template]),
        ",".join(constraints),
        side_effect=True,
    )
    value = builder.call(asm, addresses, attrs=("convergent",))
    return [builder.extract_value(value, i) for i in range(num)]


def _type_store(layout: Any, taddr: Any, values: Any) -> Any:
    element = _element(_layout(layout))
    if isinstance(values, VectorType):
        return signature(types.void, layout, U32, VectorType(element, values.count))
    return signature(types.void, layout, U32, types.UniTuple(element, len(values)))


def _lower_store(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    layout = _layout(sig.args[0])
    elements = [builder.extract_value(args[2], i) for i in range(sig.args[2].count)]
    per_word = 4 // layout.dtype.itemsize
    if layout.per_cell < per_word:  # the lower part of a cell
        zero = ir.Constant(elements[0].type, 0)
        elements = [e for each in elements for e in (each, *[zero] * (per_word - 1))]
    words = [
        join_word(context, builder, layout.dtype, elements[i : i + per_word], I32)
        for i in range(0, len(elements), per_word)
    ]
    for first in range(0, len(words), AT_ONCE):
        piece = words[first : first + AT_ONCE]
        given = types.UniTuple(U32, len(piece))
        operands = {
            "taddr": (U32, builder.add(args[1], ir.Constant(I32, first)) if first else args[1]),
            "values": (given, context.make_tuple(builder, given, piece)),
            "num": (types.literal(len(piece)), None),
        }
        emit(TABLE["tcgen05_st_32x32b"], context, builder, operands)
    emit(TABLE["tcgen05_wait_st"], context, builder, {})
    return context.get_dummy_value()


def _type_claim(claim: Any) -> Any:
    return signature(types.void, claim)


def _lower_claim(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    compiler.claim_columns(builder, compiler.static_of(sig.args[0], "claim"))
    return context.get_dummy_value()


compiler.instruction_function(load_columns, _type_load, _lower_load)
compiler.instruction_function(store_columns, _type_store, _lower_store)
compiler.instruction_function(claim_columns, _type_claim, _lower_claim)
