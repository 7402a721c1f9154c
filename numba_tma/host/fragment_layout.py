"""`FragmentLayout`: which thread holds which element of a matrix in registers."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.host.annotations import DTypeLike
from numba_tma.host.dtypes import DType
from numba_tma.host.mma_rules import (
    check_fragment,
    elements_per_run,
    fragment_coords,
    num_elements,
)
from numba_tma.host.warpgroup import ROWS, THREADS


@dataclass(frozen=True)
class FragmentLayout:
    """The layout of a `Fragment`, 64 x n in the registers of a warpgroup; Jupyter draws it.

    Parameters
    ----------
    n
        Columns: 8 to 256, a multiple of 8; with elements of one byte 16 to 256, a multiple of 16.
    dtype
        Element type, one that fragments have.

    Raises
    ------
    ValueError
        When no fragment has so many columns or such elements.
    """

    n: int
    dtype: DType

    def __init__(self, n: int, dtype: DTypeLike = "f32") -> None:
        object.__setattr__(self, "dtype", check_fragment(n, dtype, "FragmentLayout"))
        object.__setattr__(self, "n", n)

    @property
    def num_elements(self) -> int:
        """How many elements each thread holds."""
        return num_elements(self.n)

    def coords(self, i: int, thread: int) -> tuple[int, int]:
        """Return (row, column) of element `i` of a thread of the warpgroup."""
        if not 0 <= i < self.num_elements or not 0 <= thread < THREADS:
            raise IndexError(
                f"element {i} of thread {thread}: a fragment of {self.n} columns has elements 0 to "
                f"{self.num_elements - 1} of the threads 0 to {THREADS - 1}"
            )
        row, column = fragment_coords(i, thread, self.dtype.itemsize)
        return int(row), int(column)

    def holder(self, row: int, column: int) -> tuple[int, int]:
        """Return (thread, i) of the element at a place: the inverse of `coords`."""
        if not 0 <= row < ROWS or not 0 <= column < self.n:
            raise IndexError(f"({row}, {column}) is outside of {ROWS} x {self.n}")
        run = elements_per_run(self.dtype.itemsize)
        part, inside = divmod(column, 4 * run)
        thread = row // 16 * 32 + row % 8 * 4 + inside // run
        return thread, part * 2 * run + row % 16 // 8 * run + inside % run
