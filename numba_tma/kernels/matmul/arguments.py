"""What a matmul's host half gives its kernels: which epilogue, and the arguments of a launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from numba_tma.host.dtypes import DType

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")


@dataclass(frozen=True)
class Epilogue:
    """Which steps a kernel is compiled with, in the order of the formula above."""

    alpha: bool = False
    row_scale: bool = False
    column_scale: bool = False
    beta: bool = False
    bias: DType | None = None
    activation: str | None = None
    residual: bool = False

    @property
    def sources(self) -> int:
        """Number of matrices that the epilogue reads: the old output, the residual."""
        return self.beta + self.residual

    @property
    def changes(self) -> bool:
        """Whether there is any step at all."""
        return self != Epilogue()


class Terms(NamedTuple):
    """The values of the steps; 0 for a vector that is not used. Vectors are arrays of bytes."""

    alpha: Any = np.float32(1)
    beta: Any = np.float32(0)
    row_scale: Any = 0  #: float32, one for each row of each matrix
    column_scale: Any = 0  #: float32, one for each column
    bias: Any = 0  #: one for each column


class MatmulExtents(NamedTuple):
    """The extents of a matmul, as its kernel takes them."""

    rows: Any  #: of one matrix of the result
    columns: Any
    tile_rows: Any  #: rows of tiles, a multiple of the cluster size
    tile_columns: Any
    batch: Any  #: matrices that the kernel writes: those of the result, times `splits`
    steps: Any  #: stages along K
    a_stride: Any  #: from one matrix of the result to the next: 1 matrix of a, or 0 if all share it
    b_stride: Any
    splits: Any  #: splits of K, each of which gives a matrix of its own


REDUCTION_THREADS = 256


class MatrixBytes(NamedTuple):
    """Matrices as bytes: their memory, and the strides of matrices and rows in bytes."""

    memory: Any
    matrix: Any
    row: Any


class UnalignedMatrix(NamedTuple):
    """An operand as threads load it: its memory, strides in bytes, extents in memory's order."""

    address: Any
    end: Any  #: the address behind its last element
    matrix: Any  #: from a matrix to the next; 0 if there is one
    line: Any  #: from a line to the next
    lines: Any  #: of a matrix: its rows, or elements of K if rows are contiguous along M or N
    columns: Any  #: elements of a line


class ReductionExtents(NamedTuple):
    """Extents of the result, and the number of parts of each element."""

    batch: Any
    rows: Any
    columns: Any
    splits: Any


class RowGroups(NamedTuple):
    """The groups, as the kernel takes them; arrays are bytes."""

    rows: Any  #: int32 for each group: its rows, or with `ends` where it ends
    scales: Any  #: float32 for each group, or 0
    total: Any  #: number of groups
    apart: Any  #: rows from the start of a group to the next, if that is constant; else 0
    tile_columns: Any
    steps: Any  #: stages along K


class BScales(NamedTuple):
    """The scales of b as bytes: their memory and its strides in bytes."""

    memory: Any
    k: Any  #: stride of blocks of K
    column: Any  #: stride of blocks of columns
    last: Any  #: the last block of columns
