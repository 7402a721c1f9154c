"""Fragments in kernels: arithmetic, reductions and conversions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    OPERATORS,
    Builder,
    Context,
    NativeMethod,
    Signature,
    TypingError,
    Value,
    ir,
    pack,
    signature,
    types,
    unpack,
)
from numba_tma.backend.lowering.elements import join_word
from numba_tma.backend.lowering.fragments.types import (
    FLOAT,
    INDEX,
    METHODS,
    FragmentType,
    RowsType,
    coordinates,
    dtype_of,
    elements,
    from_elements,
    is_held,
)
from numba_tma.backend.lowering.instructions import emit
from numba_tma.device.fragments import rows
from numba_tma.host.mma_rules import check_conversion, check_fragment, num_elements
from numba_tma.ptx import TABLE

_TRUE = types.literal(True)


# ------------------------------------------------------------------ element by element


def _columns(
    context: Context, builder: Builder, shape: types.Type, typ: types.Type, value: Value
) -> list[Any]:
    """Return one value for each element of a fragment, or of rows, of the type `shape`."""
    if isinstance(typ, FragmentType):
        return elements(context, builder, typ, value)
    if isinstance(shape, RowsType):
        return unpack(builder, value) if isinstance(typ, RowsType) else [value] * 2
    count = num_elements(shape.n)
    if isinstance(typ, RowsType):
        two = unpack(builder, value)
        return [two[i // shape.run % 2] for i in range(count)]
    return [value] * count


def _apply(
    context: Context,
    builder: Builder,
    function: types.Type,
    shape: types.Type,
    scalars: Any,
    columns: Any,
) -> Any:
    """Call `function` for each element, and return the results as a value of the type `shape`."""
    resolved = context.typing_context.resolve_function_type(function, scalars, {})
    body = context.get_function(function, resolved)
    context.add_linking_libs(getattr(body, "libs", ()))
    results = []
    for given in zip(*columns):
        cast = [context.cast(builder, g, s, t) for g, s, t in zip(given, scalars, resolved.args)]
        value = body(builder, cast)
        results.append(context.cast(builder, value, resolved.return_type, shape.element))
    if isinstance(shape, RowsType):
        return pack(builder, results)
    return from_elements(context, builder, shape, results)


def _layout(typ: types.Type) -> Any:
    return (typ.n, typ.run) if isinstance(typ, FragmentType) else None


def _scalar(typ: types.Type) -> types.Type:
    return typ.element if is_held(typ) else typ


def _register_operator(function: Callable[..., Any]) -> None:
    class FragmentOperator(compiler.AbstractTemplate):
        key = function

        def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
            held = [a for a in args if is_held(a)]
            fragments = [a for a in held if isinstance(a, FragmentType)]
            numbers = (types.Number, FragmentType, RowsType)
            if not held or kws or not all(isinstance(types.unliteral(a), numbers) for a in args):
                return None
            shape = (fragments or held)[0]
            if any(f != shape for f in fragments) or any(h.element != shape.element for h in held):
                raise TypingError(
                    f"{function.__name__} of {' and '.join(map(str, args))}: fragments of one "
                    "size and dtype go together, with rows of their elements; convert with to()"
                )
            if shape.element == types.int32 and "div" in function.__name__:
                raise TypingError(
                    f'{function.__name__} of {shape}: convert the integers first, with to("f32")'
                )
            return signature(shape, *(a if is_held(a) else shape.element for a in args))

    compiler.typing_registry.register_global(function)(FragmentOperator)

    def lower(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
        shape = sig.return_type
        columns = [_columns(context, builder, shape, t, a) for t, a in zip(sig.args, args)]
        typ = context.typing_context.resolve_value_type(function)
        return _apply(context, builder, typ, shape, (shape.element,) * 2, columns)

    for kind in (FragmentType, RowsType):
        for kinds in ((kind, kind), (kind, types.Number), (types.Number, kind)):
            compiler.lowering_registry.lower(function, *kinds)(lower)
    compiler.lowering_registry.lower(function, FragmentType, RowsType)(lower)
    compiler.lowering_registry.lower(function, RowsType, FragmentType)(lower)


for _function in OPERATORS:
    _register_operator(_function)


class _Map:
    """`map` and `map_coords`: a function of the kernel's globals, called for each element."""

    def __init__(self, name: str, owner: type, coords: bool = False) -> None:
        self.key, self.coords = (owner, name), coords
        compiler.lowering_registry.lower(self.key, types.VarArg(types.Any))(self.lower)

    def scalars(self, args: tuple[types.Type, ...]) -> tuple[types.Type, ...]:
        """Return the types that the function is called with."""
        places = (INDEX, INDEX) if self.coords else ()
        return args[0].element, *places, *map(_scalar, args[2:])

    def bind(self, context: Context, shape: types.Type) -> types.BoundFunction:
        method, what = self, f"{type(shape).__name__.removesuffix('Type')}.{self.key[1]}"

        class FragmentMap(compiler.AbstractTemplate):
            key = method.key

            def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
                if not args or kws:
                    raise TypingError(f"{what}(function, *others) takes no keywords")
                function, *others = args
                for other in others:
                    if isinstance(other, FragmentType) and _layout(other) != _layout(shape):
                        raise TypingError(
                            f"{what}: {other} does not go with {shape}: threads hold other "
                            "elements of it"
                        )
                scalars = method.scalars((shape, function, *others))
                resolved = self.context.resolve_function_type(function, scalars, {})
                if resolved is None:
                    raise TypingError(
                        f"{what}(function=...): {function} does not take "
                        f"({', '.join(map(str, scalars))})"
                    )
                if resolved.return_type != shape.element:
                    raise TypingError(
                        f"{what}: the function returns {resolved.return_type}, and the elements "
                        f"are {shape.element}: a literal such as 0.5 is a float64, and so is what "
                        "is computed with it; write np.float32(0.5)"
                    )
                return signature(shape, *args, recvr=shape)

        return types.BoundFunction(FragmentMap, shape)

    def lower(
        self, context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
    ) -> Any:
        shape, function = sig.args[:2]
        columns = [_columns(context, builder, shape, shape, args[0])]
        if self.coords:
            columns += map(list, zip(*coordinates(context, builder, shape)))
        for typ, value in zip(sig.args[2:], args[2:]):
            columns.append(_columns(context, builder, shape, typ, value))
        return _apply(context, builder, function, shape, self.scalars(sig.args), columns)


