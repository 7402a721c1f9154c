"""Where matrices lie in tensor memory: accumulators, A operands and scale factors.

A block has 128 lanes x 512 columns of 32-bit cells, at addresses ``lane << 16 | column``. The
layouts are those that PTX names A to G; they are the same for every GPU with tcgen05. Layout C is
inferred from its name and from F: PTX shows it in a figure alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LANES = 128
COLUMNS = 512
#: Lanes that a warp reaches, and lanes that hold one copy of the scale factors.
WARP_LANES = 32
#: Rows and scale factors along K of an atom, which is 4 columns of a group of lanes.
ATOM_ROWS, ATOM_SCALES = 128, 4

Indices = NDArray[np.intp]


class TensorCells(NamedTuple):
    """Cells of one block or of a pair, each of the shape of the matrix.

    `lane` and `column` count from the address of the matrix; `block` is 0, or 1 in the block of
    odd rank of a pair.
    """

    block: Indices
    lane: Indices
    column: Indices


class ScaleBytes(NamedTuple):
    """The bytes of scale factors, from the address on; `lane` is that of the first of 4 copies."""

    lane: Indices
    column: Indices
    byte: Indices


def accumulator_layout(m: int, cta_group: int, *, ws: bool, sparse: bool) -> str:
    """Return the letter of the layout of an accumulator of `m` rows (of both blocks of a pair).

    Raises ValueError if no product has so many rows.
    """
    legal = _LAYOUTS[cta_group, ws]
    if m not in legal:
        form = "a .ws product" if ws else f"a product with cta_group {cta_group}"
        raise ValueError(f"{form} of {m} rows: M is {' or '.join(map(str, legal))}")
    return "C" if (m, cta_group, sparse) == (128, 2, True) else legal[m]


#: By cta_group and .ws, then by M.
_LAYOUTS = {
    (1, False): {64: "F", 128: "D"},
    (2, False): {128: "B", 256: "A"},
    (1, True): {32: "G", 64: "E", 128: "D"},
}


def accumulator_cells(layout: str, m: int, n: int) -> TensorCells:
    """Return the cell of each element of an `m` x `n` accumulator.

    In layouts C and F the matrix takes 16 of every 32 lanes. Its address has lane 0, or 16 for the
    other half.
    """
    row, column = np.indices((m, n))
    block = np.zeros_like(row)
    if layout in "ABC":
        block, row = np.divmod(row, m // 2)
    if layout in "BE":
        half, column = np.divmod(column, n // 2)
        row = row + 64 * half
    elif layout in "CF":
        row = row % 16 + WARP_LANES * (row // 16)
    elif layout == "G":
        quarter, column = np.divmod(column, n // 4)
        row = row + WARP_LANES * quarter
    return TensorCells(block, row, column)


def accumulator_columns(layout: str, n: int) -> int:
    """Return the columns that an accumulator of `n` columns takes."""
    return n // {"B": 2, "E": 2, "G": 4}.get(layout, 1)


def halves_of_lanes(layout: str) -> bool:
    """Return whether a matrix takes 16 of every 32 lanes, so that its address has lane 0 or 16."""
    return layout in "CF"


def operand_lanes(layout: str, rows: int) -> Indices:
    """Return the lanes of each row of A in tensor memory: shape (copies, rows of one block).

    A row lies in every lane that has elements of its row of the accumulator.
    """
    row = np.arange(rows)
    if layout in "CF":
        return (row % 16 + WARP_LANES * (row // 16))[None]
    copies = {"B": 2, "E": 2, "G": 4}.get(layout, 1)
    return row + LANES // copies * np.arange(copies)[:, None]


def scale_bytes(rows: int, scales: int, first: int = 0) -> ScaleBytes:
    """Return the place of each scale factor of a product: of `rows` rows x `scales` along K.

    `first` is the byte of the first one, the id in the instruction descriptor. Each factor lies in
    four lanes: `lane`, and 32, 64 and 96 after it.
    """
    row, k = np.indices((rows, scales))
    column = row % ATOM_ROWS // WARP_LANES + ATOM_SCALES * (row // ATOM_ROWS)
    return ScaleBytes(row % WARP_LANES, column, k + first)


def scale_columns(rows: int) -> int:
    """Return the columns that the scale factors of `rows` rows take: 4 for each 128."""
    return -(-rows // ATOM_ROWS) * ATOM_SCALES


#: By shape of a tcgen05.cp: its rows, the bytes of a row, and the lanes of its rows.
_COPIES: dict[str, tuple[int, int]] = {
    "128x256b": (128, 32),
    "128x128b": (128, 16),
    "4x256b": (4, 32),
    "64x128b.warpx2::02_13": (64, 16),
    "64x128b.warpx2::01_23": (64, 16),
    "32x128b.warpx4": (32, 16),
}
COPY_SHAPES = tuple(_COPIES)


def copy_rows(shape: str) -> tuple[int, int]:
    """Return the rows of a tcgen05.cp, and the bytes of a row."""
    return _COPIES[shape]


def copy_lanes(shape: str) -> Indices:
    """Return the lanes of each row of a tcgen05.cp, from its address: shape (copies, rows)."""
    rows, _ = _COPIES[shape]
    row = np.arange(rows)
    if shape == "4x256b":
        return (WARP_LANES * row)[None]
    if shape == "64x128b.warpx2::02_13":
        return row + 64 * np.arange(2)[:, None]
    if shape == "64x128b.warpx2::01_23":
        return row % 32 + 64 * (row // 32) + WARP_LANES * np.arange(2)[:, None]
    if shape == "32x128b.warpx4":
        return row + WARP_LANES * np.arange(4)[:, None]
    return row[None]
