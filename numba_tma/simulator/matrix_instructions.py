"""ldmatrix and stmatrix: 8x8 matrices of 16-bit elements, spread over the lanes of a warp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numba_tma.simulator.block import FULL_MASK
from numba_tma.simulator.errors import BadOperand
from numba_tma.simulator.thread import WARP_SIZE, current
from numba_tma.simulator.thread_instructions import exchange, shared_read, shared_write

_ROW_BYTES = 16


def ldmatrix(row: int, count: int, trans: bool) -> Any:
    """Return this lane's part of each of `count` matrices, as a tuple of 32-bit words."""
    fragment = []
    for low, high in _elements("ldmatrix", row, count, trans):
        halves = [int(shared_read(address, np.dtype(np.uint16))) for address in (low, high)]
        fragment.append(halves[0] | halves[1] << 16)
    return tuple(fragment)


def stmatrix(row: int, fragment: Sequence[int], trans: bool) -> None:
    """Write this lane's parts of the matrices, one for each word of `fragment`."""
    places = _elements("stmatrix", row, len(fragment), trans)
    for (low, high), word in zip(places, fragment):
        shared_write(low, np.uint16(int(word) & 0xFFFF))
        shared_write(high, np.uint16(int(word) >> 16))


def _elements(what: str, row: int, count: int, trans: bool) -> list[tuple[int, int]]:
    """Return the addresses of this lane's two elements of each matrix, from all lanes' `row`."""
    lane, address = current().lane, int(row)
    if lane < 8 * count and address % _ROW_BYTES:
        raise BadOperand(
            f"{what}: lane {lane} gives a row at shared address {address}; it must be a multiple "
            f"of {_ROW_BYTES}"
        )
    rows = exchange(f"{what} of {count} matrices", FULL_MASK, address)
    if len(rows) < WARP_SIZE:
        raise BadOperand(
            f"{what}: {len(rows)} threads of the warp execute it; it takes all {WARP_SIZE}"
        )
    i, j = lane // 4, 2 * (lane % 4)
    if trans:
        return [(rows[m + j] + 2 * i, rows[m + j + 1] + 2 * i) for m in range(0, 8 * count, 8)]
    return [(rows[m + i] + 2 * j, rows[m + i] + 2 * (j + 1)) for m in range(0, 8 * count, 8)]
