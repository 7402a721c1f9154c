"""Bounded waits in kernels: the compiled half of `waiting`, and of the byte ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    I64,
    Builder,
    Context,
    ObjectType,
    Signature,
    Value,
    ir,
    signature,
    types,
)
from numba_tma.backend.lowering import hooks
from numba_tma.backend.lowering.instructions import HOOKS, Operands, emit, is_absent
from numba_tma.device import waiting as w
from numba_tma.host import debug
from numba_tma.host.environment import debugging
from numba_tma.ptx import TABLE
from numba_tma.ptx._instruction import Instruction

U32, U64, I1 = types.uint32, types.uint64, ir.IntType(1)


# --------------------------------------------------------------------------- primitives


def _lower_buffer_word(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    offset = builder.shl(builder.zext(args[0], I64), ir.Constant(I64, 2))
    return builder.add(offset, ir.Constant(I64, debug.buffer_address()))


def _lower_number_of(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    return ir.Constant(I32, debug.site_number(sig.args[0].static[0]))


def _lower_leave(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    # A launch recognises a kernel in debug mode by the comment.
    text = f"exit; // {debug.MARKER}"
    function = ir.FunctionType(ir.VoidType(), [])
    asm = ir.InlineAsm(function, text, "~{memory}", side_effect=True)
    builder.call(asm, [], attrs=("convergent",))
    return context.get_dummy_value()


def _native(function: Any, lower: Any, result: types.Type, *parameters: types.Type) -> None:
    """Let kernels call `function`; the type of a `Site` among its parameters is unchanged."""

    def typer(*args: types.Type, **kws: types.Type) -> Any:
        given = [*args, *kws.values()]
        return signature(result, *(p or g for p, g in zip(parameters, given)))

    compiler.instruction_function(function, typer, lower)


#: Called with (context, builder, type of the barrier, arguments, site) after a bounded wait.
WAITS: list[Callable[..., None]] = []

BOOL, VOID = types.boolean, types.void
_native(w.buffer_word, _lower_buffer_word, U64, U32)
_native(w.number_of, _lower_number_of, U32, None)
_native(w.leave, _lower_leave, VOID)


# -------------------------------------------------------------------------------- waits


@compiler.device_function
def _wait(barrier: Any, parity: Any, site: Any) -> None:
    """Wait as `waiting.wait_for` does outside debug mode, without its unused parts."""
    while not w.try_wait_for(barrier, parity, site):
        pass


def _site(given: types.Type, what: str) -> debug.Site:
    site: debug.Site = compiler.static_of(given, what)
    return site


def _type_wait(
    barrier: types.Type, parity: types.Type, site: types.Type, **rest: types.Type
) -> Any:
    _site(site, "wait_for(site=...)")
    if not isinstance(types.unliteral(parity), types.Integer | types.Boolean):
        raise compiler.TypingError(f"wait_for(parity=...) takes an integer (u32), not {parity}")
    return signature(VOID, barrier, U32, site, *(U32 for _ in rest))


def _lower_wait(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    barrier, _, site, *_ = sig.args
    begun = [begin(context, builder) for begin, _ in hooks.AROUND_WAITS]
    result = _lower_bare_wait(context, builder, sig, args)
    for (_, end), at in zip(hooks.AROUND_WAITS, begun):
        end(builder, at, barrier, args[0], site.static[0])
    return result


def _lower_bare_wait(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    barrier, _, site, *_ = sig.args
    value = site.static[0]
    if not value.is_bounded:
        # All waits of a kind share one function, without the names that debug mode uses.
        unnamed = ObjectType(debug.Site, (debug.Site("", in_cluster=value.in_cluster),))
        plain = signature(VOID, barrier, U32, unnamed)
        return compiler.BODIES[_wait].call(context, builder, plain, args[:3])
    zeros = [ir.Constant(I32, 0)] * (5 - len(args))
    body = w.wait_counted if value.tx_bytes else w.wait_bounded
    full = signature(VOID, barrier, U32, site, U32, U32)
    result = compiler.BODIES[body].call(context, builder, full, [*args, *zeros])
    for hook in WAITS:
        hook(context, builder, barrier, [*args, *zeros], value)
    return result


def _type_meet(
    barrier_id: types.Type, threads: types.Type, barrier: types.Type, site: types.Type
) -> Any:
    _site(site, "meet(site=...)")
    return signature(VOID, U32, U32, barrier, site)


def _lower_meet(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    if sig.args[3].static[0].is_bounded:
        bounded = signature(VOID, *sig.args[2:])
        return compiler.BODIES[w.meet_bounded].call(context, builder, bounded, args[2:])
    given = {"barrier_id": (U32, args[0]), "threads": (U32, args[1])}
    return emit(TABLE["barrier_sync"], context, builder, given)


compiler.instruction_function(w.wait_for, _type_wait, _lower_wait)
compiler.instruction_function(w.meet, _type_meet, _lower_meet)


# ------------------------------------------------------------------------------- copies

_TILED = {
    "cp_async_bulk_tensor_load": "load",
    "cp_async_bulk_tensor_load_cta_group": "load",
    "cp_async_bulk_tensor_store": "store",
    "cp_reduce_async_bulk_tensor": "reduce",
    "cp_async_bulk_prefetch_tensor": "prefetch_tile",
}


def _ledger(given: dict[str, tuple[Any, Any]]) -> int:
    """Return the offset from a copy's barrier to the ledger, 0 without a ledger."""
    typ = given.get("barrier", (None,))[0]
    return typ.static_value("ledger") if isinstance(typ, ObjectType) and typ.static else 0


