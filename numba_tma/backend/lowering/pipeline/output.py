"""How kernels hold an `OutputTilePipeline`: the compiled half of `output` and `output_started`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    ObjectType,
    TypingError,
    get_field,
    ir,
    set_field,
    signature,
    types,
)
from numba_tma.backend.lowering.instructions import emit
from numba_tma.backend.lowering.pipeline import tile as ring_lowering
from numba_tma.backend.lowering.pipeline.memory import U32, constant
from numba_tma.backend.lowering.pipeline.stages import iterate, slot_tile
from numba_tma.backend.lowering.shared import shared_tile_type
from numba_tma.pipeline import output_started as o
from numba_tma.pipeline.output import OutputTilePipeline
from numba_tma.pipeline.stages import StageTiles
from numba_tma.ptx import TABLE

I16 = ir.IntType(16)
_LOAD, _WAIT = TABLE["tcgen05_ld_32x32b"], TABLE["tcgen05_wait_ld"]
#: In one, since nothing else would keep arithmetic on the registers behind the wait.
LOAD_AND_WAIT = dataclasses.replace(_LOAD, template=f"{_LOAD.template}\n\t{_WAIT.template}")

# --------------------------------------------------------- what tensor memory alone has


def _read(context: Any, builder: Any, row: str) -> Any:
    return emit(TABLE[row], context, builder, {})


def _in_tensor_memory(name: str, typer: Callable[..., Any], lower: Callable[..., None]) -> None:
    """Let kernels call a step of the pipeline that is nothing where stages are in shared memory."""

    def lower_if(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if sig.args[0].static[0].in_tensor_memory:
            lower(context, builder, sig, args)
        return context.get_dummy_value()

    compiler.native_method(OutputTilePipeline, name, typer, lower_if)


def _fence(row: str) -> Callable[..., None]:
    return lambda context, builder, sig, args: _read(context, builder, row)


def _type_step(self: ObjectType) -> Any:
    return signature(types.void, self)


def _type_with_address(self: ObjectType, address: types.Type) -> Any:
    return signature(types.void, self, U32)


def _type_commit(self: ObjectType, barrier: types.Type) -> Any:
    return signature(types.void, self, barrier)


def _group(value: OutputTilePipeline) -> tuple[types.Type, None]:
    return types.literal(value.cta_group), None


def _lower_allocate(context: Any, builder: Any, sig: Any, args: Any) -> None:
    value = sig.args[0].static[0]
    operands = {"destination": (U32, args[1]), "columns": (U32, constant(value.num_columns))}
    emit(TABLE["tcgen05_alloc"], context, builder, operands | {"cta_group": _group(value)})
    row = TABLE["tcgen05_relinquish_alloc_permit"]
    emit(row, context, builder, {"cta_group": _group(value)})


def _lower_free(context: Any, builder: Any, sig: Any, args: Any) -> None:
    value = sig.args[0].static[0]
    operands = {"taddr": (U32, args[1]), "columns": (U32, constant(value.num_columns))}
    emit(TABLE["tcgen05_dealloc"], context, builder, operands | {"cta_group": _group(value)})


def _even_rank(context: Any, builder: Any) -> Any:
    return builder.and_(_read(context, builder, "cluster_ctarank"), constant(~1))


def _lower_commit(context: Any, builder: Any, sig: Any, args: Any) -> None:
    value = sig.args[0].static[0]
    operands: dict[str, Any] = {"barrier": (sig.args[1], args[1]), "cta_group": _group(value)}
    if value.cta_group == 2:
        mask = builder.shl(constant(3), _even_rank(context, builder))
        operands["multicast"] = types.uint16, builder.trunc(mask, I16)
    emit(TABLE["tcgen05_commit"], context, builder, operands)


_in_tensor_memory("_fence_after", _type_step, _fence("tcgen05_fence_after_thread_sync"))
_in_tensor_memory("_fence_before", _type_step, _fence("tcgen05_fence_before_thread_sync"))
_in_tensor_memory("_allocate", _type_with_address, _lower_allocate)
_in_tensor_memory("_free", _type_with_address, _lower_free)
_in_tensor_memory("_commit", _type_commit, _lower_commit)
compiler.device_function(o.allocates)
compiler.device_function(o.allocate)


# --------------------------------------------------------------------------- the start


def _ring_type(value: OutputTilePipeline) -> ObjectType:
    ring = value.ring
    return ObjectType(type(ring), (ring,))


def _type_start(self: ObjectType) -> Any:
    value = self.static[0]
    if value.in_tensor_memory and compiler.compute_capability() != (10, 0):
        major, minor = compiler.compute_capability()
        raise TypingError(
            f"{value}: tensor memory exists on sm_100a alone, and this kernel is compiled for "
            f"compute capability {major}.{minor}: give memory='shared', or let the warps that "
            "multiply keep their accumulators in registers and run the epilogue themselves"
        )
    pipe = ring_lowering._type_start(_ring_type(value)).return_type
    sides = zip((o.OutputProducer, o.OutputConsumer), pipe.field_types)
    producer, consumer = (ObjectType(side, (value,), (ring, U32)) for side, ring in sides)
    return signature(ObjectType(o.OutputPipeline, (value,), (producer, consumer)), self)


def _lower_start(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    # The body it mirrors is output_started.start.
    value, word, address = sig.args[0].static[0], None, constant(0)
    if value.in_tensor_memory:
        word = compiler.allocate_shared(builder, 4, 4, f"the address of {value}")
        call = signature(types.void, sig.args[0], U32)
        compiler.BODIES[o.allocate].call(context, builder, call, [args[0], word])
    ring = ring_lowering._type_start(_ring_type(value))
    pipe = ring_lowering._lower_start(context, builder, ring, [args[0]])
    if word is not None:
        address = emit(TABLE["ld_shared_u32"], context, builder, {"location": (U32, word)})
    sides = []
    for side_type, name in zip(sig.return_type.field_types, ("_producer", "_consumer")):
        half = get_field(builder, ring.return_type, pipe, name)
        sides.append(compiler.make_object(context, builder, side_type, [half, address]))
        if value.cta_group == 2 and name == "_consumer":
            lane = emit(TABLE["laneid"], context, builder, {})
            to_even = builder.icmp_unsigned("==", lane, _even_rank(context, builder))
            set_field(builder, side_type.field_types[0], half, "is_sender", to_even)
    return compiler.make_object(context, builder, sig.return_type, sides)


compiler.native_method(OutputTilePipeline, "start", _type_start, _lower_start)


def _half(name: str, index: int) -> None:
    """Let ``out.producer()`` give the object itself, which a function could not return."""

    def typer(self: ObjectType) -> Any:
        return signature(self.field_types[index], self)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return get_field(builder, sig.args[0], args[0], f"_{name}")

    compiler.native_method(o.OutputPipeline, name, typer, lower)


_half("producer", 0)
_half("consumer", 1)
iterate(o.OutputProduce, o.OutputStage)
iterate(o.OutputConsume, o.OutputStage)


def _check_stage(stage: types.Type) -> None:
    owner = stage.field_types[0] if isinstance(stage, ObjectType) and stage.field_types else None
    if not isinstance(owner, ObjectType) or owner.cls is not o.OutputProducer:
        raise TypingError(
            f"release_from_mma(stage={stage}): it takes the stage that acquire_for_mma returned; "
            "the epilogue's are released with release_from_epilogue()"
        )


compiler.describe(o.OutputPipeline).methods["release_from_mma"].check = _check_stage


# -------------------------------------------------------------------------- the stages


def _pipeline_of(stage: ObjectType) -> OutputTilePipeline:
    return stage.field_types[0].static_value("pipeline")


def _require(stage: ObjectType, what: str, wanted: str = "") -> OutputTilePipeline:
    pipeline = _pipeline_of(stage)
    if problem := o.memory_rule(pipeline, what, wanted):
        raise TypingError(problem)
    return pipeline


def _resolve(typ: ObjectType, name: str) -> types.Type | None:
    if name == "acc":
        return shared_tile_type(_require(typ, "stage.acc", "acc").acc)
    if name == "address":
        _require(typ, "stage.address")
        return U32
    return None


def _lower_attribute(context: Any, builder: Any, typ: ObjectType, value: Any, name: str) -> Any:
    owner_type = typ.field_types[0]
    owner = get_field(builder, typ, value, "owner")
    index = get_field(builder, typ, value, "index")
    if name == "acc":
        ring_type = owner_type.field_types[0]
        tiles = ObjectType(StageTiles, (), (ring_type, U32))
        ring = get_field(builder, owner_type, owner, "ring")
        return slot_tile(context, builder, tiles, ring, index, name)
    offset = builder.mul(index, constant(_pipeline_of(typ).stage_stride_cols))
    return builder.add(get_field(builder, owner_type, owner, "address"), offset)


compiler.describe(o.OutputStage).resolve = _resolve
compiler.describe(o.OutputStage).lower = _lower_attribute


def _check_columns(
    pipeline: OutputTilePipeline, what: str, column: types.Type, num: Any
) -> types.Type:
    """Return the Numba type of an element."""
    if not isinstance(types.unliteral(column), types.Integer):
        raise TypingError(f"stage.{what}(column=...) takes an integer, not {column}")
    known = column.literal_value if isinstance(column, types.IntegerLiteral) else None
    if problem := o.column_rule(pipeline, what, known, num):
        raise TypingError(problem)
    return getattr(types, pipeline.acc.dtype.compute)


def _type_load(self: ObjectType, column: types.Type, num: types.Type) -> Any:
    pipeline = _require(self, "stage.load()")
    count = compiler.static_of(num, "stage.load(num=...)")
    element = _check_columns(pipeline, "load", column, count)
    return signature(types.UniTuple(element, count), self, U32, num)


def _taddr(context: Any, builder: Any, typ: ObjectType, stage: Any, column: Any) -> Any:
    """Return the address of a column in the first of the warp's lanes."""
    first = _lower_attribute(context, builder, typ, stage, "address")
    warp = builder.and_(_read(context, builder, "tid_x"), constant(96))
    lanes = builder.shl(warp, constant(16))  # 32 (warp mod 4) << 16
    return builder.add(builder.add(first, lanes), column)


