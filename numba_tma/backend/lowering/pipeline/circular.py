"""How kernels hold circular buffers: the compiled half of `circular_started` and its stages."""

from __future__ import annotations

from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import ObjectType, TypingError, get_field, ir, signature, types
from numba_tma.backend.lowering.instructions import emit
from numba_tma.backend.lowering.pipeline.memory import (
    U32,
    check_memory,
    constant,
    given_arguments,
    memory_address,
    synchronises,
)
from numba_tma.backend.lowering.pipeline.stages import iterate
from numba_tma.backend.lowering.shared import ACCESSES, shared_tile_type
from numba_tma.device.barrier import Barrier
from numba_tma.device.waiting import wait_for
from numba_tma.host.debug import Site
from numba_tma.pipeline import circular_stages as c
from numba_tma.pipeline import circular_started as started
from numba_tma.pipeline.circular import CircularBuffer
from numba_tma.pipeline.stage_layout import tile_stride
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import TABLE

I64, BOOL = types.int64, types.boolean

compiler.device_function(started.initialise)


# -------------------------------------------------------------------------------------- start


def _ring_type(value: CircularBuffer) -> ObjectType:
    state = ObjectType(PipelineState, (value.num_stages,), (U32, U32, U32), True)
    fields = (*[U32] * 4, state, state, *[U32] * 3, *[I64] * 4, *[BOOL] * 2)
    return ObjectType(started.Ring, (value,), fields, True)


def _type_start(self: ObjectType, tiles: Any = None, barriers: Any = None, sync: Any = None) -> Any:
    value = self.static[0]
    synchronises(sync)
    given = given_arguments(tiles, barriers, sync)
    parts = {}
    if not check_memory("tiles", tiles or types.none, value.storage_nbytes, value.alignment):
        for name, tile in value.tiles:
            size = f"{value.num_stages} stages x {tile_stride(tile):,} B"
            parts[f"{name}: {size}"] = value.num_stages * tile_stride(tile)
    check_memory("barriers", barriers or types.none, 8 * value.num_barriers, 8)
    parts["barriers"] = 8 * value.num_barriers
    compiler.check_shared_size(repr(value), parts)
    return signature(_ring_type(value), self, *given)


def _memory(context: Any, builder: Any, value: CircularBuffer, sig: Any, args: Any) -> list[Any]:
    """Return the addresses of the tiles and of the barriers, allocating what is not given."""
    # The launch reads from the name how many threads the block has to have.
    kind = f"ring{value.block}" if value.role else "line"
    found = []
    for i, (name, nbytes, alignment) in enumerate(
        (
            (repr(value), value.storage_nbytes, value.alignment),
            (f"barriers of {value}", 8 * value.num_barriers, 8),
        )
    ):
        given = sig.args[1 + i] if len(args) > 1 + i else types.none
        if isinstance(given, types.NoneType | types.Omitted):
            found.append(compiler.allocate_shared(builder, nbytes, alignment, name, kind))
        else:
            found.append(memory_address(builder, given, args[1 + i]))
    base, barriers = found
    return [base, _kept(context, builder, barriers)]


def _kept(context: Any, builder: Any, address: Any) -> Any:
    """Return an address that is the same in all lanes in a form that stays in a register.

    ptxas takes a shared address for cheap and computes it again at each use, from the block's rank
    in its cluster (S2R SR_CgaCtaId), which is slow. It does not look through a shuffle.
    """
    given = {"value": (U32, address), "lane": (U32, constant(0))}
    return emit(TABLE["shfl_sync_idx_b32"], context, builder, given, in_place=True)


