"""What follows a matmul whose K was split: its parts are added up, always in the same order.

Small results have too few tiles for all multiprocessors. Then each tile is computed in parts, along
K, that are matrices of their own in float32; a second kernel adds them up, from the first to the
last, and does what the epilogue says.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.device.vectors import load_vector, map_lanes, store_vector
from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile
from numba_tma.kernels.matmul.epilogue import Epilogue, Place, finishing

THREADS = 256


class Rows(NamedTuple):
    """Matrices as bytes: their memory, and how far apart matrices and rows are in it."""

    memory: Any
    matrix: Any
    row: Any


class Extents(NamedTuple):
    """Of the result: matrices, rows and columns, and the parts that each is the sum of."""

    batch: Any
    rows: Any
    columns: Any
    splits: Any


@functools.cache
def adding_kernel(epilogue: Epilogue, dtype: DType) -> Any:
    """Return the kernel in which each thread adds up the parts of one element.

    `parts` are matrices of float32; `out` and `residual` are of `dtype`.
    """
    SUM, ELEMENT, SIZE = Tile(1, "f32"), Tile(1, dtype), dtype.itemsize
    BETA, RESIDUAL, ZERO = epilogue.beta, epilogue.residual, np.float32(0)
    finish = finishing(epilogue, dtype)

    @cuda.jit(device=True)
    def finish_lane(value, old, added, place, terms):  # type: ignore[no-untyped-def]
        return finish(value, np.int32(0), np.int32(0), old, added, place, terms)

    @cuda.jit
    def add_parts(parts, out, residual, extents, terms):  # type: ignore[no-untyped-def]
        number = np.uint32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
        rows, columns = np.uint32(extents.rows), np.uint32(extents.columns)
        row, column = np.uint32(number // columns), np.uint32(number % columns)
        matrix, place_in = np.uint32(row // rows), np.uint32(row % rows)
        ptx.griddepcontrol_wait()  # its blocks start while the last products are stored
        if matrix < extents.batch:
            at = matrix * extents.splits * parts.matrix + place_in * parts.row + 4 * column
            total = load_vector(parts.memory, at, SUM)
            for part in range(1, extents.splits):
                total = total + load_vector(parts.memory, at + part * parts.matrix, SUM)
            at = matrix * out.matrix + place_in * out.row + SIZE * column
            old, added = ZERO, ZERO
            if BETA:
                old = load_vector(out.memory, at, ELEMENT)[0]
            if RESIDUAL:
                there = matrix * residual.matrix + place_in * residual.row + SIZE * column
                added = load_vector(residual.memory, there, ELEMENT)[0]
            place = Place(np.int32(row), np.int32(column), np.int32(row), np.int32(column))
            total = map_lanes(finish_lane, (total,), (old, added, place, terms))
            store_vector(out.memory, at, total, ELEMENT)

    return add_parts
