"""The instructions of a `tcgen05_mma` or `tcgen05_copy`, which compiler and simulator execute.

`host.tcgen05_rules` decides what is legal. This module applies it to tiles, and says where each
step along K begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile
from numba_tma.host.matrix_layout import MatrixLayout
from numba_tma.host.scale_layout import COPY_SHAPE as SCALE_COPY
from numba_tma.host.sparse_metadata import COPIED_COLUMNS, metadata_tile, step_columns
from numba_tma.host.sparse_metadata import COPY_SHAPE as METADATA_COPY
from numba_tma.host.tcgen05_rules import (
    ScaleFactors,
    TensorMemoryOperand,
    TensorProduct,
    check_product,
)
from numba_tma.host.tensor_tiles import (
    CELL_BITS,
    LANES,
    Accumulator,
    TensorLayout,
    TensorMetadata,
    TensorOperand,
    TensorScales,
    tensor_scales,
)
from numba_tma.host.warpgroup import STEP_BYTES

#: Columns of an operand A in tensor memory that one instruction reads.
STEP_COLUMNS = 8 * STEP_BYTES // CELL_BITS
#: Bytes in shared memory of one copy of metadata.
METADATA_BYTES = LANES * COPIED_COLUMNS * CELL_BITS // 8

Scales = tuple[TensorScales, TensorScales]


@dataclass(frozen=True)
class ProductStep:
    """One instruction: its descriptor, and where its operands begin, from the tiles' starts."""

    idesc: int
    a: int  #: bytes in shared memory, or columns in tensor memory
    b: int  #: bytes
    metadata: int  #: columns
    scale_a: int
    scale_b: int


@dataclass(frozen=True)
class ProductOptions:
    """The literals of a product besides its tiles; see `tcgen05_mma` and `tcgen05_mma_ws`."""

    negate_a: bool = False
    negate_b: bool = False
    saturate: bool = False
    k_steps: int | None = None
    scale_input_d: int | None = None
    collector: str | None = None
    buffer: str | None = None  #: that of B, of a weight-stationary product; None of any other

    @property
    def function(self) -> str:
        """The function that takes them."""
        return "tcgen05_mma_ws" if self.buffer else "tcgen05_mma"

    @property
    def forms(self) -> dict[str, str | int]:
        """Return those that are part of each instruction, by the names of the rows."""
        parts = {"collector": self.collector, "buffer": self.buffer}
        return {name: value for name, value in parts.items() if value is not None}


@dataclass(frozen=True)
class TensorProductCall:
    """The instructions of one call of `tcgen05_mma`: all of one row of the instruction table."""

    product: TensorProduct
    steps: tuple[ProductStep, ...]
    row: str  #: name of the row
    forms: dict[str, str | int]  #: the row's choices

    @property
    def scaled(self) -> bool:
        """Whether the operands have scale factors."""
        return self.product.block is not None

    def refuses(self, given: Iterable[str]) -> str:
        """Return the error of an operand that the row does not have; empty if it has all."""
        if self.scaled and "disable_output_lane" in given:
            return (
                f"tcgen05_mma: disable_output_lanes does not go with kind {self.product.kind}; "
                "products with scale factors write all lanes: leave it out"
            )
        return ""


