"""Gradients of RMSNorm and LayerNorm: dx row by row, dweight and dbias column by column.

Cost model: x and dy are read once and dx is written once. The blocks are persistent and stride over
the rows, so each thread adds dweight and dbias of its columns in registers. A second kernel adds
the sums of the blocks in a fixed order, so that equal inputs give equal bits.
"""

from __future__ import annotations

from typing import NamedTuple

from numba_tma.host.annotations import Address, DeviceArray, DTypeLike, StreamLike
from numba_tma.host.arrays import Array, check_same
from numba_tma.host.cached_kernel import shipped
from numba_tma.host.values import checked
from numba_tma.kernels._host import device
from numba_tma.kernels._host.fill import fill
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.memo import launched_again
from numba_tma.kernels._host.outputs import check_outputs, empty_like
from numba_tma.kernels._host.workspace import float_workspace
from numba_tma.kernels.rows import columns as _columns
from numba_tma.kernels.rows.launching import (
    FLOATS,
    PLAN,
    access_width,
    address_of,
    check_statistics,
    check_vector,
    read,
    read_optional,
    read_rows,
    rows_of,
)
from numba_tma.kernels.rows.plan import RowMemory, RowPlan, RowSizes, share_of

THREADS = 512  #: Of an SM: they have 128 registers each.

backward_kernel = shipped("numba_tma.kernels.rows.backward.kernel", "backward_kernel")


class BackwardArrays(NamedTuple):
    """The arrays of a gradient's kernel, as in `RowArrays`: address 0 is no array."""

    dy: RowMemory
    x: RowMemory
    weight: Address
    mean: Address  #: One float32 per row.
    rstd: Address  #: One float32 per row.
    dx: RowMemory  #: The result.
    weight_sums: Address  #: A row of float32 per block, or per cluster: its sum for dweight.
    bias_sums: Address  #: The same for dbias.


