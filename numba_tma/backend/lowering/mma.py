"""wgmma in kernels: the compiled half of `mma`.

A call is one block of inline assembly. The accumulator's registers are operands tied to its
results, and the registers of a matrix A are operands, too. So LLVM sees the change of these
registers, and moves no write of them behind the fence, which is the block's first instruction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    get_field,
    ir,
    pack,
    signature,
    types,
    unpack,
)
from numba_tma.backend.lowering import hooks
from numba_tma.backend.lowering.fragments.types import FLOAT, FragmentType, RowsType
from numba_tma.device.matrix_descriptor import MatrixDescriptor
from numba_tma.device.mma import wgmma, wgmma_wait
from numba_tma.host.architectures import WGMMA, product_refusal
from numba_tma.host.dtypes import DType
from numba_tma.host.matrix_layout import CHUNK_BYTES, MatrixLayout
from numba_tma.host.mma_rules import (
    Product,
    RegisterOperand,
    check_pending,
    check_product,
    operand_name,
)
from numba_tma.simulator.products import SharedOperand, bytes_of

_TRUE, _FALSE = types.literal(True), types.literal(False)
_PTX = {"i8": "s8", "i32": "s32"}  #: PTX names of dtypes, where they differ


def _name(dtype: str) -> str:
    return _PTX.get(dtype, dtype)


# -------------------------------------------------------------------------- assembly


def _through(
    builder: Builder, fragments: list[Any], text: str, operands: Sequence[tuple[str, Any]] = ()
) -> list[Any]:
    """Emit instructions that change fragments; return the new fragments.

    In `text`, the registers of the fragments are ``$0`` and on. The operands, given by constraint
    and value, start at twice the number of these registers.
    """
    registers = [register for value in fragments for register in unpack(builder, value)]
    letters = ["f" if register.type == FLOAT else "r" for register in registers]
    given = [*registers, *(value for _, value in operands)]
    constraints = [
        *(f"={letter}" for letter in letters),
        *(str(i) for i in range(len(registers))),
        *(constraint for constraint, _ in operands),
        "~{memory}",
    ]
    results = ir.LiteralStructType([register.type for register in registers])
    function = ir.FunctionType(results, [value.type for value in given])
    asm = ir.InlineAsm(function, text, ",".join(constraints), side_effect=True)
    changed = builder.call(asm, given, attrs=("convergent",))
    parts = iter(range(len(registers)))
    return [
        pack(builder, [builder.extract_value(changed, next(parts)) for _ in range(f.type.count)])
        for f in fragments
    ]


# ------------------------------------------------------------------------------- wgmma


def _flag(typ: types.Type, name: str) -> bool:
    value = compiler.static_of(typ, f"wgmma({name}=...)")
    if not isinstance(value, bool):
        raise TypingError(f"wgmma({name}=...) is {value!r}: use True or False")
    return value


def _layout(typ: types.Type, name: str, or_else: str = "") -> MatrixLayout:
    if isinstance(typ, ObjectType) and typ.cls is MatrixDescriptor:
        return typ.static[0]
    raise TypingError(
        f"wgmma({name}=...) takes a matrix descriptor (tile.matrix_descriptor()){or_else}, not "
        f"{typ}"
    )


def _operand_a(typ: types.Type) -> MatrixLayout | RegisterOperand:
    if isinstance(typ, FragmentType):
        return RegisterOperand(typ.dtype, typ.n)
    return _layout(typ, "a", " or a fragment")


def _product(acc: types.Type, a: types.Type, b: types.Type, given: dict[str, Any]) -> Product:
    """Return the product that a call computes, from the types of its arguments."""
    k_steps = given.get("k_steps", types.none)
    try:
        return check_product(
            *(acc.dtype, acc.n, _operand_a(a), _layout(b, "b")),
            negates=any(_flag(given.get(f"negate_{x}", _FALSE), f"negate_{x}") for x in "ab"),
            k_steps=None
            if k_steps is types.none
            else compiler.static_of(k_steps, "wgmma(k_steps=...)"),
        )
    except ValueError as error:
        raise TypingError(str(error)) from None


def _type_wgmma(acc: types.Type, a: types.Type, b: types.Type, **given: types.Type) -> Any:
    if error := product_refusal("wgmma()", WGMMA, compiler.compile_target()):
        raise TypingError(error)
    if not isinstance(acc, FragmentType):
        raise TypingError(f"wgmma(acc=...) takes a fragment, not {acc}")
    _product(acc, a, b, given)
    for name in ("fence", "commit"):
        _flag(given.get(name, _TRUE), name)
    scale_d = given.get("scale_d", _TRUE)
    if not isinstance(types.unliteral(scale_d), types.Boolean):
        raise TypingError(f"wgmma(scale_d=...) takes a bool, not {scale_d}")
    return signature(acc, acc, a, b, *given.values())


def _lower_wgmma(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    names = list(sig.pysig.parameters)
    acc, a, b = sig.args[:3]
    given = dict(zip(names[3:], sig.args[3:]))
    product = _product(acc, a, b, given)
    first = 2 * acc.registers  # the first operand that is not tied
    operands: list[tuple[str, Any]] = []

    def operand(constraint: str, value: Any) -> str:
        operands.append((constraint, value))
        return f"${first + len(operands) - 1}"

    words = [operand("r", word) for word in unpack(builder, args[1])] if _in_registers(a) else []
    lines = ["wgmma.fence.sync.aligned;"] if _flag(given.get("fence", _TRUE), "fence") else []
    scale_d = given.get("scale_d", _TRUE)
    if isinstance(scale_d, types.BooleanLiteral):
        lines.append(f"setp.{'eq' if scale_d.literal_value else 'ne'}.u32 p, 0, 0;")
    else:
        flag = builder.zext(args[names.index("scale_d")], I32)
        lines.append(f"setp.ne.u32 p, {operand('r', flag)}, 0;")
    _tell_operands(context, builder, product, sig.args[1:], args[1:])
    registers = ", ".join(f"${i}" for i in range(acc.registers))
    for step in range(product.k_steps):
        if words:
            a_text = f"{{{', '.join(words[4 * step : 4 * step + 4])}}}"
        else:
            a_text = operand("l", _descriptor(builder, a, args[1], step))
        b_text = operand("l", _descriptor(builder, b, args[2], step))
        every = [f"{{{registers}}}", a_text, b_text, "p", *_modifiers(product, a, b, given)]
        lines.append(f"{_instruction(product, acc, a, b)} {', '.join(every)};")
        if step == 0 and scale_d != _TRUE:
            lines.append("setp.eq.u32 p, 0, 0;")
    if _flag(given.get("commit", _TRUE), "commit"):
        lines.append("wgmma.commit_group.sync.aligned;")
        for hook in hooks.GROUPS:
            hook(context, builder, None)
    text = f"{{ .reg .pred p; {' '.join(lines)} }}"
    return _through(builder, [args[0]], text, operands)[0]


def _tell_operands(
    context: Context,
    builder: Builder,
    product: Product,
    kinds: Sequence[types.Type],
    values: Sequence[Value],
) -> None:
    """Tell debug mode of the shared memory that a product reads."""
    for typ, value, rows in zip(kinds, values, (64, product.n)):
        for hook in hooks.OPERANDS:
            if not _in_registers(typ):
                operand = SharedOperand(typ.static[0].descriptor(0), typ.static[0])
                runs = bytes_of(operand, rows, product.k_steps).runs
                hook(context, builder, runs, get_field(builder, typ, value, "lo"))


def _in_registers(a: types.Type) -> bool:
    return isinstance(a, FragmentType)


def _dtype(operand: types.Type) -> DType:
    dtype: DType = operand.dtype if _in_registers(operand) else operand.static[0].tile.dtype
    return dtype


def _instruction(product: Product, acc: FragmentType, a: types.Type, b: types.Type) -> str:
    operands = ".".join(_name(operand_name(_dtype(x))) for x in (a, b))
    shape = f"m64n{product.n}k{product.k_per_step}"
    return f"wgmma.mma_async.sync.aligned.{shape}.{_name(acc.dtype.name)}.{operands}"


def _modifiers(product: Product, a: types.Type, b: types.Type, given: types.Type) -> list[str]:
    """Return the modifiers after scale-d: negations, and transpositions of shared operands."""
    texts = []
    if product.form.negates:
        negated = (_flag(given.get(f"negate_{x}", _FALSE), f"negate_{x}") for x in "ab")
        texts += ["-1" if flag else "1" for flag in negated]
    if product.form.transposes:
        layouts = [x.static[0] for x in (a, b) if not _in_registers(x)]
        texts += [str(int(layout.major == "MN")) for layout in layouts]
    return texts


def _descriptor(builder: Builder, typ: types.Type, value: Value, step: int) -> Any:
    """Return the 64 bits of a descriptor, advanced by `step` steps along K."""
    chunks = typ.static[0].offset(step) // CHUNK_BYTES
    low = builder.add(get_field(builder, typ, value, "lo"), ir.Constant(I32, chunks))
    high = builder.zext(get_field(builder, typ, value, "hi"), I64)
    return builder.or_(builder.zext(low, I64), builder.shl(high, ir.Constant(I64, 32)))


compiler.instruction_function(wgmma, _type_wgmma, _lower_wgmma)


# -------------------------------------------------------------------------------- wait


#: The bits of a NaN that no arithmetic produces.
_NEVER = 0x7FC0DEAD


def _type_wait(fragments: types.Type, **given: types.Type) -> Any:
    every = list(fragments) if isinstance(fragments, types.BaseTuple) else [fragments]
    if not every or not all(isinstance(f, FragmentType) for f in every):
        raise TypingError(
            f"wgmma_wait(fragments=...) takes a fragment or a tuple of fragments, not {fragments}"
        )
    try:
        check_pending(_pending(given))
    except ValueError as error:
        raise TypingError(str(error)) from None
    after = given.get("after", types.none)
    if after is not types.none and after != RowsType(types.float32):
        raise TypingError(f"wgmma_wait(after=...) takes rows of float32, not {after}")
    return signature(fragments, fragments, *given.values())


def _pending(given: Mapping[str, types.Type]) -> Any:
    if "pending" not in given:
        return 0
    return compiler.static_of(given["pending"], "wgmma_wait(pending=...)")


def _lower_wait(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Any:
    given = dict(zip(sig.pysig.parameters, zip(sig.args, args)))
    pending = _pending({name: typ for name, (typ, _) in given.items()})
    several = isinstance(sig.args[0], types.BaseTuple)
    parts = range(len(sig.args[0])) if several else ()
    values = [builder.extract_value(args[0], i) for i in parts] or [args[0]]
    typ, rows = given.get("after", (types.none, None))
    numbers = unpack(builder, rows) if typ is not types.none else []
    # ptxas moves a wait up past all arithmetic, but not past a trap.
    first = 2 * sum(value.type.count for value in values)
    places = [f"${first + i}" for i in range(len(numbers))]
    lines = [f"setp.eq.b32 p, {place}, {_NEVER:#x}; @p trap;" for place in places]
    text = f"wgmma.wait_group.sync.aligned {pending};"
    if lines:
        text = f"{{ .reg .pred p; {' '.join(lines)} {text} }}"
    bits = [("r", builder.bitcast(number, I32)) for number in numbers]
    for hook in hooks.BEFORE_WAITS:
        hook(context, builder)
    waited = _through(builder, values, text, bits)
    for hook in hooks.GROUPS:
        hook(context, builder, pending)
    return context.make_tuple(builder, sig.return_type, waited) if several else waited[0]


compiler.instruction_function(wgmma_wait, _type_wait, _lower_wait)
