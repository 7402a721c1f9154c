"""The lowerings of copies of rows by number: 4 rows an instruction where the target has that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from numba_tma.backend.lowering.copies import is_pair, pair_load
from numba_tma.backend.lowering.instructions import Operands, emit, is_absent, type_call
from numba_tma.backend.lowering.operands import OPERANDS
from numba_tma.backend.lowering.types import METHODS, TensorMapType
from numba_tma.device import gather as g
from numba_tma.device.copy_rules import check_pair, check_rows
from numba_tma.device.shared import SharedTile
from numba_tma.host.gather import GROUP, row_pitch_violation, row_starts
from numba_tma.host.layout import Tile
from numba_tma.ptx import TABLE
from numba_tma.ptx._instruction import Instruction

#: Of each copy: the rows of four, the first that the target has, and the row of one.
_ROWS = {
    "gather": (
        ("cp_async_bulk_tensor_gather4_cta", "cp_async_bulk_tensor_gather4"),
        "cp_async_bulk_tensor_load",
    ),
    "scatter": (("cp_async_bulk_tensor_scatter4",), "cp_async_bulk_tensor_store"),
    "prefetch_rows": (
        ("cp_async_bulk_prefetch_tensor_gather4",),
        "cp_async_bulk_prefetch_tensor",
    ),
}
#: The operands of each copy beside the map, the rows and the column, in the method's order.
_BEFORE = {"gather": ("destination",), "scatter": ("source",), "prefetch_rows": ()}
_AFTER = {
    "gather": ("barrier", "cache_hint", "multicast", "cta_group"),
    "scatter": ("cache_hint",),
    "prefetch_rows": ("cache_hint",),
}
_NUMBERS = tuple(f"row{i}" for i in range(GROUP))


def _has(row: Instruction) -> bool:
    """Return whether the target of this compile has a row."""
    return row.targets.allow(compiler.compile_target())


def _of_four(copy: str, given: dict[str, Any]) -> Instruction | None:
    """Return the row of the table that moves four rows; None if the target has none."""
    multicast = not is_absent(given.get("multicast", (types.none,))[0])
    if "cta_group" in given:
        return TABLE["cp_async_bulk_tensor_gather4"]
    for name in _ROWS[copy][0]:
        row = TABLE[name]
        if _has(row) and not (multicast and "multicast" not in row.operands):
            return row
    return None


def _is_list(rows: types.Type) -> bool:
    """Whether row numbers are in memory: an array of integers, or a shared tile of them."""
    if isinstance(rows, types.Array):
        return rows.ndim == 1 and isinstance(rows.dtype, types.Integer)
    cls = getattr(rows, "cls", None)
    return cls is SharedTile and rows.static[0].ndim == 1 and not rows.static[0].dtype.is_float


def _accept_rows(what: str, rows: types.Type) -> types.Type:
    if isinstance(rows, types.BaseTuple):  # of as many as the tile has rows: `check_rows`
        if all(isinstance(types.unliteral(t), types.Integer) for t in rows):
            return types.UniTuple(types.int32, len(rows))
    if _is_list(rows):
        return rows
    raise TypingError(
        f"{what}(rows=...) takes a tuple of integers, or an array of one axis of integers, not "
        f"{rows}"
    )


def _typer(copy: str) -> Any:
    """Return the typer of a method; `before` and `after` are its operands around the rows."""
    what = f"GatherMap.{copy}"

    def typed(
        self: TensorMapType, rows: types.Type, column: types.Type, others: dict[str, types.Type]
    ) -> dict[str, types.Type]:
        single = TABLE[_ROWS[copy][1]]
        if self.tile is None or self.mode != "gather":
            compiler.run_rule(check_rows, what, self, None, rows, column)
            raise TypingError(f"{what} takes a map of gather_map, not {self}")
        if not isinstance(types.unliteral(column), types.Integer):
            raise TypingError(f"{what}(column=...) takes an integer, not {column}")
        tile = next((others[name] for name in _BEFORE[copy]), None)
        compiler.run_rule(check_rows, what, self, tile, rows, column)
        if "barrier" in others:
            pair = others.pop("cta_group")
            compiler.run_rule(check_pair, what, others["barrier"], pair)
            if is_pair(pair):
                numbers = dict.fromkeys((*_NUMBERS, "column"), types.int32)
                row = TABLE["cp_async_bulk_tensor_gather4"]
                four = {"tensor_map": self, **others, **numbers, "cta_group": pair}
                type_call(row, {name: four[name] for name in row.operands})
        given = {"tensor_map": self, **others}
        # The order of the single row's operands, so that `type_call` binds them by name.
        given["coordinates"] = types.UniTuple(types.int32, 2)
        sig = type_call(single, {n: given[n] for n in single.operands if n in given})
        accepted = dict(zip([n for n in single.operands if n in given], sig.args))
        pairs = {name: (typ, None) for name, typ in others.items()}
        if _of_four(copy, pairs) is None and (wrong := row_pitch_violation(self.tile)):
            raise TypingError(f"{what}: {wrong}")
        return accepted

    if copy == "gather":

        def type_gather(
            self: types.Type,
            tile: types.Type,
            rows: types.Type,
            column: types.Type,
            barrier: types.Type,
            cache_hint: types.Type = types.none,
            multicast: types.Type = types.none,
            cta_group: types.Type = types.none,
        ) -> Any:
            others = {"destination": tile, "barrier": barrier}
            others |= {"cache_hint": cache_hint, "multicast": multicast, "cta_group": cta_group}
            accepted = typed(self, rows, column, others) | {"cta_group": cta_group}
            args = [accepted[name] for name in _AFTER[copy]]
            kind = _accept_rows(what, rows)
            return signature(types.void, self, accepted["destination"], kind, types.int32, *args)

        return type_gather

    if copy == "scatter":

        def type_scatter(
            self: types.Type,
            tile: types.Type,
            rows: types.Type,
            column: types.Type,
            cache_hint: types.Type = types.none,
        ) -> Any:
            accepted = typed(self, rows, column, {"source": tile, "cache_hint": cache_hint})
            kind = _accept_rows(what, rows)
            return signature(
                types.void, self, accepted["source"], kind, types.int32, accepted["cache_hint"]
            )

        return type_scatter

    def type_prefetch(
        self: types.Type,
        rows: types.Type,
        column: types.Type,
        cache_hint: types.Type = types.none,
    ) -> Any:
        accepted = typed(self, rows, column, {"cache_hint": cache_hint})
        kind = _accept_rows(what, rows)
        return signature(types.void, self, kind, types.int32, accepted["cache_hint"])

    return type_prefetch


def _emit_group(
    copy: str,
    context: Context,
    builder: Builder,
    given: Operands,
    numbers: Sequence[Any],
    column: Any,
    first: Any,
) -> None:
    """Emit the copies of 4 rows of every slab; `first` is their place in the tile, in LLVM."""
    tile: Tile = given["tensor_map"][0].tile
    if is_pair(given.pop("cta_group", (types.none, None))[0]):
        given = pair_load(context, builder, given)
    four = _of_four(copy, given)
    shared = next(iter(_BEFORE[copy]), None)
    if shared is not None:
        (base,) = OPERANDS["TileAddress"].lower(context, builder, *given[shared])
        base = builder.add(base, builder.mul(first, ir.Constant(I32, tile.pitch)))
    group = Tile((GROUP, tile.shape[1]), tile.dtype, tile.swizzle)
    together = 1 if four is None else GROUP
    for _, (place, skipped) in row_starts(group, together):
        offset = skipped // tile.slab * tile.slab_nbytes + place * tile.pitch
        moved = builder.add(column, ir.Constant(I32, skipped))
        if tile.dtype.words > 1:
            moved = builder.mul(moved, ir.Constant(I32, tile.dtype.words))
        one = dict(given)
        if shared is not None:
            one[shared] = types.uint32, builder.add(base, ir.Constant(I32, offset))
        if four is not None:
            one |= {n: (types.int32, number) for n, number in zip(_NUMBERS, numbers)}
            one["column"] = types.int32, moved
            row = four
        else:
            kind = types.UniTuple(types.int32, 2)
            one["coordinates"] = kind, context.make_tuple(builder, kind, (numbers[place], moved))
            row = TABLE[_ROWS[copy][1]]
        emit(row, context, builder, {n: one[n] for n in row.operands if n in one})


def _lowerer(copy: str) -> Any:
    names = ("tensor_map", *_BEFORE[copy], "rows", "column", *_AFTER[copy])
    listed: Any = getattr(g, f"{copy.removesuffix('_rows')}_listed")

    def lower(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
        given = dict(zip(names, zip(sig.args, args)))
        kind, rows = given["rows"]
        if not isinstance(kind, types.BaseTuple):
            full = signature(types.void, *sig.args)
            return compiler.BODIES[listed].call(context, builder, full, list(args))
        del given["rows"]
        _, column = given.pop("column")
        for first in range(0, len(kind), GROUP):
            numbers = [builder.extract_value(rows, first + i) for i in range(GROUP)]
            where = ir.Constant(I32, first)
            _emit_group(copy, context, builder, dict(given), numbers, column, where)
        return context.get_dummy_value()

    return lower


for _copy, _body in (
    ("gather", g.gather),
    ("scatter", g.scatter),
    ("prefetch_rows", g.prefetch_rows),
):
    METHODS[_copy] = compiler.NativeMethod("TensorMap", _copy, _typer(_copy), _lowerer(_copy))
    compiler.LOWERED.add(_body)


# ------------------------------------------------------------------- 4 rows of a list


def _register_group(copy: str, body: Any) -> None:
    names = ("tensor_map", *_BEFORE[copy], "rows", "column", *_AFTER[copy])
    placed = bool(_BEFORE[copy])

    def typer(**given: types.Type) -> Any:
        result = list(given.values())
        result[names.index("rows")] = types.UniTuple(types.int32, GROUP)
        result[names.index("column")] = types.int32
        if placed:
            result[-1] = types.int32
        return signature(types.void, *result)

    def lower(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
        given = dict(zip(names, zip(sig.args, args)))
        _, rows = given.pop("rows")
        _, column = given.pop("column")
        first = args[-1] if placed else ir.Constant(I32, 0)
        numbers = [builder.extract_value(rows, i) for i in range(GROUP)]
        _emit_group(copy, context, builder, given, numbers, column, first)
        return context.get_dummy_value()

    compiler.instruction_function(body, typer, lower)


_register_group("gather", g.gather_group)
_register_group("scatter", g.scatter_group)
_register_group("prefetch_rows", g.prefetch_group)


# ------------------------------------------------------------------- rows of an array


def _type_row_nbytes(
    what: types.Type, tile: types.Type, array: types.Type, rows: types.Type
) -> Any:
    name = compiler.static_of(what, "row_nbytes")
    if getattr(tile, "cls", None) is not SharedTile:
        raise TypingError(f"{name}(tile=...) takes a SharedTile, not {tile}")
    if not isinstance(array, types.Array):
        raise TypingError(f"{name} takes a map of gather_map, or a matrix, not {array}")
    listed = len(rows) if isinstance(rows, types.BaseTuple) else None
    itemsize = array.dtype.bitwidth // 8
    if wrong := g.bulk_violation(name, tile.static[0], array.ndim, itemsize, listed):
        raise TypingError(wrong)
    if not isinstance(rows, types.Integer):
        _accept_rows(name, rows)
    return signature(types.int32, what, tile, array, rows)


def _lower_row_nbytes(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    tile = sig.args[1].static[0]
    return ir.Constant(I32, tile.shape[1] * tile.itemsize)


compiler.instruction_function(g.row_nbytes, _type_row_nbytes, _lower_row_nbytes)
