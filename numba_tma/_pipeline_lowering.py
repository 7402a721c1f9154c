"""How kernels hold pipelines: the compiled half of `pipeline`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from numba_tma import _compiler as compiler
from numba_tma import pipeline as p
from numba_tma._compiler import I32, ObjectType, TypingError, get_field, signature
from numba_tma._shared_lowering import WRITES, require_map, shared_tile_type
from numba_tma.ptx import TABLE
from numba_tma.ptx._lowering import emit


def _static_pipeline(typ: ObjectType) -> p.TilePipeline:
    return typ.static_value("pipeline")


# -------------------------------------------------------------------------- allocation


def _check_size(value: p.TilePipeline) -> None:
    parts = {
        f"{name}: {value.num_stages} stages x {p.tile_stride(tile):,} B": value.num_stages
        * p.tile_stride(tile)
        for name, tile in value.tiles
    }
    parts["barriers"] = value.nbytes - sum(parts.values())
    compiler.check_shared_size(repr(value), parts)


compiler.device_function(p.initialise)


def _pipeline_types(value: p.TilePipeline) -> tuple[ObjectType, ObjectType, ObjectType]:
    """Return the Numba types of a started pipeline, its producer and its consumer."""
    u32 = types.uint32
    state = ObjectType(p.PipelineState, (value.num_stages,), (u32, u32, u32), True)
    producer = ObjectType(p.Producer, (value,), (u32, state, WRITES))
    consumer = ObjectType(
        p.Consumer,
        (value,),
        (u32, u32, u32, state, WRITES, u32, u32, u32, u32, types.boolean, types.boolean),
        True,
    )
    return ObjectType(p.Pipeline, (), (producer, consumer)), producer, consumer


def _type_start(self: ObjectType) -> Any:
    _check_size(self.static[0])
    return signature(_pipeline_types(self.static[0])[0], self)


def _lower_start(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    # The mutable halves live in the frame of the function that calls start(), so this one
    # constructor is spelt out here; the body it mirrors is pipeline.start.
    value = sig.args[0].static[0]
    pipeline_type, producer_type, consumer_type = _pipeline_types(value)
    state_type = producer_type.field_types[1]
    zero, one, no = ir.Constant(I32, 0), ir.Constant(I32, 1), ir.Constant(ir.IntType(1), 0)
    stages = ir.Constant(I32, value.num_stages)

    def make(typ: ObjectType, *values: Any) -> Any:
        return compiler.make_object(context, builder, typ, list(values))

    base = compiler.allocate_shared(builder, value.nbytes, value.alignment, repr(value))
    producer = make(producer_type, base, make(state_type, stages, zero, zero), make(WRITES, no))
    thread = emit(TABLE["tid_x"], context, builder, {})
    threads = emit(TABLE["ntid_x"], context, builder, {})
    consumers = builder.sub(threads, ir.Constant(I32, p.WARP))
    state = make(state_type, stages, one, zero)
    held = (stages, stages, zero, zero, no, no)
    consumer = make(consumer_type, base, thread, consumers, state, make(WRITES, no), *held)
    u32 = types.uint32
    initialise = signature(types.void, sig.args[0], u32, u32, u32)
    arguments = [args[0], base, thread, consumers]
    compiler.BODIES[p.initialise].call(context, builder, initialise, arguments)
    return make(pipeline_type, producer, consumer)


compiler.native_method(p.TilePipeline, "start", _type_start, _lower_start)


# -------------------------------------------------------------------------- attributes


def _resolve_tile(typ: ObjectType, name: str) -> types.Type | None:
    tiles = dict(_static_pipeline(typ).tiles)
    return shared_tile_type(tiles[name]) if name in tiles else None


def _lower_tile(context: Any, builder: Any, typ: ObjectType, value: Any, name: str) -> Any:
    pipeline = _static_pipeline(typ)
    tile = dict(pipeline.tiles)[name]
    base = get_field(builder, typ, value, "base")
    index = get_field(builder, typ, value, "index")
    stride = builder.mul(index, ir.Constant(I32, p.tile_stride(tile)))
    address = builder.add(builder.add(base, ir.Constant(I32, pipeline.tile_offset(name))), stride)
    writes = get_field(builder, typ, value, "writes")
    return compiler.make_object(context, builder, shared_tile_type(tile), [address, writes])


for stage in (p.ProducerStage, p.ConsumerStage):
    compiler.describe(stage).resolve = _resolve_tile
    compiler.describe(stage).lower = _lower_tile


# --------------------------------------------------------------------------- iteration


def _iterate(iteration: type, stage: type) -> None:
    """Let `iteration` yield (tile, stage) pairs, the stage with its owner's base and writes."""

    def yields(typ: ObjectType) -> types.Type:
        static, u32 = typ.field_types[0].static, types.uint32
        return types.Tuple((types.int64, ObjectType(stage, static, (u32, u32, WRITES))))

    def idle(context: Any, builder: Any, typ: ObjectType, value: Any) -> Any:
        owner_type, pair = typ.field_types[0], typ.yield_type
        owner = get_field(builder, typ, value, next(iter(typ.description.fields)))
        base = get_field(builder, owner_type, owner, "base")
        writes = get_field(builder, owner_type, owner, "writes")
        fields = [base, ir.Constant(I32, 0), writes]
        none = compiler.make_object(context, builder, pair[1], fields)
        return context.make_tuple(builder, pair, [ir.Constant(ir.IntType(64), 0), none])

    compiler.describe(iteration).yields = yields
    compiler.describe(iteration).idle = idle


_iterate(p.Produce, p.ProducerStage)
_iterate(p.ProduceFrom, p.ProducerStage)
_iterate(p.Consume, p.ConsumerStage)
_iterate(p.ConsumeFrom, p.ConsumerStage)


# ------------------------------------------------------------------------------ checks


def _check_store(tensor_map: types.Type, *args: types.Type, **kws: types.Type) -> None:
    require_map("Pipeline.store", tensor_map)
    if getattr(tensor_map, "mode", "tiled") != "tiled":
        raise TypingError(
            f"Pipeline.store takes maps of tensor_map, not {tensor_map}: after fence_proxy_async() "
            "and sync_consumers(), have one thread call store_im2col(tile, coords), commit the "
            "bulk group and wait for it"
        )


compiler.describe(p.Pipeline).methods["store"].check = _check_store


def _check_state(typ: ObjectType) -> None:
    if not isinstance(typ.static[0], int) or typ.static[0] < 1:
        raise TypingError(
            f"PipelineState(num_stages={typ.static[0]!r}): a pipeline has at least 1 stage"
        )


def _check_in_flight(typ: ObjectType) -> None:
    in_flight = typ.static_value("in_flight")
    stages = _static_pipeline(typ.field_types[0]).num_stages
    if not 0 <= in_flight < stages:
        raise TypingError(
            f"consume(in_flight={in_flight}): with {stages} stages at most {stages - 1} can be "
            "held back while the next is filled; lower in_flight or add stages"
        )


compiler.describe(p.PipelineState).check = _check_state
compiler.describe(p.Consume).check = _check_in_flight
compiler.describe(p.ConsumeFrom).check = _check_in_flight
