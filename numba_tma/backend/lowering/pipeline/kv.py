"""How kernels hold the two sides of a `KVPipeline`: the compiled half of `kv_started`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import ObjectType, get_field, ir, signature, types
from numba_tma.backend.lowering.instructions import emit
from numba_tma.backend.lowering.matrix_descriptor import (
    lower_matrix_descriptor,
    type_matrix_descriptor,
)
from numba_tma.backend.lowering.pipeline.memory import U32, allocate, check_memory, constant
from numba_tma.backend.lowering.pipeline.staged import (
    STAGED,
    Call,
    elected,
    is_none,
    method,
    parts_of,
    release_at,
    releasing,
    run,
    waiting,
)
from numba_tma.backend.lowering.shared import ACCESSES, shared_tile_type
from numba_tma.device.barrier import Barrier
from numba_tma.host.layout import Tile
from numba_tma.pipeline import kv_started
from numba_tma.pipeline.kv import KVPipeline
from numba_tma.pipeline.kv_consumer import TMAConsumerPipeline as CONSUMER
from numba_tma.pipeline.kv_producer import TMAProducerPipeline as PRODUCER
from numba_tma.pipeline.kv_side import MEMBERS
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import TABLE

# ------------------------------------------------------------------------------- start

compiler.device_function(kv_started.initialise)


def _side_types(kv: KVPipeline) -> tuple[ObjectType, ObjectType]:
    """Return the Numba types of a started ring's producer and consumer."""
    state = ObjectType(PipelineState, (kv.num_kv_stages,), (U32, U32, U32), True)
    static = (kv.num_kv_stages, kv.num_qk_stages_effective, kv.ledger_offset)
    pipeline = ObjectType(STAGED, static, (U32, state), True)
    producer = ObjectType(PRODUCER, (kv,), (pipeline, U32, U32, ACCESSES), True)
    fields = (pipeline, U32, ACCESSES, U32, types.boolean)
    return producer, ObjectType(CONSUMER, (kv,), fields, True)


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
    pipeline_type, accesses_type = producer_type.field_types[0], ACCESSES
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
    producer = make(producer_type, loading, base, mine, make(accesses_type, no))
    consumer = make(consumer_type, staged(0), base, make(accesses_type, no), zero, no)
    initialise = signature(types.void, pipeline_type, U32, U32, U32, types.boolean)
    sync = ir.Constant(ir.IntType(1), int(_synchronises(sig.args[1:])))
    arguments = [loading, thread, constant(kv.empty_arrivals), constant(kv.block), sync]
    compiler.BODIES[kv_started.initialise].call(context, builder, initialise, arguments)
    return context.make_tuple(builder, sig.return_type, [producer, consumer])


compiler.native_method(KVPipeline, "start", _type_start, _lower_start)


# ------------------------------------------------------------------- waits and releases


def _wait(last: bool) -> Call:
    """Return how to wait for a sub-stage of K, by default the first or the last, or for V alone."""

    def call(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
        if not _kv(typ).is_k:
            return _wait_v(context, builder, typ, this, given)
        part = given["qk_stage"] or constant(parts_of(typ) - 1 if last else 0)
        run(CONSUMER, "_wait_k", context, builder, typ, this, part)
        return context.get_dummy_value()

    return call


def _wait_v(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
    run(CONSUMER, "_wait_v", context, builder, typ, this)
    return context.get_dummy_value()


def _release_v(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
    run(CONSUMER, "_release_v", context, builder, typ, this, elected(context, builder, given["e"]))
    return context.get_dummy_value()


def _acquire_v(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
    run(PRODUCER, "_acquire_all", context, builder, typ, this)
    return context.get_dummy_value()


method(PRODUCER, "acquire", "qk_stage", waiting(PRODUCER, "_acquire"))
method(PRODUCER, "acquire_k", "qk_stage", waiting(PRODUCER, "_acquire"), holds="k")
method(PRODUCER, "acquire_v", "", _acquire_v, holds="v")

method(CONSUMER, "wait", "qk_stage", _wait(False))
method(CONSUMER, "wait_k", "qk_stage", _wait(True), holds="k")
method(CONSUMER, "wait_v", "", _wait_v, holds="v")
method(CONSUMER, "release", "qk_stage e", releasing(CONSUMER, "_release"))
method(CONSUMER, "release_k", "qk_stage e", releasing(CONSUMER, "_release", True), holds="k")
method(CONSUMER, "release_v", "e", _release_v, holds="v")
method(CONSUMER, "release_at", "index! qk_stage e", release_at)


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
    accesses = get_field(builder, typ, this, "accesses")
    return compiler.make_object(context, builder, shared_tile_type(tile), [address, accesses])


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
        barrier = ObjectType(Barrier, (_kv(self).ledger_offset,), (U32,))
        return types.Tuple((barrier, tile_type(self, part)))

    def call(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
        part = given.get("qk_stage") or constant(0)
        e = given["e"] if given["e"] is not None else ir.Constant(ir.IntType(1), 1)
        of_v = what == "v" or not _kv(typ).is_k
        part = constant(0) if of_v else part
        tx_bytes = _kv(typ).full_kv_bytes if of_v else _kv(typ).staged_k_bytes
        run(PRODUCER, "_expect", context, builder, typ, this, part, constant(tx_bytes), e)
        tile = get(context, builder, typ, this, given)
        returned = result(typ, None)
        pipeline_type, pipeline = typ.field_types[0], get_field(builder, typ, this, "pipeline")
        body = compiler.describe(STAGED).methods["full"].body
        sig = signature(returned[0], pipeline_type, U32)
        full = body.call(context, builder, sig, [pipeline, part])
        return context.make_tuple(builder, returned, [full, tile])

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
        return typed(self, is_none(part)).return_type

    def call(context: Any, builder: Any, typ: ObjectType, this: Any, given: Any) -> Any:
        part = given.get("qk_stage")
        sig = typed(typ, part is None)
        tile = sig.args[0].static[0]
        value = _shared(context, builder, typ, this, tile, part, given.get("index"))
        return lower_matrix_descriptor(context, builder, sig, [value, None])

    return call, result


method(PRODUCER, "get_tile", "qk_stage e", *_get_for_load(""))
method(PRODUCER, "get_k", "qk_stage e", *_get_for_load("k"), holds="k")
method(PRODUCER, "get_v", "e", *_get_for_load("v"), holds="v")
method(CONSUMER, "get", "index", *_descriptor(""))
method(CONSUMER, "get_k", "qk_stage index", *_descriptor("k"), holds="k")
method(CONSUMER, "get_v", "index", *_descriptor("v"), holds="v")
method(CONSUMER, "get_tile", "qk_stage index", *_get_tile(""))
method(CONSUMER, "get_k_tile", "qk_stage index", *_get_tile("k"), holds="k")
method(CONSUMER, "get_v_tile", "index", *_get_tile("v"), holds="v")


# ----------------------------------------------------------------------------- members


def _resolve_member(typ: ObjectType, name: str) -> types.Type | None:
    return types.literal(int(getattr(_kv(typ), name))) if name in MEMBERS else None


def _lower_member(context: Any, builder: Any, typ: ObjectType, value: Any, name: str) -> Any:
    return context.get_constant(types.intp, int(getattr(_kv(typ), name)))


for side in (PRODUCER, CONSUMER):
    compiler.describe(side).resolve = _resolve_member
    compiler.describe(side).lower = _lower_member
