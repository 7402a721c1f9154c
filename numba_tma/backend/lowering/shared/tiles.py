"""Elements, vectors, addresses and views of shared tiles, and the barriers of an array."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    I64,
    Builder,
    Context,
    ObjectType,
    Signature,
    TypingError,
    Value,
    VectorType,
    get_field,
    ir,
    pack,
    signature,
    types,
    unpack,
)
from numba_tma.backend.lowering.elements import (
    decode,
    element_type,
    encode,
    join_word,
    split_word,
    storage,
    vector_type,
)
from numba_tma.backend.lowering.hooks import Access, accessed
from numba_tma.backend.lowering.matrix_descriptor import (
    lower_matrix_descriptor,
    type_matrix_descriptor,
)
from numba_tma.backend.lowering.shared.allocation import ACCESSES, BARRIER, shared_tile_type
from numba_tma.device.barrier import BarrierArray
from numba_tma.device.records import SharedRecord, record_refusal
from numba_tma.device.shared import SharedTile, check_view, misaligned_vector
from numba_tma.host.dtypes import DType, complex_refusal
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.records import alignment_in_rows, natural_alignment, word_nbytes


def tile_of(typ: types.Type) -> Tile | None:
    """Return the tile of a shared tile's type; None for a plain address."""
    return typ.static[0] if isinstance(typ, ObjectType) and typ.cls is SharedTile else None


def tile_offset(
    context: Context, builder: Builder, tile: Tile, index: Value, index_type: types.Type
) -> Any:
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
    column = _offset_in_row(builder, tile, column)
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


def _offset_in_row(builder: Builder, tile: Tile, column: Value) -> Any:
    """Return the byte of a row in which an element begins: `DType.shared_offset`."""
    dtype = tile.dtype
    if not dtype.is_packed:
        return builder.mul(column, ir.Constant(I32, tile.itemsize))
    sixteen = builder.lshr(column, ir.Constant(I32, 4))
    group = builder.mul(sixteen, ir.Constant(I32, 2 * dtype.shared_bits))
    bits = builder.mul(builder.and_(column, ir.Constant(I32, 15)), ir.Constant(I32, dtype.bits))
    return builder.add(group, builder.lshr(bits, ir.Constant(I32, 3)))


def element_pointer(
    context: Context,
    builder: Builder,
    sig: Signature,
    args: Sequence[Value],
    element: Any,
    access: Access = "read",
) -> Any:
    """Return the shared pointer to an element of a (tile, index, ...), whose access is noted."""
    tile_type, index_type = sig.args[:2]
    base = get_field(builder, tile_type, args[0], "address")
    offset = tile_offset(context, builder, tile_type.static[0], args[1], index_type)
    address = builder.add(base, offset)
    accessed(context, builder, access, address, tile_type.static[0].itemsize)
    return builder.inttoptr(address, ir.PointerType(element, 3))


def mark_used(builder: Builder, tile_type: ObjectType, tile: Value) -> None:
    """Record that a tile, or a record of it, was accessed, so that the next fence is emitted."""
    compiler.set_use_flags(builder.module)
    name = "accesses" if tile_type.cls is SharedTile else "_accesses"
    accesses = get_field(builder, tile_type, tile, name)
    compiler.set_field(builder, ACCESSES, accesses, "unfenced", ir.Constant(ir.IntType(1), 1))


def check_index(tile: Tile, index: types.Type) -> None:
    kinds = list(index) if isinstance(index, types.BaseTuple) else [index]
    if not all(isinstance(types.unliteral(k), types.Integer) for k in kinds):
        raise TypingError(f"{tile} is indexed with integers, not {index}")
    if len(kinds) != tile.ndim:
        raise TypingError(f"{tile} has {tile.ndim} axes but is indexed with {len(kinds)} integers")


def _is_tile(typ: types.Type) -> bool:
    return isinstance(typ, ObjectType) and typ.cls is SharedTile


