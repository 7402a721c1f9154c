"""Moves of fragments in kernels: the compiled half of `numba_tma.device.fragment_moves`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    I64,
    Builder,
    Context,
    Signature,
    Value,
    get_field,
    ir,
    pack,
    signature,
    types,
    unpack,
)
from numba_tma.backend.lowering.elements import join_word
from numba_tma.backend.lowering.fragments.memory import runs_of, store_row
from numba_tma.backend.lowering.fragments.types import FLOAT, FragmentType, moved, place
from numba_tma.backend.lowering.hooks import accessed
from numba_tma.backend.lowering.instructions import emit
from numba_tma.device.fragment_moves import (
    E4M3,
    PIECE,
    add_global_by_thread,
    packed_e4m3,
    row_fragment,
    store_by_thread,
    store_global_by_thread,
    store_rows,
)
from numba_tma.host.dtypes import as_dtype
from numba_tma.ptx import TABLE


def _places(
    context: Context, builder: Builder, typ: types.Type, tile: Value, mask: int, unit: int
) -> Any:
    """Return the tile's shared address plus `unit` bytes times (thread & `mask`)."""
    tid = emit(TABLE["tid_x"], context, builder, {})
    mine = builder.mul(builder.and_(tid, ir.Constant(I32, mask)), ir.Constant(I32, unit))
    return builder.add(get_field(builder, typ, tile, "address"), mine)


def _pointer(
    context: Context, builder: Builder, start: Value, nbytes: int, lanes: int, *, writes: bool
) -> Any:
    kind = ir.PointerType(ir.VectorType(FLOAT, lanes), 3)
    address = builder.add(start, ir.Constant(I32, nbytes))
    accessed(context, builder, "write" if writes else "read", address, 4 * lanes)
    return builder.inttoptr(address, kind)


def _joined(builder: Builder, words: Sequence[Value]) -> Any:
    """Return a vector of words."""
    vector = ir.Constant(ir.VectorType(words[0].type, len(words)), ir.Undefined)
    for i, word in enumerate(words):
        vector = builder.insert_element(vector, word, ir.Constant(I32, i))
    return vector


def _type_row(tile: types.Type) -> Any:
    columns = tile.static[0].shape[-1]
    return signature(FragmentType(as_dtype("f32"), columns), tile)


