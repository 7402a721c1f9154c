"""A vector of registers: its type, its arithmetic lane by lane, and its reductions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.cuda.core.errors import TypingError
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.extending import core_models, register_model
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature

from numba_tma.backend.numba_cuda.objects import NativeMethod


class VectorType(types.Type):
    """The Numba type of a vector: `count` elements of `dtype`. In the simulator, a NumPy array."""

    def __init__(self, dtype: types.Type, count: int) -> None:
        self.dtype, self.count = dtype, count
        super().__init__(name=f"Vector({dtype}, {count})")

    @property
    def num_numbers(self) -> int:
        """The number of elements, as `Unknown.num_numbers` has it."""
        return self.count


@register_model(VectorType)
class _VectorModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, typ: VectorType) -> None:
        element = manager.lookup(typ.dtype).get_value_type()
        super().__init__(manager, typ, ir.ArrayType(element, typ.count))


def pack(builder: Any, elements: list[Any]) -> Any:
    """Return the vector of LLVM values."""
    result = ir.Constant(ir.ArrayType(elements[0].type, len(elements)), ir.Undefined)
    for i, element in enumerate(elements):
        result = builder.insert_value(result, element, i)
    return result


def unpack(builder: Any, vector: Any) -> list[Any]:
    """Return the elements of a vector."""
    return [builder.extract_value(vector, i) for i in range(vector.type.count)]


def _register_operator(function: Callable[..., Any]) -> None:
    class Operator(AbstractTemplate):
        key = function

        def generic(self, args: Any, kws: Any) -> Any:
            vectors = [a for a in args if isinstance(a, VectorType)]
            if not vectors or kws:
                return None
            if any(v != vectors[0] for v in vectors):
                raise TypingError(f"{function.__name__} of {' and '.join(map(str, vectors))}")
            scalar = vectors[0].dtype
            for other in args:
                known = isinstance(types.unliteral(other), (VectorType, types.Number))
                if not known:
                    return None
            given = [a if isinstance(a, VectorType) else scalar for a in args]
            return signature(vectors[0], *given)

    typing_registry.register_global(function)(Operator)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        scalar = sig.return_type.dtype
        scalar_sig = signature(scalar, *[scalar] * len(args))
        resolved = context.typing_context.resolve_function_type(function, scalar_sig.args, {})
        operation = context.get_function(function, resolved)
        columns = [
            unpack(builder, a) if isinstance(t, VectorType) else [a] * sig.return_type.count
            for a, t in zip(args, sig.args)
        ]
        results = []
        for elements in zip(*columns):
            cast = [context.cast(builder, e, scalar, t) for e, t in zip(elements, resolved.args)]
            value = operation(builder, cast)
            results.append(context.cast(builder, value, resolved.return_type, scalar))
        return pack(builder, results)

    for kinds in ((VectorType, VectorType), (VectorType, types.Any), (types.Any, VectorType)):
        lowering_registry.lower(function, *kinds)(lower)


#: The operators of vectors and of fragments.
OPERATORS = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
)

for _function in OPERATORS:
    _register_operator(_function)


@typing_registry.register_global(operator.getitem)
class _VectorItem(AbstractTemplate):
    key = operator.getitem

    def generic(self, args: Any, kws: Any) -> Any:
        if not isinstance(args[0], VectorType):
            return None
        if not isinstance(args[1], types.IntegerLiteral):
            raise TypingError("a vector lives in registers and is indexed with a literal integer")
        if not 0 <= args[1].literal_value < args[0].count:
            raise TypingError(f"{args[0]} has no element {args[1].literal_value}")
        return signature(args[0].dtype, *args)

    prefer_literal = True


@lowering_registry.lower(operator.getitem, VectorType, types.Any)
@lowering_registry.lower("static_getitem", VectorType, types.Any)
def _lower_getitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    index = args[1] if isinstance(args[1], int) else sig.args[1].literal_value
    return builder.extract_value(args[0], index)


def _reduction(name: str, combine: Callable[..., Any]) -> NativeMethod:
    def typer(self: VectorType) -> Any:
        return signature(self.dtype, self)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        elements = unpack(builder, args[0])
        total = elements[0]
        for element in elements[1:]:
            total = combine(builder, sig.return_type, total, element)
        return total

    return NativeMethod("Vector", name, typer, lower)


def _add(builder: Any, typ: types.Type, a: Any, b: Any) -> Any:
    return builder.fadd(a, b) if isinstance(typ, types.Float) else builder.add(a, b)


def _extremum(ordered: str) -> Callable[..., Any]:
    def combine(builder: Any, typ: types.Type, a: Any, b: Any) -> Any:
        if isinstance(typ, types.Float):
            # A NaN in either operand is the result, as in NumPy.
            larger, number = (
                builder.fcmp_unordered(ordered, a, b),
                builder.fcmp_ordered("ord", b, b),
            )
            taken = builder.and_(larger, number)
        elif typ.signed:
            taken = builder.icmp_signed(ordered, a, b)
        else:
            taken = builder.icmp_unsigned(ordered, a, b)
        return builder.select(taken, a, b)

    return combine


_METHODS = {
    "sum": _reduction("sum", _add),
    "max": _reduction("max", _extremum(">")),
    "min": _reduction("min", _extremum("<")),
}


@typing_registry.register_attr
class _VectorAttributes(AttributeTemplate):
    key = VectorType

    def generic_resolve(self, typ: VectorType, attr: str) -> types.Type | None:
        return _METHODS[attr].bind(self.context, typ) if attr in _METHODS else None
