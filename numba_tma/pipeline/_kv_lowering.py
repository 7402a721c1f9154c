"""How kernels hold the ring of keys and values: the compiled half of `staged`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from numba_tma import _compiler as compiler
from numba_tma._compiler import ObjectType, TypingError, get_field, signature
from numba_tma._matrix_descriptor_lowering import lower_matrix_descriptor, type_matrix_descriptor
from numba_tma._shared_lowering import BARRIER, WRITES, shared_tile_type
from numba_tma.layout import Tile
from numba_tma.pipeline import staged as s
from numba_tma.pipeline._memory_lowering import U32, allocate, check_memory, constant
from numba_tma.pipeline.kv import KVPipeline
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import TABLE
from numba_tma.ptx._lowering import emit

# ------------------------------------------------------------------------------- start

compiler.device_function(s.initialise)


def _side_types(kv: KVPipeline) -> tuple[ObjectType, ObjectType]:
    """Return the Numba types of a started ring's producer and consumer."""
    state = ObjectType(PipelineState, (kv.num_kv_stages,), (U32, U32, U32), True)
    static = (kv.num_kv_stages, kv.num_qk_stages_effective)
    pipeline = ObjectType(s.StagedPipeline, static, (U32, state), True)
    producer = ObjectType(s.TMAProducerPipeline, (kv,), (pipeline, U32, U32, WRITES), True)
    return producer, ObjectType(s.TMAConsumerPipeline, (kv,), (pipeline, U32, WRITES), True)


def _type_start(self: ObjectType, tiles: Any = None, barriers: Any = None, sync: Any = None) -> Any:
    kv = self.static[0]
    last = max(
        (i for i, typ in enumerate((tiles, barriers, sync), 1) if typ is not None), default=0
    )
    given = [typ or types.none for typ in (tiles, barriers, sync)][:last]
    _synchronises(given)
    parts = {}
    if not check_memory("tiles", tiles or types.none, kv.storage_nbytes, kv.alignment):
        parts[f"{kv.num_kv_stages} stages x {kv.full_kv_bytes:,} B"] = kv.storage_nbytes
    if not check_memory("barriers", barriers or types.none, 8 * kv.num_barriers, 8):
        parts["barriers"] = 8 * kv.num_barriers
    compiler.check_shared_size(repr(kv), parts)
    return signature(types.Tuple(_side_types(kv)), self, *given)


def _synchronises(given: Any) -> bool:
    return len(given) < 3 or bool(compiler.static_of(given[2], "start(sync=...)"))


