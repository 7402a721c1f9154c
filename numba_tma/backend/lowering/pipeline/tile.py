"""How kernels hold pipelines: the compiled half of this package."""

from __future__ import annotations

import functools
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import ObjectType, TypingError, get_field, ir, signature, types
from numba_tma.backend.lowering.instructions import emit
from numba_tma.backend.lowering.pipeline.memory import (
    U32,
    allocate,
    check_memory,
    constant,
    given_arguments,
    synchronises,
)
from numba_tma.backend.lowering.pipeline.roles import of_role
from numba_tma.backend.lowering.pipeline.stages import static_pipeline
from numba_tma.backend.lowering.shared import ACCESSES, expected_to_be_used, require_map
from numba_tma.pipeline import consumer as c
from numba_tma.pipeline import loops, started
from numba_tma.pipeline import producer as p
from numba_tma.pipeline.multicast_group import MulticastGroup, multicast_rule
from numba_tma.pipeline.ring import TilePipeline
from numba_tma.pipeline.roles import WARP
from numba_tma.pipeline.stage_layout import tile_stride
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import TABLE

# -------------------------------------------------------------------------- allocation


def _check_size(value: TilePipeline, own_tiles: bool) -> None:
    slots = f"{value.slots} x" if value.k_group == 1 else f"{value.num_stages} x {value.k_group} x"
    parts = {
        f"{name}: {slots.replace(' x', ' stages x', 1)} {tile_stride(tile):,} B": value.slots
        * tile_stride(tile)
        for name, tile in value.tiles
    }
    parts = parts if own_tiles else {}
    parts["barriers"] = value.nbytes - sum(parts.values()) if own_tiles else 8 * value.num_barriers
    compiler.check_shared_size(repr(value), parts)


compiler.device_function(started.initialise)


def _pipeline_types(value: TilePipeline) -> tuple[ObjectType, ObjectType, ObjectType]:
    """Return the Numba types of a started pipeline, its producer and its consumer."""
    boolean = types.boolean
    state = ObjectType(PipelineState, (value.num_stages,), (U32, U32, U32), True)
    producer = ObjectType(
        p.Producer, (value,), (*[U32] * 3, state, ACCESSES, U32, boolean, boolean), True
    )
    consumer = ObjectType(
        c.Consumer,
        (value,),
        (*[U32] * 5, boolean, state, ACCESSES, U32, U32, boolean, U32, U32, boolean, boolean),
        True,
    )
    return ObjectType(started.Pipeline, (), (producer, consumer, U32)), producer, consumer


def _type_start(self: ObjectType, tiles: Any = None, barriers: Any = None, sync: Any = None) -> Any:
    value = self.static[0]
    synchronises(sync)
    given = given_arguments(tiles, barriers, sync)
    tiles, barriers = tiles or types.none, barriers or types.none
    own_tiles = not check_memory("tiles", tiles, value.storage_nbytes, value.alignment)
    check_memory("barriers", barriers, 8 * value.num_barriers, 8)
    _check_size(value, own_tiles)
    if value.in_cluster:
        compiler.require_architecture(f"multicast={dict(value.multicast)}", 90)
    return signature(_pipeline_types(value)[0], self, *given)


