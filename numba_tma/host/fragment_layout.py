"""`FragmentLayout`: which thread holds which element of a matrix in registers."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.host.annotations import DTypeLike
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.mma_rules import fragment_coords


@dataclass(frozen=True)
class FragmentLayout:
    """The layout of a `Fragment`, 64 x n in the registers of a warpgroup; Jupyter draws it.

    Parameters
    ----------
    n
        Columns, a multiple of 8 up to 256.
    dtype
        Element type, of 1, 2 or 4 bytes.

    Raises
    ------
    ValueError
        When no fragment has so many columns or such elements.
    """

    n: int
    dtype: DType

    def __init__(self, n: int, dtype: DTypeLike = "f32") -> None:
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "dtype", as_dtype(dtype))
        if type(n) is not int or n % 8 or not 8 <= n <= 256:
            raise ValueError(f"FragmentLayout: n is {n!r}: use a multiple of 8 from 8 to 256")
        if self.dtype.itemsize not in (1, 2, 4) or self.dtype.bits < 8:
            raise ValueError(f"FragmentLayout: no fragment has elements of {self.dtype}")

    @property
    def num_elements(self) -> int:
        """How many elements each thread holds."""
        return self.n // 2

    def coords(self, i: int, thread: int) -> tuple[int, int]:
        """Return (row, column) of element `i` of a thread of the warpgroup."""
        if not 0 <= i < self.num_elements or not 0 <= thread < 128:
            raise IndexError(
                f"element {i} of thread {thread}: a fragment of {self.n} columns has elements 0 to "
                f"{self.num_elements - 1} of the threads 0 to 127"
            )
        row, column = fragment_coords(i, thread, self.dtype.itemsize)
        return int(row), int(column)

    def holder(self, row: int, column: int) -> tuple[int, int]:
        """Return (thread, i) of the element at a place: the inverse of `coords`."""
        if not 0 <= row < 64 or not 0 <= column < self.n:
            raise IndexError(f"({row}, {column}) is outside of 64 x {self.n}")
        run = max(1, 4 // self.dtype.itemsize) if self.dtype.itemsize == 1 else 2
        part, inside = divmod(column, 4 * run)
        thread = row // 16 * 32 + row % 8 * 4 + inside // run
        return thread, part * 2 * run + row % 16 // 8 * run + inside % run