def _lower_start(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    # As with TilePipeline.start, what is mutable lives in the frame of the caller.
    kv = sig.args[0].static[0]
    producer_type, consumer_type = sig.return_type.types
    pipeline_type, writes_type = producer_type.field_types[0], WRITES
    zero, no = constant(0), ir.Constant(ir.IntType(1), 0)

    def make(typ: ObjectType, *values: Any) -> Any:
        return compiler.make_object(context, builder, typ, list(values))

    def staged(phase: int) -> Any:
        state = make(pipeline_type.field_types[1], zero, constant(phase), zero)
        return make(pipeline_type, barriers, state)

    base, barriers = allocate(builder, kv, sig.replace(args=sig.args[:3]), args[:3])
    thread = emit(TABLE["tid_x"], context, builder, {})
    mine = builder.sub(thread, constant(kv.producer.first))
    loading = staged(1)
    producer = make(producer_type, loading, base, mine, make(writes_type, no))
    consumer = make(consumer_type, staged(0), base, make(writes_type, no))
    initialise = signature(types.void, pipeline_type, U32, U32, U32, types.boolean)
    sync = ir.Constant(ir.IntType(1), int(_synchronises(sig.args[1:])))
    arguments = [loading, thread, constant(kv.empty_arrivals), constant(kv.block), sync]
    compiler.BODIES[s.initialise].call(context, builder, initialise, arguments)
    return context.make_tuple(builder, sig.return_type, [producer, consumer])


compiler.native_method(KVPipeline, "start", _type_start, _lower_start)


# ------------------------------------------------------------------ methods with sub-stages

Call = Callable[[Any, Any, ObjectType, Any, dict[str, Any]], Any]


def _method(
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
            raise TypingError(s.holds_rule(name, self.static_value("kv"), holds))
        if "qk_stage" in given:
            _check_sub_stage(name, _parts(self), given["qk_stage"])
        for other in ("index", "e"):
            _check_number(name, other, given.get(other, _NONE))
        return signature(result(self, given.get("qk_stage", _NONE)), self, *given.values())

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values: dict[str, Any] = {}
        for parameter, typ, value in zip(names, sig.args[1:], args[1:]):
            if _is_none(typ):
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


def _is_none(typ: types.Type) -> bool:
    return isinstance(typ, types.NoneType) or (isinstance(typ, types.Omitted) and typ.value is None)


def _parts(self: ObjectType) -> int:
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
    if not _is_none(given) and not isinstance(plain, types.Integer | types.Boolean):
        raise TypingError(f"{method}({name}=...) takes a number, not {given}")


def _run(
    cls: type, method: str, context: Any, builder: Any, typ: ObjectType, this: Any, *values: Any
) -> None:
    """Emit a method that Python says, over i32 values and i1 conditions."""
    body = compiler.describe(cls).methods[method].body
    kinds = [types.boolean if v.type == ir.IntType(1) else U32 for v in values]
    body.call(context, builder, signature(types.void, typ, *kinds), [this, *values])


def _elected(context: Any, builder: Any, e: Any) -> Any:
    return emit(TABLE["elect_sync"], context, builder, _ALL_LANES) if e is None else e


_ALL_LANES = {"mask": (U32, constant(0xFFFFFFFF))}


def _waiting(cls: type, inner: str, last: bool = False) -> Call:
    """Return how to wait for a sub-stage, by default the first or the last."""

    def call(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
        part = given.get("qk_stage") or constant(_parts(typ) - 1 if last else 0)
        if cls is not typ.cls:
            typ, this = typ.field_types[0], get_field(builder, typ, this, "pipeline")
        _run(cls, inner, context, builder, typ, this, part)
        return context.get_dummy_value()

    return call


def _releasing(cls: type, inner: str, last: bool = False) -> Call:
    """Return how to release a sub-stage, by default the first or the last."""

    def call(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
        part = given["qk_stage"] or constant(_parts(typ) - 1 if last else 0)
        e = _elected(context, builder, given["e"])
        _run(cls, inner, context, builder, typ, this, part, e)
        return context.get_dummy_value()

    return call


def _release_at(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
    first, stop = constant(0), constant(_parts(typ))
    if given["qk_stage"] is not None:
        first = given["qk_stage"]
        stop = builder.add(first, constant(1))
    e = _elected(context, builder, given["e"])
    _run(typ.cls, "_release_at", context, builder, typ, this, given["index"], first, stop, e)
    return context.get_dummy_value()


def _release_v(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
    e = _elected(context, builder, given["e"])
    _run(typ.cls, "_release_v", context, builder, typ, this, e)
    return context.get_dummy_value()


def _acquire_v(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
    _run(typ.cls, "_acquire_v", context, builder, typ, this)
    return context.get_dummy_value()


STAGED, PRODUCER, CONSUMER = s.StagedPipeline, s.TMAProducerPipeline, s.TMAConsumerPipeline

_method(STAGED, "producer_acquire", "qk_stage", _waiting(STAGED, "_producer_acquire"))
_method(STAGED, "consumer_wait", "qk_stage", _waiting(STAGED, "_consumer_wait"))
_method(STAGED, "consumer_release", "qk_stage e", _releasing(STAGED, "_consumer_release"))
_method(STAGED, "consumer_release_at", "index! qk_stage e", _release_at)

_acquire = _waiting(STAGED, "_producer_acquire")
_method(PRODUCER, "acquire", "qk_stage", _acquire)
_method(PRODUCER, "acquire_k", "qk_stage", _acquire, holds="k")
_method(PRODUCER, "acquire_v", "", _acquire_v, holds="v")

_method(CONSUMER, "wait", "qk_stage", _waiting(STAGED, "_consumer_wait"))
_method(CONSUMER, "wait_k", "qk_stage", _waiting(STAGED, "_consumer_wait", True), holds="k")
_method(CONSUMER, "wait_v", "", _waiting(STAGED, "_consumer_wait"), holds="v")
_method(CONSUMER, "release", "qk_stage e", _releasing(CONSUMER, "_release"))
_method(CONSUMER, "release_k", "qk_stage e", _releasing(CONSUMER, "_release", True), holds="k")
_method(CONSUMER, "release_v", "e", _release_v, holds="v")
_method(CONSUMER, "release_at", "index! qk_stage e", _release_at)


# ------------------------------------------------------------------- tiles and descriptors


def _kv(typ: ObjectType) -> KVPipeline:
    return typ.static_value("kv")


def _tile(kv: KVPipeline, what: str, part: Any = 0) -> Tile:
    """Return the tile of K's sub-stage, of K's stage (`part` is None), or of V."""
    if what == "v":
        return kv.v_tile
    return kv.k_stage if part is None else kv.k_tile


def _shared(
    context: Any, builder: Any, typ: ObjectType, this: Any, tile: Tile, part: Any, index: Any
) -> Any:
    """Return a tile of the stage that a side is at, or of stage `index`."""
    kv = _kv(typ)
    if index is None:
        pipeline_type, pipeline = typ.field_types[0], get_field(builder, typ, this, "pipeline")
        state = get_field(builder, pipeline_type, pipeline, "state")
        index = get_field(builder, pipeline_type.field_types[1], state, "index")
    offset = builder.mul(index, constant(kv.full_kv_bytes))
    if part is not None:
        offset = builder.add(offset, builder.mul(part, constant(kv.staged_k_bytes)))
    address = builder.add(get_field(builder, typ, this, "base"), offset)
    writes = get_field(builder, typ, this, "writes")
    return compiler.make_object(context, builder, shared_tile_type(tile), [address, writes])


def _get_tile(what: str) -> tuple[Call, Callable[[ObjectType, Any], types.Type]]:
    """Return how to get the tile of K (``"k"``), of V, or of what is meant (``""``)."""

    def result(self: ObjectType, part: Any) -> types.Type:
        return shared_tile_type(_tile(_kv(self), what or "vk"[_kv(self).is_k]))

    def call(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
        tile = _tile(_kv(typ), what or "vk"[_kv(typ).is_k])
        part, index = given.get("qk_stage"), given.get("index")
        return _shared(context, builder, typ, this, tile, part, index)

    return call, result


def _get_for_load(what: str) -> tuple[Call, Callable[[ObjectType, Any], types.Type]]:
    """Return how a producer gets barrier and tile, and expects the bytes."""
    get, tile_type = _get_tile(what)

    def result(self: ObjectType, part: Any) -> types.Type:
        return types.Tuple((BARRIER, tile_type(self, part)))

    def call(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
        part = given.get("qk_stage") or constant(0)
        e = given["e"] if given["e"] is not None else ir.Constant(ir.IntType(1), 1)
        if what == "v" or not _kv(typ).is_k:
            _run(PRODUCER, "_expect_v", context, builder, typ, this, e)
        else:
            _run(PRODUCER, "_expect_k", context, builder, typ, this, part, e)
        tile = get(context, builder, typ, this, given)
        pipeline_type, pipeline = typ.field_types[0], get_field(builder, typ, this, "pipeline")
        body = compiler.describe(STAGED).methods["full"].body
        full = body.call(context, builder, signature(BARRIER, pipeline_type, U32), [pipeline, part])
        return context.make_tuple(builder, result(typ, None), [full, tile])

    return call, result


def _descriptor(what: str) -> tuple[Call, Callable[[ObjectType, Any], types.Type]]:
    """Return how a consumer gets a matrix descriptor."""

    def typed(self: ObjectType, whole: bool) -> Any:
        kv = _kv(self)
        kind = what or "vk"[kv.is_k]
        tile = _tile(kv, kind, None if whole else 0)
        return type_matrix_descriptor(
            shared_tile_type(tile), types.literal("K" if kind == "k" else "MN")
        )

    def result(self: ObjectType, part: Any) -> types.Type:
        return typed(self, _is_none(part)).return_type

    def call(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
        part = given.get("qk_stage")
        sig = typed(typ, part is None)
        tile = sig.args[0].static[0]
        value = _shared(context, builder, typ, this, tile, part, given.get("index"))
        return lower_matrix_descriptor(context, builder, sig, [value, None])

    return call, result


_method(PRODUCER, "get_tile", "qk_stage e", *_get_for_load(""))
_method(PRODUCER, "get_k", "qk_stage e", *_get_for_load("k"), holds="k")
_method(PRODUCER, "get_v", "e", *_get_for_load("v"), holds="v")
_method(CONSUMER, "get", "index", *_descriptor(""))
_method(CONSUMER, "get_k", "qk_stage index", *_descriptor("k"), holds="k")
_method(CONSUMER, "get_v", "index", *_descriptor("v"), holds="v")
_method(CONSUMER, "get_tile", "qk_stage index", *_get_tile(""))
_method(CONSUMER, "get_k_tile", "qk_stage index", *_get_tile("k"), holds="k")
_method(CONSUMER, "get_v_tile", "index", *_get_tile("v"), holds="v")


# ----------------------------------------------------------------------------- members


def _resolve_member(typ: ObjectType, name: str) -> types.Type | None:
    return types.literal(int(getattr(_kv(typ), name))) if name in s.MEMBERS else None


def _lower_member(context: Any, builder: Any, typ: ObjectType, value: Any, name: str) -> Any:
    return context.get_constant(types.intp, int(getattr(_kv(typ), name)))


for side in (PRODUCER, CONSUMER):
    compiler.describe(side).resolve = _resolve_member
    compiler.describe(side).lower = _lower_member


def _check_staged(typ: ObjectType) -> None:
    for name, value in zip(("num_kv_stages", "num_qk_stages"), typ.static):
        if not isinstance(value, int) or value < 1:
            raise TypingError(f"StagedPipeline({name}={value!r}): an integer of at least 1")


compiler.describe(STAGED).check = _check_staged
