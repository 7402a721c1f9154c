"""Sparse products of tcgen05: the metadata in tensor memory.

`host.sparse_metadata` says what the metadata are, and where they lie.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.sparse_metadata import Metadata, step_columns
from numba_tma.host.tensor_memory_layout import LANES
from numba_tma.simulator.errors import BadOperand, TensorMemoryMisuse
from numba_tma.simulator.sparse import CODES, HALVES, Codes, check_codes
from numba_tma.simulator.tcgen05_operands import BITS

#: Layouts of the accumulator for which the metadata's places are known.
LAYOUTS = "ADEG"
#: Copies of the metadata, one below the other: a row has them in each lane of its accumulator.
_COPIES = {"E": 2, "G": 4}


def metadata_columns(type_name: str) -> int:
    """Return the columns that the metadata of one product take: 32 or 64 bits a row."""
    return step_columns(BITS[type_name])


def check_sparse(what: str, layout: str, type_name: str, address: int, selector: int) -> None:
    """Raise unless the simulator knows the places of the metadata."""
    if layout not in LAYOUTS:
        raise NotImplementedError(
            f"{what}: sparse products in layout {layout} are not simulated: where their metadata "
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
    what: str, data: NDArray[np.uint32], address: int, cells: Metadata, layout: str, group: int
) -> Codes:
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
    codes: Codes = copies[0].astype(np.intp)
    legal = HALVES if group == 2 else CODES
    check_codes(f"{what}: the metadata at {address:#x}", codes, group, legal)
    return codes
