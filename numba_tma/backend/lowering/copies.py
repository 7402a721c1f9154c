"""The lowerings of a map's copy methods: the instructions that move its boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    Builder,
    Context,
    Signature,
    TypingError,
    Value,
    ir,
    signature,
    types,
)
from numba_tma.backend.lowering.instructions import Operands, emit, is_absent, type_call
from numba_tma.backend.lowering.operands import OPERANDS
from numba_tma.backend.lowering.types import METHODS
from numba_tma.device import copies
from numba_tma.device.copy_rules import check_copy, check_pair, check_reduction, check_store
from numba_tma.host.boxes import Copies
from numba_tma.host.cluster_rules import pair_rule
from numba_tma.host.im2col_rules import MAX_HALO, MAX_W_OFFSET, offset_limit
from numba_tma.ptx import TABLE
from numba_tma.ptx._instruction import Instruction


def _typed(row: str, given: dict[str, Any]) -> Any:
    """Type the instruction of a method; `given` has its operands in the order of the parameters."""
    return signature(types.void, *type_call(TABLE[row], given).args)


def _type_load(
    self: types.Type,
    tile: types.Type,
    coords: types.Type,
    barrier: types.Type,
    cache_hint: types.Type = types.none,
    multicast: types.Type = types.none,
    cta_group: types.Type = types.none,
) -> Any:
    given = {
        "tensor_map": self,
        "destination": tile,
        "coordinates": coords,
        "barrier": barrier,
        "cache_hint": cache_hint,
        "multicast": multicast,
    }
    compiler.run_rule(check_pair, "TensorMap.load", barrier, cta_group)
    sig = _typed("cp_async_bulk_tensor_load", given)
    if is_pair(cta_group):
        _typed("cp_async_bulk_tensor_load_cta_group", given | {"cta_group": cta_group})
    compiler.run_rule(check_copy, "TensorMap.load", self, tile, coords)
    return signature(types.void, *sig.args, cta_group)


def is_pair(cta_group: types.Type) -> bool:
    """Return whether the argument `cta_group` of a load is the literal 2."""
    return isinstance(cta_group, types.IntegerLiteral) and cta_group.literal_value == 2


def pair_load(context: Context, builder: Builder, given: Operands) -> Operands:
    """Return the operands of a load whose bytes count on the barrier of the pair's even block."""
    compiler.require_pairs(builder, pair_rule)
    rank = emit(TABLE["cluster_ctarank"], context, builder, {})
    leader = builder.and_(rank, ir.Constant(I32, 0xFFFFFFFE))
    located = {"location": given["barrier"], "rank": (types.uint32, leader)}
    barrier = emit(TABLE["mapa"], context, builder, located)
    return given | {"barrier": (types.uint32, barrier), "cta_group": (types.literal(2), None)}


