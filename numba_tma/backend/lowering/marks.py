"""Marks in kernels: records where a kernel is compiled with a trace, and nothing elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import I32, Builder, Context, Signature, Value, ir, signature, types
from numba_tma.backend.lowering import tracing
from numba_tma.device import marks
from numba_tma.host.trace_records import RecordKind, RecordSite
from numba_tma.host.tracing import compiles_traced

U32 = types.uint32


def _lower_now(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    return tracing.clock(builder) if compiles_traced() else ir.Constant(I32, 0)


def _lower_end_mark(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    if compiles_traced():
        name = compiler.static_of(sig.args[0], "end_mark(name=...)")
        tracing.note(builder, RecordSite(RecordKind.MARK, name), begun=args[1])
    return context.get_dummy_value()


def _lower_flag(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    if compiles_traced():
        site = compiler.static_of(sig.args[0], "waited_for_flag(site=...)")
        tracing.note(builder, RecordSite(RecordKind.FLAG, site.what, site.role), begun=args[1])
    return context.get_dummy_value()


def _lower_tile(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    if compiles_traced():
        tracing.note(builder, RecordSite(RecordKind.TILE), value=args[0])
    return context.get_dummy_value()


compiler.instruction_function(marks.now, lambda: signature(U32), _lower_now)
compiler.instruction_function(
    marks.end_mark, lambda name, begun: signature(types.void, name, U32), _lower_end_mark
)
compiler.instruction_function(
    marks.waited_for_flag, lambda site, begun: signature(types.void, site, U32), _lower_flag
)
compiler.instruction_function(
    marks.begin_tile, lambda number: signature(types.void, U32), _lower_tile
)
