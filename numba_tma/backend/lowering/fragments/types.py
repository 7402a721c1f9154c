"""Fragments in kernels: their types, their elements, and the elements' coordinates."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
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
from numba_tma.backend.lowering.elements import join_word, split_word
from numba_tma.backend.lowering.instructions import emit
from numba_tma.device.fragments import fragment
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.mma_rules import (
    check_columns,
    check_fragment,
    elements_per_run,
    num_elements,
    num_registers,
)
from numba_tma.ptx import TABLE

FLOAT = ir.FloatType()
INDEX = types.int32


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
        """Registers of a fragment in each thread."""
        return num_registers(self.n, self.dtype.itemsize)

    @property
    def run(self) -> int:
        """Neighbouring elements of a row in one thread."""
        return elements_per_run(self.dtype.itemsize)


def dtype_of(typ: types.Type, what: str) -> Any:
    """Return the value of a dtype argument: a string, or a type such as np.float32."""
    if isinstance(typ, (types.NumberClass, types.DType)):
        return as_dtype(typ.dtype)
    return compiler.static_of(typ, what)


class RowsType(types.Type):
    """The Numba type of `Rows`: a number for each of a thread's two rows."""

    def __init__(self, element: types.Type) -> None:
        self.element = element
        super().__init__(name=f"Rows({element})")


def is_held(typ: types.Type) -> bool:
    """Return whether `typ` is the type of a fragment or of rows."""
    return isinstance(typ, (FragmentType, RowsType))


@compiler.register_model(FragmentType)
class _FragmentModel(compiler.core_models.PrimitiveModel):
    """An array, which LLVM splits into registers."""

    def __init__(self, manager: Any, typ: FragmentType) -> None:
        super().__init__(manager, typ, ir.ArrayType(typ.word, typ.registers))


@compiler.register_model(RowsType)
class _RowsModel(compiler.core_models.PrimitiveModel):
    def __init__(self, manager: Any, typ: RowsType) -> None:
        element = manager.lookup(typ.element).get_value_type()
        super().__init__(manager, typ, ir.ArrayType(element, 2))


def elements(context: Context, builder: Builder, typ: FragmentType, value: Value) -> list[Any]:
    """Return a thread's elements, as kernels hold them."""
    words = unpack(builder, value)
    return [e for word in words for e in split_word(context, builder, typ.dtype, word)]


def from_elements(context: Context, builder: Builder, typ: FragmentType, values: list[Any]) -> Any:
    """Return the fragment of a thread's elements, rounded to its dtype."""
    each = len(values) // typ.registers
    return pack(
        builder,
        [
            join_word(context, builder, typ.dtype, values[i : i + each], typ.word)
            for i in range(0, len(values), each)
        ],
    )


# ------------------------------------------------------------------------- coordinates


def place(context: Context, builder: Builder, run: int) -> tuple[Any, Any]:
    """Return the row and the column of the calling thread's first element."""
    tid = emit(TABLE["tid_x"], context, builder, {})

    def bits(first: int, mask: int) -> Any:
        return builder.and_(builder.lshr(tid, ir.Constant(I32, first)), ir.Constant(I32, mask))

    row = builder.or_(bits(1, 0x30), bits(2, 7))
    return row, builder.mul(bits(0, 3), ir.Constant(I32, run))


