"""Matrices in tensor memory: accumulators, operands A, metadata, scale factors, and their columns.

A block has 128 lanes x 512 columns of 32-bit cells. A matrix is described without its address, so
that the stages of a ring have one description.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import TypeAlias

from numba_tma.host.annotations import DTypeLike
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.layout import Tile
from numba_tma.host.scale_factors import ATOM_ROWS, ATOM_SCALES
from numba_tma.host.scale_layout import ScaleLayout
from numba_tma.host.sparse_metadata import check_stored, metadata_columns

LANES, COLUMNS = 128, 512
MIN_COLUMNS = 32  #: smallest allocation
CELL_BITS = 32

#: Rows whose scale factors take two columns, side by side: where a product's may begin in an atom.
SCALE_ROWS = 64

ACCUMULATORS = ("f32", "f16", "i32")
#: Rows and columns of weight-stationary products.
WS_ROWS, WS_COLUMNS = (32, 64, 128), (64, 128, 256)
#: Operands that threads store: as many elements in a cell as fit.
STORED_OPERANDS = ("f16", "bf16", "e4m3", "e5m2", "i8", "u8", "f32", "tf32")


@dataclass(frozen=True)
class Accumulator:
    """An accumulator of m x n elements, one in a cell; 16-bit elements are in its lower half.

    With `cta_group` 2, m is that of both blocks of a CTA pair, and `columns` those of each block.
    `ws` is set for 32 or 64 rows of a weight-stationary product, whose lanes are others.
    """

    m: int
    n: int
    dtype: DType
    cta_group: int = 1
    ws: bool = False

    def __str__(self) -> str:
        return f"tile({self.m}, {self.n}, {self.dtype}{_variant(self)})"

    @property
    def per_cell(self) -> int:
        """Elements in a cell."""
        return 1

    @property
    def columns(self) -> int:
        """Columns of tensor memory that the accumulator takes in a block."""
        return self.n // self.folds

    @property
    def folds(self) -> int:
        """Parts of the columns that lie side by side in other lanes: 2 of a pair's 128 rows."""
        if self.ws:
            return LANES // self.m
        return 2 if (self.cta_group, self.m) == (2, 128) else 1


@dataclass(frozen=True)
class TensorOperand:
    """An operand A of m x k elements, K-major, as many in a cell as fit.

    With `cta_group` 2, m is that of both blocks. `ws` is that of the accumulator.
    """

    m: int
    k: int
    dtype: DType
    cta_group: int
    ws: bool

    def __str__(self) -> str:
        return f"operand({self.m}, {self.k}, {self.dtype}{_variant(self)})"

    @property
    def per_cell(self) -> int:
        """Elements in a cell."""
        return CELL_BITS // (8 * self.dtype.itemsize)

    @property
    def columns(self) -> int:
        """Columns of tensor memory that the operand takes in a block."""
        return self.k // self.per_cell


@dataclass(frozen=True)
class TensorScales:
    """Scale factors, each for `block` elements along K, as copies of a tile's atoms.

    Atoms of the same part of K are neighbours. `part` is the number of rows of which the product
    reads the factors, if these begin anywhere among the tile's; None for all of them.
    """

    source: ScaleLayout
    block: int
    cta_group: int
    part: int | None = None

    def __str__(self) -> str:
        return f"scales of {self.rows} rows x {self.k} ({self.dtype} for {self.block})"

    @property
    def dtype(self) -> DType:
        """Type of a factor."""
        return self.source.tile.dtype

    @property
    def rows(self) -> int:
        """Rows of A, or columns of B, with padding."""
        return self.part or self.source.row_atoms * ATOM_ROWS

    @property
    def k(self) -> int:
        """Elements along K, with padding."""
        return self.source.k_atoms * ATOM_SCALES * self.block

    @property
    def columns(self) -> int:
        """Columns of tensor memory that the scale factors take."""
        return self.source.k_atoms * self.source.columns

    def atoms(self) -> list[tuple[int, int]]:
        """Return each atom's first column and its offset in shared memory, in bytes."""
        return [
            (self.source.column(k, row), self.source.offset(k, row))
            for row in range(self.source.row_atoms)
            for k in range(self.source.k_atoms)
        ]


