"""How kernels allocate, index and copy shared tiles: the compiled half of `shared`."""

from __future__ import annotations

import operator
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    I64,
    ObjectType,
    TypingError,
    get_field,
    ir,
    signature,
    types,
)
from numba_tma.backend.lowering.matrix_descriptor import (
    lower_matrix_descriptor,
    type_matrix_descriptor,
)
from numba_tma.backend.lowering.types import (
    TensorMapArrayType,
    TensorMapType,
)
from numba_tma.backend.lowering.vector_type import VectorType, pack, unpack
from numba_tma.device.barrier import Barrier, BarrierArray
from numba_tma.device.shared import (
    Accesses,
    SharedTile,
    barrier_count_rule,
    check_view,
    shared_barrier,
    shared_barriers,
    shared_tile,
)
from numba_tma.host.dtypes import DType, reduction_violation
from numba_tma.host.layout import Swizzle, Tile

I16, HALF, FLOAT = ir.IntType(16), ir.HalfType(), ir.FloatType()
ACCESSES = ObjectType(Accesses, (), (types.boolean,), True)
BARRIER = ObjectType(Barrier, (0,), (types.uint32,))


def shared_tile_type(tile: Tile) -> ObjectType:
    """Return the Numba type of a `SharedTile` of `tile`."""
    return ObjectType(SharedTile, (tile,), (types.uint32, ACCESSES))


# ------------------------------------------------------------------------- allocation


def _type_shared_tile(tile: types.Type) -> Any:
    value = compiler.static_of(tile, "shared_tile(tile=...)")
    if not isinstance(value, Tile):
        raise TypingError(f"shared_tile(tile=...) takes a Tile, not {value!r}")
    compiler.check_shared_size(f"shared_tile({value})", {str(value): value.shared_nbytes})
    return signature(shared_tile_type(value), tile)


