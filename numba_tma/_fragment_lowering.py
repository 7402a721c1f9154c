"""Fragments in kernels: their types, their elements, and what is done element by element."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from numba_tma import _compiler as compiler
from numba_tma._compiler import I32, NativeMethod, TypingError, signature
from numba_tma._shared_lowering import join_word, pure_asm, split_word
from numba_tma._vector_lowering import pack, unpack
from numba_tma.dtypes import DType, as_dtype
from numba_tma.mma import rows
from numba_tma.mma_rules import elements_per_run, num_elements, num_registers
from numba_tma.ptx import TABLE
from numba_tma.ptx._lowering import emit

FLOAT = ir.FloatType()
INDEX = types.int32
_TRUE = types.literal(True)


class FragmentType(types.Type):
    """The Numba type of a fragment: 64 x n elements of `dtype`, in registers."""

    def __init__(self, dtype: DType, n: int) -> None:
        self.dtype, self.n = dtype, n
        super().__init__(name=f"Fragment(64 x {n}, {dtype})")

    @property
    def element(self) -> types.Type:
        """The Numba type in which kernels hold an element."""
        return getattr(types, self.dtype.compute)

    @property
    def word(self) -> Any:
        """The LLVM type of a register."""
        return FLOAT if self.dtype.name == "f32" else I32

    @property
    def registers(self) -> int:
        """Registers that it takes of each thread."""
        return num_registers(self.n, self.dtype.itemsize)

    @property
    def run(self) -> int:
        """Neighbours along a row that a thread holds."""
        return elements_per_run(self.dtype.itemsize)


def dtype_of(typ: types.Type, what: str) -> Any:
    """Return what a kernel names as a dtype: a string, or a type such as np.float32."""
    if isinstance(typ, (types.NumberClass, types.DType)):
        return as_dtype(typ.dtype)
    return compiler.static_of(typ, what)


class RowsType(types.Type):
    """The Numba type of `Rows`: a number for each of a thread's two rows."""

    def __init__(self, element: types.Type) -> None:
        self.element = element
        super().__init__(name=f"Rows({element})")


@compiler.register_model(FragmentType)
class _FragmentModel(compiler.core_models.PrimitiveModel):
    """An array, which LLVM takes apart into registers."""

    def __init__(self, manager: Any, typ: FragmentType) -> None:
        super().__init__(manager, typ, ir.ArrayType(typ.word, typ.registers))


@compiler.register_model(RowsType)
class _RowsModel(compiler.core_models.PrimitiveModel):
    def __init__(self, manager: Any, typ: RowsType) -> None:
        element = manager.lookup(typ.element).get_value_type()
        super().__init__(manager, typ, ir.ArrayType(element, 2))


def elements(context: Any, builder: Any, typ: FragmentType, value: Any) -> list[Any]:
    """Return a thread's elements, as kernels hold them."""
    words = unpack(builder, value)
    return [e for word in words for e in split_word(context, builder, typ.dtype, word)]


def from_elements(builder: Any, typ: FragmentType, values: list[Any]) -> Any:
    """Return the fragment of a thread's elements, rounded to its dtype."""
    each = len(values) // typ.registers
    return pack(
        builder,
        [
            join_word(builder, typ.dtype, values[i : i + each], typ.word)
            for i in range(0, len(values), each)
        ],
    )


# ------------------------------------------------------------------------- coordinates


def place(context: Any, builder: Any, run: int) -> tuple[Any, Any]:
    """Return the row and the column of the calling thread's first element."""
    tid = emit(TABLE["tid_x"], context, builder, {})

    def bits(first: int, mask: int) -> Any:
        return builder.and_(builder.lshr(tid, ir.Constant(I32, first)), ir.Constant(I32, mask))

    row = builder.or_(bits(1, 0x30), bits(2, 7))
    return row, builder.mul(bits(0, 3), ir.Constant(I32, run))