def _lower_load(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    given: Any = dict(zip(("tensor_map", *_LOADED), zip(sig.args, args)))
    row = TABLE["cp_async_bulk_tensor_load"]
    if is_pair(sig.args[-1]):
        given = pair_load(context, builder, given)
        row = TABLE["cp_async_bulk_tensor_load_cta_group"]
    return emit_copies(row, context, builder, given)


def _type_store(
    self: types.Type, tile: types.Type, coords: types.Type, cache_hint: types.Type = types.none
) -> Any:
    given = {"tensor_map": self, "source": tile, "coordinates": coords, "cache_hint": cache_hint}
    sig = _typed("cp_async_bulk_tensor_store", given)
    compiler.run_rule(check_copy, "TensorMap.store", self, tile, coords)
    compiler.run_rule(check_store, "TensorMap.store", self, coords)
    return sig


def _type_reduce(
    self: types.Type,
    tile: types.Type,
    coords: types.Type,
    op: types.Type,
    cache_hint: types.Type = types.none,
) -> Any:
    given = {
        "tensor_map": self,
        "source": tile,
        "coordinates": coords,
        "operation": op,
        "cache_hint": cache_hint,
    }
    compiler.run_rule(check_reduction, "TensorMap.reduce", self, op)
    sig = _typed("cp_reduce_async_bulk_tensor", given)
    compiler.run_rule(check_copy, "TensorMap.reduce", self, tile, coords)
    compiler.run_rule(check_store, "TensorMap.reduce", self, coords)
    return sig


def _type_prefetch_tile(
    self: types.Type, coords: types.Type, cache_hint: types.Type = types.none
) -> Any:
    given = {"tensor_map": self, "coordinates": coords, "cache_hint": cache_hint}
    sig = _typed("cp_async_bulk_prefetch_tensor", given)
    compiler.run_rule(check_copy, "TensorMap.prefetch_tile", self, None, coords)
    return sig


#: Returns the type and the value of a box's coordinates, given one LLVM value for each axis.
Place: TypeAlias = Callable[[list[Any]], "tuple[types.Type, Any]"]


def emit_copies(
    row: Instruction,
    context: Context,
    builder: Builder,
    given: Operands,
    place: Place | None = None,
) -> Any:
    """Emit the copies that move the map's tile: one, unless the tile exceeds a box.

    `place` finds the coordinates of a box in the encoded map; None if they are the array's.
    """
    boxes = given["tensor_map"][0].copies
    _, coords = given["coordinates"]
    if boxes is None or boxes.is_one_box:
        if place is not None:
            axes = given["tensor_map"][0].rank
            first = [builder.extract_value(coords, axis) for axis in range(axes)]
            given |= {"coordinates": place(first)}
        return emit(row, context, builder, given)
    shared = next((name for name in ("destination", "source") if name in given), None)
    if shared is not None:
        (base,) = OPERANDS["TileAddress"].lower(context, builder, *given[shared])
    for offset, start in boxes.starts:
        moved: Any = [
            builder.add(builder.extract_value(coords, axis), ir.Constant(I32, i))
            for axis, i in enumerate(start)
        ]
        if boxes.fold:
            moved = _fold(builder, boxes, moved)
        elif boxes.words > 1:
            moved[-1] = builder.mul(moved[-1], ir.Constant(I32, boxes.words))
        given |= {"coordinates": (place or in_order(context, builder))(moved)}
        if shared is not None:
            address = builder.add(base, ir.Constant(I32, offset))
            given |= {shared: (types.uint32, address)}
        emit(row, context, builder, given)
    return context.get_dummy_value()


def in_order(context: Context, builder: Builder) -> Place:
    """Return the `Place` of a map whose coordinates are the array's."""

    def place(coords: Any) -> tuple[types.Type, Any]:
        kind = types.UniTuple(types.int32, len(coords))
        return kind, context.make_tuple(builder, kind, coords)

    return place


def _fold(builder: Builder, boxes: Copies, coords: list[Any]) -> tuple[Any, ...]:
    """Return the coordinates in the axes of a folded map."""
    *outer, column = coords
    part = builder.ashr(column, ir.Constant(I32, boxes.part.bit_length() - 1))
    within = builder.and_(column, ir.Constant(I32, boxes.part - 1))
    # A column inside a part would read zeros past the part's end. The innermost coordinate is then
    # 1 element, no multiple of 16 B: the copy is an illegal instruction instead of a wrong result.
    some = builder.icmp_unsigned("!=", within, ir.Constant(I32, 0))
    return boxes.with_axis((*outer, builder.zext(some, I32)), part)


def _type_prefetch(self: types.Type) -> Any:
    return _typed("prefetch_tensormap", {"tensor_map": self})


def _method(body: Any, typer: Any, lower: Any) -> None:
    """Register a method by its body in the simulator."""
    METHODS[body.__name__] = compiler.NativeMethod("TensorMap", body.__name__, typer, lower)
    compiler.LOWERED.add(body)


def _map_method(body: Any, row: str, typer: Any, *operands: str) -> None:
    """Register a method that is one instruction, by its operands in the method's order."""

    def lower(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
        given = dict(zip(("tensor_map", *operands), zip(sig.args, args)))
        if "coordinates" in given:
            return emit_copies(TABLE[row], context, builder, given)
        return emit(TABLE[row], context, builder, given)

    _method(body, typer, lower)


_ACQUIRE, _GPU = TABLE["fence_proxy_tensormap_acquire"], types.literal("gpu")


def _type_fence_acquire(self: types.Type) -> Any:
    type_call(_ACQUIRE, {"tensor_map": self, "scope": _GPU})
    return signature(types.void, self)


def _lower_fence_acquire(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    given = {"tensor_map": (sig.args[0], args[0]), "scope": (_GPU, None)}
    return emit(_ACQUIRE, context, builder, given)


_LOADED = ("destination", "coordinates", "barrier", "cache_hint", "multicast")
_REDUCED = ("source", "coordinates", "operation", "cache_hint")
_STORED = ("source", "coordinates", "cache_hint")
_FETCHED = ("coordinates", "cache_hint")
_method(copies.load, _type_load, _lower_load)
_map_method(copies.store, "cp_async_bulk_tensor_store", _type_store, *_STORED)
_map_method(copies.reduce, "cp_reduce_async_bulk_tensor", _type_reduce, *_REDUCED)
_map_method(copies.prefetch_tile, "cp_async_bulk_prefetch_tensor", _type_prefetch_tile, *_FETCHED)
_map_method(copies.prefetch, "prefetch_tensormap", _type_prefetch)
_method(copies.fence_acquire, _type_fence_acquire, _lower_fence_acquire)


# ------------------------------------------------------------------- columns of pixels

_LOAD_IM2COL = TABLE["cp_async_bulk_tensor_im2col_load"]
_PAIR_IM2COL = "cp_async_bulk_tensor_im2col_load_cta_group"
_STORE_IM2COL = TABLE["cp_async_bulk_tensor_im2col_store"]


def _im2col_row(
    tensor_map: types.Type, multicast: types.Type, cta_group: types.Type
) -> Instruction:
    """Return the row that loads columns of pixels through maps of a mode."""
    if tensor_map.mode == "im2col_w128":
        return TABLE["cp_async_bulk_tensor_im2col_w_128_load"]
    if tensor_map.mode == "im2col_w":
        name = "cp_async_bulk_tensor_im2col_w_load"
        own = is_absent(multicast) and not is_pair(cta_group)
        return TABLE[f"{name}_cta" if own else name]
    return TABLE[_PAIR_IM2COL] if is_pair(cta_group) else _LOAD_IM2COL


_NO_HALO = (types.uint16, ir.Constant(ir.IntType(16), 0))


def _type_load_im2col(
    self: types.Type,
    tile: types.Type,
    coords: types.Type,
    offsets: types.Type,
    barrier: types.Type,
    cache_hint: types.Type = types.none,
    multicast: types.Type = types.none,
    cta_group: types.Type = types.none,
) -> Any:
    compiler.run_rule(check_pair, "TensorMap.load_im2col", barrier, cta_group)
    given = {
        "destination": tile,
        "coordinates": coords,
        "offsets": offsets,
        "barrier": barrier,
        "cache_hint": cache_hint,
        "multicast": multicast,
    }
    row = _im2col_row(self, multicast, cta_group)
    pair = {"cta_group": cta_group} if is_pair(cta_group) else {}
    mode = self.mode if self.mode in MAX_HALO else "im2col"
    if mode == "im2col":
        operands = {"tensor_map": self, **given, **pair}
        typed = dict(zip(operands, type_call(row, operands).args))
    else:
        offsets = OPERANDS["Offsets"].accept(offsets, "TensorMap.load_im2col(offsets=...)")
        if len(offsets) != 1:
            raise TypingError(
                f"TensorMap.load_im2col: {len(offsets)} offsets for {self}, which walks along W "
                "alone: give (w,), and add the others to the coordinates"
            )
        operands = {"tensor_map": self, **given, **pair, "w_halo": _NO_HALO[0]}
        operands |= {"w_offset": types.uint16}
        names = [name for name in row.operands if name in operands]
        typed = dict(zip(names, type_call(row, {n: operands[n] for n in names}).args))
        typed |= {"offsets": offsets} | ({} if "multicast" in typed else {"multicast": multicast})
    compiler.run_rule(check_copy, "TensorMap.load_im2col", self, tile, coords, mode=mode)
    _check_offsets(self, given["offsets"])
    return signature(types.void, self, *(typed[name] for name in given), cta_group)


def _check_offsets(tensor_map: types.Type, offsets: types.Type) -> None:
    wide = tensor_map.mode in MAX_HALO
    limit = MAX_W_OFFSET if wide else offset_limit(len(offsets) + 2)
    for axis, offset in enumerate(offsets, tensor_map.rank - 2 if wide else 1):
        if isinstance(offset, types.IntegerLiteral) and offset.literal_value > limit:
            raise TypingError(
                f"TensorMap.load_im2col: the offset of axis {axis} is {offset.literal_value}; "
                f"{tensor_map} takes 0 to {limit}: move the coordinates instead"
            )


def _lower_load_im2col(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    names = ["tensor_map", "destination", "coordinates", "offsets", "barrier"]
    names += ["cache_hint", "multicast"]
    *kinds, cta_group = sig.args
    given: Any = dict(zip(names, zip(kinds, args)))
    row = _im2col_row(kinds[0], given["multicast"][0], cta_group)
    if is_pair(cta_group):
        given = pair_load(context, builder, given)
    if "w_offset" in row.operands:
        _, offsets = given.pop("offsets")
        given |= {"w_halo": _NO_HALO, "w_offset": (types.uint16, builder.extract_value(offsets, 0))}
        given = {name: given[name] for name in row.operands if name in given}
    return emit(row, context, builder, given)


def _type_store_im2col(
    self: types.Type, tile: types.Type, coords: types.Type, cache_hint: types.Type = types.none
) -> Any:
    given = {"source": tile, "coordinates": coords, "cache_hint": cache_hint}
    typed = dict(
        zip(("tensor_map", *given), type_call(_STORE_IM2COL, {"tensor_map": self, **given}).args)
    )
    compiler.run_rule(check_copy, "TensorMap.store_im2col", self, tile, coords, mode="im2col")
    compiler.run_rule(check_store, "TensorMap.store_im2col", self, coords)
    return signature(types.void, self, *(typed[name] for name in given))


def _lower_store_im2col(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    names = ["tensor_map", "source", "coordinates", "cache_hint"]
    return emit(_STORE_IM2COL, context, builder, dict(zip(names, zip(sig.args, args))))


_method(copies.load_im2col, _type_load_im2col, _lower_load_im2col)
_method(copies.store_im2col, _type_store_im2col, _lower_store_im2col)