def _lower_shared_tile(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    tile = sig.return_type.static[0]
    address = compiler.allocate_shared(
        builder, tile.shared_nbytes, tile.alignment, f"shared_tile({tile})"
    )
    accesses = compiler.make_object(context, builder, ACCESSES, [ir.Constant(ir.IntType(1), 0)])
    return compiler.make_object(context, builder, sig.return_type, [address, accesses])


def _lower_shared_barrier(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    address = compiler.allocate_shared(builder, 8, 8, "shared_barrier()")
    return compiler.make_object(context, builder, BARRIER, [address])


compiler.instruction_function(shared_tile, _type_shared_tile, _lower_shared_tile)


def _type_shared_barriers(count: types.Type) -> Any:
    number = compiler.static_of(count, "shared_barriers(count=...)")
    if not isinstance(number, int) or number < 1:
        raise TypingError(barrier_count_rule(number))
    compiler.check_shared_size(f"shared_barriers({number})", {"barriers": 8 * number})
    return signature(ObjectType(BarrierArray, (number,), (types.uint32,)), count)


def _lower_shared_barriers(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    count = sig.return_type.static[0]
    address = compiler.allocate_shared(builder, 8 * count, 8, f"shared_barriers({count})")
    return compiler.make_object(context, builder, sig.return_type, [address])


compiler.instruction_function(shared_barrier, lambda: signature(BARRIER), _lower_shared_barrier)
compiler.instruction_function(shared_barriers, _type_shared_barriers, _lower_shared_barriers)


# --------------------------------------------------------------------------- elements


def pure_asm(builder: Any, result: Any, text: str, constraints: str, *values: Any) -> Any:
    """Emit an instruction that only computes a value of its operands."""
    function = ir.FunctionType(result, [v.type for v in values])
    return builder.call(ir.InlineAsm(function, text, constraints), values)


def _is_narrow_float(dtype: DType) -> bool:
    return dtype.compute == "float32" and dtype.itemsize < 4


def _pair_to_floats(builder: Any, dtype: DType, word: Any) -> list[Any]:
    """Widen two 16-bit floats in an i32, or two 8-bit floats in an i16, to float32."""
    if dtype.name == "bf16":
        low = builder.shl(word, ir.Constant(I32, 16))
        high = builder.and_(word, ir.Constant(I32, 0xFFFF0000))
        return [builder.bitcast(w, FLOAT) for w in (low, high)]
    if dtype.itemsize == 1:
        word = pure_asm(builder, I32, f"cvt.rn.f16x2.{dtype.name}x2 $0, $1;", "=r,h", word)
    halves = [builder.trunc(w, I16) for w in (word, builder.lshr(word, ir.Constant(I32, 16)))]
    return [builder.fpext(builder.bitcast(h, HALF), FLOAT) for h in halves]


def _floats_to_pair(builder: Any, dtype: DType, low: Any, high: Any) -> Any:
    """Round two float32 to 16-bit floats in an i32, or to 8-bit floats in an i16."""
    if dtype.itemsize == 1:
        text = f"cvt.rn.satfinite.{dtype.name}x2.f32 $0, $2, $1;"
        return pure_asm(builder, I16, text, "=h,f,f", low, high)
    return pure_asm(builder, I32, f"cvt.rn.{dtype.name}x2.f32 $0, $2, $1;", "=r,f,f", low, high)


def _storage(context: Any, dtype: DType) -> Any:
    if _is_narrow_float(dtype):
        return ir.IntType(8 * dtype.itemsize)
    return context.get_value_type(getattr(types, dtype.compute))


def _decode(context: Any, builder: Any, dtype: DType, value: Any) -> Any:
    if not _is_narrow_float(dtype):
        return value
    pair = builder.zext(value, I32 if dtype.itemsize == 2 else I16)
    return _pair_to_floats(builder, dtype, pair)[0]


def _encode(context: Any, builder: Any, dtype: DType, value: Any) -> Any:
    if not _is_narrow_float(dtype):
        return value
    pair = _floats_to_pair(builder, dtype, value, ir.Constant(FLOAT, 0.0))
    return builder.trunc(pair, ir.IntType(8 * dtype.itemsize))


def tile_offset(context: Any, builder: Any, tile: Tile, index: Any, index_type: types.Type) -> Any:
    """Return the byte offset (i32) of an element from the tile's base, swizzled."""
    if isinstance(index_type, types.BaseTuple):
        parts = [builder.extract_value(index, i) for i in range(len(index_type))]
        kinds = list(index_type)
    else:
        parts, kinds = [index], [index_type]
    parts = [context.cast(builder, i, kind, types.uint32) for i, kind in zip(parts, kinds)]
    row = ir.Constant(I32, 0)
    for part, extent in zip(parts[:-1], tile.shape):
        row = builder.add(builder.mul(row, ir.Constant(I32, extent)), part)
    column = parts[-1]
    if tile.num_slabs > 1:
        slab = builder.udiv(column, ir.Constant(I32, tile.slab))
        column = builder.urem(column, ir.Constant(I32, tile.slab))
    column = builder.mul(column, ir.Constant(I32, tile.itemsize))
    offset = builder.add(builder.mul(row, ir.Constant(I32, tile.pitch)), column)
    if tile.num_slabs > 1:
        offset = builder.add(offset, builder.mul(slab, ir.Constant(I32, tile.slab_nbytes)))
    if tile.swizzle is Swizzle.NONE:
        return offset
    # The chunk's index is XORed with the low bits of the 128-byte row's.
    span, atom = tile.swizzle.span, tile.swizzle.atom
    rows = builder.lshr(offset, ir.Constant(I32, 8 - atom.bit_length()))
    row = builder.and_(rows, ir.Constant(I32, span - atom))
    return builder.xor(offset, row)


def _pointer(context: Any, builder: Any, sig: Any, args: Any, element: Any) -> Any:
    tile_type, index_type = sig.args[:2]
    base = get_field(builder, tile_type, args[0], "address")
    offset = tile_offset(context, builder, tile_type.static[0], args[1], index_type)
    return builder.inttoptr(builder.add(base, offset), ir.PointerType(element, 3))


_USED = "numba_tma_uses_tiles"


def expected_to_be_used(builder: Any) -> Any:
    """Return whether the kernel reads or writes tiles anywhere, as far as this module shows.

    A constant once the module is complete. What begins with it in `Accesses.unfenced` is the same
    on all ways into a loop, which then asks nothing; a fence too many does no harm.
    """
    known = builder.module.globals.get(_USED)
    if known is None:
        known = ir.GlobalVariable(builder.module, ir.IntType(1), _USED)
        known.linkage, known.global_constant = "internal", True
        known.initializer = ir.Constant(ir.IntType(1), 0)
    return builder.load(known)


def mark_used(builder: Any, tile_type: ObjectType, tile: Any) -> None:
    """Note that a shared tile was read or written, so that the next fence is emitted."""
    if _USED in builder.module.globals:
        builder.module.globals[_USED].initializer = ir.Constant(ir.IntType(1), 1)
    accesses = get_field(builder, tile_type, tile, "accesses")
    compiler.set_field(builder, ACCESSES, accesses, "unfenced", ir.Constant(ir.IntType(1), 1))


def _check_index(tile: Tile, index: types.Type) -> None:
    kinds = list(index) if isinstance(index, types.BaseTuple) else [index]
    if not all(isinstance(types.unliteral(k), types.Integer) for k in kinds):
        raise TypingError(f"{tile} is indexed with integers, not {index}")
    if len(kinds) != tile.ndim:
        raise TypingError(f"{tile} has {tile.ndim} axes but is indexed with {len(kinds)} integers")


def element_type(tile: Tile) -> types.Type:
    """Return the Numba type in which kernels hold an element."""
    return getattr(types, tile.dtype.compute)


def _is_tile(typ: types.Type) -> bool:
    return isinstance(typ, ObjectType) and typ.cls is SharedTile


@compiler.typing_registry.register_global(operator.getitem)
class _GetItem(compiler.AbstractTemplate):
    key = operator.getitem

    def generic(self, args: Any, kws: Any) -> Any:
        if not _is_tile(args[0]):
            return None
        _check_index(args[0].static[0], args[1])
        return signature(element_type(args[0].static[0]), *args)


@compiler.typing_registry.register_global(operator.getitem)
class _GetBarrier(compiler.LiteralTemplate):
    key = operator.getitem

    def type_call(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], ObjectType) and args[0].cls is BarrierArray:
            return _type_barrier(*args)
        return None


def _type_barrier(array: ObjectType, index: types.Type) -> Any:
    if not isinstance(types.unliteral(index), types.Integer):
        raise TypingError(f"barriers[i] takes an integer, not {index}")
    if isinstance(index, types.IntegerLiteral) and not 0 <= index.literal_value < array.static[0]:
        raise TypingError(
            f"barriers[{index.literal_value}]: the array has the barriers 0 to "
            f"{array.static[0] - 1}"
        )
    return signature(BARRIER, array, types.uint32)


@compiler.typing_registry.register_global(operator.setitem)
class _SetItem(compiler.AbstractTemplate):
    key = operator.setitem

    def generic(self, args: Any, kws: Any) -> Any:
        if not _is_tile(args[0]):
            return None
        _check_index(args[0].static[0], args[1])
        return signature(types.void, args[0], args[1], element_type(args[0].static[0]))


@compiler.lowering_registry.lower(operator.getitem, ObjectType, types.Any)
def _lower_getitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    if sig.args[0].cls is BarrierArray:
        base = get_field(builder, sig.args[0], args[0], "address")
        index = context.cast(builder, args[1], sig.args[1], types.uint32)
        address = builder.add(base, builder.mul(index, ir.Constant(I32, 8)))
        return compiler.make_object(context, builder, BARRIER, [address])
    tile = sig.args[0].static[0]
    pointer = _pointer(context, builder, sig, args, _storage(context, tile.dtype))
    value = builder.load(pointer, align=tile.itemsize)
    mark_used(builder, sig.args[0], args[0])
    return _decode(context, builder, tile.dtype, value)


@compiler.lowering_registry.lower(operator.setitem, ObjectType, types.Any, types.Any)
def _lower_setitem(context: Any, builder: Any, sig: Any, args: Any) -> None:
    tile = sig.args[0].static[0]
    pointer = _pointer(context, builder, sig, args, _storage(context, tile.dtype))
    value = _encode(context, builder, tile.dtype, args[2])
    builder.store(value, pointer, align=tile.itemsize)
    mark_used(builder, sig.args[0], args[0])


# ---------------------------------------------------------------------------- vectors


def _vector_type(tile: Tile) -> VectorType:
    return VectorType(element_type(tile), 16 // tile.itemsize)


def _type_read_vector(self: ObjectType, index: types.Type) -> Any:
    _check_index(self.static[0], index)
    return signature(_vector_type(self.static[0]), self, index)


def read_vector(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Emit the read of a (tile, index)."""
    dtype = sig.args[0].static[0].dtype
    word = I64 if dtype.itemsize == 8 else I32
    vector = ir.VectorType(word, 128 // word.width)
    loaded = builder.load(_pointer(context, builder, sig, args, vector), align=16)
    mark_used(builder, sig.args[0], args[0])
    elements: list[Any] = []
    for i in range(vector.count):
        value = builder.extract_element(loaded, ir.Constant(I32, i))
        elements += split_word(context, builder, dtype, value)
    return pack(builder, elements)


def split_word(context: Any, builder: Any, dtype: DType, word: Any) -> list[Any]:
    """Return the elements in a word of 32 or 64 bits, as kernels hold them."""
    if dtype.itemsize >= 4:
        return [builder.bitcast(word, _storage(context, dtype))]
    if dtype.itemsize == 2 and _is_narrow_float(dtype):
        return _pair_to_floats(builder, dtype, word)
    if _is_narrow_float(dtype):
        shifted = builder.lshr(word, ir.Constant(I32, 16))
        pairs = [builder.trunc(w, I16) for w in (word, shifted)]
        return [f for pair in pairs for f in _pair_to_floats(builder, dtype, pair)]
    bits = 8 * dtype.itemsize
    parts = [builder.lshr(word, ir.Constant(I32, s)) for s in range(0, 32, bits)]
    return [builder.trunc(p, ir.IntType(bits)) for p in parts]


def _type_write_vector(self: ObjectType, index: types.Type, values: types.Type) -> Any:
    tile = self.static[0]
    _check_index(tile, index)
    expected = _vector_type(tile)
    if values != expected:
        raise TypingError(
            f"write_vector(values=...) into {tile} takes a {expected} (16 bytes of "
            f"{tile.dtype.name}), not {values}"
        )
    return signature(types.void, self, index, expected)


def write_vector(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Emit the write of a (tile, index, vector)."""
    dtype = sig.args[0].static[0].dtype
    word = I64 if dtype.itemsize == 8 else I32
    vector = ir.VectorType(word, 128 // word.width)
    elements = unpack(builder, args[2])
    per_word = len(elements) // vector.count
    packed = ir.Constant(vector, ir.Undefined)
    for i in range(vector.count):
        value = join_word(builder, dtype, elements[i * per_word : (i + 1) * per_word], word)
        packed = builder.insert_element(packed, value, ir.Constant(I32, i))
    builder.store(packed, _pointer(context, builder, sig, args, vector), align=16)
    mark_used(builder, sig.args[0], args[0])
    return context.get_dummy_value()


def join_word(builder: Any, dtype: DType, elements: list[Any], word: Any) -> Any:
    """Return a word of 32 or 64 bits of its elements; the reverse of `split_word`."""
    if dtype.itemsize >= 4:
        return builder.bitcast(elements[0], word)
    if dtype.itemsize == 2 and _is_narrow_float(dtype):
        return _floats_to_pair(builder, dtype, *elements)
    if _is_narrow_float(dtype):
        low = builder.zext(_floats_to_pair(builder, dtype, *elements[:2]), I32)
        high = builder.zext(_floats_to_pair(builder, dtype, *elements[2:]), I32)
        return builder.or_(low, builder.shl(high, ir.Constant(I32, 16)))
    result = ir.Constant(I32, 0)
    for i, element in enumerate(elements):
        shifted = builder.shl(builder.zext(element, I32), ir.Constant(I32, 8 * dtype.itemsize * i))
        result = builder.or_(result, shifted)
    return result


compiler.native_method(SharedTile, "read_vector", _type_read_vector, read_vector)
compiler.native_method(SharedTile, "write_vector", _type_write_vector, write_vector)


# -------------------------------------------------------------------- addresses, views


def _type_address_of(self: ObjectType, index: types.Type) -> Any:
    _check_index(self.static[0], index)
    return signature(types.uint32, self, index)


def _lower_address_of(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    base = get_field(builder, sig.args[0], args[0], "address")
    offset = tile_offset(context, builder, sig.args[0].static[0], args[1], sig.args[1])
    return builder.add(base, offset)


compiler.native_method(SharedTile, "address_of", _type_address_of, _lower_address_of)


def _type_view(self: ObjectType, tile: types.Type) -> Any:
    other = compiler.static_of(tile, "SharedTile.view(tile=...)")
    try:
        check_view(self.static[0], other)
    except ValueError as error:
        raise TypingError(str(error)) from None
    return signature(shared_tile_type(other), self, tile)


compiler.native_method(SharedTile, "view", _type_view, lambda context, builder, sig, args: args[0])


# ------------------------------------------------------------------- as a matrix operand

compiler.native_method(
    SharedTile, "matrix_descriptor", type_matrix_descriptor, lower_matrix_descriptor
)


# ------------------------------------------------------------------------ as an operand


def tile_of(typ: types.Type) -> Tile | None:
    """Return the tile of a shared tile's type; None for a plain address."""
    return typ.static[0] if _is_tile(typ) else None


def require_map(what: str, given: types.Type) -> None:
    """Raise unless `given` is a TensorMap; an array in its place is the likeliest slip."""
    if isinstance(given, TensorMapArrayType):
        raise TypingError(f"{what}: tensor_map is {given}; index it: give maps[i]")
    sequence = getattr(getattr(given, "cls", None), "shared_kind", None) == "map"
    if not isinstance(given, TensorMapType) and not sequence:
        raise TypingError(
            f"{what}: tensor_map is {given}; pass tensor_map(array, tile) to the kernel, not the "
            "array"
        )


def check_reduction(what: str, tensor_map: types.Type, op: types.Type) -> None:
    """Raise a TypingError unless the element type of a map, if it is known, has an operation."""
    if tensor_map.tile is not None:
        value = op.literal_value if isinstance(op, types.Literal) else op
        if violation := reduction_violation(tensor_map.tile.dtype, value):
            raise TypingError(f"{what}: {violation}")
