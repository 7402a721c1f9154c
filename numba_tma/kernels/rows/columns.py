"""Column sums in two kernels: blocks write partial sums to a workspace, then its rows are added.

Every sum has a fixed order, so that equal inputs give equal bits. A thread adds the elements of its
columns in float32 registers, and writes them to a row of the workspace of its own.
"""

from __future__ import annotations

import functools

import numpy as np
from numba import cuda

from numba_tma.device.row_share import (
    Share,
    from_float,
    load_cached,
    load_global,
    store_global,
    store_sums,
    to_float,
)
from numba_tma.host.annotations import DeviceArray, Kernel, StreamLike
from numba_tma.host.arrays import Array
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.environment import simulated
from numba_tma.kernels._host import device
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels.rows.launching import access_width

THREADS = 128
ROWS_OF_SUMS = 512  # at most: each row of the workspace is written and read again


@functools.cache
def add_parts(share: Share, across: int) -> Kernel:
    """Return the kernel in which `across` threads go down neighbouring columns.

    A thread adds every so many rows, in registers, and writes its sums to the workspace.
    """
    SHARE, ACROSS, DOWN = share, across, THREADS // across

    @cuda.jit
    def add_some_rows(x, x_stride, rows, accesses, row_of_sums, sums, parts, tiles):  # type: ignore[no-untyped-def]
        first = cuda.blockIdx.x % tiles * ACROSS + cuda.threadIdx.x % ACROSS
        part = cuda.blockIdx.x // tiles * DOWN + cuda.threadIdx.x // ACROSS
        values = to_float(
            SHARE, load_global(SHARE, x + part * x_stride, first, accesses if part < rows else 0)
        )
        for row in range(part + parts, rows, parts):
            values = values + to_float(
                SHARE, load_global(SHARE, x + row * x_stride, first, accesses)
            )
        store_sums(SHARE, sums + part * row_of_sums, first, accesses, values)

    return add_some_rows


def partial_sums(x: Array, stream: StreamLike, parts: int | None = None) -> DeviceArray:
    """Return a new workspace whose rows are sums of every so many rows of `x`, (rows, columns)."""
    (rows, columns), width = x.shape, access_width(x)
    accesses = columns * x.itemsize // width
    across = min(THREADS, 1 << (accesses - 1).bit_length())
    down, tiles = THREADS // across, -(-accesses // across)
    if parts is None:
        parts = min(ROWS_OF_SUMS, rows, 16 * device.sm_count() * down // tiles)
    groups = max(1, -(-parts // down))
    sums = workspace(groups * down, columns)
    launch(
        add_parts(Share(x.dtype, width, 1, across, False), across),
        groups * tiles,
        THREADS,
        stream,
        x.address,
        x.strides[0],
        rows,
        accesses,
        4 * columns,
        Array.read("workspace", "sums", sums).address,
        groups * down,
        tiles,
    )
    return sums


@functools.cache
def add_rows_kernel(dtype: DType) -> Kernel:
    """Return the kernel that adds the rows of a float32 workspace: a thread has a column."""
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


def workspace(rows: int, columns: int) -> DeviceArray:
    """Return a new float32 array on the device; its elements are not initialised."""
    if simulated():
        return np.empty((rows, columns), np.float32)
    return cuda.device_array((rows, columns), np.float32)


def add_rows(sums: Array, out: Array, stream: StreamLike) -> None:
    """Add the rows of a workspace into `out`, rounded once."""
    rows, columns = sums.shape
    kernel, blocks = add_rows_kernel(out.dtype), -(-columns // THREADS)
    launch(kernel, blocks, THREADS, stream, sums.address, rows, columns, out.address)
