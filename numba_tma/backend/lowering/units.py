"""Units of 16 bytes in kernels: the compiled half of `units`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    I64,
    Builder,
    Context,
    Signature,
    Value,
    ir,
    pack,
    signature,
    types,
    unpack,
)
from numba_tma.backend.lowering.elements import join_word, split_word, vector_type
from numba_tma.device.units import UNIT, lanes_of, load_part, shifted, store_part, words_of

WORDS = types.UniTuple(types.uint32, 4)


def shifted_words(builder: Builder, words: list[Any], shift: Value) -> list[Any]:
    """Return the four words that begin `shift` bytes after the first of eight; it is below 16."""
    for bit in (8, 4):
        is_set = builder.icmp_unsigned(
            "!=", builder.and_(shift, ir.Constant(I32, bit)), ir.Constant(I32, 0)
        )
        pairs = zip(words, words[bit // 4 :])
        words = [builder.select(is_set, later, word) for word, later in pairs]
    bits = builder.shl(builder.and_(shift, ir.Constant(I32, 3)), ir.Constant(I32, 3))
    wide = [builder.zext(word, I64) for word in words]
    amount = builder.zext(bits, I64)
    joined = [
        builder.or_(low, builder.shl(high, ir.Constant(I64, 32)))
        for low, high in zip(wide[:4], wide[1:])
    ]
    return [builder.trunc(builder.lshr(both, amount), I32) for both in joined]


def _lower_shifted(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    words = unpack(builder, args[0]) + unpack(builder, args[1])
    return pack(builder, shifted_words(builder, words, args[2]))


compiler.instruction_function(
    shifted, lambda near, far, shift: signature(WORDS, WORDS, WORDS, types.uint32), _lower_shifted
)


# ---------------------------------------------------------------------- parts of a unit


def _nbytes(tile: types.Type, what: str) -> int:
    """Return the bytes of an element."""
    nbytes: int = compiler.static_of(tile, f"{what}(tile=...)").nbytes
    return nbytes


def _pointer(builder: Builder, address: Value, element: Any, byte: int) -> Any:
    place = builder.add(address, ir.Constant(I64, byte))
    return builder.inttoptr(place, ir.PointerType(element, addrspace=1))


def _is_there(builder: Builder, byte: int, nbytes: int, first: Value, last: Value) -> Any:
    begins = builder.icmp_signed("<=", first, ir.Constant(I32, byte))
    return builder.and_(begins, builder.icmp_signed(">=", last, ir.Constant(I32, byte + nbytes)))


def _lower_load_part(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    nbytes = _nbytes(sig.args[0], "load_part")
    _, address, first, last = args
    element, words = ir.IntType(8 * nbytes), [ir.Constant(I32, 0)] * 4
    for byte in range(0, UNIT, nbytes):
        before = builder.block
        with builder.if_then(_is_there(builder, byte, nbytes, first, last)):
            there = builder.load(_pointer(builder, address, element, byte), align=nbytes)
            value = builder.zext(there, I32) if nbytes < 4 else there
            inside = builder.block
        loaded = builder.phi(I32)
        loaded.add_incoming(ir.Constant(I32, 0), before)
        loaded.add_incoming(value, inside)
        place = builder.shl(loaded, ir.Constant(I32, byte % 4 * 8))
        words[byte // 4] = builder.or_(words[byte // 4], place)
    return pack(builder, words)


def _lower_store_part(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    smallest = _nbytes(sig.args[0], "store_part")
    _, address, packed, first, last = args
    words = unpack(builder, packed)
    for nbytes in (size for size in (8, 4, 2, 1) if size >= smallest):
        for byte in range(0, UNIT, nbytes):
            stored = _is_there(builder, byte, nbytes, first, last)
            if nbytes < 8:  # and no larger part has it
                start = byte - byte % (2 * nbytes)
                larger = _is_there(builder, start, 2 * nbytes, first, last)
                stored = builder.and_(stored, builder.not_(larger))
            with builder.if_then(stored):
                _store(builder, words, address, byte, nbytes)
    return context.get_dummy_value()


def _store(builder: Builder, words: list[Any], address: Value, byte: int, nbytes: int) -> None:
    """Store the part of a unit from `byte` on."""
    word = words[byte // 4]
    if nbytes == 8:
        pair = ir.Constant(ir.VectorType(I32, 2), ir.Undefined)
        for i in range(2):
            pair = builder.insert_element(pair, words[byte // 4 + i], ir.Constant(I32, i))
        value = pair
    else:
        value = builder.lshr(word, ir.Constant(I32, byte % 4 * 8))
        value = builder.trunc(value, ir.IntType(8 * nbytes)) if nbytes < 4 else value
    builder.store(value, _pointer(builder, address, value.type, byte), align=nbytes)


compiler.instruction_function(
    load_part,
    lambda tile, address, first, last: signature(
        WORDS, tile, types.int64, types.int32, types.int32
    ),
    _lower_load_part,
)
compiler.instruction_function(
    store_part,
    lambda tile, address, words, first, last: signature(
        types.void, tile, types.int64, WORDS, types.int32, types.int32
    ),
    _lower_store_part,
)


# --------------------------------------------------------------------------- elements


def _lower_lanes(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    tile = compiler.static_of(sig.args[1], "lanes_of(tile=...)")
    words = unpack(builder, args[0])
    lanes = [v for word in words for v in split_word(context, builder, tile.dtype, word)]
    return pack(builder, lanes[: tile.size])


def _lower_words(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    dtype = compiler.static_of(sig.args[1], "words_of(tile=...)").dtype
    values, lanes = unpack(builder, args[0]), 4 // dtype.itemsize
    parts = [values[i : i + lanes] for i in range(0, len(values), lanes)]
    return pack(builder, [join_word(context, builder, dtype, part, I32) for part in parts])


def _type_lanes(words: types.Type, tile: types.Type) -> Any:
    value = compiler.static_of(tile, "lanes_of(tile=...)")
    return signature(vector_type(value, value.size), WORDS, tile)


def _type_words(values: types.Type, tile: types.Type) -> Any:
    value = compiler.static_of(tile, "words_of(tile=...)")
    return signature(WORDS, vector_type(value, value.size), tile)


compiler.instruction_function(lanes_of, _type_lanes, _lower_lanes)
compiler.instruction_function(words_of, _type_words, _lower_words)
