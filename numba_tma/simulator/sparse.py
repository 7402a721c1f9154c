"""Sparse operands: the codes of their metadata, and stored elements at their places."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from numba_tma.simulator.errors import BadOperand
from numba_tma.simulator.tcgen05_operands import Values

Codes = NDArray[np.intp]

#: 4-bit codes of 2 of 4 places in order, the first in the low bits.
ORDERED = (0x4, 0x8, 0xC, 0x9, 0xD, 0xE)
#: The same as tcgen05.mma takes them.
CODES = (*ORDERED, 0x6)
#: 4-bit codes of 1 of 2 places of 32 bits: a pair of 16-bit halves.
HALVES = (0x4, 0xE)


def check_codes(what: str, codes: Codes, group: int, legal: tuple[int, ...]) -> None:
    """Raise unless PTX defines each code; `group` is the number of elements that one is for."""
    wrong = ~np.isin(codes, legal)
    if wrong.any():
        row, chunk = np.argwhere(wrong)[0]
        raise BadOperand(
            f"{what} have the code {codes[row, chunk]:#x} for row {row}, elements {chunk * group} "
            f"on; PTX defines {', '.join(map(hex, legal))}"
        )


def expanded(stored: Values, codes: Codes, group: int) -> Values:
    """Return rows with each stored element at its place, and zeros elsewhere: (rows, K).

    A code is for `group` elements: 2 of 32 bits, of which one is stored, or 4, of which two are, or
    8 packed ones of 4 bits, of which two pairs are.
    """
    rows, chunks = codes.shape
    row, chunk = np.indices(codes.shape)
    if group == 2:
        halves = np.zeros((rows, chunks, 2))
        halves[row, chunk, codes >> 3] = stored
        return halves.reshape(rows, -1)
    dense = np.zeros((rows, chunks, 4, group // 4))
    kept = stored.reshape(rows, chunks, 2, group // 4)
    dense[row, chunk, codes & 3] = kept[:, :, 0]
    dense[row, chunk, codes >> 2] = kept[:, :, 1]
    return dense.reshape(rows, -1)