def nbytes_of(row: Instruction, given: dict[str, tuple[Any, Any]]) -> Any:
    """Return the bytes that a row completes on its barrier; None if they are unknown."""
    if row.name in ("cp_async_bulk_load", "mbarrier_complete_tx"):
        return given["nbytes" if "nbytes" in given else "tx_bytes"][1]
    if not row.name.startswith("cp_async_bulk_tensor_") or "destination" not in given:
        return None
    tensor_map, tile = given["tensor_map"][0], given["destination"][0]
    if tensor_map.mode == "gather":
        rows = 4 if "row3" in given else 1
        return ir.Constant(I32, rows * tensor_map.tile.slab * tensor_map.tile.itemsize)
    if tensor_map.copies is not None:
        return ir.Constant(I32, tensor_map.copies.box.nbytes)
    known = tensor_map.tile or (tile.static[0] if isinstance(tile, ObjectType) else None)
    return ir.Constant(I32, known.nbytes) if known is not None else None


def _watch_copy(row: Instruction, context: Context, builder: Builder, given: Operands) -> None:
    """Before a copy is issued, check its coordinates and enter its bytes into the ledger."""
    ledger = _ledger(given)
    if row.name in _TILED and (ledger or debugging()):
        _check_coordinate(row, context, builder, given)
    if not ledger or not (row.name.startswith("cp_async_bulk") or row.name.endswith("complete_tx")):
        return
    nbytes = nbytes_of(row, given)
    if nbytes is None:  # the word after the ledger marks it as invalid
        ledger, nbytes = ledger + 4, ir.Constant(I32, 1)
    typ, barrier = given["barrier"]
    address = compiler.get_field(builder, typ, barrier, "address")
    address = builder.add(address, ir.Constant(I32, ledger))
    mask_type, mask = given.get("multicast", (types.none, None))
    if is_absent(mask_type):
        added = {"location": (U32, address), "value": (U32, nbytes)}
        emit(TABLE["red_shared_cluster_add_u32"], context, builder, added)
    else:
        sig = signature(VOID, U32, U32, U32)
        mask = builder.zext(mask, I32)
        compiler.BODIES[w.count_multicast].call(context, builder, sig, [address, nbytes, mask])


def _check_coordinate(
    row: Instruction, context: Context, builder: Builder, given: Operands
) -> None:
    tensor_map, (typ, coordinates) = given["tensor_map"][0], given["coordinates"]
    if tensor_map.tile is None or tensor_map.interleave:
        return  # the type has no tile, or the coordinate counts slices
    tile = tensor_map.tile
    what = f"{_TILED[row.name]} of {tile}"
    if tensor_map.copies is not None and tensor_map.copies.fold:
        what += f" by a folded map, in parts of {tensor_map.copies.part} columns"
    word = tile.dtype.word
    if word is not tile.dtype:
        what += f", counted in {word}"
    itemsize, unit = (1, word.coordinate_unit) if word.is_packed else (word.itemsize, 16)
    site = debug.Site(what, kind="coordinate", itemsize=itemsize, unit=unit)
    site_type = ObjectType(debug.Site, (site,))
    nothing = ir.Constant(ir.LiteralStructType([ir.IntType(8)]), ir.Undefined)
    innermost = builder.extract_value(coordinates, len(typ) - 1)
    sig = signature(VOID, site_type, types.int32)
    compiler.BODIES[w.check_coordinate].call(context, builder, sig, [nothing, innermost])


HOOKS.append(_watch_copy)