@compiler.typing_registry.register_global(operator.getitem)
class _TileItem(compiler.AbstractTemplate):
    key = operator.getitem

    def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        if not _is_tile(args[0]):
            return None
        tile = args[0].static[0]
        check_index(tile, args[1])
        if tile.dtype.is_record:
            found = record_type(tile.dtype, alignment_in_rows(tile.dtype.numpy))
            return signature(found, *args)
        return signature(element_type(tile), *args)


@compiler.typing_registry.register_global(operator.getitem)
class _BarrierItem(compiler.LiteralTemplate):
    key = operator.getitem

    def type_call(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
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
class _TileAssignment(compiler.AbstractTemplate):
    key = operator.setitem

    def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        if not _is_tile(args[0]):
            return None
        tile = args[0].static[0]
        check_index(tile, args[1])
        if tile.dtype.is_record:
            if record_of(args[2]) != tile.dtype.numpy:
                raise TypingError(record_refusal(f"a tile of {tile.dtype}"))
            return signature(types.void, *args)
        element = element_type(tile)
        if isinstance(args[2], types.Complex) and not isinstance(element, types.Complex):
            raise TypingError(complex_refusal(tile.dtype))
        return signature(types.void, args[0], args[1], element)


def _lower_barrier(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    base = get_field(builder, sig.args[0], args[0], "address")
    index = context.cast(builder, args[1], sig.args[1], types.uint32)
    address = builder.add(base, builder.mul(index, ir.Constant(I32, 8)))
    return compiler.make_object(context, builder, BARRIER, [address])


def _lower_element(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    tile = sig.args[0].static[0]
    if tile.dtype.is_record:
        base, accesses = (get_field(builder, sig.args[0], args[0], n) for n in _OF_A_TILE)
        offset = tile_offset(context, builder, tile, args[1], sig.args[1])
        fields = [builder.add(base, offset), accesses]
        return compiler.make_object(context, builder, sig.return_type, fields)
    pointer = element_pointer(context, builder, sig, args, storage(context, tile.dtype))
    value = builder.load(pointer, align=tile.itemsize)
    mark_used(builder, sig.args[0], args[0])
    return decode(context, builder, tile.dtype, value)


def _lower_assignment(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> None:
    tile = sig.args[0].static[0]
    if tile.dtype.is_record:
        _copy_record(context, builder, sig, args)
        return
    pointer = element_pointer(context, builder, sig, args, storage(context, tile.dtype), "write")
    value = encode(context, builder, tile.dtype, args[2])
    builder.store(value, pointer, align=tile.itemsize)
    mark_used(builder, sig.args[0], args[0])


_OF_A_TILE = "address", "accesses"


def record_type(dtype: DType, aligned: int) -> ObjectType:
    """Return the Numba type of a record in a tile, at a multiple of `aligned` bytes."""
    return ObjectType(SharedRecord, (dtype, aligned), (types.uint32, ACCESSES))


def record_of(typ: types.Type) -> Any:
    """Return NumPy's type of a record, in a tile or elsewhere; None for other values."""
    if isinstance(typ, ObjectType) and typ.cls is SharedRecord:
        return typ.static[0].numpy
    return compiler.as_dtype(typ) if isinstance(typ, types.Record) else None


def record_pointer(builder: Builder, typ: ObjectType, record: Value) -> Any:
    """Return the shared pointer to the bytes of a record in a tile."""
    address = get_field(builder, typ, record, "_address")
    return builder.inttoptr(address, ir.PointerType(ir.IntType(8), 3))


def _copy_record(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> None:
    """Copy a record to an element of a tile, word by word."""
    tile, source = sig.args[0].static[0], args[2]
    nbytes = word_nbytes(tile.itemsize)
    known = min(nbytes, natural_alignment(tile.dtype.numpy))
    word = ir.IntType(8 * nbytes)
    into = element_pointer(context, builder, sig, args, word, "write")
    if isinstance(sig.args[2], ObjectType):
        known = min(nbytes, sig.args[2].static[1])
        source = record_pointer(builder, sig.args[2], source)
        address = builder.ptrtoint(source, I32)
        accessed(context, builder, "read", address, tile.itemsize)
    source = builder.bitcast(source, ir.PointerType(word, source.type.addrspace))
    words = [
        builder.load(builder.gep(source, [ir.Constant(I32, i)]), align=known)
        for i in range(tile.itemsize // nbytes)
    ]
    for i, value in enumerate(words):
        builder.store(value, builder.gep(into, [ir.Constant(I32, i)]), align=nbytes)
    mark_used(builder, sig.args[0], args[0])


compiler.describe(BarrierArray).item = _lower_barrier
compiler.describe(SharedTile).item = _lower_element
compiler.describe(SharedTile).assign = _lower_assignment


# ---------------------------------------------------------------------------- vectors


def _vector_type(tile: Tile) -> VectorType:
    return vector_type(tile, tile.dtype.chunk)


def _check_vector_index(tile: Tile, index: types.Type) -> None:
    """Raise if a literal at the end of an index does not align the vector's 16 bytes."""
    check_index(tile, index)
    last = list(index)[-1] if isinstance(index, types.BaseTuple) else index
    if isinstance(last, types.IntegerLiteral):
        excess = tile.dtype.nbytes(last.literal_value) % 16
        if excess:
            raise TypingError(misaligned_vector(tile, index, excess))


def _type_read_vector(self: ObjectType, index: types.Type) -> Any:
    _check_vector_index(self.static[0], index)
    return signature(_vector_type(self.static[0]), self, index)


def read_vector(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    """Emit the read of a (tile, index)."""
    dtype = sig.args[0].static[0].dtype
    word = I64 if dtype.itemsize == 8 else I32
    vector = ir.VectorType(word, 128 // word.width)
    loaded = builder.load(element_pointer(context, builder, sig, args, vector), align=16)
    mark_used(builder, sig.args[0], args[0])
    elements: list[Any] = []
    for i in range(vector.count):
        value = builder.extract_element(loaded, ir.Constant(I32, i))
        elements += split_word(context, builder, dtype, value)
    return pack(builder, elements)


def _type_write_vector(self: ObjectType, index: types.Type, values: types.Type) -> Any:
    tile = self.static[0]
    _check_vector_index(tile, index)
    expected = _vector_type(tile)
    if values != expected:
        raise TypingError(
            f"write_vector(values=...) into {tile} takes a {expected} (16 bytes of "
            f"{tile.dtype.name}), not {values}"
        )
    return signature(types.void, self, index, expected)


def write_vector(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    """Emit the write of a (tile, index, vector)."""
    dtype = sig.args[0].static[0].dtype
    word = I64 if dtype.itemsize == 8 else I32
    vector = ir.VectorType(word, 128 // word.width)
    elements = unpack(builder, args[2])
    per_word = len(elements) // vector.count
    packed = ir.Constant(vector, ir.Undefined)
    for i in range(vector.count):
        value = join_word(
            context, builder, dtype, elements[i * per_word : (i + 1) * per_word], word
        )
        packed = builder.insert_element(packed, value, ir.Constant(I32, i))
    pointer = element_pointer(context, builder, sig, args, vector, "write")
    builder.store(packed, pointer, align=16)
    mark_used(builder, sig.args[0], args[0])
    return context.get_dummy_value()


compiler.native_method(SharedTile, "read_vector", _type_read_vector, read_vector)
compiler.native_method(SharedTile, "write_vector", _type_write_vector, write_vector)


# -------------------------------------------------------------------- addresses, views


def _type_address_of(self: ObjectType, index: types.Type) -> Any:
    check_index(self.static[0], index)
    return signature(types.uint32, self, index)


def _lower_address_of(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
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
