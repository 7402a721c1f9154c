"""Vectors in kernels: the compiled half of `vectors`."""

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
    TypingError,
    Value,
    VectorType,
    ir,
    pack,
    signature,
    types,
    unpack,
)
from numba_tma.backend.lowering.elements import join_word, split_word, vector_type
from numba_tma.backend.lowering.instructions import emit
from numba_tma.backend.lowering.shared import read_vector, write_vector
from numba_tma.device.vectors import (
    four,
    largest,
    load_vector,
    map_columns,
    map_lanes,
    read_block,
    store_vector,
    total,
    write_transposed,
)
from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile
from numba_tma.ptx import TABLE

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
    """Return the LLVM type of a vector's load or store, and the number of elements per word."""
    word = ir.IntType(8 * min(tile.nbytes, 8 if tile.itemsize == 8 else 4))
    return word, word.width // 8 // tile.itemsize


def _pointer(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value], element: Any
) -> Any:
    array = context.make_array(sig.args[0])(context, builder, args[0])
    start = context.cast(builder, args[1], sig.args[1], types.int64)
    return builder.bitcast(builder.gep(array.data, [start]), ir.PointerType(element))


def _type_load(array: types.Type, start: types.Type, tile: types.Type) -> Any:
    _check_array(array, "load_vector")
    value = _vector_tile(tile, "load_vector")
    return signature(vector_type(value, value.size), array, types.int64, tile)