def coordinates(context: Context, builder: Builder, typ: FragmentType) -> list[tuple[Any, Any]]:
    """Return (row, column) of each of the calling thread's elements."""
    # `moved`, since LLVM would otherwise hoist the coordinates out of a loop, at a register each.
    row, column = (moved(builder, place) for place in place(context, builder, typ.run))
    halves = [row, builder.add(row, ir.Constant(I32, 8))]
    run, found = typ.run, []
    for i in range(num_elements(typ.n)):
        right = 4 * run * (i // (2 * run)) + i % run
        found.append((halves[i // run % 2], builder.add(column, ir.Constant(I32, right))))
    return found


def moved(builder: Builder, value: Value) -> Any:
    """Return the value through a move that LLVM takes for volatile."""
    asm = ir.InlineAsm(ir.FunctionType(I32, [I32]), "mov.b32 $0, $1;", "=r,r", side_effect=True)
    return builder.call(asm, [value])


def _type_coords(self: FragmentType, i: types.Type) -> Any:
    if not isinstance(types.unliteral(i), types.Integer):
        raise TypingError(f"Fragment.coords(i=...) takes an integer, not {i}")
    return signature(types.UniTuple(INDEX, 2), self, INDEX)


def _lower_coords(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    run = sig.args[0].run
    row, column = place(context, builder, run)
    row = builder.add(row, _half(builder, run, args[1], 8))
    block = builder.udiv(args[1], ir.Constant(I32, 2 * run))
    right = builder.add(
        builder.mul(block, ir.Constant(I32, 4 * run)), builder.urem(args[1], ir.Constant(I32, run))
    )
    pair = [row, builder.add(column, right)]
    return context.make_tuple(builder, sig.return_type, pair)


def _half(builder: Builder, run: int, i: Value, apart: int) -> Any:
    half = builder.urem(builder.udiv(i, ir.Constant(I32, run)), ir.Constant(I32, 2))
    return builder.mul(half, ir.Constant(I32, apart))


def _type_row(self: RowsType, i: types.Type) -> Any:
    if not isinstance(types.unliteral(i), types.Integer):
        raise TypingError(f"Rows.coords(i=...) takes an integer, not {i}")
    return signature(INDEX, self, INDEX)


def _lower_row(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    row, _ = place(context, builder, 1)
    return builder.add(row, builder.mul(args[1], ir.Constant(I32, 8)))


def _columns(self: FragmentType, first: types.Type, n: types.Type) -> tuple[int, int]:
    numbers = (compiler.static_of(t, "Fragment.columns(first, n)") for t in (first, n))
    try:
        return check_columns(self.n, self.dtype, *numbers)
    except ValueError as error:
        raise TypingError(str(error)) from None


def _type_columns(self: FragmentType, first: types.Type, n: types.Type) -> Any:
    start, stop = _columns(self, first, n)
    return signature(FragmentType(self.dtype, 2 * (stop - start)), self, first, n)


def _lower_columns(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    whole = sig.args[0]
    start, stop = (i * whole.registers // num_elements(whole.n) for i in _columns(*sig.args))
    return pack(builder, unpack(builder, args[0])[start:stop])


# -------------------------------------------------------------------- what they offer

#: The methods that kernels can call, by the type of their object; other modules add to this.
METHODS: dict[type, dict[str, Any]] = {
    FragmentType: {
        "coords": NativeMethod("Fragment", "coords", _type_coords, _lower_coords),
        "columns": NativeMethod("Fragment", "columns", _type_columns, _lower_columns),
    },
    RowsType: {"coords": NativeMethod("Rows", "coords", _type_row, _lower_row)},
}


class _Attributes(compiler.AttributeTemplate):
    def generic_resolve(self, typ: types.Type, attr: str) -> types.Type | None:
        if attr == "num_elements" and isinstance(typ, FragmentType):
            return types.literal(num_elements(typ.n))
        method = METHODS[type(typ)].get(attr)
        return method.bind(self.context, typ) if method is not None else None


for _kind in METHODS:
    _name = f"{_kind.__name__}Attributes"
    compiler.typing_registry.register_attr(type(_name, (_Attributes,), {"key": _kind}))


@compiler.lowering_registry.lower_getattr(FragmentType, "num_elements")
def _lower_num_elements(context: Context, builder: Builder, typ: FragmentType, value: Value) -> Any:
    return context.get_constant(types.intp, num_elements(typ.n))


@compiler.typing_registry.register_global(operator.getitem)
class _FragmentItem(compiler.AbstractTemplate):
    key = operator.getitem

    def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        if not is_held(args[0]):
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


@compiler.lowering_registry.lower(operator.getitem, FragmentType, types.Any)
@compiler.lowering_registry.lower(operator.getitem, RowsType, types.Any)
@compiler.lowering_registry.lower("static_getitem", FragmentType, types.Any)
@compiler.lowering_registry.lower("static_getitem", RowsType, types.Any)
def _lower_getitem(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    index = sig.args[1].literal_value
    if isinstance(sig.args[0], RowsType):
        return builder.extract_value(args[0], index)
    return elements(context, builder, sig.args[0], args[0])[index]


# ---------------------------------------------------------------------------- fragment


def _type_fragment(n: types.Type, **given: types.Type) -> Any:
    columns = compiler.static_of(n, "fragment(n=...)")
    dtype = dtype_of(given.get("dtype", types.literal("f32")), "fragment(dtype=...)")
    try:
        found = check_fragment(columns, dtype, "fragment")
    except ValueError as error:
        raise TypingError(str(error)) from None
    return signature(FragmentType(found, columns), n, *given.values())


def _lower_fragment(
    context: Context, builder: Builder, sig: Signature, args: Sequence[Value]
) -> Any:
    # Each zero is moved to its own register, which LLVM does not see as a constant. If accumulators
    # shared a register, ptxas would assume that a product in flight may change it, and would wait.
    typ = sig.return_type
    letter = "=f" if typ.word == FLOAT else "=r"
    text = " ".join(f"mov.b32 ${i}, 0;" for i in range(typ.registers))
    results = ir.LiteralStructType([typ.word] * typ.registers)
    constraints = ",".join([letter] * typ.registers)
    asm = ir.InlineAsm(ir.FunctionType(results, []), text, constraints, side_effect=True)
    zeros = builder.call(asm, [])
    return pack(builder, [builder.extract_value(zeros, i) for i in range(typ.registers)])


compiler.instruction_function(fragment, _type_fragment, _lower_fragment)
