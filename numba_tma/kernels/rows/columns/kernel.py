"""The two kernels of column sums: partial sums of rows, and the sum of a workspace's rows."""

from __future__ import annotations

import functools

from numba import cuda

from numba_tma.device.row_share import (
    from_float,
    load_cached,
    load_global,
    store_global,
    store_sums,
    to_float,
)
from numba_tma.device.share import Share
from numba_tma.host.annotations import Kernel
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.kernels.rows.columns import THREADS


@functools.cache
def partial_sums_kernel(share: Share, across: int) -> Kernel:
    """Return the kernel that writes partial sums to the workspace.

    `across` threads of a block have neighbouring accesses of a row; a block writes
    ``THREADS // across`` rows of the workspace.
    """
    SHARE, ACROSS, DOWN = share, across, THREADS // across

    @cuda.jit
    def add_some_rows(x, x_stride, rows, accesses, sums_stride, sums, parts, tiles):  # type: ignore[no-untyped-def]
        first = cuda.blockIdx.x % tiles * ACROSS + cuda.threadIdx.x % ACROSS
        part = cuda.blockIdx.x // tiles * DOWN + cuda.threadIdx.x // ACROSS
        values = to_float(
            SHARE, load_global(SHARE, x + part * x_stride, first, accesses if part < rows else 0)
        )
        for row in range(part + parts, rows, parts):
            values = values + to_float(
                SHARE, load_global(SHARE, x + row * x_stride, first, accesses)
            )
        store_sums(SHARE, sums + part * sums_stride, first, accesses, values)

    return add_some_rows


@functools.cache
def add_rows_kernel(dtype: DType) -> Kernel:
    """Return the kernel that adds the rows of a float32 workspace: one thread per column."""
    SUMS = Share(as_dtype("f32"), 4, 1, 1, False)
    OUT = Share(dtype, dtype.itemsize, 1, 1, False)

    @cuda.jit
    def add_rows(sums, rows, columns, out):  # type: ignore[no-untyped-def]
        column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        total = to_float(SUMS, load_cached(SUMS, sums, column, columns))
        for row in range(1, rows):
            place = sums + row * columns * 4
            total = total + to_float(SUMS, load_cached(SUMS, place, column, columns))
        store_global(OUT, out, column, columns, from_float(OUT, total))

    return add_rows
