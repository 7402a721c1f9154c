"""Shared memory of a kernel: tiles, barriers, and their types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    Builder,
    Context,
    ObjectType,
    Signature,
    TypingError,
    Value,
    ir,
    signature,
    types,
)
from numba_tma.device.barrier import Barrier, BarrierArray
from numba_tma.device.shared import (
    SharedTile,
    TileAccesses,
    barrier_count_rule,
    shared_barrier,
    shared_barriers,
    shared_tile,
)
from numba_tma.host.layout import Tile

ACCESSES = ObjectType(TileAccesses, (), (types.boolean,), True)
BARRIER = ObjectType(Barrier, (0,), (types.uint32,))


def shared_tile_type(tile: Tile) -> ObjectType:
    """Return the Numba type of a `SharedTile` of `tile`."""
    return ObjectType(SharedTile, (tile,), (types.uint32, ACCESSES))


def _type_shared_tile(tile: types.Type) -> Any:
    value = compiler.static_of(tile, "shared_tile(tile=...)")
    if not isinstance(value, Tile):
        raise TypingError(f"shared_tile(tile=...) takes a Tile, not {value!r}")
    compiler.check_shared_size(f"shared_tile({value})", {str(value): value.shared_nbytes})
    return signature(shared_tile_type(value), tile)


def _lower_shared_tile(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    tile = sig.return_type.static[0]
    address = compiler.allocate_shared(
        builder, tile.shared_nbytes, tile.alignment, f"shared_tile({tile})"
    )
    accesses = compiler.make_object(context, builder, ACCESSES, [ir.Constant(ir.IntType(1), 0)])
    return compiler.make_object(context, builder, sig.return_type, [address, accesses])


def _lower_shared_barrier(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    address = compiler.allocate_shared(builder, 8, 8, "shared_barrier()")
    return compiler.make_object(context, builder, BARRIER, [address])


compiler.instruction_function(shared_tile, _type_shared_tile, _lower_shared_tile)


def _type_shared_barriers(count: types.Type) -> Any:
    number = compiler.static_of(count, "shared_barriers(count=...)")
    if not isinstance(number, int) or number < 1:
        raise TypingError(barrier_count_rule(number))
    compiler.check_shared_size(f"shared_barriers({number})", {"barriers": 8 * number})
    return signature(ObjectType(BarrierArray, (number,), (types.uint32,)), count)


def _lower_shared_barriers(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    count = sig.return_type.static[0]
    address = compiler.allocate_shared(builder, 8 * count, 8, f"shared_barriers({count})")
    return compiler.make_object(context, builder, sig.return_type, [address])


compiler.instruction_function(shared_barrier, lambda: signature(BARRIER), _lower_shared_barrier)
compiler.instruction_function(shared_barriers, _type_shared_barriers, _lower_shared_barriers)
