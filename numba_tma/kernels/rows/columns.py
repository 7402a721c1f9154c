"""Column sums in two kernels: the first writes partial sums to a workspace, the second adds them.

The workspace is a float32 matrix: `parts` rows of partial sums, one column per column of `x`. Row p
is the sum of the rows p, p + parts, p + 2 * parts ... of `x`, which one thread per group of columns
adds in registers. Every sum has a fixed order, so that equal inputs give equal bits.
"""

from __future__ import annotations

import functools

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
from numba_tma.kernels._host import device
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.workspace import float_workspace
from numba_tma.kernels.rows.launching import access_width

THREADS = 128
MAX_PARTS = 512  # by default: each row of the workspace is written and read again


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


def partial_sums(x: Array, stream: StreamLike, parts: int | None = None) -> DeviceArray:
    """Launch the first kernel, and return the workspace that it writes.

    `x` has two axes. The workspace has `parts` rows, rounded up to those of whole blocks.
    """
    (rows, columns), width = x.shape, access_width(x)
    accesses = columns * x.itemsize // width
    across = min(THREADS, 1 << (accesses - 1).bit_length())
    down, tiles = THREADS // across, -(-accesses // across)
    if parts is None:
        parts = min(MAX_PARTS, rows, 16 * device.sm_count() * down // tiles)
    groups = max(1, -(-parts // down))
    sums = float_workspace(groups * down, columns)
    launch(
        partial_sums_kernel(Share(x.dtype, width, 1, across, False), across),
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


def add_rows(sums: Array, out: Array, stream: StreamLike) -> None:
    """Launch the second kernel: `out` gets the sums of the workspace's columns, rounded once."""
    rows, columns = sums.shape
    kernel, blocks = add_rows_kernel(out.dtype), -(-columns // THREADS)
    launch(kernel, blocks, THREADS, stream, sums.address, rows, columns, out.address)
