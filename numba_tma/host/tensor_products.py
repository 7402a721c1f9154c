"""The instructions of a `tcgen05_mma` or `tcgen05_copy`, which compiler and simulator execute.

`host.tcgen05_rules` decides what is legal. This module applies it to tiles, and says where each
step along K begins.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.host.matrix_layout import STEP_BYTES, MatrixLayout
from numba_tma.host.tcgen05_rules import (
    ScaleFactors,
    TensorMemoryOperand,
    TensorProduct,
    check_product,
)
from numba_tma.host.tensor_tiles import (
    CELL_BITS,
    Accumulator,
    TensorLayout,
    TensorOperand,
    TensorScales,
)

#: Columns of an operand A in tensor memory that one instruction reads.
STEP_COLUMNS = 8 * STEP_BYTES // CELL_BITS

Scales = tuple[TensorScales, TensorScales]


@dataclass(frozen=True)
class ProductStep:
    """One instruction: its descriptor, and where its operands begin, from the tiles' starts."""

    idesc: int
    a: int  #: bytes in shared memory, or columns in tensor memory
    b: int  #: bytes
    scale_a: int = 0  #: columns
    scale_b: int = 0


@dataclass(frozen=True)
class TensorProductCall:
    """The instructions of one call of `tcgen05_mma`: all of one row of the instruction table."""

    product: TensorProduct
    steps: tuple[ProductStep, ...]
    row: str  #: name of the row
    kind: str  #: the row's operand

    @property
    def scaled(self) -> bool:
        """Whether the operands have scale factors."""
        return self.product.block is not None


def product_call(
    accumulator: TensorLayout,
    a: MatrixLayout | TensorLayout,
    b: MatrixLayout,
    scales: Scales | None = None,
    *,
    negate_a: bool = False,
    negate_b: bool = False,
    k_steps: int | None = None,
    scale_input_d: int | None = None,
) -> TensorProductCall:
    """Return the instructions of one product, or raise a ValueError that lists what is legal.

    Parameters
    ----------
    accumulator, a, b
        The tiles. An operand in shared memory is one as tcgen05 reads it.
    scales
        Those of A and of B.
    negate_a, negate_b
        Whether an operand changes its sign.
    k_steps
        Instructions along K; None for as many as the operands have.
    scale_input_d
        The power of 2 that divides the accumulator first; None for no division.
    """
    if not isinstance(accumulator, Accumulator):
        raise ValueError(
            f"tcgen05_mma: accumulator is {accumulator}; use tmem.tile(m, n), or stage.accumulator"
        )
    group = accumulator.cta_group
    left = a if isinstance(a, MatrixLayout) else _in_tensor_memory(a, accumulator)
    factors = _scale_factors(scales) if scales else None
    product = check_product(
        accumulator.dtype,
        accumulator.m,
        accumulator.n,
        left,
        b,
        cta_group=group,
        scales=factors,
        negate_a=negate_a,
        negate_b=negate_b,
        k_steps=k_steps,
    )
    if scale_input_d is not None and product.kind not in ("f16", "tf32"):
        raise ValueError(
            f"tcgen05_mma: scale_input_d is {scale_input_d}; only kinds f16 and tf32 divide their "
            f"accumulator, and this product is of kind {product.kind}: leave it out"
        )
    if scales:
        _check_scales("a_scale", scales[0], product, product.m // group)
        _check_scales("b_scale", scales[1], product, product.n)
    return TensorProductCall(
        product,
        tuple(_step(product, left, b, scales, i) for i in range(product.k_steps)),
        f"tcgen05_mma{'_block_scaled' if scales else ''}{'' if left is a else '_tmem'}",
        f"{product.kind}.block_scale.{product.block}" if scales else product.kind,
    )


def _in_tensor_memory(a: TensorLayout, accumulator: Accumulator) -> TensorMemoryOperand:
    if not isinstance(a, TensorOperand):
        raise ValueError(
            f"tcgen05_mma: a is {a}; an operand in tensor memory is tmem.operand(m, k, dtype), or "
            "tile.operand(k, dtype) in an accumulator's columns"
        )
    if (a.m, a.cta_group) != (accumulator.m, accumulator.cta_group):
        raise ValueError(
            f"tcgen05_mma: a is {a} and the accumulator is {accumulator}: in tensor memory both "
            "have the same rows"
        )
    return TensorMemoryOperand(a.dtype, a.m // a.cta_group, a.k)


def _scale_factors(scales: Scales) -> ScaleFactors:
    kinds = [(each.dtype.name, each.block) for each in scales]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"tcgen05_mma: a_scale is {scales[0]} and b_scale is {scales[1]}: both operands have "
            "one type of scale factors, for one number of elements"
        )
    return ScaleFactors(*kinds[0])


def _check_scales(name: str, scales: TensorScales, product: TensorProduct, rows: int) -> None:
    k = product.k_steps * product.k
    if scales.rows < rows or scales.k < k or scales.cta_group != product.cta_group:
        raise ValueError(
            f"tcgen05_mma: {name} is {scales}; the product takes factors of {rows} rows x {k} "
            f"elements, with cta_group {product.cta_group}: use scale_tile({rows}, {k}, ...)"
        )


def _step(
    product: TensorProduct,
    a: MatrixLayout | TensorMemoryOperand,
    b: MatrixLayout,
    scales: Scales | None,
    i: int,
) -> ProductStep:
    first = [0, 0]
    if scales:
        atom = i // product.steps_per_atom
        first = [atom * each.source.columns for each in scales]
    start = a.offset(i) if isinstance(a, MatrixLayout) else i * STEP_COLUMNS
    return ProductStep(product.idesc_of(i), start, b.offset(i), *first)


def check_copy(scales: TensorLayout, tile: TensorScales | None, shown: object) -> TensorScales:
    """Return the scale factors that a copy fills, or raise a ValueError.

    `tile` is what a tile in shared memory holds, and `shown` is the tile.
    """
    if not isinstance(scales, TensorScales):
        raise ValueError(f"tcgen05_copy: scales is {scales}; use tmem.scales(tile)")
    if tile != scales:
        raise ValueError(
            f"tcgen05_copy: the tile is {shown}, and the columns are for {scales}: use "
            "tmem.scales(tile) of this tile"
        )
    return scales
