"""The compiled half of `multicast`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    Builder,
    Context,
    ObjectType,
    Signature,
    TypingError,
    Value,
    get_field,
    ir,
    signature,
    types,
)
from numba_tma.backend.lowering.instructions import emit, type_call
from numba_tma.backend.lowering.shared import require_map
from numba_tma.backend.lowering.types import RaggedTensorMapType, TensorMapType, check_copy
from numba_tma.device.multicast import NO_SLICES, count_slices, load_partitioned
from numba_tma.device.shared import SharedTile
from numba_tma.host.tensor_map import wrong_mode
from numba_tma.ptx import TABLE

_LOAD = TABLE["cp_async_bulk_tensor_load"]


def _require_tiled_map(what: str, given: types.Type) -> None:
    require_map(what, given)
    if isinstance(given, RaggedTensorMapType) or not isinstance(given, TensorMapType):
        raise TypingError(f"{what}: {NO_SLICES}, not {given}")
    if given.mode != "tiled":
        raise TypingError(f"{what}: {wrong_mode(str(given), given.mode)}")


def _type_load_partitioned(
    tensor_map: types.Type,
    tile: types.Type,
    coords: types.Type,
    barrier: types.Type,
    rank: types.Type,
    cache_hint: types.Type = None,
    multicast: types.Type = None,
) -> Any:
    _require_tiled_map("load_partitioned", tensor_map)
    if tensor_map.tile is None:
        raise TypingError(
            f"load_partitioned: nothing is known of the tile of {tensor_map}; pass "
            "tensor_map(array, slice) to the kernel"
        )
    if not isinstance(tile, ObjectType) or tile.cls is not SharedTile:
        raise TypingError(f"load_partitioned(tile=...) takes a SharedTile, not {tile}")
    try:
        slices = count_slices(tile.static[0], tensor_map.copies)
    except ValueError as error:
        raise TypingError(f"load_partitioned: {error}") from None
    if not isinstance(types.unliteral(rank), types.Integer):
        raise TypingError(f"load_partitioned(rank=...) takes an integer, not {rank}")
    if isinstance(rank, types.IntegerLiteral) and not 0 <= rank.literal_value < slices:
        raise TypingError(
            f"load_partitioned: rank is {rank.literal_value}; the tile has the slices 0 to "
            f"{slices - 1}"
        )
    given = {
        "tensor_map": tensor_map,
        "destination": tile,
        "coordinates": coords,
        "barrier": barrier,
        "cache_hint": cache_hint,
        "multicast": multicast,
    }
    args = type_call(_LOAD, {n: t for n, t in given.items() if t is not None}).args
    check_copy("load_partitioned", tensor_map, None, coords)
    return signature(types.void, *args[:4], types.uint32, *args[4:])


def _lower_load_partitioned(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    given = dict(zip(sig.pysig.parameters, zip(sig.args, args)))
    rank = given.pop("rank")[1]
    tile_type, tile = given.pop("tile")
    coords_type, coords = given.pop("coords")
    box = given["tensor_map"][0].tile
    skipped = builder.mul(rank, ir.Constant(I32, box.shared_nbytes))
    address = builder.add(get_field(builder, tile_type, tile, "address"), skipped)
    rows = builder.mul(rank, ir.Constant(I32, box.shape[0]))
    row = builder.add(builder.extract_value(coords, 0), rows)
    given["destination"] = types.uint32, address
    given["coordinates"] = coords_type, builder.insert_value(coords, row, 0)
    if given.get("multicast", (types.none,))[0] is types.none:
        everyone = (1 << count_slices(tile_type.static[0], given["tensor_map"][0].copies)) - 1
        given["multicast"] = types.uint16, ir.Constant(ir.IntType(16), everyone)
    return emit(_LOAD, context, builder, given)


compiler.instruction_function(load_partitioned, _type_load_partitioned, _lower_load_partitioned)
