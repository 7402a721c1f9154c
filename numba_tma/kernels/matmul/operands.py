"""The matrices of a matmul as the copy engine takes them.

Here alone it is decided what is read where it lies and what is copied first. TMA reads rows of
contiguous elements, of any length, that all begin at multiples of 16 B; the tensor cores take them
along K, and those of 16-bit types along M or N as well. What TMA cannot address is copied to rows
that it can, and what the tensor cores do not take is transposed, by `copy` and `transpose`.
"""

from __future__ import annotations

import copy as copying
import math
from typing import Any

import numpy as np
from numba import cuda

from numba_tma.host.array_interface import contiguous_strides, read_array, readers
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.environment import simulated
from numba_tma.kernels._host.launching import (
    View,
    as_array,
    bytes_from,
    common_stride,
    element_type,
)
from numba_tma.kernels.copy.api import copy
from numba_tma.kernels.transpose.api import transpose

CHUNK = 16  # bytes, which TMA counts rows in


class Matrices:
    """An array of any library seen as a batch of matrices: (batch, rows, columns), any strides."""

    def __init__(self, name: str, array: Any, dtype: object = None) -> None:
        read = readers.get(type(array), read_array)
        self.address, shape, strides, self.stored, in_elements, self.array, _ = read(array)
        self.name, self.shape = name, tuple(int(n) for n in shape)
        self.dtype = element_type(name, self.stored, dtype)
        size = self.dtype.itemsize
        if len(self.shape) < 2:
            raise ValueError(
                f"{name} has shape {self.shape}; a matrix has two axes or more: use "
                f"{name}[None, :] for a row, {name}[:, None] for a column"
            )
        if strides is None or 0 in self.shape:
            steps = contiguous_strides(self.shape, size)
        else:
            steps = tuple(int(s) * size if in_elements else int(s) for s in strides)
        if any(step < 0 for step in steps):
            raise ValueError(
                f"{name} has shape {self.shape} and steps of {steps} B; TMA takes none below 0: "
                "pass a contiguous copy"
            )
        self.rows, self.columns = self.shape[-2:]
        each = common_stride(name, self.shape[:-2], steps[:-2], self.rows * steps[-2])
        self.batch = math.prod(self.shape[:-2]) if each else 1  # one that is expanded is one
        self.steps = (each, *steps[-2:])

    @property
    def extents(self) -> tuple[int, int, int]:
        """How many matrices, rows and columns there are."""
        return self.batch, self.rows, self.columns

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.batch * self.rows * self.columns * self.dtype.itemsize

    @property
    def has_rows(self) -> bool:
        """Whether the elements of each row follow each other."""
        return self.columns <= 1 or self.steps[2] == self.dtype.itemsize

    @property
    def transposed(self) -> Matrices:
        """The transposes of its matrices, in the same memory."""
        other = copying.copy(self)
        other.rows, other.columns = self.columns, self.rows
        other.steps = (self.steps[0], self.steps[2], self.steps[1])
        return other

    @property
    def repeats(self) -> bool:
        """Whether an axis is expanded, so that elements lie in the same place."""
        counts = (math.prod(self.shape[:-2]), self.rows, self.columns)
        return any(n > 1 and step == 0 for n, step in zip(counts, self.steps))

    @property
    def is_readable(self) -> bool:
        """Whether TMA reads it: rows of any length that begin at multiples of 16 B."""
        starts = [self.address]
        starts += [self.steps[0]] * (self.batch > 1) + [self.steps[1]] * (self.rows > 1)
        return self.has_rows and all(start % CHUNK == 0 for start in starts)

    @property
    def is_writable(self) -> bool:
        """Whether TMA writes it: what it reads, with rows that end at multiples of 16 B too."""
        return self.is_readable and self.columns * self.dtype.itemsize % CHUNK == 0

    @property
    def is_one(self) -> bool:
        """Whether all its rows lie equally far apart, so that the batch is one matrix."""
        return self.batch == 1 or self.rows == 1 or self.steps[0] == self.rows * self.steps[1]

    def as_one(self) -> Matrices:
        """Return all its rows as one matrix."""
        other = copying.copy(self)
        step = self.steps[0] if self.rows == 1 else self.steps[1]
        other.batch, other.rows = 1, self.batch * self.rows
        other.steps = (step * other.rows, step, self.steps[2])
        return other

    def view(self, dtype: DType | None = None) -> Any:
        """Return (batch, rows, columns) over its memory, as `dtype`: a source of tensor maps."""
        numpy, size = (dtype or self.dtype).numpy, self.dtype.itemsize
        shape = (self.batch, max(1, self.rows), max(1, self.columns))  # maps of nothing are refused
        if simulated():
            host: Any = getattr(self.array, "_ary", self.array)
            held = host.view(bits(size).numpy)  # as_strided has no name for floats of 8 bits
            return np.lib.stride_tricks.as_strided(held, shape, self.steps).view(numpy)
        whole = -(-self.columns * size // CHUNK) * CHUNK
        row = self.steps[1] if self.rows > 1 else whole  # of a single one any stride will do
        each = self.steps[0] if self.batch > 1 else max(1, self.rows) * row
        apart = size if self.has_rows else self.steps[2]
        return View(self.array, self.address, shape, (each, row, apart), numpy)

    def array_of(self, dtype: DType) -> Any:
        """Return (batch, rows, columns) over its memory as a Numba array of `dtype`."""
        return as_array(self.view(dtype))

    def span(self) -> Any:
        """Return the memory from the first element to the last, gaps too, as bytes."""
        extents = (max(0, n - 1) for n in self.extents)
        last = sum(n * step for n, step in zip(extents, self.steps))
        return bytes_from(self.array, self.address, last + self.dtype.itemsize)

    def parts(self, dtype: DType) -> list[Any]:
        """Return its matrices one by one."""
        if simulated():
            return list(self.view(dtype))
        shape, steps = (self.rows, self.columns), self.view(dtype).strides[1:]
        starts = [self.address + i * self.steps[0] for i in range(self.batch)]
        return [View(self.array, start, shape, steps, dtype.numpy) for start in starts]


def bits(itemsize: int) -> DType:
    """Return the unsigned integers of a size: what only moves."""
    return as_dtype(f"u{8 * itemsize}")


def padded(name: str, shape: tuple[int, int, int], dtype: DType) -> Matrices:
    """Return new memory for (batch, rows, columns) that TMA reads, and writes with its padding."""
    *outer, columns = shape
    unit, kind = CHUNK // dtype.itemsize, bits(dtype.itemsize)
    make = np.empty if simulated() else cuda.device_array
    pitch = max(1, -(-columns // unit)) * unit
    matrices = Matrices(name, make((*(max(1, n) for n in outer), pitch), kind.numpy), kind)
    matrices.dtype, matrices.columns = dtype, columns
    return matrices


def move(source: Matrices, target: Matrices, stream: Any) -> None:
    """Copy matrices of contiguous rows to others of the same shape."""
    kind = bits(source.dtype.itemsize)
    if source.nbytes and source.is_one and target.is_one:
        copy(source.view(kind), target.view(kind), stream=stream)
    elif source.nbytes:
        for one, other in zip(source.parts(kind), target.parts(kind), strict=True):
            copy(one, other, stream=stream)


def as_readable(matrices: Matrices, stream: Any, kept: list[Any]) -> Matrices:
    """Return matrices of contiguous rows as TMA reads them, in new memory if need be.

    What is new is added to `kept`, and must live as long as it is used.
    """
    if matrices.is_readable and matrices.nbytes:
        return matrices
    copied = padded(matrices.name, matrices.extents, matrices.dtype)
    kept.append(copied.array)
    move(matrices, copied, stream)
    return copied


def as_factor(matrices: Matrices, stream: Any, kept: list[Any]) -> tuple[Matrices, str]:
    """Return a factor, given as (batch, rows, K), as the tensor cores read it, and along what.

    That is (batch, rows, K) for "K" and (batch, K, rows) for "MN". `kept` is that of `as_readable`.
    """
    along_rows = matrices.transposed
    both = matrices.dtype.itemsize == 2  # types that the tensor cores read along M or N, too
    if matrices.is_readable and matrices.nbytes:
        return matrices, "K"
    if both and along_rows.is_readable and matrices.nbytes:
        return along_rows, "MN"
    if matrices.has_rows:
        return as_readable(matrices, stream, kept), "K"
    if not along_rows.has_rows:
        raise ValueError(
            f"{matrices.name} has shape {matrices.shape} and steps of {matrices.steps[1:]} B: one "
            "of its last two axes must be contiguous; pass a contiguous copy"
        )
    if both:
        return as_readable(along_rows, stream, kept), "MN"
    turned = padded(matrices.name, matrices.extents, matrices.dtype)
    kind = bits(matrices.dtype.itemsize)
    kept.append(turned.array)
    transpose(along_rows.view(kind), out=turned.view(kind), stream=stream)
    return turned, "K"