def _lower_start(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    # The mutable halves live in the frame of the function that calls start(), so this one
    # constructor is spelt out here; the body it mirrors is started.start.
    value = sig.args[0].static[0]
    pipeline_type, producer_type, consumer_type = _pipeline_types(value)
    state_type = producer_type.field_types[3]
    zero, one, no = constant(0), constant(1), ir.Constant(ir.IntType(1), 0)
    stages = constant(value.num_stages)

    def make(typ: ObjectType, *values: Any) -> Any:
        return compiler.make_object(context, builder, typ, list(values))

    def read(row: str) -> Any:
        return emit(TABLE[row], context, builder, {})

    base, barriers = allocate(builder, value, sig, args)
    thread, threads = read("tid_x"), read("ntid_x")
    first, mine = _locate(context, builder, value, thread, threads)
    is_sender = no
    if value.in_cluster:
        peers = zero
        for _, axis in value.multicast:
            _, mask = _group(builder, value, axis, read)
            peers = builder.or_(peers, mask)
        bit = builder.and_(builder.lshr(peers, read("laneid")), one)
        is_sender = builder.icmp_unsigned("!=", bit, zero)
    producer = make(
        producer_type,
        *(base, barriers, builder.sub(thread, first)),
        *(make(state_type, stages, zero, zero), make(ACCESSES, no), stages, no, no),
    )
    walk = (zero, zero, one) if value.alternate else (stages, one, zero)
    held = (stages, stages, ir.Constant(ir.IntType(1), int(value.alternate)), zero, zero, no, no)
    consumer = make(
        consumer_type,
        *(base, barriers, *mine, is_sender),
        *(make(state_type, *walk), make(ACCESSES, expected_to_be_used(builder)), *held),
    )
    _require_launch(builder, value)
    initialise = signature(types.void, sig.args[0], U32, U32, U32, types.boolean)
    sync = ir.Constant(ir.IntType(1), synchronises(dict(enumerate(sig.args)).get(3)))
    arguments = [args[0], barriers, thread, threads, sync]
    compiler.BODIES[started.initialise].call(context, builder, initialise, arguments)
    num_producers = value.producer.members if value.producer else WARP
    return make(pipeline_type, producer, consumer, constant(num_producers))


def _locate(
    context: Any, builder: Any, value: TilePipeline, thread: Any, threads: Any
) -> tuple[Any, list[Any]]:
    """Return the producer's first thread; and thread, threads and barrier of the consumer role."""
    if value.producer is None:
        consumers = builder.sub(threads, constant(WARP))
        return consumers, [thread, consumers, constant(started.CONSUMER_BARRIER)]
    each = [(role.members, role.barrier_id) for role in value.consumers]
    return constant(value.producer.first), of_role(context, builder, value.consumers, each)


def _group(builder: Any, value: TilePipeline, axis: str, read: Any) -> tuple[Any, Any]:
    """Return this block's rank along `axis` of the cluster, and the mask of the blocks there."""
    width, height = value.cluster
    x = read("cluster_ctaid_x") if width > 1 else constant(0)
    y = read("cluster_ctaid_y") if height > 1 else constant(0)
    if axis == "x":
        mask = builder.shl(constant((1 << width) - 1), builder.mul(y, constant(width)))
        return x, mask
    return y, builder.shl(constant(sum(1 << row * width for row in range(height))), x)


def _require_launch(builder: Any, value: TilePipeline) -> None:
    if value.in_cluster:
        rule = functools.partial(started.cluster_rule, value)
        compiler.require_cluster(builder, value.cluster, rule)


compiler.native_method(TilePipeline, "start", _type_start, _lower_start)


# ----------------------------------------------------------------- the pipeline's halves


def _half(name: str, index: int) -> None:
    """Let ``pipe.producer()`` give the object itself, which a function could not return."""

    def typer(self: ObjectType) -> Any:
        return signature(self.field_types[index], self)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return get_field(builder, sig.args[0], args[0], f"_{name}")

    compiler.native_method(started.Pipeline, name, typer, lower)


_half("producer", 0)
_half("consumer", 1)


def _lower_next(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    step = compiler.describe(PipelineState).methods["step"]
    step.lower(context, builder, signature(types.void, sig.args[0]), args)
    return args[0]


# Its body, too, would return an object that lives in its caller.
compiler.native_method(PipelineState, "next", lambda self: signature(self, self), _lower_next)


def _type_multicast_group(self: ObjectType, name: types.Type) -> Any:
    pipeline = static_pipeline(self.field_types[0])
    text = compiler.static_of(name, "multicast_group(name=...)")
    if text not in dict(pipeline.multicast):
        raise TypingError(multicast_rule(pipeline, text))
    return signature(ObjectType(MulticastGroup, (), (U32, U32)), self, name)


def _lower_multicast_group(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    pipeline = static_pipeline(sig.args[0].field_types[0])
    axis = dict(pipeline.multicast)[sig.args[1].literal_value]
    pair = _group(builder, pipeline, axis, lambda row: emit(TABLE[row], context, builder, {}))
    return compiler.make_object(context, builder, sig.return_type, list(pair))


compiler.native_method(
    started.Pipeline, "multicast_group", _type_multicast_group, _lower_multicast_group
)


# ------------------------------------------------------------------------------ checks


def _check_store(tensor_map: types.Type, *args: types.Type, **kws: types.Type) -> None:
    require_map("Pipeline.store", tensor_map)
    if getattr(tensor_map, "mode", "tiled") != "tiled":
        raise TypingError(
            f"Pipeline.store takes maps of tensor_map, not {tensor_map}: after fence_proxy_async() "
            "and sync_consumers(), have one thread call store_im2col(tile, coords), commit the "
            "bulk group and wait for it"
        )


compiler.describe(started.Pipeline).methods["store"].check = _check_store


def _check_state(typ: ObjectType) -> None:
    if not isinstance(typ.static[0], int) or typ.static[0] < 1:
        raise TypingError(
            f"PipelineState(num_stages={typ.static[0]!r}): a pipeline has at least 1 stage"
        )


def _check_in_flight(typ: ObjectType) -> None:
    in_flight = typ.static_value("in_flight")
    pipeline = static_pipeline(typ.field_types[0])
    stages = pipeline.num_stages
    if not 0 <= in_flight < stages:
        raise TypingError(
            f"consume(in_flight={in_flight}): with {stages} stages at most {stages - 1} can be "
            "held back while the next is filled; lower in_flight or add stages"
        )
    if pipeline.alternate:
        raise TypingError(
            f"consume: which stages are whose is not said by {pipeline}; consumers that take turns "
            "use the explicit form: pipe.consumer() with skip, wait and release"
        )


def _check_queue(typ: ObjectType) -> None:
    pipeline = static_pipeline(typ.field_types[0])
    if not pipeline.by_tma or pipeline.in_cluster:
        raise TypingError(
            f"produce_from: a TileQueue's tiles are drawn by the one thread that starts copies for "
            f"its own block, not by the producer of {pipeline}: use produce(first, stop, step)"
        )


compiler.describe(PipelineState).check = _check_state
compiler.describe(loops.Consume).check = _check_in_flight
compiler.describe(loops.ConsumeFrom).check = _check_in_flight
compiler.describe(loops.ProduceFrom).check = _check_queue
