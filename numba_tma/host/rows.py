"""Rows at any address, as kernels take them, and the units of 16 bytes that they touch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from numba_tma.host.annotations import Address, Integer
from numba_tma.host.arrays import CHUNK, Array

#: Of a launch over several rows: a `Divisor` divides numbers below 2**31. The last block has more.
MOST_UNITS = (1 << 31) - 1024

#: Forms: rows are whole units; have as many bytes before them in their first units as the output's;
#: or begin anywhere.
WHOLE, ALIKE, ANY = "whole", "alike", "any"


class PlacedRows(NamedTuple):
    """Rows in global memory, of contiguous elements, that begin at any address."""

    address: Address  #: Address of row 0.
    end: Address  #: Address behind the last row.
    stride: Integer  #: Bytes from one row to the next; 0 of one row.

    @classmethod
    def of(cls, array: Array) -> PlacedRows:
        """Return where the rows of an array (rows, columns) are.

        Raises
        ------
        ValueError
            If an axis is reversed.
        """
        stride = array.strides[0] if array.shape[0] > 1 else 0
        return cls(array.address, array.address + array.span, stride)


class Divisor(NamedTuple):
    """A divisor of numbers below 2**31: they are multiplied and shifted, which costs less."""

    value: Integer
    multiplier: Integer
    shift: Integer

    @classmethod
    def of(cls, value: int) -> Divisor:
        """Return a divisor from 1 to 2**31; ``n // value == n * multiplier >> shift``."""
        # The multiplier is rounded up by less than 1, so n * multiplier grows by less than 2**31.
        # That is at most 2**shift / value: too little for the next whole number.
        shift = 31 + (value - 1).bit_length()
        return cls(value, -(-(1 << shift) // value), shift)


def form_of(inputs: Sequence[Array], out: Array) -> str:
    """Return how the units of inputs lie to those of an output (rows, columns): a form."""
    if all(array.is_storable for array in (*inputs, out)):
        return WHOLE
    return ALIKE if all(_are_alike(array, out) for array in inputs) else ANY


def _are_alike(one: Array, other: Array) -> bool:
    """Return whether each row of two arrays has as many bytes before it in its first unit."""
    steps = (array.strides[0] if array.shape[0] > 1 else 0 for array in (one, other))
    apart = one.address - other.address, next(steps) - next(steps)
    return all(distance % CHUNK == 0 for distance in apart)


def units_of(array: Array) -> int:
    """Return the most units that a row of an array (rows, columns) touches."""
    (rows, columns), size = array.shape, array.itemsize
    is_alike = rows == 1 or array.strides[0] % CHUNK == 0
    before = array.address % CHUNK if is_alike else CHUNK - array.alignment
    return -(-(before + columns * size) // CHUNK)


def pieces(array: Array) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows for each launch over an array (rows, columns)."""
    rows = array.shape[0]
    most = max(1, MOST_UNITS // units_of(array))
    for first in range(0, rows, most):
        yield first, min(most, rows - first)


def part_of(array: Array, first: int, rows: int) -> Array:
    """Return `rows` rows of an array from `first` on; an array of one row goes with all rows."""
    if array.shape[0] == 1:
        return array
    offset = first * array.strides[0]
    return array.view((rows, array.shape[1]), array.strides, offset=offset)
