"""The operands of a row as the instruction takes them, for what is emitted beside it."""

from __future__ import annotations

from typing import Any

from numba_tma.backend.compiler import I32, Builder, Context, ir, types
from numba_tma.backend.lowering.instructions import Operands, is_absent
from numba_tma.backend.lowering.operands import OPERANDS
from numba_tma.ptx._instruction import Instruction


def word_of(given: Operands, name: str) -> Any:
    """Return an operand as the word that the instruction takes; None if it is absent."""
    if name not in given or is_absent(given[name][0]):
        return None
    typ, value = given[name]
    if isinstance(typ, types.Literal):
        return ir.Constant(I32, int(typ.literal_value) & 0xFFFFFFFF)
    return value


def place_of(context: Context, builder: Builder, given: Operands, name: str, kind: str) -> Any:
    """Return the shared address of an operand."""
    typ, value = given[name]
    return OPERANDS[kind].lower(context, builder, typ, value)[0]


def barrier_of(context: Context, builder: Builder, row: Instruction, given: Operands) -> Any:
    """Return the shared address of a row's barrier."""
    return place_of(context, builder, given, "barrier", row.operands["barrier"])
