"""What tcgen05.mma multiplies: kinds, types, shapes, majors, scale factors, steps of K.

`check_product` turns an accumulator and two operands into the instructions of their product, or
says what is legal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Swizzle
from numba_tma.host.matrix_layout import MatrixLayout
from numba_tma.host.mma_rules import operand_name
from numba_tma.host.scale_factors import ATOM_ROWS, ATOM_SCALES
from numba_tma.host.scale_layout import ATOM_COLUMNS
from numba_tma.host.tcgen05_descriptor import InstructionDescriptor, instruction_descriptor

_BYTES = ("e4m3", "e5m2")
_NARROW = (*_BYTES, "e3m2", "e2m3", "e2m1_unpacked")


@dataclass(frozen=True)
class ScaleFactors:
    """One way to scale operands: a factor of type `dtype` for `block` elements along K."""

    dtype: str
    block: int

    def __str__(self) -> str:
        return f"a {self.dtype} for {self.block} elements"


@dataclass(frozen=True)
class ProductForm:
    """Types that one kind of tcgen05.mma multiplies in any mix, with their accumulators."""

    kind: str
    operands: tuple[str, ...]
    accumulators: tuple[str, ...]
    k: int  #: of a dense instruction; a sparse one has twice as many
    mn_major: tuple[str, ...] = ()  #: operands that can be MN-major
    scales: tuple[ScaleFactors, ...] = ()
    negates: bool = True

    def __str__(self) -> str:
        scales = f", {' or '.join(map(str, self.scales))}" if self.scales else ""
        return (
            f"{self.kind}: {', '.join(self.operands)} -> {' or '.join(self.accumulators)} "
            f"(K {self.k}{scales})"
        )


#: The one table of legal products. A tile of f32 counts as tf32, whose 13 further bits are dropped.
FORMS = (
    ProductForm("f16", ("f16",), ("f16", "f32"), 16, mn_major=("f16",)),
    ProductForm("f16", ("bf16",), ("f32",), 16, mn_major=("bf16",)),
    ProductForm("tf32", ("tf32",), ("f32",), 8, mn_major=("tf32",)),
    ProductForm("f8f6f4", _NARROW, ("f16", "f32"), 32, mn_major=_BYTES),
    ProductForm("i8", ("i8", "u8"), ("i32",), 32, mn_major=("i8", "u8"), negates=False),
    ProductForm("mxf8f6f4", _NARROW, ("f32",), 32, _BYTES, (ScaleFactors("ue8m0", 32),)),
    ProductForm("mxf4", ("e2m1",), ("f32",), 64, scales=(ScaleFactors("ue8m0", 32),)),
    ProductForm(
        "mxf4nvf4", ("e2m1",), ("f32",), 64,
        scales=(ScaleFactors("ue4m3", 16), ScaleFactors("ue8m0", 16)),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class TensorMemoryOperand:
    """A matrix A in tensor memory: `rows` lanes of `k` elements, K-major, in cells of 32 bits."""

    dtype: DType
    rows: int
    k: int
    major = "K"


@dataclass(frozen=True)
class TensorProduct:
    """The instructions of one product: `k_steps` of one form, each of `k` elements along K.

    Parameters
    ----------
    kind
        As PTX has it.
    m, n, k
        Shape of one instruction: of both blocks, with `cta_group` 2.
    k_steps
        Instructions that cover K.
    cta_group, ws, sparse
        Which form of the instruction.
    description
        What the instruction descriptor says, of the first step.
    block
        ``"block16"`` or ``"block32"`` of a scaled kind; None of the others.
    """

    kind: str
    m: int
    n: int
    k: int
    k_steps: int
    cta_group: int
    ws: bool
    sparse: bool
    description: InstructionDescriptor
    block: str | None = None

    @property
    def idesc(self) -> int:
        """The instruction descriptor of the first step, and of all steps without scale factors."""
        return instruction_descriptor(self.description)

    def idesc_of(self, step: int) -> int:
        """Return the instruction descriptor of a step: it selects the step's scale factors."""
        first = step % self.steps_per_atom * self.scales_per_step if self.block else 0
        wide = self.sparse and self.kind in ("f16", "tf32")
        return instruction_descriptor(
            replace(
                self.description,
                scale_a_id=first,
                scale_b_id=first,
                selector=step % 2 if wide else 0,
            )
        )

    @property
    def b_steps(self) -> int:
        """Steps of B's `MatrixLayout` in one instruction: a sparse A stores half of its K."""
        return 2 if self.sparse else 1

    @property
    def columns(self) -> int:
        """Columns of tensor memory that the accumulator has in each block."""
        folded = {(2, 128): 1 if self.sparse else 2}.get((self.cta_group, self.m), 1)
        if self.ws:
            folded = 128 // self.m
        return self.n // folded

    @property
    def scales_per_step(self) -> int:
        """Scale factors of a row that one instruction reads."""
        return self.k // int(self.block.removeprefix("block")) if self.block else 0

    @property
    def steps_per_atom(self) -> int:
        """Instructions that one atom of scale factors serves."""
        return ATOM_SCALES // self.scales_per_step

    @property
    def scale_columns(self) -> tuple[int, int]:
        """Columns of tensor memory that the atoms of A and of B have, for each atom along K.

        The rows of A are those of the block; the rows of B are all N, in both blocks of a pair.
        """
        rows = self.m // self.cta_group, self.n
        a, b = (-(-count // ATOM_ROWS) * ATOM_COLUMNS for count in rows)
        return a, b

    def scale_offsets(self, step: int) -> tuple[int, int]:
        """Return the first columns of the scale factors of A and B that a step reads.

        They count from the first atom's. Atoms of one part of K stand side by side.
        """
        atom = step // self.steps_per_atom
        a, b = self.scale_columns
        return atom * a, atom * b


# ------------------------------------------------------------------------------ shapes


def legal_m(form: ProductForm, cta_group: int, ws: bool, sparse: bool) -> tuple[int, ...]:
    """Return the M that an instruction can have."""
    if ws:
        return () if form.scales else (32, 64, 128)
    if cta_group == 2:
        return (256,) if form.scales else (128, 256)
    return (128,) if form.scales else (64, 128)


def legal_n(
    form: ProductForm, m: int, cta_group: int, ws: bool, sparse: bool, step: int = 8
) -> tuple[int, ...]:
    """Return the N that an instruction can have.

    `step` is what the operands require besides: 16 or 32 for B of 8 bits that is MN-major, 32 for
    a pair's A in tensor memory. N % 16 = 8 with M = 128 is left out: PTX allows it, and CUTLASS and
    DeepGEMM do not.
    """
    if ws:
        return (64, 128) if sparse else (64, 128, 256)
    step = max(step, 16 if m != 64 or cta_group == 2 else 8)
    if form.kind == "i8":
        if cta_group == 2:
            return tuple(range(32, 257, 32))
        every = (8, 16, 24, 32, *range(48, 257, 16))
        return tuple(n for n in every if n % step == 0)
    return tuple(range(step, 257, step))


def legal_products() -> str:
    """List what tcgen05.mma multiplies."""
    return f"tcgen05.mma multiplies {'; '.join(map(str, FORMS))}"


def find_form(a: str, b: str, accumulator: str, scales: ScaleFactors | None = None) -> ProductForm:
    """Return the form that multiplies two types, or raise a ValueError that lists all forms."""
    for form in FORMS:
        if {a, b} <= set(form.operands) and accumulator in form.accumulators:
            if (scales in form.scales) if scales else not form.scales:
                return form
    scaled = f" with {scales}" if scales else ""
    repair = ""
    if scales is None and "e2m1" in (a, b):
        repair = ' Packed e2m1 needs scale factors; without them use "e2m1_unpacked".'
    raise ValueError(
        f"tcgen05.mma: there is no {a} x {b} -> {accumulator}{scaled}.{repair} {legal_products()}"
    )


# ---------------------------------------------------------------------------- products


def check_product(
    accumulator: DType,
    m: int,
    n: int,
    a: MatrixLayout | TensorMemoryOperand,
    b: MatrixLayout,
    *,
    cta_group: int = 1,
    ws: bool = False,
    sparse: bool = False,
    scales: ScaleFactors | None = None,
    negate_a: bool = False,
    negate_b: bool = False,
    saturate: bool = False,
    k_steps: int | None = None,
) -> TensorProduct:
    """Return the instructions that multiply two operands into an m x n accumulator, or raise.

    Parameters
    ----------
    accumulator
        Element type of D.
    m, n
        Shape of D; with `cta_group` 2 that of both blocks, of which each has m / 2 rows.
    a, b
        The operands of this block. With `cta_group` 2 each block has m / 2 rows of A and n / 2 of
        B. `a` is in shared or in tensor memory. A sparse `a` has the half of K that is stored.
    cta_group
        1, or 2 for a pair of blocks.
    ws
        The form whose B stays in the tensor cores (weight stationary).
    sparse
        Whether A is sparse.
    scales
        Type and block of the scale factors of both operands; None without.
    negate_a, negate_b
        Whether an operand changes its sign.
    saturate
        Whether sums of integers stop at the ends of i32.
    k_steps
        Instructions along K; None for as many as the operands have.

    Raises
    ------
    ValueError
        When there is no such product. The message names the argument and lists what is legal.
    """
    a_dtype = a.dtype if isinstance(a, TensorMemoryOperand) else a.tile.dtype
    names = operand_name(a_dtype), operand_name(b.tile.dtype)
    form = find_form(*names, accumulator.name, scales)
    _check_variant(form, cta_group, ws, negate_a or negate_b, saturate)
    legal = legal_m(form, cta_group, ws, sparse)
    group = f"kind {form.kind}{', ws' if ws else ''}, cta_group {cta_group}"
    if m not in legal:
        raise ValueError(f"tcgen05.mma: m is {m}; with {group} it is {_either(legal)}")
    for what, major, name in (("a", a.major, names[0]), ("b", b.major, names[1])):
        if major == "MN" and name not in form.mn_major:
            raise ValueError(
                f"tcgen05.mma: {what} is MN-major, and {name} of kind {form.kind} is K-major only: "
                f"use a tile with K innermost{_or_types(form)}"
            )
    if sparse and b.major == "K" and b.steps_per_slab == 1 and b.tile.swizzle is not Swizzle.NONE:
        raise ValueError(
            f"tcgen05.mma: b is {b.tile}, whose swizzle has rows of 32 B; with a sparse A an "
            "instruction reads 64 B of each row of B: use a swizzle of 64 or 128 B"
        )
    legal = legal_n(form, m, cta_group, ws, sparse, _n_step(a, b, names[1], cta_group))
    if n not in legal:
        raise ValueError(
            f"tcgen05.mma: n is {n}; with {group}, m {m}{_because(a, b, names[1], cta_group)} it "
            f"is {_either(legal)}"
        )
    _check_rows("a", a, m, cta_group)
    _check_rows("b", b, n, cta_group)
    k = form.k * (2 if sparse else 1)
    formats = [name.removesuffix("_unpacked") for name in names]
    description = InstructionDescriptor(
        form.kind, m, n, formats[0], formats[1], accumulator.name,
        a_major=a.major, b_major=b.major, negate_a=negate_a, negate_b=negate_b, sparse=sparse,
        saturate=saturate, scale_type=scales.dtype if scales else None,
    )  # fmt: skip
    return TensorProduct(
        form.kind, m, n, k, _k_steps(a, b, k, sparse, k_steps), cta_group, ws, sparse, description,
        f"block{scales.block}" if scales else None,
    )  # fmt: skip


def _check_variant(
    form: ProductForm, cta_group: int, ws: bool, negates: bool, saturate: bool
) -> None:
    if cta_group not in (1, 2):
        raise ValueError(
            f"tcgen05.mma: cta_group is {cta_group!r}; use 1, or 2 for a pair of blocks"
        )
    if ws and (cta_group == 2 or form.scales):
        with_ = "cta_group 2" if cta_group == 2 else f"kind {form.kind}"
        raise ValueError(
            f"tcgen05.mma: ws does not go with {with_}: leave ws out, or use cta_group 1 and "
            "operands without scale factors"
        )
    if negates and not form.negates:
        raise ValueError(
            f"tcgen05.mma: kind {form.kind} negates no operand: subtract the product later"
        )
    if saturate and form.kind != "i8":
        raise ValueError(
            f"tcgen05.mma: saturate is for integers, and the kind is {form.kind}: leave it out"
        )


def _n_step(
    a: MatrixLayout | TensorMemoryOperand, b: MatrixLayout, b_name: str, cta_group: int
) -> int:
    """Return the step of N that the operands require."""
    narrow = _is_narrow(b, b_name)
    if cta_group == 2:
        return 32 if narrow or isinstance(a, TensorMemoryOperand) else 16
    return 16 if narrow else 8


def _is_narrow(b: MatrixLayout, b_name: str) -> bool:
    """Return whether b has elements of 8 bits and is MN-major."""
    return b.major == "MN" and b_name in (*_BYTES, "i8", "u8")


def _because(
    a: MatrixLayout | TensorMemoryOperand, b: MatrixLayout, b_name: str, cta_group: int
) -> str:
    if _n_step(a, b, b_name, cta_group) <= 8 * cta_group:
        return ""
    if _is_narrow(b, b_name):
        return f", b of {b_name} MN-major"
    return ", a in tensor memory"


def _check_rows(
    what: str, operand: MatrixLayout | TensorMemoryOperand, extent: int, cta_group: int
) -> None:
    needed, axis = extent // cta_group, "m" if what == "a" else "n"
    if operand.rows < needed:
        shown = operand.tile if isinstance(operand, MatrixLayout) else "in tensor memory"
        of_block = f"; each block of a pair has {axis} / 2" if cta_group == 2 else ""
        raise ValueError(
            f"tcgen05.mma: {what} is {shown} with {operand.rows} rows, and {axis} is "
            f"{extent}{of_block}: use an operand of {needed} rows"
        )


def _k_steps(
    a: MatrixLayout | TensorMemoryOperand,
    b: MatrixLayout,
    k: int,
    sparse: bool,
    given: int | None,
) -> int:
    a_k = a.k * (2 if sparse else 1)
    stored = " (twice the stored half)" if sparse else ""
    if given is None:
        if a_k != b.k or b.k % k:
            raise ValueError(
                f"tcgen05.mma: a has K {a_k}{stored} and b has K {b.k}: use operands of one K, a "
                f"multiple of {k}, or say k_steps"
            )
        return b.k // k
    most = min(a_k, b.k) // k
    if not 1 <= given <= most:
        raise ValueError(
            f"tcgen05.mma: k_steps is {given}; a has K {a_k}{stored} and b has K {b.k}, {most} "
            f"steps of {k}: use 1 to {most}"
        )
    return given


def _or_types(form: ProductForm) -> str:
    return f", or {' or '.join(form.mn_major)}" if form.mn_major else ""


def _either(values: tuple[int, ...]) -> str:
    """Return numbers as a text, a long row of equal distances as its ends and its step."""
    if len(values) > 4 and len({y - x for x, y in zip(values, values[1:])}) == 1:
        return f"{values[0]} to {values[-1]} in steps of {values[1] - values[0]}"
    return " or ".join(map(str, values))
