"""How kernels hold store pipelines: the compiled half of `store_started`."""

from __future__ import annotations

from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import ObjectType, TypingError, ir, signature, types
from numba_tma.backend.lowering.instructions import emit
from numba_tma.backend.lowering.pipeline.memory import U32, check_memory, constant, memory_address
from numba_tma.backend.lowering.pipeline.roles import of_role
from numba_tma.backend.lowering.pipeline.stages import iterate, lower_tile, resolve_tile
from numba_tma.backend.lowering.shared import ACCESSES, check_reduction, require_map
from numba_tma.pipeline import store_started as st
from numba_tma.pipeline.stage_layout import tile_stride
from numba_tma.pipeline.store import StorePipeline
from numba_tma.ptx import TABLE

compiler.device_function(st.prepare_meeting)


def _store_type(value: StorePipeline) -> ObjectType:
    fields = (*[U32] * 4, ACCESSES, U32, U32, types.boolean, types.boolean)
    return ObjectType(st.Store, (value,), fields, True)


def _type_start(self: ObjectType, tiles: Any = None) -> Any:
    value = self.static[0]
    given = [tiles] if tiles is not None else []
    if not check_memory("tiles", tiles or types.none, value.nbytes, value.alignment):
        roles = value.num_parties
        each = f"{roles} roles x {value.num_stages} stages" if roles > 1 else f"{value.num_stages}"
        each = each if roles > 1 else f"{each} stages"
        parts = {
            f"{name}: {each} x {tile_stride(tile):,} B": roles
            * value.num_stages
            * tile_stride(tile)
            for name, tile in value.tiles
        }
        parts["alignment"] = value.nbytes - sum(parts.values())
        parts["barriers"] = value.sync_nbytes
        compiler.check_shared_size(repr(value), {n: b for n, b in parts.items() if b})
    return signature(_store_type(value), self, *given)


def _lower_start(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    value = sig.args[0].static[0]
    if len(args) > 1 and not isinstance(sig.args[1], types.NoneType | types.Omitted):
        base = memory_address(builder, sig.args[1], args[1])
        mine = _of_caller(context, builder, value, base)
        return _make(context, builder, sig.return_type, mine)
    # The launch reads from the name which blocks the roles want.
    kind = f"ring{value.block}" if value.block else "line"
    with builder.goto_entry_block():  # as of_role does, which see
        base = compiler.allocate_shared(builder, value.nbytes, value.alignment, repr(value), kind)
        mine = _of_caller(context, builder, value, base)
        if not value.debug:
            return _make(context, builder, sig.return_type, mine)
    return _make(context, builder, sig.return_type, mine)


def _of_caller(context: Any, builder: Any, value: StorePipeline, base: Any) -> list[Any]:
    """Return base, thread, threads, named barrier and meeting's offset of the caller's role."""
    if not value.roles:
        thread, threads = (emit(TABLE[row], context, builder, {}) for row in ("tid_x", "ntid_x"))
        return [base, thread, threads, constant(0), constant(0)]
    each = [
        (i * value.role_nbytes, role.members, role.barrier_id, 8 * i)
        for i, role in enumerate(value.roles)
    ]
    thread, offset, *others = of_role(context, builder, value.roles, each)
    return [builder.add(base, offset), thread, *others]


def _make(context: Any, builder: Any, typ: ObjectType, mine: list[Any]) -> Any:
    """Return the store pipeline of the caller's role; in debug mode with a barrier to meet at."""
    value = typ.static[0]
    *found, meeting = mine
    if value.debug:
        start = compiler.allocate_shared(builder, value.sync_nbytes, 8, f"barriers of {value}")
        meeting = builder.add(start, meeting)
        prepare = signature(types.void, U32, U32, U32, U32)
        arguments = [meeting, *found[1:]]
        compiler.BODIES[st.prepare_meeting].call(context, builder, prepare, arguments)
    else:
        meeting = constant(0)
    no, yes = ir.Constant(ir.IntType(1), 0), ir.Constant(ir.IntType(1), 1)
    accesses = compiler.make_object(context, builder, ACCESSES, [no])
    fields = [*found, accesses, meeting, constant(value.num_stages), no, yes]
    return compiler.make_object(context, builder, typ, fields)


compiler.native_method(StorePipeline, "start", _type_start, _lower_start)
compiler.describe(st.StoreStage).resolve = resolve_tile
compiler.describe(st.StoreStage).lower = lower_tile
iterate(st.StoreStages, st.StoreStage)


# ------------------------------------------------------------------------------ checks


def _check_map(what: str, tensor_map: types.Type) -> None:
    require_map(what, tensor_map)
    if getattr(tensor_map, "mode", "tiled") != "tiled":
        raise TypingError(
            f"{what} takes maps of tensor_map, not {tensor_map}: have the role's first thread call "
            "store_im2col(tile, coords) between fence_proxy_async(), sync() and commit()"
        )


def _check_store(tensor_map: types.Type, *args: types.Type, **kws: types.Type) -> None:
    _check_map("Store.store", tensor_map)


def _check_reduce(
    tensor_map: types.Type,
    tile: types.Type,
    coords: types.Type,
    op: types.Type,
    cache_hint: Any = None,
) -> None:
    _check_map("Store.reduce", tensor_map)
    of = getattr(tensor_map, "field_types", (tensor_map,))[0]
    if not isinstance(op, types.StringLiteral):
        raise TypingError(
            f"Store.reduce: op is part of the instruction, so a literal such as 'add', not {op}"
        )
    check_reduction("Store.reduce", of, op)


compiler.describe(st.Store).methods["store"].check = _check_store
compiler.describe(st.Store).methods["reduce"].check = _check_reduce