def plan_for(columns: int, itemsize: int) -> RowPlan:
    """Return the default plan: 16 elements per thread, or 8 of float32 where a block has the row.

    A thread holds four float32 for each of its columns: x, dy and the sums for dweight and dbias;
    and what it has of the next row. Rows of clusters have as few blocks as registers allow.
    """
    threads = max(32, 1 << (-(-columns // 16) - 1).bit_length())
    if itemsize == 4 and threads < 512:
        threads *= 2
    blocks = min(8, max(1, threads // 512))
    threads = min(1024, threads // blocks)
    return RowPlan(threads, 1, blocks, blocks=max(1, THREADS // threads))


def rmsnorm_backward(
    dy: DeviceArray,
    x: DeviceArray,
    weight: DeviceArray | None = None,
    *,
    rstd: DeviceArray,
    dx: DeviceArray | None = None,
    dweight: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: RowPlan | None = None,
) -> DeviceArray:
    """Return the gradient of `rmsnorm` with respect to `x`.

    Parameters
    ----------
    dy
        Gradient with respect to the output: a device array (..., columns) of f32, f16 or bf16.
    x, weight
        What `rmsnorm` was given (with a residual: its `residual_out`).
    rstd
        What `rmsnorm` wrote there: float32, one for each row.
    dx
        Where to write; a new array like `x` if None. May be `dy` or `x`.
    dweight
        Where to write the gradient with respect to the weight: (columns,) of f32, f16 or bf16.
        Not computed if None.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        Element type of arrays whose own type cannot say it, such as bf16 held as uint16.
    plan
        How rows are shared among threads; 8 to 16 elements per thread if None.

    Returns
    -------
    DeviceArray
        `dx`. Everything is computed in float32 and rounded once.

    Raises
    ------
    ValueError
        If shapes or types disagree.
    """
    dx = empty_like("rmsnorm_backward", "x", x, "dx") if dx is None else dx
    arrays = (dy, x, dx, weight, None, rstd, dweight, None)
    _LAUNCHES["rmsnorm_backward"](arrays, stream, (), "rmsnorm_backward", dtype, plan)
    return dx


def layernorm_backward(
    dy: DeviceArray,
    x: DeviceArray,
    weight: DeviceArray | None = None,
    *,
    mean: DeviceArray,
    rstd: DeviceArray,
    dx: DeviceArray | None = None,
    dweight: DeviceArray | None = None,
    dbias: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: RowPlan | None = None,
) -> DeviceArray:
    """Return the gradient of `layernorm` with respect to `x`.

    Parameters are those of `rmsnorm_backward`, and `mean`, what `layernorm` wrote there, and
    `dbias`, where to write the gradient with respect to the bias.
    """
    dx = empty_like("layernorm_backward", "x", x, "dx") if dx is None else dx
    arrays = (dy, x, dx, weight, mean, rstd, dweight, dbias)
    _LAUNCHES["layernorm_backward"](arrays, stream, (), "layernorm_backward", dtype, plan)
    return dx


_NAMES = ("dy", "x", "dx", "weight", "mean", "rstd", "dweight", "dbias")


def _read_sums(function: str, name: str, array: DeviceArray | None, x: Array) -> Array | None:
    """Read a gradient of the weights, of any float type; integers like those of x mean the same."""
    sums = read_optional(function, name, array)
    return None if sums is None else sums.with_bits_of(x)


def _prepare(
    arrays: tuple[DeviceArray | None, ...],
    stream: StreamLike,
    numbers: tuple[()],
    name: str,
    dtype: DTypeLike | None,
    plan: RowPlan | None,
) -> list[DeviceArray]:
    """Launch, and return the workspaces."""
    given = dict(zip(_NAMES, arrays))
    centred = name == "layernorm_backward"
    rstd = read(name, "rstd", given["rstd"])
    mean = read(name, "mean", given["mean"]) if centred else None
    x = read_rows(name, "x", given["x"], dtype)
    dy, dx = (read(name, n, given[n], dtype) for n in ("dy", "dx"))
    weight = read_optional(name, "weight", given["weight"], dtype)
    dweight, dbias = (_read_sums(name, n, given[n], x) for n in ("dweight", "dbias"))
    check_same(x, dy, dx)
    check_vector(weight, x)
    check_statistics((mean, rstd), x)
    checked(name, "plan", plan, PLAN)
    rows, columns = x.as_rows().shape
    for sums in (dweight, dbias):
        if sums is not None and (sums.shape != (columns,) or sums.dtype.name not in FLOATS):
            raise sums.error(
                f"has shape {sums.shape} of {sums.dtype}, but x has {columns} columns; pass an "
                f"array of shape ({columns},) of f32, f16 or bf16"
            )
    check_outputs([dx, dweight, dbias], [dy, x, weight, mean, rstd], in_place=[dy, x])
    if x.size == 0:
        for sums in (dweight, dbias):
            fill(sums, 0, stream)
        return []
    plan = plan_for(columns, x.itemsize) if plan is None else plan
    width = access_width(x, dy, dx, weight)
    resident = max(1, THREADS // plan.threads)
    groups = min(rows, max(1, resident * device.sm_count() // plan.cluster))
    num_sums = 2 if dbias is not None else int(dweight is not None)
    spaces = [float_workspace(groups, columns) for _ in range(num_sums)]
    sums_of = [Array.read(name, "workspace", space) for space in spaces]
    kernel = backward_kernel(
        share_of(columns, rows, x.dtype, width, plan),
        plan,
        centred=centred,
        weighted=weight is not None,
        sums=num_sums,
    )
    places = BackwardArrays(
        dy=rows_of(dy),
        x=rows_of(x),
        weight=address_of(weight),
        mean=address_of(mean),
        rstd=address_of(rstd),
        dx=rows_of(dx),
        weight_sums=address_of(sums_of[0] if num_sums > 0 else None),
        bias_sums=address_of(sums_of[1] if num_sums > 1 else None),
    )
    sizes = RowSizes(rows, columns * x.itemsize // width, columns)
    launch(kernel, groups * plan.cluster, plan.threads, stream, places, sizes)
    for space, out in zip(sums_of, (dweight, dbias)):
        if out is not None:
            spaces += _columns.sum_columns(space, out, stream)
    return spaces


_LAUNCHES = {
    name: launched_again(name, *_NAMES)(_prepare)
    for name in ("rmsnorm_backward", "layernorm_backward")
}
