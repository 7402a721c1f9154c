"""The arrays of a pointwise kernel: which have the shape of the result, and which are broadcast."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from numba_tma.kernels._host.launching import Matrix

FULL, ROW, ONE_PER_ROW, ONE = "full", "row", "one per row", "one"


class Operands:
    """The inputs, each as rows of the result's shape, or as what is repeated for it."""

    def __init__(self, function: str, arrays: Sequence[Any], dtype: object) -> None:
        names = [f"argument {i + 1}" for i in range(len(arrays))]
        self.function = function
        self.matrices = [Matrix(name, array, dtype) for name, array in zip(names, arrays)]
        first = self.matrices[0]
        if first.dtype.name not in ("f32", "f16", "bf16"):
            raise ValueError(
                f"{function}(): argument 1 is {first.dtype}; it works on f32, f16 and bf16"
            )
        for name, matrix in zip(names, self.matrices):
            if matrix.dtype is not first.dtype:
                raise ValueError(
                    f"{function}(): {name} is {matrix.dtype}, but argument 1 is {first.dtype}; "
                    "they must agree: convert one"
                )
        shapes = [m.shape for m in self.matrices]
        try:
            self.shape = np.broadcast_shapes(*shapes)
        except ValueError:
            raise ValueError(
                f"{function}(): shapes {' and '.join(map(str, shapes))} cannot be broadcast to one"
            ) from None
        self.kinds = tuple(self._kind(n, m.shape) for n, m in zip(names, self.matrices))
        full = [array for array, kind in zip(arrays, self.kinds) if kind == FULL]
        self.like = full[0] if full else None

    def _kind(self, name: str, shape: tuple[int, ...]) -> str:
        if shape == self.shape:
            return FULL
        if math.prod(shape) == 1:
            return ONE
        if shape[-1] == self.shape[-1] and math.prod(shape[:-1]) == 1:
            return ROW
        if shape[-1] == 1 and shape[:-1] == self.shape[:-1]:
            return ONE_PER_ROW
        raise ValueError(
            f"{self.function}(): {name} has shape {shape} and the result {self.shape}; what is "
            "broadcast is a row, one element per row, or one element: expand the array and copy it"
        )

    def target(self, out: Any) -> Matrix:
        """Return the output, which has the shape and the type of the result."""
        first, matrix = self.matrices[0], Matrix("out", out)
        if matrix.dtype.itemsize == first.dtype.itemsize:
            matrix = Matrix("out", out, first.dtype) if matrix.stored == first.stored else matrix
        if matrix.shape != self.shape or matrix.dtype is not first.dtype:
            raise ValueError(
                f"{self.function}(): out has shape {matrix.shape} of {matrix.dtype}, but the "
                f"result has shape {self.shape} of {first.dtype}; they must agree"
            )
        return matrix

    @property
    def pitches(self) -> list[int]:
        """Bytes from what belongs to one row to what belongs to the next."""
        return [0 if m.rows == 1 else m.row_stride for m in self.matrices]

    def flat(self, target: Matrix) -> bool:
        """Return whether all arrays are contiguous and of one shape, so that rows do not matter."""
        return all(
            kind == FULL and m.is_contiguous()
            for m, kind in zip((*self.matrices, target), (*self.kinds, FULL))
        )

    def addressable(self, target: Matrix) -> bool:
        """Return whether TMA can address all arrays that have the shape of the result."""
        full = [m for m, kind in zip(self.matrices, self.kinds) if kind == FULL]
        size = target.dtype.itemsize
        return (
            bool(full)
            and target.columns * size % 16 == 0
            and all(
                m.address % 16 == 0 and (m.rows == 1 or m.row_stride % 16 == 0)
                for m in (*full, target)
            )
            and all(
                m.address % 16 == 0 if kind == ROW else m.is_contiguous()
                for m, kind in zip(self.matrices, self.kinds)
                if kind != FULL
            )
        )

    def vector_bytes(self, target: Matrix) -> int:
        """Return to how many bytes, 16 at most, all vectors of all arrays are aligned."""
        offsets = [16]
        for m, kind in zip((*self.matrices, target), (*self.kinds, FULL)):
            if kind in (FULL, ROW):
                offsets += [m.address, m.row_stride if m.rows > 1 else 0]
        return max(math.gcd(*offsets), target.dtype.itemsize)

    def cut(self, rows: int, columns: int, start: int = 0) -> Operands:
        """Return the same memory, contiguous, as another matrix that starts `start` bytes on."""
        other = copy.copy(self)
        other.matrices = [m.part(rows, columns, start) for m in self.matrices]
        return other
