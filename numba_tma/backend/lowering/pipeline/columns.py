"""Loads and stores of columns of tensor memory, in tuples of constant length."""

from __future__ import annotations

import dataclasses
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import I32, signature, types
from numba_tma.backend.lowering.instructions import emit
from numba_tma.pipeline.columns import load_columns, store_columns
from numba_tma.ptx import TABLE

U32 = types.uint32
_LOAD, _WAIT = TABLE["tcgen05_ld_32x32b"], TABLE["tcgen05_wait_ld"]
#: Load and wait are one assembler statement, so that arithmetic on the registers stays behind it.
LOAD_AND_WAIT = dataclasses.replace(_LOAD, template=f"{_LOAD.template}\n\t{_WAIT.template}")


def _element(acc: types.Type) -> types.Type:
    return getattr(types, compiler.static_of(acc, "acc").dtype.compute)


def _type_load(acc: Any, taddr: Any, num: Any) -> Any:
    count = compiler.static_of(num, "num")
    return signature(types.UniTuple(_element(acc), count), acc, U32, num)


def _lower_load(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    result = sig.return_type
    num = types.literal(len(result))
    loaded = emit(LOAD_AND_WAIT, context, builder, {"taddr": (U32, args[1]), "num": (num, None)})
    element = context.get_value_type(result.dtype)
    parts = [builder.extract_value(loaded, i) for i in range(len(result))]
    return context.make_tuple(builder, result, [builder.bitcast(p, element) for p in parts])


def _type_store(acc: Any, taddr: Any, values: Any) -> Any:
    return signature(types.void, acc, U32, types.UniTuple(_element(acc), len(values)))


def _lower_store(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    count = len(sig.args[2])
    parts = [builder.bitcast(builder.extract_value(args[2], i), I32) for i in range(count)]
    given = types.UniTuple(U32, count)
    operands = {
        "taddr": (U32, args[1]),
        "values": (given, context.make_tuple(builder, given, parts)),
        "num": (types.literal(count), None),
    }
    emit(TABLE["tcgen05_st_32x32b"], context, builder, operands)
    emit(TABLE["tcgen05_wait_st"], context, builder, {})
    return context.get_dummy_value()


compiler.instruction_function(load_columns, _type_load, _lower_load)
compiler.instruction_function(store_columns, _type_store, _lower_store)
