"""Fragments in kernels: loads and stores, in shared and global memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    I64,
    Builder,
    Context,
    NativeMethod,
    Signature,
    TypingError,
    Value,
    get_field,
    ir,
    pack,
    signature,
    types,
    unpack,
)
from numba_tma.backend.lowering.fragments.types import (
    FLOAT,
    METHODS,
    FragmentType,
    RowsType,
    place,
)
from numba_tma.backend.lowering.hooks import accessed
from numba_tma.backend.lowering.instructions import emit
from numba_tma.backend.lowering.shared import mark_used, tile_of
from numba_tma.device.mma import load_fragment, load_rows
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.mma_rules import can_hold, check_fragment, check_place, check_rows
from numba_tma.ptx import TABLE

U32 = types.uint32


def _constant(value: int) -> Any:
    return ir.Constant(I32, value)


# ------------------------------------------------------------------------ shared memory


def _known(at: types.Type, what: str) -> tuple[int | None, ...]:
    """Return the literals of a (row, column), None for an index known at run time."""
    is_pair = isinstance(at, types.BaseTuple) and len(at) == 2
    if not is_pair or not all(isinstance(types.unliteral(t), types.Integer) for t in at):
        raise TypingError(f"{what} takes a (row, column) of two integers, not {at}")
    return tuple(t.literal_value if isinstance(t, types.IntegerLiteral) else None for t in at)


def _tile(typ: types.Type, what: str) -> Tile:
    found = tile_of(typ)
    if found is None:
        raise TypingError(f"{what} takes a tile in shared memory, not {typ}")
    return found


def _type_store(self: FragmentType, tile: types.Type, at: types.Type) -> Any:
    what = "Fragment.store"
    held = _tile(tile, f"{what}(tile=...)")
    if held.dtype.numpy != self.dtype.numpy:
        raise TypingError(
            f'{what}: {self} into a tile of {held.dtype}: convert it first, with to("{held.dtype}")'
        )
    try:
        check_place(held.shape, _known(at, f"{what}(at=...)"), self.n, self.dtype, what)
    except ValueError as error:
        raise TypingError(str(error)) from None
    return signature(types.void, self, tile, at)


def _type_load(tile: types.Type, at: types.Type, n: types.Type) -> Any:
    what = "load_fragment"
    held = _tile(tile, f"{what}(tile=...)")
    columns = compiler.static_of(n, f"{what}(n=...)")
    try:
        dtype = check_fragment(columns, as_dtype(held.dtype.numpy), what)
        check_place(held.shape, _known(at, f"{what}(at=...)"), columns, dtype, what)
    except ValueError as error:
        raise TypingError(str(error)) from None
    return signature(FragmentType(dtype, columns), tile, at, n)


class _Corner:
    """The place of a fragment in a shared tile."""

    def __init__(self, context: Context, builder: Builder, tile: Value, at: Any) -> None:
        (self.tile_type, self.value), (at_type, at_value) = tile, at
        self.context, self.builder = context, builder
        self.start = [
            context.cast(builder, builder.extract_value(at_value, i), at_type[i], U32)
            for i in range(2)
        ]

    def address(self, row: Any, column: Any) -> Any:
        """Return the shared address of an element, counted from the corner.

        The offset is that of `Tile.offset`. The row's part is computed apart, since it is the same
        for all columns.
        """
        builder, tile = self.builder, self.tile_type.static[0]
        row, column = (builder.add(start, i) for start, i in zip(self.start, (row, column)))
        base = get_field(builder, self.tile_type, self.value, "address")
        line = builder.mul(row, _constant(tile.pitch))
        slab = builder.udiv(column, _constant(tile.slab))
        start = builder.add(line, builder.mul(slab, _constant(tile.slab_nbytes)))
        nbytes = builder.urem(column, _constant(tile.slab))
        nbytes = builder.mul(nbytes, _constant(tile.itemsize))
        if tile.swizzle is not Swizzle.NONE:
            span, atom = tile.swizzle.span, tile.swizzle.atom
            turn = builder.lshr(line, _constant(8 - atom.bit_length()))
            nbytes = builder.xor(nbytes, builder.and_(turn, _constant(span - atom)))
        return builder.add(builder.add(base, start), nbytes)

    def mark_used(self) -> None:
        mark_used(self.builder, self.tile_type, self.value)


def _matrix_rows(corner: _Corner, typ: FragmentType) -> list[tuple[int, int, Any]]:
    """Return (first register, registers, address of the lane's row) for ldmatrix and stmatrix.

    A matrix is 8 rows of 16 bytes, for every element type. Two matrices are the warp's 16 rows; two
    more are the next 16 bytes of these rows.
    """
    context, builder = corner.context, corner.builder
    tid = emit(TABLE["tid_x"], context, builder, {})
    warp = builder.and_(builder.lshr(tid, _constant(1)), _constant(0x30))
    row = builder.or_(warp, builder.and_(tid, _constant(15)))
    next_16 = builder.and_(builder.lshr(tid, _constant(4)), _constant(1))
    unit = 16 // typ.dtype.itemsize
    right = builder.mul(next_16, _constant(unit))
    found = []
    for first in range(0, typ.registers, 4):
        count = min(4, typ.registers - first)
        column = _constant(first // 2 * unit)
        if count == 4:
            column = builder.add(column, right)
        found.append((first, count, corner.address(row, column)))
    return found


def _word_pairs(
    corner: _Corner, typ: FragmentType, *, writes: bool = False
) -> list[tuple[int, Any]]:
    """Return (first register, pointer) for each pair of neighbours of 32 bits."""
    context, builder = corner.context, corner.builder
    row, column = place(context, builder, typ.run)
    rows = [row, builder.add(row, _constant(8))]
    pointer = ir.PointerType(ir.VectorType(typ.word, 2), 3)
    found = []
    for first in range(0, typ.registers, 2):
        right = builder.add(column, _constant(first // 4 * 8))
        address = corner.address(rows[first // 2 % 2], right)
        accessed(context, builder, "write" if writes else "read", address, 8)
        found.append((first, builder.inttoptr(address, pointer)))
    return found


def _lower_store(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    typ = sig.args[0]
    words = unpack(builder, args[0])
    corner = _Corner(context, builder, *zip(sig.args[1:], args[1:]))
    if typ.dtype.itemsize == 4:
        for first, pointer in _word_pairs(corner, typ, writes=True):
            builder.store(_vector(builder, words[first : first + 2]), pointer, align=8)
    else:
        for first, count, address in _matrix_rows(corner, typ):
            parts = types.UniTuple(U32, count)
            fragment = context.make_tuple(builder, parts, words[first : first + count])
            given = {"row": (U32, address), "fragment": (parts, fragment)}
            emit(TABLE[f"stmatrix_x{count}"], context, builder, given)
    corner.mark_used()
    return context.get_dummy_value()


def _lower_load(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    typ = sig.return_type
    corner = _Corner(context, builder, *zip(sig.args[:2], args[:2]))
    words: list[Any] = []
    if typ.dtype.itemsize == 4:
        for _, pointer in _word_pairs(corner, typ):
            loaded = builder.load(pointer, align=8)
            words += [builder.extract_element(loaded, _constant(i)) for i in range(2)]
    else:
        for _, count, address in _matrix_rows(corner, typ):
            given = {"row": (U32, address)}
            loaded = emit(TABLE[f"ldmatrix_x{count}"], context, builder, given)
            words += [builder.extract_value(loaded, i) for i in range(count)]
    corner.mark_used()
    return pack(builder, words)


def _vector(builder: Builder, values: list[Any]) -> Any:
    vector = ir.Constant(ir.VectorType(values[0].type, len(values)), ir.Undefined)
    for i, value in enumerate(values):
        vector = builder.insert_element(vector, value, _constant(i))
    return vector


def _type_load_rows(tile: types.Type, start: types.Type) -> Any:
    held = _tile(tile, "load_rows(tile=...)")
    if not isinstance(types.unliteral(start), types.Integer):
        raise TypingError(f"load_rows(start=...) takes an integer, not {start}")
    try:
        check_rows(held.shape, held.dtype, getattr(start, "literal_value", None))
    except ValueError as error:
        raise TypingError(str(error)) from None
    return signature(RowsType(types.float32), tile, U32)


def _lower_load_rows(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    row, _ = place(context, builder, 1)
    row = builder.add(row, args[1])
    base = get_field(builder, sig.args[0], args[0], "address")
    pointer = ir.PointerType(FLOAT, 3)
    numbers = []
    for apart in (0, 8):
        offset = builder.mul(builder.add(row, _constant(apart)), _constant(4))
        place_of = builder.add(base, offset)
        accessed(context, builder, "read", place_of, 4)
        address = builder.inttoptr(place_of, pointer)
        numbers.append(builder.load(address, align=4))
    mark_used(builder, sig.args[0], args[0])
    return pack(builder, numbers)


compiler.instruction_function(load_fragment, _type_load, _lower_load)
compiler.instruction_function(load_rows, _type_load_rows, _lower_load_rows)


# ------------------------------------------------------------------------ global memory


def _type_store_global(
    self: FragmentType, array: types.Type, row: types.Type, column: types.Type
) -> Any:
    what = "Fragment.store_global"
    known = isinstance(array, types.Array) and array.ndim == 2 and array.mutable
    if not known or not can_hold(array.dtype, self.dtype):
        raise TypingError(
            f"{what}(array=...) takes a two-dimensional array of {self.dtype} in global memory, "
            f"not {array}: convert the fragment with to()"
        )
    for name, typ in (("row", row), ("column", column)):
        if not isinstance(types.unliteral(typ), types.Integer):
            raise TypingError(f"{what}({name}=...) takes an integer, not {typ}")
    return signature(types.void, self, array, types.int64, types.int64)


def _lower_store_global(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    typ, array_type = sig.args[:2]
    array = context.make_array(array_type)(context, builder, args[1])
    extents = unpack(builder, array.shape)
    row_stride, column_stride = unpack(builder, array.strides)
    size = ir.Constant(I64, typ.dtype.itemsize)
    if array_type.layout == "C":
        row_stride, column_stride = builder.mul(extents[1], size), size
    down, right = (builder.zext(i, I64) for i in place(context, builder, typ.run))
    first = builder.ptrtoint(array.data, I64)
    corner = builder.add(first, builder.mul(args[3], column_stride))

    rows = []  # for both rows: whether the row exists, and its address
    for half in (0, 8):
        row = builder.add(args[2], builder.add(down, ir.Constant(I64, half)))
        start = builder.add(corner, builder.mul(row, row_stride))
        start = builder.add(start, builder.mul(right, column_stride))
        rows.append((builder.icmp_unsigned("<", row, extents[0]), start))  # unsigned: no row < 0

    # Whether each run of neighbours is one store: uniform over all threads.
    nbytes = typ.run * typ.dtype.itemsize
    crooked = builder.and_(builder.or_(corner, row_stride), ir.Constant(I64, nbytes - 1))
    end = builder.add(args[3], ir.Constant(I64, typ.n))
    plain = [
        builder.icmp_unsigned("==", crooked, ir.Constant(I64, 0)),
        builder.icmp_signed(">=", args[3], ir.Constant(I64, 0)),
        builder.icmp_signed("<=", end, extents[1]),
        builder.icmp_unsigned("==", column_stride, size),
    ]
    runs = runs_of(builder, typ, args[0])
    with builder.if_else(_all(builder, plain)) as (whole, single):
        with whole:
            for half, (exists, start) in enumerate(rows):
                with builder.if_then(exists):
                    store_row(builder, runs[half::2], start, nbytes)
        with single:
            left = builder.add(args[3], right)
            for half, (exists, start) in enumerate(rows):
                for block, values in enumerate(runs[half::2]):
                    for i, value in enumerate(values):
                        apart = ir.Constant(I64, block * 4 * typ.run + i)
                        inside = builder.icmp_unsigned("<", builder.add(left, apart), extents[1])
                        at = builder.add(start, builder.mul(column_stride, apart))
                        with builder.if_then(builder.and_(exists, inside)):
                            _store(builder, value, at, 0, typ.dtype.itemsize)
    return context.get_dummy_value()


def _all(builder: Builder, conditions: list[Any]) -> Any:
    first, *others = conditions
    for other in others:
        first = builder.and_(first, other)
    return first


def store_row(builder: Builder, runs: list[list[Any]], start: Value, nbytes: int) -> None:
    """Store a thread's elements of a row, in runs of `nbytes`, the first run at `start`."""
    for block, values in enumerate(runs):
        _store(builder, _vector(builder, values), start, block * 4 * nbytes, nbytes)


def runs_of(builder: Builder, typ: FragmentType, value: Value) -> list[list[Any]]:
    """Return a thread's runs of neighbours, as bits of the elements' size, rows alternating."""
    words = unpack(builder, value)
    if typ.dtype.itemsize == 4:
        return [words[i : i + 2] for i in range(0, len(words), 2)]
    bits = 8 * typ.dtype.itemsize
    return [
        [
            builder.trunc(builder.lshr(word, _constant(shift)), ir.IntType(bits))
            for shift in range(0, 32, bits)
        ]
        for word in words
    ]


def _store(builder: Builder, value: Value, start: Value, offset: int, align: int) -> None:
    address = builder.add(start, ir.Constant(I64, offset))
    builder.store(value, builder.inttoptr(address, ir.PointerType(value.type, 1)), align=align)


METHODS[FragmentType] |= {
    "store": NativeMethod("Fragment", "store", _type_store, _lower_store),
    "store_global": NativeMethod(
        "Fragment", "store_global", _type_store_global, _lower_store_global
    ),
}
