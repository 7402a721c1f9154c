"""Column sums in two kernels: the first writes partial sums to a workspace, the second adds them.

The workspace is a float32 matrix: `parts` rows of partial sums, one column per column of `x`. Row p
is the sum of the rows p, p + parts, p + 2 * parts ... of `x`, which one thread per group of columns
adds in registers. Every sum has a fixed order, so that equal inputs give equal bits.
"""

from __future__ import annotations

from numba_tma.device.share import Share
from numba_tma.host.annotations import DeviceArray, StreamLike
from numba_tma.host.arrays import Array
from numba_tma.host.cached_kernel import shipped
from numba_tma.kernels._host import device
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.workspace import float_workspace
from numba_tma.kernels.rows.launching import access_width

THREADS = 128
MAX_PARTS = 512  # by default: each row of the workspace is written and read again

partial_sums_kernel = shipped("numba_tma.kernels.rows.columns.kernel", "partial_sums_kernel")
add_rows_kernel = shipped("numba_tma.kernels.rows.columns.kernel", "add_rows_kernel")


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


def add_rows(sums: Array, out: Array, stream: StreamLike) -> None:
    """Launch the second kernel: `out` gets the sums of the workspace's columns, rounded once."""
    rows, columns = sums.shape
    kernel, blocks = add_rows_kernel(out.dtype), -(-columns // THREADS)
    launch(kernel, blocks, THREADS, stream, sums.address, rows, columns, out.address)
