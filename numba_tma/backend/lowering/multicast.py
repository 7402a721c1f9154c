"""The compiled half of `multicast`: the address and the row of a block's slice, in 32 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import I32, Builder, Context, Signature, Value, ir, signature, types
from numba_tma.backend.lowering.copies import emit_copies, is_pair, pair_load
from numba_tma.backend.lowering.instructions import is_absent, type_call
from numba_tma.device.copy_rules import check_pair
from numba_tma.device.multicast import check_slices, count_slices, load_partitioned
from numba_tma.ptx import TABLE

_LOAD = TABLE["cp_async_bulk_tensor_load"]
_PAIR_LOAD = TABLE["cp_async_bulk_tensor_load_cta_group"]


def _type_load_partitioned(
    tensor_map: types.Type,
    tile: types.Type,
    coords: types.Type,
    barrier: types.Type,
    rank: types.Type,
    **optional: types.Type,
) -> Any:
    cta_group = optional.get("cta_group", types.none)
    compiler.run_rule(check_slices, tensor_map, tile, coords, rank)
    compiler.run_rule(check_pair, "load_partitioned", barrier, cta_group)
    given = {
        "tensor_map": tensor_map,
        "destination": tile,
        "coordinates": coords,
        "barrier": barrier,
        **optional,
    }
    if is_pair(cta_group):
        type_call(_PAIR_LOAD, given)
    plain = {name: typ for name, typ in given.items() if name != "cta_group"}
    typed = dict(zip(plain, type_call(_LOAD, plain).args)) | {"cta_group": cta_group}
    first = [typed[name] for name in list(given)[:4]]
    return signature(types.void, *first, types.uint32, *(typed[name] for name in optional))


def _lower_load_partitioned(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    given = dict(zip(sig.pysig.parameters, zip(sig.args, args)))
    rank = given.pop("rank")[1]
    tile_type, tile = given.pop("tile")
    coords_type, coords = given.pop("coords")
    box = given["tensor_map"][0].tile
    skipped = builder.mul(rank, ir.Constant(I32, box.shared_nbytes))
    address = builder.add(compiler.get_field(builder, tile_type, tile, "address"), skipped)
    rows = builder.mul(rank, ir.Constant(I32, box.shape[0]))
    row = builder.add(builder.extract_value(coords, 0), rows)
    given["destination"] = types.uint32, address
    given["coordinates"] = coords_type, builder.insert_value(coords, row, 0)
    if is_absent(given.get("multicast", (types.none,))[0]):
        everyone = (1 << count_slices(tile_type.static[0], given["tensor_map"][0].copies)) - 1
        given["multicast"] = types.uint16, ir.Constant(ir.IntType(16), everyone)
    if is_pair(given.pop("cta_group", (types.none, None))[0]):
        return emit_copies(_PAIR_LOAD, context, builder, pair_load(context, builder, given))
    return emit_copies(_LOAD, context, builder, given)


compiler.instruction_function(load_partitioned, _type_load_partitioned, _lower_load_partitioned)
