"""How kernels hold stages and iterate over them: the compiled half of `stages` and `loops`."""

from __future__ import annotations

from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import ObjectType, TypingError, get_field, ir, signature, types
from numba_tma.backend.lowering.pipeline.memory import U32, constant
from numba_tma.backend.lowering.shared import shared_tile_type
from numba_tma.pipeline import loops
from numba_tma.pipeline import stages as s
from numba_tma.pipeline.ring import TilePipeline
from numba_tma.pipeline.stage_layout import tile_stride
from numba_tma.simulator import BadOperand


def static_pipeline(typ: ObjectType) -> TilePipeline:
    """Return the pipeline of a producer's or consumer's type."""
    return typ.static_value("pipeline")


# ------------------------------------------------------------------------------ stages


def _owner(typ: ObjectType) -> TilePipeline:
    return static_pipeline(typ.field_types[0])


def slot_tile(
    context: Any, builder: Any, stage: ObjectType, owner: Any, slot: Any, name: str
) -> Any:
    owner_type, pipeline = stage.field_types[0], _owner(stage)
    tile = dict(pipeline.tiles)[name]
    base = get_field(builder, owner_type, owner, "base")
    offset = builder.mul(slot, constant(tile_stride(tile)))
    address = builder.add(builder.add(base, constant(pipeline.tile_offset(name))), offset)
    accesses = get_field(builder, owner_type, owner, "accesses")
    return compiler.make_object(context, builder, shared_tile_type(tile), [address, accesses])


def resolve_tile(typ: ObjectType, name: str) -> types.Type | None:
    pipeline = _owner(typ)
    tiles = dict(pipeline.tiles)
    if name in tiles and pipeline.k_group > 1 and typ.cls is not s.StageTiles:
        raise TypingError(s.k_group_rule(pipeline, name))
    return shared_tile_type(tiles[name]) if name in tiles else None


def lower_tile(context: Any, builder: Any, typ: ObjectType, value: Any, name: str) -> Any:
    owner = get_field(builder, typ, value, "owner")
    slot = get_field(builder, typ, value, list(typ.description.fields)[1])
    return slot_tile(context, builder, typ, owner, slot, name)


def _check_j(self: ObjectType, j: types.Type) -> None:
    k_group = _owner(self).k_group
    if not isinstance(types.unliteral(j), types.Integer):
        raise TypingError(f"stage.tile(j): j is an integer, not {j}")
    if isinstance(j, types.IntegerLiteral) and not 0 <= j.literal_value < k_group:
        raise TypingError(
            f"stage.tile({j.literal_value}): the stage holds the tiles 0 to {k_group - 1}"
        )


def _type_tile(self: ObjectType, j: types.Type) -> Any:
    _check_j(self, j)
    return signature(ObjectType(s.StageTiles, (), self.field_types), self, U32)


def _slot(builder: Any, typ: ObjectType, stage: Any, j: Any) -> Any:
    first = builder.mul(get_field(builder, typ, stage, "index"), constant(_owner(typ).k_group))
    return builder.add(first, j)


def _lower_stage_tile(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    owner = get_field(builder, sig.args[0], args[0], "owner")
    slot = _slot(builder, sig.args[0], args[0], args[1])
    return compiler.make_object(context, builder, sig.return_type, [owner, slot])


def _type_get_tile(self: ObjectType, j: Any = None) -> Any:
    if j is not None:
        _check_j(self, j)
    tiles = types.Tuple([shared_tile_type(tile) for _, tile in _owner(self).tiles])
    return signature(tiles, self, *([U32] if j is not None else []))


def _lower_get_tile(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    typ = sig.args[0]
    owner = get_field(builder, typ, args[0], "owner")
    slot = _slot(builder, typ, args[0], args[1] if len(args) > 1 else constant(0))
    tiles = [slot_tile(context, builder, typ, owner, slot, name) for name, _ in _owner(typ).tiles]
    return context.make_tuple(builder, sig.return_type, tiles)


def _type_expect_bytes(self: ObjectType, tx_bytes: types.Type) -> Any:
    value = compiler.static_of(tx_bytes, "expect_bytes(tx_bytes=...)")
    try:
        s.check_bytes(_owner(self), value)
    except BadOperand as error:
        raise TypingError(str(error)) from None
    return signature(types.void, self, tx_bytes)


def _lower_nothing(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return context.get_dummy_value()


for stage in (s.ProducerStage, s.ConsumerStage, s.StageTiles):
    compiler.describe(stage).resolve = resolve_tile
    compiler.describe(stage).lower = lower_tile
for stage in (s.ProducerStage, s.ConsumerStage):
    compiler.native_method(stage, "tile", _type_tile, _lower_stage_tile)
    compiler.native_method(stage, "get_tile", _type_get_tile, _lower_get_tile)
compiler.native_method(s.ProducerStage, "expect_bytes", _type_expect_bytes, _lower_nothing)


# --------------------------------------------------------------------------- iteration


def iterate(iteration: type, stage: type) -> None:
    """Let `iteration`, which holds a producer or a consumer first, yield (tile, stage) pairs."""

    def yields(typ: ObjectType) -> types.Type:
        return types.Tuple((types.int64, ObjectType(stage, (), (typ.field_types[0], U32))))

    def idle(context: Any, builder: Any, typ: ObjectType, value: Any) -> Any:
        owner = get_field(builder, typ, value, next(iter(typ.description.fields)))
        none = compiler.make_object(context, builder, typ.yield_type[1], [owner, constant(0)])
        return context.make_tuple(builder, typ.yield_type, [ir.Constant(ir.IntType(64), 0), none])

    compiler.describe(iteration).yields = yields
    compiler.describe(iteration).idle = idle


iterate(loops.Produce, s.ProducerStage)
iterate(loops.ProduceFrom, s.ProducerStage)
iterate(loops.Consume, s.ConsumerStage)
iterate(loops.ConsumeFrom, s.ConsumerStage)