# -------------------------------------------------------------------------- reductions


def _type_reduction(self: FragmentType, quad: types.Type = _TRUE) -> Any:
    if self.element not in (types.float32, types.int32):
        raise TypingError(f'{self} has no reduction: convert it first, with to("f32")')
    if not isinstance(compiler.static_of(quad, "quad"), bool):
        raise TypingError(f"quad is True or False, not {quad}")
    return signature(RowsType(self.element), self, quad)


def _reduction(combine: Callable[..., Any]) -> Callable[..., Any]:
    def lower(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
        typ = sig.args[0]
        values, run = elements(context, builder, typ, args[0]), typ.run
        two = []
        for half in range(2):
            # One chain for each neighbour of a run: a single chain would serialise the additions.
            chains = [values[run * half + i :: 2 * run] for i in range(run)]
            two.append(
                _fold(
                    context, builder, combine, [_fold(context, builder, combine, c) for c in chains]
                )
            )
        if len(sig.args) == 1 or compiler.static_of(sig.args[1], "quad"):
            two = [_over_quad(context, builder, combine, value) for value in two]
        return pack(builder, two)

    return lower


def _fold(
    context: Context, builder: Builder, combine: Callable[..., Any], values: list[Any]
) -> Any:
    total = values[0]
    for value in values[1:]:
        total = combine(context, builder, total, value)
    return total


def _over_quad(
    context: Context, builder: Builder, combine: Callable[..., Any], value: Value
) -> Any:
    is_float = value.type == FLOAT
    row = TABLE["shfl_sync_bfly_f32" if is_float else "shfl_sync_bfly_b32"]
    kind = types.float32 if is_float else types.uint32
    for apart in (1, 2):
        given = {"value": (kind, value), "lane_mask": (types.uint32, _i32(apart))}
        value = combine(context, builder, value, emit(row, context, builder, given))
    return value


def _type_over_quad(self: RowsType) -> Any:
    return signature(self, self)


def _lower_over_quad(combine: Callable[..., Any]) -> Callable[..., Any]:
    def lower(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
        values = unpack(builder, args[0])
        return pack(builder, [_over_quad(context, builder, combine, value) for value in values])

    return lower


def _larger(context: Context, builder: Builder, a: Value, b: Value) -> Any:
    if a.type != FLOAT:
        return builder.select(builder.icmp_signed(">", a, b), a, b)
    given = {"a": (types.float32, a), "b": (types.float32, b)}
    return emit(TABLE["max_f32"], context, builder, given)


def _sum(context: Context, builder: Builder, a: Value, b: Value) -> Any:
    return builder.fadd(a, b) if a.type == FLOAT else builder.add(a, b)


# --------------------------------------------------------------------------------- rows


def _type_rows(value: types.Type) -> Any:
    if not isinstance(types.unliteral(value), types.Number):
        raise TypingError(f"rows(value=...) takes a number, not {value}")
    return signature(RowsType(types.float32), types.float32)


compiler.instruction_function(
    rows, _type_rows, lambda context, builder, sig, args: pack(builder, [args[0]] * 2)
)


# -------------------------------------------------------------------------- conversions


def _i32(value: int) -> Any:
    return ir.Constant(I32, value)


def _type_to(self: FragmentType, dtype: types.Type) -> Any:
    try:
        found = check_conversion(self.dtype, dtype_of(dtype, "Fragment.to(dtype=...)"))
        check_fragment(self.n, found, "Fragment.to")
    except ValueError as error:
        raise TypingError(str(error)) from None
    return signature(FragmentType(found, self.n), self, dtype)


def _lower_to(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    source, target = sig.args[0], sig.return_type
    if source == target:
        return args[0]
    values = elements(context, builder, source, args[0])
    if source.dtype.name == "i32":
        values = [builder.sitofp(value, FLOAT) for value in values]
    if target.dtype.itemsize > 1:
        return from_elements(context, builder, target, values)
    return _quads_exchange(context, builder, target, values)


def _quads_exchange(
    context: Context, builder: Builder, target: FragmentType, values: list[Any]
) -> Any:
    """Pack floats to 8 bits, and bring four neighbouring columns into one thread.

    Of 16 columns a thread of a quad has two, and two more 8 to the right, in both of its rows. The
    result has four neighbouring columns per thread. In each of two shuffles a thread offers one
    word, with two columns of both rows. Even and odd threads offer different halves first, so that
    two shuffles are enough.
    """
    tid = emit(TABLE["tid_x"], context, builder, {})
    odd = builder.and_(tid, _i32(1))
    right = builder.and_(builder.lshr(tid, _i32(1)), _i32(1))
    is_odd = builder.icmp_unsigned("!=", odd, _i32(0))
    is_right = builder.icmp_unsigned("!=", right, _i32(0))
    pair = builder.shl(odd, _i32(1))
    lanes = [builder.or_(pair, right), builder.or_(pair, builder.xor(right, _i32(1)))]
    # prmt's selectors: the bytes of both words that form the upper row, and the lower row.
    orders = [
        builder.select(is_right, _i32(turned), _i32(straight))
        for straight, turned in ((0x5410, 0x1054), (0x7632, 0x3276))
    ]
    words = []
    for i in range(0, len(values), 8):
        left, over = (
            join_word(context, builder, target.dtype, values[j : j + 4], I32) for j in (i, i + 4)
        )
        offered = [builder.select(is_odd, over, left), builder.select(is_odd, left, over)]
        got = [_from_lane(context, builder, o, lane) for o, lane in zip(offered, lanes)]
        for order in orders:
            given = dict(zip(("a", "b", "selector"), ((types.uint32, v) for v in (*got, order))))
            words.append(emit(TABLE["prmt_b32"], context, builder, given))
    return pack(builder, words)


def _from_lane(context: Context, builder: Builder, word: Value, lane: Value) -> Any:
    """Return the word of another lane of the quad."""
    clamp = types.uint32, _i32(0x1C1F)  # segments of four lanes
    given = {"value": (types.uint32, word), "lane": (types.uint32, lane), "clamp": clamp}
    return emit(TABLE["shfl_sync_idx_b32"], context, builder, given)


METHODS[FragmentType] |= {
    "map": _Map("map", FragmentType),
    "map_coords": _Map("map_coords", FragmentType, coords=True),
    "row_max": NativeMethod("Fragment", "row_max", _type_reduction, _reduction(_larger)),
    "row_sum": NativeMethod("Fragment", "row_sum", _type_reduction, _reduction(_sum)),
    "to": NativeMethod("Fragment", "to", _type_to, _lower_to),
}
METHODS[RowsType] |= {
    "map": _Map("map", RowsType),
    "quad_max": NativeMethod("Rows", "quad_max", _type_over_quad, _lower_over_quad(_larger)),
    "quad_sum": NativeMethod("Rows", "quad_sum", _type_over_quad, _lower_over_quad(_sum)),
}