def _lower_start(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    # The ring lives in the frame of the function that calls start(), so this one constructor is
    # spelt out here; the body it mirrors is circular_started.start.
    value, ring_type = sig.args[0].static[0], sig.return_type
    state_type = ring_type.field_types[4]
    stages, zero, no = constant(value.num_stages), constant(0), ir.Constant(ir.IntType(1), 0)

    def make(typ: ObjectType, *values: Any) -> Any:
        return compiler.make_object(context, builder, typ, list(values))

    base, barriers = _memory(context, builder, value, sig, args)
    thread, threads = (emit(TABLE[row], context, builder, {}) for row in ("tid_x", "ntid_x"))
    initialise = signature(types.void, sig.args[0], U32, U32, U32, BOOL)
    sync = ir.Constant(ir.IntType(1), synchronises(dict(enumerate(sig.args)).get(3)))
    arguments = [args[0], barriers, thread, threads, sync]
    compiler.BODIES[started.initialise].call(context, builder, initialise, arguments)
    if value.role:
        thread = builder.sub(thread, constant(value.role.first))
        threads = constant(value.role.members)
    none = ir.Constant(ir.IntType(64), 0)
    return make(
        ring_type,
        *(base, barriers, thread, threads),
        make(state_type, stages, constant(1), zero),
        make(state_type, stages, zero, zero),
        *(constant((1 << value.num_full) - 1), zero, zero),
        *(none, none, none, ir.Constant(ir.IntType(64), 1)),
        *(no, no),
    )


compiler.native_method(CircularBuffer, "start", _type_start, _lower_start)


def _buffer(typ: ObjectType) -> CircularBuffer:
    """Return the buffer of what holds a ring first."""
    value: CircularBuffer = typ.field_types[0].static_value("pipeline")
    return value


# ------------------------------------------------------------------------------------ waits


@compiler.device_function
def _await_full(barrier: Any, parity: Any, site: Any, stage: Any, iteration: Any) -> None:
    wait_for(barrier, parity, site, stage, iteration)


def _type_await_full(
    pipeline: Any, number: Any, barrier: Any, parity: Any, stage: Any, iteration: Any
) -> Any:
    return signature(types.void, pipeline, U32, barrier, U32, U32, U32)


def _lower_await_full(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    value, barrier = sig.args[0].static[0], sig.args[2]
    nothing = ir.Constant(ir.LiteralStructType([ir.IntType(8)]), ir.Undefined)

    def wait(site: Site) -> None:
        call = signature(types.void, barrier, U32, ObjectType(Site, (site,)), U32, U32)
        arguments = [args[2], args[3], nothing, *args[4:]]
        compiler.BODIES[_await_full].call(context, builder, call, arguments)

    if value.debug and value.num_full > 1:  # each has bytes of its own, which the site says
        for number, site in enumerate(value.full_sites):
            with builder.if_then(builder.icmp_unsigned("==", args[1], constant(number))):
                wait(site)
    else:
        wait(value.full_sites[0])
    return context.get_dummy_value()


compiler.instruction_function(started.await_full, _type_await_full, _lower_await_full)


# -------------------------------------------------------------------------------- iteration

iterate(c.Tiles, c.Stage)
iterate(c.Loads, c.LoadStage)


def _check_in_flight(typ: ObjectType) -> None:
    if rule := c.in_flight_rule(_buffer(typ), typ.static_value("in_flight")):
        raise TypingError(rule)


compiler.describe(c.Tiles).check = _check_in_flight


# ----------------------------------------------------------------------------------- stages


def _tile(context: Any, builder: Any, buffer: CircularBuffer, stage: Any, name: str) -> Any:
    """Return the tile `name` of a stage, which is given as (base, index, accesses)."""
    base, index, accesses = stage
    tile = dict(buffer.tiles)[name]
    offset = builder.mul(index, constant(tile_stride(tile)))
    address = builder.add(builder.add(base, constant(buffer.tile_offset(name))), offset)
    return compiler.make_object(context, builder, shared_tile_type(tile), [address, accesses])


def _parts(context: Any, builder: Any, stage: ObjectType, value: Any) -> list[Any]:
    """Return (base, index, accesses) of a stage that knows its ring."""
    ring, ring_type = get_field(builder, stage, value, "owner"), stage.field_types[0]
    # The tiles' `TileAccesses` are a part of the ring, so that less is reached by pointers.
    field = list(ring_type.description.fields).index("unfenced")
    unfenced = builder.gep(ring, [constant(0), constant(field)], inbounds=True)
    accesses = builder.bitcast(unfenced, context.get_value_type(ACCESSES))
    base = get_field(builder, ring_type, ring, "base")
    return [base, get_field(builder, stage, value, "index"), accesses]


def _ring_method(
    name: str, context: Any, builder: Any, stage: ObjectType, value: Any, *arguments: Any
) -> None:
    """Execute a method of the ring that a stage belongs to, with constants as arguments."""
    ring = get_field(builder, stage, value, "owner")
    sig = signature(types.void, stage.field_types[0], *[U32] * len(arguments))
    method = compiler.describe(started.Ring).methods[name]
    method.lower(context, builder, sig, [ring, *map(constant, arguments)])


def _type_wait(self: ObjectType, name: Any = None) -> Any:
    buffer = _buffer(self)
    if name is None or isinstance(name, types.NoneType | types.Omitted):
        result = ObjectType(c.FullStage, (buffer,), (U32, U32, ACCESSES))
        return signature(result, self, *([name] if name is not None else []))
    text = compiler.static_of(name, "stage.wait(name=...)")
    if rule := c.name_rule(buffer, "stage.wait", text):
        raise TypingError(rule)
    return signature(shared_tile_type(dict(buffer.tiles)[text]), self, name)


def _lower_wait(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    stage, buffer = sig.args[0], _buffer(sig.args[0])
    parts = _parts(context, builder, stage, args[0])
    if sig.return_type.cls is c.FullStage:
        _ring_method("_await_stage", context, builder, stage, args[0])
        return compiler.make_object(context, builder, sig.return_type, parts)
    name = sig.args[1].literal_value
    number = list(dict(buffer.tiles)).index(name)
    _ring_method("_await_full", context, builder, stage, args[0], number)
    return _tile(context, builder, buffer, parts, name)


compiler.native_method(c.Stage, "wait", _type_wait, _lower_wait)


def _resolve_full(typ: ObjectType, name: str) -> types.Type | None:
    tile = dict(typ.static[0].tiles).get(name)
    return shared_tile_type(tile) if tile else None


def _lower_full(context: Any, builder: Any, typ: ObjectType, value: Any, name: str) -> Any:
    parts = [get_field(builder, typ, value, field) for field in ("base", "index", "accesses")]
    return _tile(context, builder, typ.static[0], parts, name)


compiler.describe(c.FullStage).resolve = _resolve_full
compiler.describe(c.FullStage).lower = _lower_full


def _barrier_type(typ: ObjectType) -> ObjectType:
    return ObjectType(Barrier, (_buffer(typ).ledger_offset,), (U32,))


def _lower_barrier(context: Any, builder: Any, typ: ObjectType, value: Any, name: Any) -> Any:
    ring = get_field(builder, typ, value, "owner")
    first = get_field(builder, typ.field_types[0], ring, "barriers")
    first = builder.add(first, constant(_buffer(typ).full_offset(name)))
    offset = builder.mul(get_field(builder, typ, value, "index"), constant(8))
    return compiler.make_object(context, builder, _barrier_type(typ), [builder.add(first, offset)])


def _resolve_load(typ: ObjectType, name: str) -> types.Type | None:
    tile = dict(_buffer(typ).tiles).get(name)
    if name != "barrier":
        return shared_tile_type(tile) if tile else None
    if rule := c.barrier_rule(_buffer(typ)):
        raise TypingError(rule)
    return _barrier_type(typ)


def _lower_load(context: Any, builder: Any, typ: ObjectType, value: Any, name: str) -> Any:
    if name == "barrier":
        return _lower_barrier(context, builder, typ, value, name)
    return _tile(context, builder, _buffer(typ), _parts(context, builder, typ, value), name)


def _type_barrier_of(self: ObjectType, name: types.Type) -> Any:
    text = compiler.static_of(name, "slot.barrier_of(name=...)")
    if text not in dict(_buffer(self).tiles):
        raise TypingError(c.unknown_rule(_buffer(self), "slot.barrier_of", text))
    return signature(_barrier_type(self), self, name)


def _lower_barrier_of(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _lower_barrier(context, builder, sig.args[0], args[0], sig.args[1].literal_value)


del compiler.describe(c.LoadStage).properties["barrier"]  # compiled, it has a rule of its own
compiler.describe(c.LoadStage).resolve = _resolve_load
compiler.describe(c.LoadStage).lower = _lower_load
compiler.native_method(c.LoadStage, "barrier_of", _type_barrier_of, _lower_barrier_of)