def coordinates(context: Any, builder: Any, typ: FragmentType) -> list[tuple[Any, Any]]:
    """Return (row, column) of each of the calling thread's elements."""
    row, column = place(context, builder, typ.run)
    halves = [row, builder.add(row, ir.Constant(I32, 8))]
    run, found = typ.run, []
    for i in range(num_elements(typ.n)):
        right = 4 * run * (i // (2 * run)) + i % run
        found.append((halves[i // run % 2], builder.add(column, ir.Constant(I32, right))))
    return found


def _type_coords(self: FragmentType, i: types.Type) -> Any:
    if not isinstance(types.unliteral(i), types.Integer):
        raise TypingError(f"Fragment.coords(i=...) takes an integer, not {i}")
    return signature(types.UniTuple(INDEX, 2), self, INDEX)


def _lower_coords(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    run = sig.args[0].run
    row, column = place(context, builder, run)
    row = builder.add(row, _half(builder, run, args[1], 8))
    block = builder.udiv(args[1], ir.Constant(I32, 2 * run))
    right = builder.add(
        builder.mul(block, ir.Constant(I32, 4 * run)), builder.urem(args[1], ir.Constant(I32, run))
    )
    pair = [row, builder.add(column, right)]
    return context.make_tuple(builder, sig.return_type, pair)


def _half(builder: Any, run: int, i: Any, apart: int) -> Any:
    half = builder.urem(builder.udiv(i, ir.Constant(I32, run)), ir.Constant(I32, 2))
    return builder.mul(half, ir.Constant(I32, apart))


def _type_row(self: RowsType, i: types.Type) -> Any:
    if not isinstance(types.unliteral(i), types.Integer):
        raise TypingError(f"Rows.coords(i=...) takes an integer, not {i}")
    return signature(INDEX, self, INDEX)


def _lower_row(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    row, _ = place(context, builder, 1)
    return builder.add(row, builder.mul(args[1], ir.Constant(I32, 8)))


# ------------------------------------------------------------------ element by element


def _columns(context: Any, builder: Any, shape: Any, typ: Any, value: Any) -> list[Any]:
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
    context: Any, builder: Any, function: types.Type, shape: Any, scalars: Any, columns: Any
) -> Any:
    """Call `function` for each element, and return what it makes as a value of the type `shape`."""
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
    return from_elements(builder, shape, results)


def _layout(typ: types.Type) -> Any:
    return (typ.n, typ.run) if isinstance(typ, FragmentType) else None


def _is_held(typ: types.Type) -> bool:
    return isinstance(typ, (FragmentType, RowsType))


def _scalar(typ: types.Type) -> types.Type:
    return typ.element if _is_held(typ) else typ


def _register_operator(function: Callable[..., Any]) -> None:
    class Template(compiler.AbstractTemplate):
        key = function

        def generic(self, args: Any, kws: Any) -> Any:
            held = [a for a in args if _is_held(a)]
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
            return signature(shape, *(a if _is_held(a) else shape.element for a in args))

    compiler.typing_registry.register_global(function)(Template)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        shape = sig.return_type
        columns = [_columns(context, builder, shape, t, a) for t, a in zip(sig.args, args)]
        typ = context.typing_context.resolve_value_type(function)
        return _apply(context, builder, typ, shape, (shape.element,) * 2, columns)

    for kind in (FragmentType, RowsType):
        for kinds in ((kind, kind), (kind, types.Number), (types.Number, kind)):
            compiler.lowering_registry.lower(function, *kinds)(lower)
    compiler.lowering_registry.lower(function, FragmentType, RowsType)(lower)
    compiler.lowering_registry.lower(function, RowsType, FragmentType)(lower)


for _function in (
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
):
    _register_operator(_function)


class _Map:
    """`map` and `map_coords`: a function of the kernel's globals, called for each element."""

    def __init__(self, name: str, owner: type, coords: bool = False) -> None:
        self.key, self.coords = (owner, name), coords
        compiler.lowering_registry.lower(self.key, types.VarArg(types.Any))(self.lower)

    def scalars(self, args: Any) -> tuple[types.Type, ...]:
        """Return the types that the function is called with."""
        places = (INDEX, INDEX) if self.coords else ()
        return args[0].element, *places, *map(_scalar, args[2:])

    def bind(self, context: Any, shape: Any) -> types.BoundFunction:
        method, what = self, f"{type(shape).__name__.removesuffix('Type')}.{self.key[1]}"

        class Template(compiler.AbstractTemplate):
            key = method.key

            def generic(self, args: Any, kws: Any) -> Any:
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

        return types.BoundFunction(Template, shape)

    def lower(self, context: Any, builder: Any, sig: Any, args: Any) -> Any:
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
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        typ = sig.args[0]
        values, run = elements(context, builder, typ, args[0]), typ.run
        two = []
        for half in range(2):
            # As many chains as a thread has neighbours: one would wait for itself.
            chains = [values[run * half + i :: 2 * run] for i in range(run)]
            two.append(_fold(builder, combine, [_fold(builder, combine, c) for c in chains]))
        if len(sig.args) == 1 or compiler.static_of(sig.args[1], "quad"):
            two = [_over_quad(builder, combine, value) for value in two]
        return pack(builder, two)

    return lower


def _fold(builder: Any, combine: Callable[..., Any], values: list[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = combine(builder, total, value)
    return total


def _over_quad(builder: Any, combine: Callable[..., Any], value: Any) -> Any:
    for apart in (1, 2):
        value = combine(builder, value, shuffle(builder, "bfly", value, ir.Constant(I32, apart)))
    return value


def shuffle(builder: Any, mode: str, value: Any, lane: Any, control: int = 0x1F) -> Any:
    """Return another lane's value, by all lanes of the warp."""
    letter = "f" if value.type == FLOAT else "r"
    text = f"shfl.sync.{mode}.b32 $0, $1, $2, {control:#x}, 0xffffffff;"
    function = ir.FunctionType(value.type, [value.type, I32])
    asm = ir.InlineAsm(function, text, f"={letter},{letter},r")
    return builder.call(asm, [value, lane], attrs=("convergent", "readnone", "nounwind"))


def _type_over_quad(self: RowsType) -> Any:
    return signature(self, self)


def _lower_over_quad(combine: Callable[..., Any]) -> Callable[..., Any]:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = unpack(builder, args[0])
        return pack(builder, [_over_quad(builder, combine, value) for value in values])

    return lower


def _larger(builder: Any, a: Any, b: Any) -> Any:
    kind, operands = ("f32", "=f,f,f") if a.type == FLOAT else ("s32", "=r,r,r")
    return pure_asm(builder, a.type, f"max.{kind} $0, $1, $2;", operands, a, b)


def _sum(builder: Any, a: Any, b: Any) -> Any:
    return builder.fadd(a, b) if a.type == FLOAT else builder.add(a, b)


# --------------------------------------------------------------------------------- rows


def _type_rows(value: types.Type) -> Any:
    if not isinstance(types.unliteral(value), types.Number):
        raise TypingError(f"rows(value=...) takes a number, not {value}")
    return signature(RowsType(types.float32), types.float32)


compiler.instruction_function(
    rows, _type_rows, lambda context, builder, sig, args: pack(builder, [args[0]] * 2)
)


# -------------------------------------------------------------------- what they offer

#: The methods that kernels can call, by the type of what they are called on.
METHODS: dict[type, dict[str, Any]] = {
    FragmentType: {
        "coords": NativeMethod("Fragment", "coords", _type_coords, _lower_coords),
        "map": _Map("map", FragmentType),
        "map_coords": _Map("map_coords", FragmentType, coords=True),
        "row_max": NativeMethod("Fragment", "row_max", _type_reduction, _reduction(_larger)),
        "row_sum": NativeMethod("Fragment", "row_sum", _type_reduction, _reduction(_sum)),
    },
    RowsType: {
        "coords": NativeMethod("Rows", "coords", _type_row, _lower_row),
        "map": _Map("map", RowsType),
        "quad_max": NativeMethod("Rows", "quad_max", _type_over_quad, _lower_over_quad(_larger)),
        "quad_sum": NativeMethod("Rows", "quad_sum", _type_over_quad, _lower_over_quad(_sum)),
    },
}


class _Attributes(compiler.AttributeTemplate):
    def generic_resolve(self, typ: Any, attr: str) -> types.Type | None:
        if attr == "num_elements" and isinstance(typ, FragmentType):
            return types.literal(num_elements(typ.n))
        method = METHODS[type(typ)].get(attr)
        return method.bind(self.context, typ) if method is not None else None


for _kind in METHODS:
    _name = f"{_kind.__name__}Attributes"
    compiler.typing_registry.register_attr(type(_name, (_Attributes,), {"key": _kind}))


@compiler.lowering_registry.lower_getattr(FragmentType, "num_elements")
def _lower_num_elements(context: Any, builder: Any, typ: FragmentType, value: Any) -> Any:
    return context.get_constant(types.intp, num_elements(typ.n))


@compiler.typing_registry.register_global(operator.getitem)
class _GetItem(compiler.AbstractTemplate):
    key = operator.getitem

    def generic(self, args: Any, kws: Any) -> Any:
        if not _is_held(args[0]):
            return None
        if not isinstance(args[1], types.IntegerLiteral):
            raise TypingError(
                f"{args[0]} lives in registers and is indexed with a literal integer: use "
                "map_coords for what depends on the element's place"
            )
        count = 2 if isinstance(args[0], RowsType) else num_elements(args[0].n)
        if not 0 <= args[1].literal_value < count:
            raise TypingError(
                f"{args[0]}[{args[1].literal_value}]: a thread holds the elements 0 to {count - 1}"
            )
        return signature(args[0].element, *args)

    prefer_literal = True


@compiler.lowering_registry.lower(operator.getitem, FragmentType, types.Any)
@compiler.lowering_registry.lower(operator.getitem, RowsType, types.Any)
@compiler.lowering_registry.lower("static_getitem", FragmentType, types.Any)
@compiler.lowering_registry.lower("static_getitem", RowsType, types.Any)
def _lower_getitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    index = args[1] if isinstance(args[1], int) else sig.args[1].literal_value
    if isinstance(sig.args[0], RowsType):
        return builder.extract_value(args[0], index)
    return elements(context, builder, sig.args[0], args[0])[index]
