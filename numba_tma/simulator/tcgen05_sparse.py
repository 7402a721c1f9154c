"""Sparse products of tcgen05: the metadata in tensor memory, and the elements that they place.

`host.sparse_metadata` says what the metadata are, and where they lie.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.sparse_metadata import Metadata, step_columns
from numba_tma.host.tensor_memory_layout import LANES
from numba_tma.simulator.errors import BadOperand, TensorMemoryMisuse
from numba_tma.simulator.tcgen05_operands import BITS, Values

#: Layouts of the accumulator for which the metadata's places are known.
LAYOUTS = "ADEG"
#: Copies of the metadata, one below the other: a row has them in each lane of its accumulator.
_COPIES = {"E": 2, "G": 4}
#: 4-bit codes: two different places in order; of tf32 a pair of 16-bit halves.
_CODES = (0x4, 0x8, 0xC, 0x9, 0xD, 0x6, 0xE)
_CODES_OF_TF32 = (0x4, 0xE)


def metadata_columns(type_name: str) -> int:
    """Return the columns that the metadata of one product take: 32 or 64 bits a row."""
    return step_columns(BITS[type_name])


def check_sparse(
    what: str, layout: str, type_name: str, address: int, selector: int, *, scaled: bool
) -> None:
    """Raise unless the simulator knows the places of the metadata."""
    if scaled or layout not in LAYOUTS:
        form = "with scale factors" if scaled else f"in layout {layout}"
        raise NotImplementedError(
            f"{what}: sparse products {form} are not simulated: where their metadata or factors "
            "lie in tensor memory is documented in figures alone"
        )
    legal = (0,) if BITS[type_name] <= 8 else (0, 1)
    if selector not in legal:
        raise BadOperand(
            f"{what}: the sparsity selector is {selector}; of {type_name} it is "
            f"{' or '.join(map(str, legal))}"
        )
    lane, column = address >> 16, address & 0xFFFF
    if lane or column % 2:
        raise TensorMemoryMisuse(
            f"{what}: the metadata begin at lane {lane} and column {column}; they begin at lane 0 "
            "and an even column, and the selector picks one of two columns for 16 bits and tf32"
        )


def metadata_lanes(layout: str) -> list[int]:
    """Return the first lane of each copy of the metadata."""
    copies = _COPIES.get(layout, 1)
    return [LANES // copies * copy for copy in range(copies)]


def read_codes(
    what: str, data: NDArray[np.uint32], address: int, cells: Metadata, layout: str, tf32: bool
) -> NDArray[np.intp]:
    """Return the codes of each row; raise if PTX does not define one, or if copies differ."""
    column = cells.column + (address & 0xFFFF)
    copies = [
        data[cells.lane + lane, column] >> cells.shift & 0xF for lane in metadata_lanes(layout)
    ]
    if any((copy != copies[0]).any() for copy in copies):
        raise TensorMemoryMisuse(
            f"{what}: the metadata at {address:#x} differ between their copies in lanes "
            f"{', '.join(map(str, metadata_lanes(layout)))} and on; in layout {layout} each row "
            "has them in every lane of its row of D"
        )
    codes = copies[0].astype(np.intp)
    legal = _CODES_OF_TF32 if tf32 else _CODES
    wrong = ~np.isin(codes, legal)
    if wrong.any():
        row, chunk = np.argwhere(wrong)[0]
        raise BadOperand(
            f"{what}: the metadata at {address:#x} have the code {codes[row, chunk]:#x} for row "
            f"{row}, elements {chunk * (2 if tf32 else 4)} on; PTX defines "
            f"{', '.join(map(hex, legal))}"
        )
    return codes


def expanded(stored: Values, codes: NDArray[np.intp], tf32: bool) -> Values:
    """Return rows with each stored element at its place, and zeros elsewhere: (rows, K)."""
    rows = len(stored)
    dense = np.zeros((rows, codes.shape[1], 2 if tf32 else 4))
    row, chunk = np.indices(codes.shape)
    if tf32:
        dense[row, chunk, codes >> 3] = stored
    else:
        pairs = stored.reshape(rows, -1, 2)
        dense[row, chunk, codes & 3] = pairs[..., 0]
        dense[row, chunk, codes >> 2] = pairs[..., 1]
    return dense.reshape(rows, -1)