def _lower_load(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    result = sig.return_type
    taddr = _taddr(context, builder, sig.args[0], args[0], args[1])
    num = types.literal(len(result))
    loaded = emit(LOAD_AND_WAIT, context, builder, {"taddr": (U32, taddr), "num": (num, None)})
    element = context.get_value_type(result.dtype)
    parts = [builder.extract_value(loaded, i) for i in range(len(result))]
    return context.make_tuple(builder, result, [builder.bitcast(p, element) for p in parts])


def _type_store(self: ObjectType, column: types.Type, values: types.Type) -> Any:
    pipeline = _require(self, "stage.store()")
    if not isinstance(values, types.BaseTuple) or not all(
        isinstance(types.unliteral(v), types.Number) for v in values
    ):
        raise TypingError(f"stage.store(values=...) takes a tuple of numbers, not {values}")
    element = _check_columns(pipeline, "store", column, len(values))
    return signature(types.void, self, U32, types.UniTuple(element, len(values)))


def _lower_store(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    taddr = _taddr(context, builder, sig.args[0], args[0], args[1])
    count = len(sig.args[2])
    parts = [builder.bitcast(builder.extract_value(args[2], i), I32) for i in range(count)]
    given = types.UniTuple(U32, count)
    operands = {
        "taddr": (U32, taddr),
        "values": (given, context.make_tuple(builder, given, parts)),
        "num": (types.literal(count), None),
    }
    emit(TABLE["tcgen05_st_32x32b"], context, builder, operands)
    _read(context, builder, "tcgen05_wait_st")
    _read(context, builder, "tcgen05_fence_before_thread_sync")
    return context.get_dummy_value()


compiler.native_method(o.OutputStage, "load", _type_load, _lower_load)
compiler.native_method(o.OutputStage, "store", _type_store, _lower_store)
