"""Column sums: blocks add up tiles of columns, and the last block of a tile adds up the blocks'.

Of few rows, threads add up whole columns. Otherwise a workspace has the float32 sums of each block.
Every sum has a fixed order, whichever block is the last, so that equal inputs give equal bits.
"""

from __future__ import annotations

from numba_tma.host.annotations import DeviceArray, StreamLike
from numba_tma.host.arrays import Array
from numba_tma.host.cached_kernel import shipped
from numba_tma.kernels._host import device
from numba_tma.kernels._host.fill import fill
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.workspace import float_workspace, zero_counters
from numba_tma.kernels.rows.columns.plan import (
    FEW_COLUMNS,
    FEW_THREADS,
    THREADS,
    ColumnSizes,
    has_few_rows,
    plan_for,
)
from numba_tma.kernels.rows.plan import RowMemory

column_sums_kernel = shipped("numba_tma.kernels.rows.columns.kernel", "column_sums_kernel")
few_rows_kernel = shipped("numba_tma.kernels.rows.columns.kernel", "few_rows_kernel")


def sum_columns(
    x: Array, out: Array, stream: StreamLike, parts: int | None = None
) -> list[DeviceArray]:
    """Write the sums of the columns of `x` to `out`, rounded once, and return the workspaces.

    `x` has two axes, with at least one column. `parts` is that of `plan_for`.
    """
    rows, columns = x.shape
    if not rows:
        fill(out, 0, stream)
        return []
    if parts is None and has_few_rows(x, device.sm_count()):
        blocks = -(-columns // (FEW_THREADS * FEW_COLUMNS))
        rows_of_x = RowMemory(x.address, x.strides[0])
        kernel = few_rows_kernel(x.dtype, out.dtype)
        launch(kernel, blocks, FEW_THREADS, stream, rows_of_x, rows, columns, out.address)
        return []
    plan = plan_for(x, device.sm_count(), parts)
    spaces: list[DeviceArray] = []
    sums = counters = 0
    if plan.groups > 1:
        row = -(-plan.columns // (4 * plan.packed)) * 4
        spaces = [float_workspace(plan.tiles * plan.groups, row), zero_counters(plan.tiles)]
        sums, counters = (Array.read("workspace", "sums", space).address for space in spaces)
    begin, end = x.extent
    sizes = ColumnSizes(
        begin=begin,
        end=end,
        rows=-(-rows // plan.packed),
        columns=columns * plan.packed,
        across=plan.across,
        down=plan.down,
        tile_columns=plan.columns,
        tiles=plan.tiles,
        groups=plan.groups,
        packed=plan.packed,
    )
    launch(
        column_sums_kernel(x.dtype, plan.width, out.dtype),
        plan.tiles * plan.groups,
        THREADS,
        stream,
        RowMemory(x.address, x.strides[0] * plan.packed),
        sizes,
        sums,
        counters,
        out.address,
    )
    return spaces
