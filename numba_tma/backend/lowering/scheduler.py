"""How kernels hold schedules: the compiled half of `scheduler`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    Builder,
    Context,
    ObjectType,
    Signature,
    TypingError,
    Value,
    signature,
    types,
)
from numba_tma.device import scheduler as s

# ---------------------------------------------------------------------------- division


def _type_quotient(number: types.Type, divisor: types.Type) -> Any:
    return signature(types.UniTuple(types.uint32, 2), types.uint32, types.uint32)


def _lower_quotient(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    # Numba's own // tests for 0, and LLVM would make two of every loop around it.
    pair = [builder.udiv(*args), builder.urem(*args)]
    return context.make_tuple(builder, sig.return_type, pair)


compiler.instruction_function(s.quotient, _type_quotient, _lower_quotient)


# ------------------------------------------------------------------------------ checks


def _is_integer(typ: types.Type) -> bool:
    return isinstance(types.unliteral(typ), types.Integer)


def _type_integer(
    scheduler: ObjectType, name: types.Type, value: types.Type, stop: types.Type = None
) -> Any:
    if not _is_integer(value):
        raise TypingError(s.no_integer(scheduler.static[0], name.literal_value, str(value)))
    given = (scheduler, name, value) + (stop,) * (stop is not None)
    return signature(types.uint32, *given)


def _as_u32(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    return context.cast(builder, args[2], sig.args[2], types.uint32)


compiler.instruction_function(s.integer, _type_integer, _as_u32)


def _type_is_given(batch: types.Type) -> Any:
    none = isinstance(batch, types.NoneType) or getattr(batch, "value", batch) is None
    return signature(types.literal(not none), batch)


def _is_given(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    return context.get_constant(types.boolean, sig.return_type.literal_value)


compiler.instruction_function(s.is_given, _type_is_given, _is_given)
