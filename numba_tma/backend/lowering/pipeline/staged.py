"""How kernels hold a `StagedPipeline`: methods whose sub-stage may be a literal, which is checked.

Sides of a `KVPipeline` have such methods as well; `_kv_lowering` registers those.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import ObjectType, TypingError, ir, signature, types
from numba_tma.backend.lowering.instructions import emit
from numba_tma.backend.lowering.pipeline.tile import U32, constant
from numba_tma.pipeline import staged as s
from numba_tma.pipeline._kv_rules import holds_rule
from numba_tma.ptx import TABLE

Call = Callable[[Any, Any, ObjectType, Any, dict[str, Any]], Any]


def method(
    cls: type,
    name: str,
    parameters: str,
    call: Call,
    result: Callable[[ObjectType, Any], types.Type] = lambda self, qk_stage: types.void,
    *,
    holds: str = "",
) -> None:
    """Register a method of qk_stage, e and index, which can be left out but for one with a "!".

    `call(context, builder, self_type, self, arguments)` emits it; an argument that was left out, or
    is None, is None.
    """
    names = parameters.replace("!", "").split()
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    declared = [
        inspect.Parameter(n, positional, default=_EMPTY if f"{n}!" in parameters else _NONE)
        for n in names
    ]

    def typer(self: ObjectType, *args: types.Type, **kws: types.Type) -> Any:
        bound = inspect.Signature(declared).bind(*args, **kws)
        bound.apply_defaults()
        given = bound.arguments
        if holds and holds not in self.static_value("kv").holds:
            raise TypingError(holds_rule(name, self.static_value("kv"), holds))
        if "qk_stage" in given:
            _check_sub_stage(name, parts_of(self), given["qk_stage"])
        for other in ("index", "e"):
            _check_number(name, other, given.get(other, _NONE))
        return signature(result(self, given.get("qk_stage", _NONE)), self, *given.values())

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values: dict[str, Any] = {}
        for parameter, typ, value in zip(names, sig.args[1:], args[1:]):
            if is_none(typ):
                values[parameter] = None
            elif isinstance(typ, types.IntegerLiteral):
                values[parameter] = constant(typ.literal_value)
            else:
                to = types.boolean if parameter == "e" else U32
                values[parameter] = context.cast(builder, value, typ, to)
            if parameter == "e" and isinstance(typ, types.IntegerLiteral):
                values[parameter] = ir.Constant(ir.IntType(1), int(typ.literal_value != 0))
        return call(context, builder, sig.args[0], args[0], values)

    this = inspect.Parameter("self", positional)
    typer.__signature__ = inspect.Signature([this, *declared])  # type: ignore[attr-defined]
    compiler.native_method(cls, name, typer, lower)


_NONE, _EMPTY = types.none, inspect.Parameter.empty


def is_none(typ: types.Type) -> bool:
    """Whether an argument was left out, or is None."""
    return isinstance(typ, types.NoneType) or (isinstance(typ, types.Omitted) and typ.value is None)


def parts_of(self: ObjectType) -> int:
    """Return the sub-stages of a stage, of a `StagedPipeline` or a side."""
    if self.cls is s.StagedPipeline:
        return int(self.static_value("num_qk_stages"))
    return int(self.static_value("kv").num_qk_stages_effective)


def _check_sub_stage(method: str, parts: int, given: types.Type) -> None:
    _check_number(method, "qk_stage", given)
    if isinstance(given, types.IntegerLiteral) and not 0 <= given.literal_value < parts:
        raise TypingError(s.sub_stage_rule(method, parts, given.literal_value))


def _check_number(method: str, name: str, given: types.Type) -> None:
    plain = types.unliteral(given)
    if not is_none(given) and not isinstance(plain, types.Integer | types.Boolean):
        raise TypingError(f"{method}({name}=...) takes a number, not {given}")


def run(
    cls: type, name: str, context: Any, builder: Any, typ: ObjectType, this: Any, *values: Any
) -> None:
    """Emit a method that Python says, over i32 values and i1 conditions."""
    body = compiler.describe(cls).methods[name].body
    kinds = [types.boolean if v.type == ir.IntType(1) else U32 for v in values]
    body.call(context, builder, signature(types.void, typ, *kinds), [this, *values])


def elected(context: Any, builder: Any, e: Any) -> Any:
    """Return which lane arrives: the one that the caller says, or one that is elected here."""
    return emit(TABLE["elect_sync"], context, builder, _ALL_LANES) if e is None else e


_ALL_LANES = {"mask": (U32, constant(0xFFFFFFFF))}


def waiting(cls: type, inner: str) -> Call:
    """Return how to wait for a sub-stage, by default the first."""

    def call(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
        run(cls, inner, context, builder, typ, this, given["qk_stage"] or constant(0))
        return context.get_dummy_value()

    return call


def releasing(cls: type, inner: str, last: bool = False) -> Call:
    """Return how to release a sub-stage, by default the first or the last."""

    def call(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
        part = given["qk_stage"] or constant(parts_of(typ) - 1 if last else 0)
        e = elected(context, builder, given["e"])
        run(cls, inner, context, builder, typ, this, part, e)
        return context.get_dummy_value()

    return call


def release_at(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
    """Release a stage that was left, or one sub-stage of it."""
    first, stop = constant(0), constant(parts_of(typ))
    if given["qk_stage"] is not None:
        first = given["qk_stage"]
        stop = builder.add(first, constant(1))
    e = elected(context, builder, given["e"])
    run(typ.cls, "_release_at", context, builder, typ, this, given["index"], first, stop, e)
    return context.get_dummy_value()


STAGED = s.StagedPipeline

method(STAGED, "producer_acquire", "qk_stage", waiting(STAGED, "_producer_acquire"))
method(STAGED, "consumer_wait", "qk_stage", waiting(STAGED, "_consumer_wait"))
method(STAGED, "consumer_release", "qk_stage e", releasing(STAGED, "_consumer_release"))
method(STAGED, "consumer_release_at", "index! qk_stage e", release_at)


def _check_staged(typ: ObjectType) -> None:
    for name, value in zip(("num_kv_stages", "num_qk_stages"), typ.static):
        if not isinstance(value, int) or value < 1:
            raise TypingError(f"StagedPipeline({name}={value!r}): an integer of at least 1")


compiler.describe(STAGED).check = _check_staged