def _lower_row(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    start = _places(context, builder, sig.args[0], args[0], 3, 8)
    words: list[Any] = []
    for i in range(sig.return_type.n // 8):
        pointer = _pointer(context, builder, start, 32 * i, 2, writes=False)
        loaded = builder.load(pointer, align=8)
        words += [builder.extract_element(loaded, ir.Constant(I32, j)) for j in (0, 1)] * 2
    return pack(builder, words)


def _type_store(fragment: types.Type, tile: types.Type) -> Any:
    return signature(types.void, fragment, tile)


def _lower_store(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    start = _places(context, builder, sig.args[1], args[1], 127, 16)
    words = unpack(builder, args[0])
    for i in range(0, len(words), 4):
        pointer = _pointer(context, builder, start, 512 * i, 4, writes=True)
        builder.store(_joined(builder, words[i : i + 4]), pointer, align=16)
    return context.get_dummy_value()


class _Pieces:
    """The pieces of a fragment in global memory, `PIECE` columns each, in the order of the threads.

    A piece is moved if one of the first columns is in it. The branches limit how many loads ptxas
    starts before it uses what they return, and with that the registers.
    """

    def __init__(
        self, context: Context, builder: Builder, typ: types.Type, args: Sequence[Value]
    ) -> None:
        self.builder, self.typ, (_, location, self.columns) = builder, typ, args
        tid = emit(TABLE["tid_x"], context, builder, {})
        mine = builder.mul(builder.and_(tid, ir.Constant(I32, 127)), ir.Constant(I32, 16))
        self.start = builder.add(location, builder.zext(mine, I64))

    def __iter__(self) -> Iterator[tuple[range, Value]]:
        """Yield the first words of each piece's vectors of four, and whether the piece is moved."""
        for first in range(0, self.typ.n, PIECE):
            fours = range(first // 2, min(first + PIECE, self.typ.n) // 2, 4)
            yield fours, self.builder.icmp_signed(">", self.columns, ir.Constant(I32, first))

    def pointer(self, word: int) -> Any:
        """Return the pointer to the thread's vector that begins with a word of the fragment."""
        place = self.builder.add(self.start, ir.Constant(I64, 512 * word))
        return self.builder.inttoptr(place, ir.PointerType(ir.VectorType(self.typ.word, 4), 1))


def _type_store_global(fragment: types.Type, location: types.Type, columns: types.Type) -> Any:
    return signature(types.void, fragment, types.int64, types.int32)


def _lower_store_global(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    pieces, words = _Pieces(context, builder, sig.args[0], args), unpack(builder, args[0])
    for fours, needed in pieces:
        with builder.if_then(needed):
            for i in fours:
                builder.store(_joined(builder, words[i : i + 4]), pieces.pointer(i), align=16)
    return context.get_dummy_value()


def _type_add_global(fragment: types.Type, location: types.Type, columns: types.Type) -> Any:
    return signature(fragment, fragment, types.int64, types.int32)


def _lower_add_global(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    typ, words = sig.args[0], unpack(builder, args[0])
    pieces, add = _Pieces(context, builder, typ, args), builder.add
    if typ.dtype.is_float:
        add = builder.fadd
    for fours, needed in pieces:
        before, sums = builder.block, []
        with builder.if_then(needed):
            for i in fours:
                stored = builder.load(pieces.pointer(i), align=16)
                for j in range(4):
                    other = builder.extract_element(stored, ir.Constant(I32, j))
                    sums.append(add(words[i + j], other))
            inside = builder.block
        for i, total in enumerate(sums, fours.start):
            merged = builder.phi(typ.word)
            merged.add_incoming(words[i], before)
            merged.add_incoming(total, inside)
            words[i] = merged
    return pack(builder, words)


def _type_rows(
    fragment: types.Type, location: types.Type, apart: types.Type, count: types.Type
) -> Any:
    return signature(types.void, fragment, types.int64, types.int64, types.int32)


def _lower_rows(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    fragment, location, apart, count = args
    # Computed here: LLVM would otherwise keep the address in registers from the kernel's start on.
    down, right = (moved(builder, at) for at in place(context, builder, 2))
    runs = runs_of(builder, sig.args[0], fragment)
    for half in (0, 1):
        row = builder.add(down, ir.Constant(I32, 8 * half))
        start = builder.add(location, builder.mul(apart, builder.zext(row, I64)))
        start = builder.add(start, builder.zext(builder.mul(right, ir.Constant(I32, 4)), I64))
        with builder.if_then(builder.icmp_signed("<", row, count)):
            store_row(builder, runs[half::2], start, 8)
    return context.get_dummy_value()


def _type_packed(fragment: types.Type) -> Any:
    return signature(FragmentType(E4M3, fragment.n), fragment)


def _lower_packed(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    words, values = [], unpack(builder, args[0])
    for i in range(0, len(values), 8):  # two columns of both rows, and the two 8 to the right
        for j in (i, i + 2):
            four = values[j : j + 2] + values[j + 4 : j + 6]
            words.append(join_word(context, builder, E4M3, four, I32))
    return pack(builder, words)


compiler.instruction_function(packed_e4m3, _type_packed, _lower_packed)
compiler.instruction_function(store_rows, _type_rows, _lower_rows)
compiler.instruction_function(row_fragment, _type_row, _lower_row)
compiler.instruction_function(store_by_thread, _type_store, _lower_store)
compiler.instruction_function(store_global_by_thread, _type_store_global, _lower_store_global)
compiler.instruction_function(add_global_by_thread, _type_add_global, _lower_add_global)