@dataclass(frozen=True)
class TensorMetadata:
    """Which elements a sparse A of m x k stores: cells of 32 bits, as `sparse_compress` has them.

    With `cta_group` 2, m is that of both blocks. `ws` is that of the accumulator.
    """

    m: int
    k: int
    dtype: DType  #: of A
    cta_group: int
    ws: bool

    def __str__(self) -> str:
        return f"metadata({self.m}, {self.k}, {self.dtype}{_variant(self)})"

    @property
    def columns(self) -> int:
        """Columns of tensor memory that the metadata take in a block."""
        return metadata_columns(self.k, self.dtype)


TensorLayout: TypeAlias = Accumulator | TensorOperand | TensorScales | TensorMetadata


def _variant(layout: Accumulator | TensorOperand | TensorMetadata) -> str:
    return f"{', cta_group 2' if layout.cta_group == 2 else ''}{', ws' if layout.ws else ''}"


def allocated_columns(used: int) -> int:
    """Return the columns to allocate for `used` ones: a power of two from 32 on, or 0 for none."""
    return max(MIN_COLUMNS, 1 << (used - 1).bit_length()) if used else 0


def accumulator(
    m: object, n: object, dtype: DTypeLike, cta_group: int, ws: bool = False
) -> Accumulator:
    """Return an accumulator, or raise a ValueError that says what there is."""
    rows, columns = _integer("tile", "m", m), _integer("tile", "n", n)
    found = _dtype("tile", dtype, ACCUMULATORS)
    _check_rows("tile", rows, cta_group, ws)
    if ws:
        if columns not in WS_COLUMNS:
            raise ValueError(
                f"tile: n is {columns}; a weight-stationary product has "
                f"{_either(WS_COLUMNS)} columns of D"
            )
        return Accumulator(rows, columns, found, cta_group, rows < LANES)
    step = 8 * cta_group
    if columns % step or not step <= columns <= COLUMNS:
        raise ValueError(
            f"tile: n is {columns}; an accumulator has {step} to {COLUMNS} columns of D in steps "
            f"of {step}, and one product at most 256"
        )
    return Accumulator(rows, columns, found, cta_group)


def tensor_operand(
    m: object, k: object, dtype: DTypeLike, cta_group: int, ws: bool = False
) -> TensorOperand:
    """Return an operand A in tensor memory, or raise a ValueError that says what there is."""
    rows, depth = _integer("operand", "m", m), _integer("operand", "k", k)
    found = _dtype("operand", dtype, STORED_OPERANDS)
    _check_rows("operand", rows, cta_group, ws)
    step = 32 // found.itemsize
    if depth % step or depth < step:
        raise ValueError(
            f"operand: k is {depth}; one instruction reads {step} elements of {found} along K: use "
            f"a multiple of {step}"
        )
    return TensorOperand(rows, depth, found, cta_group, ws and rows < LANES)


def tensor_metadata(
    m: object, k: object, dtype: DTypeLike, cta_group: int, ws: bool = False
) -> TensorMetadata:
    """Return the metadata of a sparse A, or raise a ValueError that says what there is."""
    rows, depth = _integer("metadata", "m", m), _integer("metadata", "k", k)
    found = check_stored("metadata", depth, dtype)
    _check_rows("metadata", rows, cta_group, ws)
    if not ws and rows != LANES * cta_group:
        raise ValueError(
            f"metadata: m is {rows}; a sparse product with cta_group {cta_group} has "
            f"{LANES * cta_group} rows. PTX shows in figures alone where the metadata of fewer lie"
        )
    return TensorMetadata(rows, depth, found, cta_group, ws and rows < LANES)