def product_call(
    accumulator: TensorLayout,
    a: MatrixLayout | TensorLayout,
    b: MatrixLayout,
    scales: Scales | None = None,
    metadata: TensorLayout | None = None,
    options: ProductOptions = ProductOptions(),  # noqa: B008 (frozen)
) -> TensorProductCall:
    """Return the instructions of one product, or raise a ValueError that lists what is legal.

    Parameters
    ----------
    accumulator, a, b
        The tiles. An operand in shared memory is one as tcgen05 reads it.
    scales
        Those of A and of B.
    metadata
        That of a sparse A; None of a dense one.
    options
        The literals.
    """
    what, ws = options.function, options.buffer is not None
    if not isinstance(accumulator, Accumulator):
        raise ValueError(
            f"{what}: accumulator is {accumulator}; use tmem.tile(m, n), or stage.accumulator"
        )
    if accumulator.ws and not ws:
        raise ValueError(
            f"{what}: accumulator is {accumulator}, whose lanes are those of a weight-stationary "
            "product: use tcgen05_mma_ws, or leave ws out of tmem.tile"
        )
    if ws and accumulator.m < LANES and not accumulator.ws:
        raise ValueError(
            f"{what}: accumulator is {accumulator}; of a weight-stationary product it is "
            f"tmem.tile({accumulator.m}, {accumulator.n}, ws=True)"
        )
    group = accumulator.cta_group
    left = a if isinstance(a, MatrixLayout) else _in_tensor_memory(what, a, accumulator)
    product = check_product(
        accumulator.dtype,
        accumulator.m,
        accumulator.n,
        left,
        b,
        cta_group=group,
        ws=ws,
        sparse=metadata is not None,
        scales=_scale_factors(scales) if scales else None,
        negate_a=options.negate_a,
        negate_b=options.negate_b,
        saturate=options.saturate,
        k_steps=options.k_steps,
    )
    _check_options(product, options)
    if metadata is not None:
        _check_metadata(what, metadata, accumulator, product, left, scales)
    if scales:
        _check_scales("a_scale", scales[0], product, product.m // group)
        _check_scales("b_scale", scales[1], product, product.n)
    row = (
        f"tcgen05_mma{'_ws' if ws else ''}{'_block_scaled' if scales else ''}"
        f"{'' if metadata is None else '_sp'}{'' if left is a else '_tmem'}"
    )
    kind = f"{product.kind}.block_scale.{product.block}" if scales else product.kind
    forms = {"kind": kind, **({} if ws else {"cta_group": group}), **options.forms}
    steps = tuple(_step(product, left, b, scales, i) for i in range(product.k_steps))
    return TensorProductCall(product, steps, row, forms)


def _check_options(product: TensorProduct, options: ProductOptions) -> None:
    """Raise if the product is not one of those that have an option."""
    exponent = options.scale_input_d
    if exponent is not None and product.kind not in ("f16", "tf32"):
        raise ValueError(
            f"tcgen05_mma: scale_input_d is {exponent}; only kinds f16 and tf32 divide their "
            f"accumulator, and this product is of kind {product.kind}: leave it out"
        )
    if options.collector not in (None, "discard") and product.k_steps > 1:
        kept = "B" if options.buffer else "A"
        raise ValueError(
            f"{options.function}: collector is {options.collector!r}, and the product has "
            f"{product.k_steps} instructions along K; a buffer holds {kept} of one: use k_steps=1, "
            "with a.advance(step) and b.advance(step)"
        )


def _check_metadata(
    what: str,
    metadata: TensorLayout,
    accumulator: Accumulator,
    product: TensorProduct,
    a: MatrixLayout | TensorMemoryOperand,
    scales: Scales | None,
) -> None:
    """Raise unless the metadata are those of A."""
    if scales:
        raise ValueError(
            f"{what}: a_metadata does not go with scale factors; for such products use "
            "tma.ptx.tcgen05_mma_block_scaled_sp"
        )
    dtype = _dtype_of(a)
    k = product.k_steps * product.k
    legal = f"tmem.metadata({accumulator.m}, {k}, {dtype.name!r}{', ws=True' * accumulator.ws})"
    if not isinstance(metadata, TensorMetadata):
        raise ValueError(f"{what}: a_metadata is {metadata}; use {legal}")
    given = (metadata.m, metadata.dtype, metadata.cta_group, metadata.ws)
    if given != (accumulator.m, dtype, accumulator.cta_group, accumulator.ws) or metadata.k < k:
        raise ValueError(
            f"{what}: a_metadata is {metadata}; the product takes that of {accumulator.m} rows x "
            f"{k} elements of {dtype}, with cta_group {accumulator.cta_group}: use {legal}"
        )


def _in_tensor_memory(what: str, a: TensorLayout, accumulator: Accumulator) -> TensorMemoryOperand:
    if not isinstance(a, TensorOperand):
        raise ValueError(
            f"{what}: a is {a}; an operand in tensor memory is tmem.operand(m, k, dtype), or "
            "tile.operand(k, dtype) in an accumulator's columns"
        )
    of_d = (accumulator.m, accumulator.cta_group, accumulator.ws)
    if (a.m, a.cta_group, a.ws) != of_d:
        raise ValueError(
            f"{what}: a is {a} and the accumulator is {accumulator}: in tensor memory both "
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
    column = 0
    if product.sparse:
        wide = step_columns(_dtype_of(a).shared_bits) == 1
        # Of 16 bits and tf32 the selector picks one of two columns at an even address.
        column = i // 2 * 2 if wide else 2 * i
    return ProductStep(
        product.idesc_of(i),
        a.offset(i) if isinstance(a, MatrixLayout) else i * STEP_COLUMNS,
        b.offset(i * product.b_steps),
        column,
        *first,
    )


def _dtype_of(a: MatrixLayout | TensorMemoryOperand) -> DType:
    return a.tile.dtype if isinstance(a, MatrixLayout) else a.dtype


# ------------------------------------------------------------------- copies to tensor memory


@dataclass(frozen=True)
class TensorCopy:
    """The copies of a tile in shared memory to columns: all of one shape."""

    shape: str
    cta_group: int
    #: First column and offset in shared memory, in bytes, of each.
    places: tuple[tuple[int, int], ...]


def copy_call(destination: TensorLayout, tile: Tile) -> TensorCopy:
    """Return the copies that fill scale factors or metadata from a tile, or raise a ValueError."""
    if isinstance(destination, TensorMetadata):
        held = metadata_tile(destination.k, destination.dtype)
        if tile != held:
            raise ValueError(
                f"tcgen05_copy: the tile is {tile}, and the columns are for {destination}: use "
                f"metadata_tile({destination.k}, {destination.dtype.name!r}), {held}"
            )
        places = tuple((i * COPIED_COLUMNS, i * METADATA_BYTES) for i in range(tile.shape[0]))
        return TensorCopy(METADATA_COPY, destination.cta_group, places)
    if not isinstance(destination, TensorScales):
        raise ValueError(
            f"tcgen05_copy: destination is {destination}; use tmem.scales(tile), or "
            "tmem.metadata(m, k, dtype)"
        )
    if tensor_scales(tile, destination.block, destination.cta_group) != destination:
        raise ValueError(
            f"tcgen05_copy: the tile is {tile}, and the columns are for {destination}: use "
            "tmem.scales(tile) of this tile"
        )
    return TensorCopy(SCALE_COPY, destination.cta_group, tuple(destination.atoms()))
