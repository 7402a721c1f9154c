"""Vectors in kernels: the compiled half of `vectors`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from numba_tma import _compiler as compiler
from numba_tma._compiler import I32, I64, TypingError, signature
from numba_tma._shared_lowering import (
    element_type,
    join_word,
    read_vector,
    split_word,
    write_vector,
)
from numba_tma._vector_lowering import VectorType, pack, unpack
from numba_tma.dtypes import DType
from numba_tma.layout import Tile
from numba_tma.shared import SharedTile
from numba_tma.vectors import load_vector, map_lanes, store_vector, transpose_block

BYTES = types.Array(types.uint8, 1, "C")


def _vector_tile(tile: types.Type, what: str) -> Tile:
    value = compiler.static_of(tile, f"{what}(tile=...)")
    if not isinstance(value, Tile) or value.nbytes not in (1, 2, 4, 8, 16):
        raise TypingError(
            f"{what}(tile=...) is {value!r}; a vector has 1, 2, 4, 8 or 16 bytes: use a Tile of "
            "16 bytes or fewer"
        )
    return value


def _check_array(array: types.Type, what: str) -> None:
    known = isinstance(array, types.Array) and array.dtype == types.uint8
    if not known or array.ndim != 1 or array.layout != "C":
        raise TypingError(f"{what}(array=...) takes a contiguous array of uint8, not {array}")


def _words(tile: Tile) -> tuple[Any, int]:
    """Return the LLVM type in which a vector is moved, and how many elements one word holds."""
    word = ir.IntType(8 * min(tile.nbytes, 8 if tile.itemsize == 8 else 4))
    return word, word.width // 8 // tile.itemsize


def _pointer(context: Any, builder: Any, sig: Any, args: Any, element: Any) -> Any:
    array = context.make_array(sig.args[0])(context, builder, args[0])
    start = context.cast(builder, args[1], sig.args[1], types.int64)
    return builder.bitcast(builder.gep(array.data, [start]), ir.PointerType(element))


def _type_load(array: types.Type, start: types.Type, tile: types.Type) -> Any:
    _check_array(array, "load_vector")
    value = _vector_tile(tile, "load_vector")
    return signature(VectorType(element_type(value), value.size), array, types.int64, tile)


def _lower_load(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    tile = _vector_tile(sig.args[2], "load_vector")
    word, _ = _words(tile)
    vector = ir.VectorType(word, tile.nbytes * 8 // word.width)
    loaded = builder.load(_pointer(context, builder, sig, args, vector), align=tile.nbytes)
    elements: list[Any] = []
    for i in range(vector.count):
        value = builder.extract_element(loaded, ir.Constant(I32, i))
        elements += _split(context, builder, tile.dtype, value)
    return pack(builder, elements)


def _split(context: Any, builder: Any, dtype: DType, word: Any) -> list[Any]:
    count = word.type.width // 8 // dtype.itemsize
    if word.type.width < 32:
        word = builder.zext(word, I32)
    return split_word(context, builder, dtype, word)[:count]


def _type_store(array: types.Type, start: types.Type, values: types.Type, tile: types.Type) -> Any:
    _check_array(array, "store_vector")
    value = _vector_tile(tile, "store_vector")
    expected = VectorType(element_type(value), value.size)
    if values != expected:
        raise TypingError(f"store_vector(values=...) of {value} takes {expected}, not {values}")
    return signature(types.void, array, types.int64, expected, tile)


def _lower_store(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    tile = _vector_tile(sig.args[3], "store_vector")
    word, per_word = _words(tile)
    vector = ir.VectorType(word, tile.nbytes * 8 // word.width)
    elements = unpack(builder, args[2])
    packed = ir.Constant(vector, ir.Undefined)
    for i in range(vector.count):
        part = elements[i * per_word : (i + 1) * per_word]
        whole = I64 if tile.itemsize == 8 else I32
        missing = whole.width // 8 // tile.itemsize - per_word
        value = join_word(builder, tile.dtype, part + [_zero(part[0])] * missing, whole)
        if word.width < whole.width:
            value = builder.trunc(value, word)
        packed = builder.insert_element(packed, value, ir.Constant(I32, i))
    builder.store(packed, _pointer(context, builder, sig, args, vector), align=tile.nbytes)
    return context.get_dummy_value()


def _zero(value: Any) -> Any:
    return ir.Constant(value.type, 0.0 if isinstance(value.type, ir.FloatType) else 0)


compiler.instruction_function(load_vector, _type_load, _lower_load)
compiler.instruction_function(store_vector, _type_store, _lower_store)


# ---------------------------------------------------------------------- lane by lane


@compiler.typing_registry.register
class _MapLanes(compiler.AbstractTemplate):
    key = map_lanes

    def generic(self, args: Any, kws: Any) -> Any:
        function, vectors, *rest = args
        numbers = rest[0] if rest else types.Tuple(())
        if kws or not all(isinstance(v, VectorType) for v in vectors):
            raise TypingError(f"map_lanes(vectors=...) takes a tuple of vectors, not {vectors}")
        widest = max(vectors, key=lambda v: v.count)
        if any(v.count not in (1, widest.count) for v in vectors):
            raise TypingError(f"map_lanes(vectors=...): {vectors} have different numbers of lanes")
        scalars = (*(v.dtype for v in vectors), *numbers)
        resolved = self.context.resolve_function_type(function, scalars, {})
        if resolved is None:
            raise TypingError(
                f"map_lanes(function=...) does not take {len(scalars)} arguments of the types "
                f"{', '.join(map(str, scalars))}"
            )
        if resolved.return_type != widest.dtype:
            raise TypingError(
                f"the function returns {resolved.return_type}, and the lanes are {widest.dtype}: a "
                "literal such as 0.5 is a float64, and so is what is computed with it; write "
                "np.float32(0.5)"
            )
        return signature(widest, *args)


compiler.typing_registry.register_global(map_lanes, types.Function(_MapLanes))


@compiler.lowering_registry.lower(map_lanes, types.VarArg(types.Any))
def _lower_map_lanes(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    function, vectors, *rest = sig.args
    number_types = list(rest[0]) if rest else []
    scalars = (*(v.dtype for v in vectors), *number_types)
    resolved = context.typing_context.resolve_function_type(function, scalars, {})
    body = context.get_function(function, resolved)
    context.add_linking_libs(getattr(body, "libs", ()))
    numbers = [builder.extract_value(args[2], i) for i in range(len(number_types))]
    columns = [unpack(builder, builder.extract_value(args[1], i)) for i in range(len(vectors))]
    results = []
    for lane in range(sig.return_type.count):
        given = [*(c[lane if len(c) > 1 else 0] for c in columns), *numbers]
        cast = [context.cast(builder, g, s, t) for g, s, t in zip(given, scalars, resolved.args)]
        results.append(body(builder, cast))
    return pack(builder, results)


# -------------------------------------------------------------------------- transposed


def _type_transpose(source: Any, at: Any, destination: Any, to: Any) -> Any:
    for name, tile in (("source", source), ("destination", destination)):
        if getattr(tile, "cls", None) is not SharedTile or tile.static[0].ndim != 2:
            raise TypingError(f"transpose_block({name}=...) takes a tile of two axes, not {tile}")
    index = types.UniTuple(types.uint32, 2)
    return signature(types.void, source, index, destination, index)


def _lower_transpose(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    source, index, destination, _ = sig.args
    lanes = 16 // source.static[0].itemsize

    def below(start: Any, rows: int) -> Any:
        row = builder.add(builder.extract_value(start, 0), ir.Constant(I32, rows))
        return builder.insert_value(start, row, 0)

    vector = VectorType(element_type(source.static[0]), lanes)
    reads = signature(vector, source, index)
    writes = signature(types.void, destination, index, vector)
    rows = [
        unpack(builder, read_vector(context, builder, reads, (args[0], below(args[1], i))))
        for i in range(lanes)
    ]
    for i in range(lanes):
        column = pack(builder, [row[i] for row in rows])
        write_vector(context, builder, writes, (args[2], below(args[3], i), column))
    return context.get_dummy_value()


compiler.instruction_function(transpose_block, _type_transpose, _lower_transpose)
