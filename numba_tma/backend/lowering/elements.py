"""Elements: their types in kernels, and their packing into words of registers and memory.

Kernels hold 16- and 8-bit floats as float32. Conversions are rows of the instruction table.
"""

from __future__ import annotations

from typing import Any

from numba_tma.backend.compiler import (
    I32,
    Builder,
    Context,
    TypingError,
    Value,
    VectorType,
    ir,
    types,
)
from numba_tma.backend.lowering.instructions import emit
from numba_tma.device.shared import check_elements, check_vectors
from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile
from numba_tma.ptx import TABLE

I16, HALF, FLOAT = ir.IntType(16), ir.HalfType(), ir.FloatType()


def element_type(tile: Tile) -> types.Type:
    """Return the Numba type in which kernels hold an element.

    Raises
    ------
    TypingError
        For elements of 4 and 6 bits, which kernels cannot access.
    """
    try:
        check_elements(tile)
    except ValueError as error:
        raise TypingError(str(error)) from None
    return getattr(types, tile.dtype.compute)


def vector_type(tile: Tile, lanes: int) -> VectorType:
    """Return the type of a vector of elements of a tile, or raise a TypingError."""
    try:
        check_vectors(tile)
    except ValueError as error:
        raise TypingError(str(error)) from None
    return VectorType(element_type(tile), lanes)


def _is_narrow_float(dtype: DType) -> bool:
    return dtype.compute == "float32" and dtype.itemsize < 4


def pair_to_floats(context: Context, builder: Builder, dtype: DType, word: Value) -> list[Any]:
    """Widen two 16-bit floats in an i32, or two 8-bit floats in an i16, to float32."""
    if dtype.name == "bf16":
        low = builder.shl(word, ir.Constant(I32, 16))
        high = builder.and_(word, ir.Constant(I32, 0xFFFF0000))
        return [builder.bitcast(w, FLOAT) for w in (low, high)]
    if dtype.itemsize == 1:
        row = TABLE[f"cvt_f16x2_{dtype.name}x2"]
        word = emit(row, context, builder, {"pair": (types.uint16, word)}, in_place=True)
    halves = [builder.trunc(w, I16) for w in (word, builder.lshr(word, ir.Constant(I32, 16)))]
    return [builder.fpext(builder.bitcast(h, HALF), FLOAT) for h in halves]


def floats_to_pair(
    context: Context, builder: Builder, dtype: DType, low: Value, high: Value
) -> Any:
    """Round two float32 to 16-bit floats in an i32, or to 8-bit floats in an i16."""
    row = TABLE[f"cvt_{dtype.name}x2_f32"]
    given = {"high": (types.float32, high), "low": (types.float32, low)}
    return emit(row, context, builder, given, in_place=True)


def storage(context: Context, dtype: DType) -> Any:
    """Return the LLVM type of an element in memory."""
    if dtype.words > 1:  # one access, of 8 or 16 bytes
        return ir.VectorType(storage(context, dtype.word), dtype.words)
    if _is_narrow_float(dtype):
        return ir.IntType(8 * dtype.itemsize)
    return context.get_value_type(getattr(types, dtype.compute))


def decode(context: Context, builder: Builder, dtype: DType, value: Value) -> Any:
    """Return an element as kernels hold it, from its value in memory."""
    if dtype.words > 1:
        held = ir.Constant(context.get_value_type(getattr(types, dtype.compute)), ir.Undefined)
        for i in range(dtype.words):
            part = builder.extract_element(value, ir.Constant(I32, i))
            held = builder.insert_value(held, part, i)
        return held
    if not _is_narrow_float(dtype):
        return value
    pair = builder.zext(value, I32 if dtype.itemsize == 2 else I16)
    return pair_to_floats(context, builder, dtype, pair)[0]


def encode(context: Context, builder: Builder, dtype: DType, value: Value) -> Any:
    """Return an element as it is in memory; the reverse of `decode`."""
    if dtype.words > 1:
        stored = ir.Constant(storage(context, dtype), ir.Undefined)
        for i in range(dtype.words):
            part = builder.extract_value(value, i)
            stored = builder.insert_element(stored, part, ir.Constant(I32, i))
        return stored
    if not _is_narrow_float(dtype):
        return value
    pair = floats_to_pair(context, builder, dtype, value, ir.Constant(FLOAT, 0.0))
    return builder.trunc(pair, ir.IntType(8 * dtype.itemsize))


def split_word(context: Context, builder: Builder, dtype: DType, word: Value) -> list[Any]:
    """Return the elements in a word of 32 or 64 bits, as kernels hold them."""
    if dtype.itemsize >= 4:
        return [builder.bitcast(word, storage(context, dtype))]
    if dtype.itemsize == 2 and _is_narrow_float(dtype):
        return pair_to_floats(context, builder, dtype, word)
    if _is_narrow_float(dtype):
        shifted = builder.lshr(word, ir.Constant(I32, 16))
        pairs = [builder.trunc(w, I16) for w in (word, shifted)]
        return [f for pair in pairs for f in pair_to_floats(context, builder, dtype, pair)]
    bits = 8 * dtype.itemsize
    parts = [builder.lshr(word, ir.Constant(I32, s)) for s in range(0, 32, bits)]
    return [builder.trunc(p, ir.IntType(bits)) for p in parts]


def join_word(
    context: Context, builder: Builder, dtype: DType, elements: list[Any], word: Value
) -> Any:
    """Return a word of 32 or 64 bits of its elements; the reverse of `split_word`."""
    if dtype.itemsize >= 4:
        return builder.bitcast(elements[0], word)
    if dtype.itemsize == 2 and _is_narrow_float(dtype):
        return floats_to_pair(context, builder, dtype, *elements)
    if _is_narrow_float(dtype):
        low = builder.zext(floats_to_pair(context, builder, dtype, *elements[:2]), I32)
        high = builder.zext(floats_to_pair(context, builder, dtype, *elements[2:]), I32)
        return builder.or_(low, builder.shl(high, ir.Constant(I32, 16)))
    result = ir.Constant(I32, 0)
    for i, element in enumerate(elements):
        shifted = builder.shl(builder.zext(element, I32), ir.Constant(I32, 8 * dtype.itemsize * i))
        result = builder.or_(result, shifted)
    return result