def tensor_scales(tile: Tile, block: int | None, cta_group: int) -> TensorScales:
    """Return the scale factors of a tile in shared memory, or raise a ValueError."""
    if not isinstance(tile, Tile):
        raise ValueError(f"scales: tile is {tile}; use scale_tile(rows, k)")
    source = ScaleLayout(tile)
    blocks = {"ue8m0": (32, 16), "ue4m3": (16,)}[tile.dtype.name]
    each = blocks[0] if block is None else block
    if each not in blocks:
        raise ValueError(
            f"scales: block is {block}; a factor of {tile.dtype} is for "
            f"{' or '.join(map(str, blocks))} elements along K"
        )
    return TensorScales(source, each, cta_group)


def part_of_scales(scales: TensorScales, row: int | None, num: object) -> TensorScales:
    """Return the scale factors of `num` rows from `row` on, which is None if it is not known."""
    rows = _integer("scale_rows", "num", num)
    if rows % SCALE_ROWS or not SCALE_ROWS <= rows <= scales.rows:
        raise ValueError(
            f"scale_rows: num is {rows}; of {scales} it is a multiple of {SCALE_ROWS} up to "
            f"{scales.rows}"
        )
    if row is not None and (row % SCALE_ROWS or not 0 <= row <= scales.rows - rows):
        raise ValueError(
            f"scale_rows: row is {row} and num {rows}; of {scales} row is a multiple of "
            f"{SCALE_ROWS} up to {scales.rows - rows}"
        )
    return replace(scales, part=rows)


def check_columns(layout: TensorLayout, column: int, columns: int, of: str) -> None:
    """Raise a ValueError unless a matrix from `column` on lies in the `columns` of `of`."""
    if not 0 <= column <= columns - layout.columns:
        last = column + layout.columns - 1
        raise ValueError(
            f"{layout} from column {column} on takes columns {column} to {last}, and {of} has "
            f"{columns}: use a column from 0 to {columns - layout.columns}"
            if layout.columns <= columns
            else f"{layout} takes {layout.columns} columns, and {of} has {columns}: use a smaller "
            "matrix, or allocate more"
        )


@dataclass(frozen=True)
class ColumnClaim:
    """Columns of an allocation that a kernel uses as a matrix."""

    memory: str
    first: int
    count: int
    shown: str

    def check(self, other: ColumnClaim) -> None:
        """Raise a ValueError if another matrix has some of the columns, and is not the same."""
        if self == other or self.memory != other.memory:
            return
        first = max(self.first, other.first)
        last = min(self.first + self.count, other.first + other.count) - 1
        if first <= last:
            raise ValueError(
                f"{self.shown} from column {self.first} on and {other.shown} from column "
                f"{other.first} on share columns {first} to {last} of {self.memory}: give one of "
                "them another column; for an operand in an accumulator's columns use "
                "tile.operand(k, dtype, column)"
            )


# ---------------------------------------------------------------------------- arguments


def _integer(method: str, name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(
            f"{method}: {name} is {value}; it is an integer that is known at compile time"
        ) from None


def _dtype(method: str, dtype: DTypeLike, legal: tuple[str, ...]) -> DType:
    try:
        found = as_dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.name not in legal:
        raise ValueError(f"{method}: dtype is {dtype!r}; it is {' or '.join(legal)}")
    return found


def _check_rows(method: str, m: int, cta_group: int, ws: bool) -> None:
    if ws:
        if cta_group == 2 or m not in WS_ROWS:
            raise ValueError(
                f"{method}: m is {m}, cta_group {cta_group}; a weight-stationary product has "
                f"{_either(WS_ROWS)} rows, and one block"
            )
        return
    legal = (64 * cta_group, 128 * cta_group)
    if m not in legal:
        both = ", both blocks' together," if cta_group == 2 else ""
        raise ValueError(
            f"{method}: m is {m}; with cta_group {cta_group} a product has{both} "
            f"{legal[0]} or {legal[1]} rows"
        )


def _either(values: tuple[int, ...]) -> str:
    return " or ".join(map(str, values))
