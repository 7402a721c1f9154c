"""ldmatrix and stmatrix: matrices of 16-byte rows, spread over the lanes of a warp.

Rows of 8 16-bit elements are PTX's. The fragments of 8-bit elements are those of CUTLASS's copies;
PTX shows them in figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numba_tma.simulator.block import FULL_MASK
from numba_tma.simulator.errors import BadOperand
from numba_tma.simulator.tcgen05_operands import unpacked_codes
from numba_tma.simulator.thread import WARP_SIZE, current
from numba_tma.simulator.thread_instructions import exchange, shared_read, shared_write

Bytes = NDArray[np.uint8]

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


#: Bits of an element in shared memory, by the format of an 8-bit ldmatrix.
_BITS = {"b8": 8, "b8x16.b6x16_p32": 6, "b8x16.b4x16_p64": 4}


def ldmatrix_m16n16(row: int, count: int, elements: str) -> Any:
    """Return this lane's part of each of `count` transposed matrices of 16 rows of 16 bytes.

    Lane l has 4 rows from 4 (l mod 4) on, and of each the bytes l // 4 and l // 4 + 8: of the first
    two rows in one register, of the others in the next.
    """
    what, lane = "ldmatrix.m16n16", current().lane
    rows = _row_addresses(what, row, 16 * count)
    byte, words = lane // 4, []
    for matrix in range(0, 16 * count, 16):
        for first in (matrix + 4 * (lane % 4), matrix + 4 * (lane % 4) + 2):
            pair = [_wide_row(what, rows[first + i], elements) for i in range(2)]
            words.append(_word(np.array(pair)[:, [byte, byte + 8]].T))
    return tuple(words)


def ldmatrix_m8n16(row: int, count: int, elements: str) -> Any:
    """Return this lane's part of each of `count` matrices of 8 rows of 16 bytes.

    Lane l has bytes 4 (l mod 4) to 4 (l mod 4) + 3 of row l // 4.
    """
    what, lane = "ldmatrix.m8n16", current().lane
    rows = _row_addresses(what, row, 8 * count)
    mine = [_wide_row(what, rows[m + lane // 4], elements) for m in range(0, 8 * count, 8)]
    return tuple(_word(held[4 * (lane % 4) : 4 * (lane % 4) + 4]) for held in mine)


def stmatrix_m16n8(row: int, fragment: Sequence[int]) -> None:
    """Write this lane's parts of matrices of 8 rows of 16 bytes, one for each word of `fragment`.

    Lane l has bytes l // 4 and l // 4 + 8 of rows 2 (l mod 4) and 2 (l mod 4) + 1.
    """
    count, lane = len(fragment), current().lane
    rows = _row_addresses("stmatrix.m16n8", row, 8 * count)
    for matrix, word in enumerate(fragment):
        for i in range(4):
            at = rows[8 * matrix + 2 * (lane % 4) + i % 2] + lane // 4 + 8 * (i // 2)
            shared_write(at, np.uint8(int(word) >> 8 * i & 0xFF))


def _wide_row(what: str, address: int, elements: str) -> Bytes:
    """Return the 16 elements of a row, a byte each."""
    if elements not in _BITS:
        raise BadOperand(f"{what}: elements is {elements!r}; it is one of {', '.join(_BITS)}")
    read = [int(shared_read(address + i, np.dtype(np.uint8))) for i in range(_ROW_BYTES)]
    return unpacked_codes(np.array(read, np.uint8), _BITS[elements])


def _word(row_bytes: Bytes) -> int:
    """Return 4 bytes as a register, the first in the low bits."""
    return int.from_bytes(row_bytes.astype(np.uint8).tobytes(), "little")


def _elements(what: str, row: int, count: int, trans: bool) -> list[tuple[int, int]]:
    """Return the addresses of this lane's two elements of each matrix, from all lanes' `row`."""
    lane = current().lane
    rows = _row_addresses(what, row, 8 * count)
    i, j = lane // 4, 2 * (lane % 4)
    if trans:
        return [(rows[m + j] + 2 * i, rows[m + j + 1] + 2 * i) for m in range(0, 8 * count, 8)]
    return [(rows[m + i] + 2 * j, rows[m + i] + 2 * (j + 1)) for m in range(0, 8 * count, 8)]


def _row_addresses(what: str, row: int, count: int) -> list[int]:
    """Return all lanes' `row`, of which the first `count` are addresses of rows."""
    lane, address = current().lane, int(row)
    if lane < count and address % _ROW_BYTES:
        raise BadOperand(
            f"{what}: lane {lane} gives a row at shared address {address}; it must be a multiple "
            f"of {_ROW_BYTES}"
        )
    rows = exchange(f"{what} of {count} rows", FULL_MASK, address)
    if len(rows) < WARP_SIZE:
        raise BadOperand(
            f"{what}: {len(rows)} threads of the warp execute it; it takes all {WARP_SIZE}"
        )
    return [rows[i] for i in range(WARP_SIZE)]