def _lower_load(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    tile = _vector_tile(sig.args[2], "load_vector")
    word, _ = _words(tile)
    vector = ir.VectorType(word, tile.nbytes * 8 // word.width)
    loaded = builder.load(_pointer(context, builder, sig, args, vector), align=tile.nbytes)
    elements: list[Any] = []
    for i in range(vector.count):
        value = builder.extract_element(loaded, ir.Constant(I32, i))
        elements += _split(context, builder, tile.dtype, value)
    return pack(builder, elements)


def _split(context: Context, builder: Builder, dtype: DType, word: Value) -> list[Any]:
    count = word.type.width // 8 // dtype.itemsize
    if word.type.width < 32:
        word = builder.zext(word, I32)
    return split_word(context, builder, dtype, word)[:count]


def _type_store(array: types.Type, start: types.Type, values: types.Type, tile: types.Type) -> Any:
    _check_array(array, "store_vector")
    value = _vector_tile(tile, "store_vector")
    expected = vector_type(value, value.size)
    if values != expected:
        raise TypingError(f"store_vector(values=...) of {value} takes {expected}, not {values}")
    return signature(types.void, array, types.int64, expected, tile)


def _lower_store(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    tile = _vector_tile(sig.args[3], "store_vector")
    word, per_word = _words(tile)
    vector = ir.VectorType(word, tile.nbytes * 8 // word.width)
    elements = unpack(builder, args[2])
    packed = ir.Constant(vector, ir.Undefined)
    for i in range(vector.count):
        part = elements[i * per_word : (i + 1) * per_word]
        whole = I64 if tile.itemsize == 8 else I32
        missing = whole.width // 8 // tile.itemsize - per_word
        value = join_word(context, builder, tile.dtype, part + [_zero(part[0])] * missing, whole)
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

    def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
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
compiler.LOWERED.add(map_lanes)


@compiler.lowering_registry.lower(map_lanes, types.VarArg(types.Any))
def _lower_map_lanes(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
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


# ------------------------------------------------------------------- columns of a tuple


def _column_scalars(values: Any, numbers: types.BaseTuple) -> tuple[types.Type, ...]:
    """Return the types of the arguments that `map_columns` calls its function with."""
    return (values.dtype, types.int32, *numbers)


@compiler.typing_registry.register
class _MapColumns(compiler.AbstractTemplate):
    key = map_columns

    def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        function, values, first, num, numbers = args
        count = compiler.static_of(num, "map_columns(num=...)")
        scalars = _column_scalars(values, numbers)
        resolved = self.context.resolve_function_type(function, scalars, {})
        if resolved is None or resolved.return_type != values.dtype:
            found = resolved and resolved.return_type
            raise TypingError(
                f"map_columns(function=...) returns {found} for arguments of the types "
                f"{', '.join(map(str, scalars))}; it has to return {values.dtype}"
            )
        return signature(VectorType(values.dtype, count), *args)


compiler.typing_registry.register_global(map_columns, types.Function(_MapColumns))
compiler.LOWERED.add(map_columns)


@compiler.lowering_registry.lower(map_columns, types.VarArg(types.Any))
def _lower_map_columns(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    function, values, first, num, number_types = sig.args
    scalars = _column_scalars(values, number_types)
    resolved = context.typing_context.resolve_function_type(function, scalars, {})
    body = context.get_function(function, resolved)
    context.add_linking_libs(getattr(body, "libs", ()))
    numbers = [builder.extract_value(args[4], i) for i in range(len(number_types))]
    start = compiler.static_of(first, "map_columns(first=...)")
    results = []
    for i in range(start, start + sig.return_type.count):
        given = [builder.extract_value(args[1], i), ir.Constant(I32, i), *numbers]
        cast = [context.cast(builder, g, s, t) for g, s, t in zip(given, scalars, resolved.args)]
        results.append(body(builder, cast))
    return pack(builder, results)


# ------------------------------------------------------------------------- reductions

FLOATS = types.float32

compiler.instruction_function(
    four,
    lambda a, b, c, d: signature(VectorType(FLOATS, 4), *[FLOATS] * 4),
    lambda context, builder, sig, args: pack(builder, list(args)),
)


def _type_tree(values: types.Type) -> Any:
    return signature(FLOATS, values)


def _lower_total(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    return _tree(unpack(builder, args[0]), builder.fadd)


def _lower_largest(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    def larger(a: Any, b: Any) -> Any:
        return emit(TABLE["max_f32"], context, builder, {"a": (FLOATS, a), "b": (FLOATS, b)})

    return _tree(unpack(builder, args[0]), larger)


def _tree(values: list[Any], combine: Any) -> Any:
    while len(values) > 1:
        odd = values[len(values) // 2 * 2 :]
        values = [combine(a, b) for a, b in zip(values[::2], values[1::2])] + odd
    return values[0]


compiler.instruction_function(total, _type_tree, _lower_total)
compiler.instruction_function(largest, _type_tree, _lower_largest)


# -------------------------------------------------------------------------- transposed


INDEX = types.UniTuple(types.uint32, 2)


def _type_read_block(source: types.Type, at: types.Type) -> Any:
    tile = source.static[0]
    rows = types.UniTuple(vector_type(tile, tile.dtype.chunk), tile.dtype.chunk)
    return signature(rows, source, INDEX)


def _type_write_transposed(destination: types.Type, to: types.Type, block: types.Type) -> Any:
    return signature(types.void, destination, INDEX, block)


def _below(builder: Builder, start: Value, rows: int) -> Any:
    row = builder.add(builder.extract_value(start, 0), ir.Constant(I32, rows))
    return builder.insert_value(start, row, 0)


def _lower_read_block(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    reads = signature(sig.return_type.dtype, *sig.args)
    places = (_below(builder, args[1], i) for i in range(sig.return_type.count))
    rows = [read_vector(context, builder, reads, (args[0], place)) for place in places]
    return context.make_tuple(builder, sig.return_type, rows)


def _lower_write_transposed(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    destination, index, block = sig.args
    writes = signature(types.void, destination, index, block.dtype)
    rows = [unpack(builder, builder.extract_value(args[2], i)) for i in range(block.count)]
    for i, column in enumerate(zip(*rows)):
        place = _below(builder, args[1], i)
        write_vector(context, builder, writes, (args[0], place, pack(builder, list(column))))
    return context.get_dummy_value()


compiler.instruction_function(read_block, _type_read_block, _lower_read_block)
compiler.instruction_function(write_transposed, _type_write_transposed, _lower_write_transposed)
