"""mma.sync with fragments in kernels: the compiled half of `warp_products`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import (
    I32,
    Builder,
    Context,
    Signature,
    TypingError,
    Value,
    get_field,
    ir,
    pack,
    signature,
    types,
    unpack,
)
from numba_tma.backend.lowering.fragments.types import dtype_of
from numba_tma.backend.lowering.instructions import emit
from numba_tma.backend.lowering.shared import mark_used
from numba_tma.device.warp_products import load_part, mma_sync, zero_part
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.mma_rules import operand_name
from numba_tma.host.warp_rules import PartLayout, WarpForm, WarpPart, check_warp_product
from numba_tma.ptx import TABLE

U32 = types.uint32
_K = types.literal("K")
_PTX = {"i8": "s8"}  #: PTX names of dtypes, where they differ


class OperandPartType(types.Type):
    """The Numba type of an `OperandPart`: registers of 32 bits."""

    def __init__(self, part: WarpPart) -> None:
        self.part = part
        super().__init__(name=f"OperandPart({part.side}, {part.rows} x 32 B, {part.dtype})")


@compiler.register_model(OperandPartType)
class _OperandPartModel(compiler.core_models.PrimitiveModel):
    """An array, which LLVM splits into registers."""

    def __init__(self, manager: Any, typ: OperandPartType) -> None:
        super().__init__(manager, typ, ir.ArrayType(I32, typ.part.registers))


class _Word:
    """A 32-bit value with the operators that `PartLayout.lane_offset` uses."""

    def __init__(self, builder: Builder, value: Any) -> None:
        self.builder, self.value = builder, value

    def _apply(self, operation: str, other: Any) -> _Word:
        operand = other.value if isinstance(other, _Word) else ir.Constant(I32, other)
        return _Word(self.builder, getattr(self.builder, operation)(self.value, operand))

    def __and__(self, other: Any) -> _Word:
        return self._apply("and_", other)

    def __or__(self, other: Any) -> _Word:
        return self._apply("or_", other)

    def __xor__(self, other: Any) -> _Word:
        return self._apply("xor", other)

    def __rshift__(self, other: Any) -> _Word:
        return self._apply("lshr", other)

    def __add__(self, other: Any) -> _Word:
        return self._apply("add", other)

    def __mul__(self, other: Any) -> _Word:
        return self._apply("mul", other)


# --------------------------------------------------------------------------------- load


def _layout(given: dict[str, types.Type]) -> tuple[PartLayout, int]:
    """Return the layout of the part that a call loads, and the step along K."""
    tile = given["tile"].static[0]
    side, rows, k_step = (
        compiler.static_of(given[name], f"load_part({name}=...)")
        for name in ("side", "rows", "k_step")
    )
    major = compiler.static_of(given.get("major", _K), "load_part(major=...)")
    try:
        layout = PartLayout(WarpPart(side, tile.dtype, rows), tile, major)
        return layout, layout.check_step(k_step)
    except ValueError as error:
        raise TypingError(str(error)) from None


def _type_load(
    side: types.Type,
    tile: types.Type,
    row: types.Type,
    rows: types.Type,
    k_step: types.Type,
    **major: types.Type,
) -> Any:
    given = {"side": side, "tile": tile, "row": row, "rows": rows, "k_step": k_step, **major}
    layout, _ = _layout(given)
    typ = OperandPartType(layout.part)
    return signature(typ, side, tile, U32, rows, k_step, *major.values())


def _lower_load(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    given = dict(zip(sig.pysig.parameters, sig.args))
    layout, step = _layout(given)
    tid = _Word(builder, emit(TABLE["tid_x"], context, builder, {}))
    offset = layout.lane_offset(tid & 31, (tid >> 5) & 3)
    unit = layout.row_unit.bit_length() - 1
    row = (_Word(builder, args[2]) >> unit) * layout.unit_nbytes
    start = row + _Word(builder, get_field(builder, sig.args[1], args[1], "address"))
    transposed = {"trans": (types.literal("trans"), None)} if layout.major == "MN" else {}
    words: list[Any] = []
    for group in range(layout.part.groups):
        turn, apart = layout.moves(group, step)
        address = (offset ^ turn) + start + apart
        operands = {"row": (U32, address.value), **transposed}
        loaded = emit(TABLE["ldmatrix_x4"], context, builder, operands)
        words += [builder.extract_value(loaded, i) for i in range(4)]
    mark_used(builder, sig.args[1], args[1])
    return pack(builder, words)


compiler.instruction_function(load_part, _type_load, _lower_load)


def _type_zero(side: types.Type, dtype: types.Type, rows: types.Type) -> Any:
    found = dtype_of(dtype, "zero_part(dtype=...)")
    numbers = (compiler.static_of(t, "zero_part(side, rows)") for t in (side, rows))
    which, count = numbers
    try:
        part = WarpPart(which, as_dtype(found), count)
    except (TypeError, ValueError) as error:
        raise TypingError(str(error)) from None
    return signature(OperandPartType(part), side, dtype, rows)


def _lower_zero(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    return pack(builder, [ir.Constant(I32, 0)] * sig.return_type.part.registers)


compiler.instruction_function(zero_part, _type_zero, _lower_zero)


# ------------------------------------------------------------------------------ multiply


def _form(sums: types.Type, a: types.Type, b: types.Type) -> WarpForm:
    try:
        return check_warp_product(sums[0].dtype, sums[0].n, a.part, b.part)
    except ValueError as error:
        raise TypingError(str(error)) from None


def _type_mma(sums: types.Type, a: types.Type, b: types.Type) -> Any:
    form = _form(sums, a, b)
    compiler.require_targets("mma_sync()", TABLE[form.row].targets)
    return signature(sums, sums, a, b)


def _lower_mma(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    sums, a, b = sig.args
    row = TABLE[_form(sums, a, b).row]
    names = [operand_name(typ.part.dtype) for typ in (a, b)]
    choices = dict(zip(row.choices, (_PTX.get(name, name) for name in names)))
    literals = {name: (types.literal(choice), None) for name, choice in choices.items()}
    a_words, b_words = unpack(builder, args[1]), unpack(builder, args[2])
    element = sums[0].element
    held = [unpack(builder, builder.extract_value(args[0], i)) for i in range(len(sums))]

    def vector(typ: types.Type, values: list[Any]) -> tuple[types.Type, Any]:
        kind = types.UniTuple(typ, len(values))
        return kind, context.make_tuple(builder, kind, values)

    for column in range(len(b_words) // 2):
        right = vector(U32, b_words[2 * column : 2 * column + 2])
        for block, words in enumerate(held):
            part = slice(4 * column, 4 * column + 4)
            operands = {
                "a": vector(U32, a_words[4 * block : 4 * block + 4]),
                "b": right,
                "c": vector(element, words[part]),
                **literals,
            }
            added = emit(row, context, builder, operands)
            words[part] = [builder.extract_value(added, i) for i in range(4)]
    results = [pack(builder, words) for words in held]
    return context.make_tuple(builder, sig.return_type, results)


compiler.instruction_function(mma_sync, _type_mma, _lower_mma)
