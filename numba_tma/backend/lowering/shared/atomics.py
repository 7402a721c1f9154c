"""``cuda.atomic`` on elements of tiles: numba-cuda's operations on an array of one element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    Builder,
    Context,
    ObjectType,
    Signature,
    TypingError,
    Value,
    ir,
    signature,
    types,
)
from numba_tma.backend.lowering.elements import element_type, storage
from numba_tma.backend.lowering.shared.tiles import (
    check_index,
    element_pointer,
    mark_used,
    tile_of,
)
from numba_tma.host.atomic_rules import atomic_violation, no_array
from numba_tma.host.dtypes import complex_refusal


def _type_atomic(name: str, args: Sequence[types.Type]) -> Any:
    """Return the signature of an operation on a tile; None for what is no object of ours."""
    if not isinstance(args[0], ObjectType):
        return None
    tile = tile_of(args[0])
    if tile is None:
        raise TypingError(no_array(name, args[0]))
    if wrong := atomic_violation(name, tile):
        raise TypingError(wrong)
    check_index(tile, args[1])
    if any(isinstance(value, types.Complex) for value in args[2:]):
        raise TypingError(complex_refusal(tile.dtype))
    element = element_type(tile)
    return signature(element, *args[:2], *(element for _ in args[2:]))


def _lower_atomic(operation: type) -> Any:
    def lower(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
        element, dtype = sig.return_type, sig.args[0].static[0].dtype
        kind = storage(context, dtype)
        pointer = element_pointer(context, builder, sig, args, kind, "atomic")
        of_one = types.Array(element, 1, "C")
        array = context.make_array(of_one)(context, builder)
        array.data = builder.addrspacecast(pointer, ir.PointerType(kind))
        array.shape = compiler.cgutils.pack_array(builder, [context.get_constant(types.intp, 1)])
        step = context.get_constant(types.intp, dtype.itemsize)
        array.strides = compiler.cgutils.pack_array(builder, [step])
        given = signature(element, of_one, types.intp, *sig.args[2:])
        first = context.get_constant(types.intp, 0)
        values = (array._getvalue(), first, *args[2:])
        old = context.get_function(operation, given)(builder, values)
        mark_used(builder, sig.args[0], args[0])
        return old

    return lower


for _operation in compiler.type_atomics(_type_atomic).values():
    for _values in ((types.Any,), (types.Any, types.Any)):
        compiler.lowering_registry.lower(_operation, ObjectType, types.Any, *_values)(
            _lower_atomic(_operation)
        )
