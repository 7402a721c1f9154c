"""The compiled half of `matrix_descriptor`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    Builder,
    Context,
    ObjectType,
    Signature,
    TypingError,
    Value,
    get_field,
    ir,
    signature,
    types,
)
from numba_tma.device.matrix_descriptor import MatrixDescriptor, MatrixDescriptorPair, whole_chunks
from numba_tma.host.architectures import architecture_of
from numba_tma.host.matrix_layout import CHUNK_BYTES, MatrixLayout

_WORDS = (types.uint32, types.uint32)
_K, _NOTHING = types.literal("K"), types.literal(0)


def _instruction() -> str:
    """Return which instruction reads descriptors on the GPU that is compiled for."""
    target = compiler.compile_target()
    cores = architecture_of(target).tensor_cores
    if cores != "mma":
        return cores
    raise TypingError(
        "matrix descriptors are read by wgmma (compute capability 9.0) and tcgen05.mma (10.x, "
        f"11.0); this kernel is compiled for sm_{target}, which has neither: read the tile with "
        "tma.ptx.ldmatrix"
    )


# ------------------------------------------------------ SharedTile.matrix_descriptor(...)


def type_matrix_descriptor(self: ObjectType, major: types.Type = _K) -> Any:
    """Type the method of a shared tile."""
    what = "SharedTile.matrix_descriptor"
    axis = compiler.static_of(major, f"{what}(major=...)")
    try:
        layout = MatrixLayout(self.static[0], axis, _instruction())
    except ValueError as error:
        raise TypingError(f"{what}: {error}") from None
    return signature(ObjectType(MatrixDescriptor, (layout,), _WORDS), self, major)


def lower_matrix_descriptor(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    """Emit the two words of a shared tile's descriptor."""
    layout = sig.return_type.static[0]
    address = get_field(builder, sig.args[0], args[0], "address")
    words = descriptor_words(builder, layout, address)
    return compiler.make_object(context, builder, sig.return_type, list(words))


def descriptor_words(builder: Builder, layout: MatrixLayout, address: Value) -> tuple[Value, Value]:
    """Return the two words of the descriptor of a matrix at a shared-memory address."""
    # Bits above the 18 of an address would run into the next field.
    start = builder.and_(builder.lshr(address, ir.Constant(I32, 4)), ir.Constant(I32, 0x3FFF))
    return builder.or_(start, ir.Constant(I32, layout.low)), ir.Constant(I32, layout.high)


# -------------------------------------------------------------------------- advance, +


def _literal(given: types.Type) -> int | None:
    if isinstance(given, types.Omitted):
        return int(given.value)
    return given.literal_value if isinstance(given, types.IntegerLiteral) else None


def _check_integer(what: str, given: types.Type) -> None:
    if not isinstance(types.unliteral(given), types.Integer) and _literal(given) is None:
        raise TypingError(f"{what} takes an integer, not {given}")


def _type_advance(
    self: ObjectType, k_step: types.Type = _NOTHING, row: types.Type = _NOTHING
) -> Any:
    given = {"k_step": k_step, "row": row}
    for name, typ in given.items():
        _check_integer(f"MatrixDescriptor.advance({name}=...)", typ)
    known = {name: v for name, typ in given.items() if (v := _literal(typ)) is not None}
    try:
        self.static[0].offset(**known)
    except ValueError as error:
        raise TypingError(f"MatrixDescriptor.advance: {error}") from None
    return signature(self, self, k_step, row)


def _lower_advance(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    self = sig.return_type
    layout = self.static[0]
    k_step, row = (
        context.cast(builder, value, typ, types.uint32)
        if (literal := _literal(typ)) is None
        else ir.Constant(I32, literal)
        for value, typ in zip(args[1:], sig.args[1:])
    )

    def split(value: Any, unit: int) -> tuple[Any, Any]:
        unit = ir.Constant(I32, unit)
        return builder.udiv(value, unit), builder.urem(value, unit)

    def times(value: Any, nbytes: int) -> Any:
        return builder.mul(value, ir.Constant(I32, nbytes // CHUNK_BYTES))

    slab, step = split(k_step, layout.steps_per_slab)
    part, _ = split(row, layout.row_unit)
    chunks = builder.add(times(slab, layout.slab_offset), times(step, 2 * CHUNK_BYTES))
    chunks = builder.add(chunks, times(part, layout.row_offset))
    return _moved(builder, self, args[0], chunks)


def _moved(builder: Builder, typ: ObjectType, value: Value, chunks: Any) -> Any:
    low = builder.add(get_field(builder, typ, value, "lo"), chunks)
    return builder.insert_value(value, low, list(typ.description.fields).index("lo"))


compiler.native_method(MatrixDescriptor, "advance", _type_advance, _lower_advance)


def _type_add(args: tuple[types.Type, ...]) -> Any:
    descriptor, nbytes = args
    if getattr(descriptor, "cls", None) not in (MatrixDescriptor, MatrixDescriptorPair):
        return None
    _check_integer("a matrix descriptor + nbytes", nbytes)
    literal = _literal(nbytes)
    if literal is not None and literal % CHUNK_BYTES:
        raise TypingError(whole_chunks(literal))
    return signature(descriptor, descriptor, types.unliteral(nbytes))


def _lower_add(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    nbytes = context.cast(builder, args[1], sig.args[1], types.int32)
    chunks = builder.ashr(nbytes, ir.Constant(I32, 4))  # a step back is negative
    return _moved(builder, sig.args[0], args[0], chunks)


@compiler.typing_registry.register_global(operator.add)
class _Add(compiler.LiteralTemplate):
    key = operator.add

    def type_call(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        return _type_add(args)


@compiler.typing_registry.register_global(operator.iadd)
class _AddInPlace(_Add):
    key = operator.iadd


for _function in (operator.add, operator.iadd):
    compiler.lowering_registry.lower(_function, ObjectType, types.Integer)(_lower_add)
