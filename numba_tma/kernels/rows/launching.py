"""How the host runs kernels over rows: what it checks, the plan it takes, and the launch."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numba_tma.host.dtypes import DType
from numba_tma.kernels._host import launching as _host
from numba_tma.kernels._host.launching import Matrix
from numba_tma.kernels.rows.kernel import (
    RowArrays,
    RowMemory,
    RowOperation,
    RowSizes,
    rows_in_registers,
    rows_in_shared,
)
from numba_tma.kernels.rows.plan import RowOptions, RowPlan, plan_for, share_of


def access_width(*matrices: Matrix | None) -> int:
    """Return by how many bytes, up to 16, all rows can be accessed."""
    width = 16
    for m in matrices:
        if m is None:
            continue
        row = m.columns * m.dtype.itemsize
        stride = m.row_stride if m.rows > 1 else 0
        while m.address % width or row % width or stride % width:
            width //= 2
    return width


def kernel_for(
    op: RowOperation,
    rows: int,
    columns: int,
    dtype: DType,
    width: int,
    plan: RowPlan,
    options: RowOptions,
) -> Any:
    """Return the kernel of a plan."""
    if plan.slot:
        return rows_in_shared(op, dtype, columns * dtype.itemsize, plan, options)
    return rows_in_registers(op, share_of(columns, rows, dtype, width, plan), plan, options)


def check(function: str, x: Matrix, **others: Matrix | None) -> None:
    """Raise unless `x` is of a type for rows, and the others have its shape and type."""
    if x.dtype.name not in ("f32", "f16", "bf16"):
        raise ValueError(f"{function}(): x is {x.dtype}; it works on f32, f16 and bf16")
    given = {name: matrix for name, matrix in others.items() if matrix is not None}
    _host.check_same(function, x=x, **given)


def check_vector(function: str, name: str, vector: Matrix | None, x: Matrix) -> None:
    """Raise unless an array has one element of the type of `x` for each of its columns."""
    if vector is not None and (vector.shape != (x.columns,) or vector.dtype is not x.dtype):
        raise ValueError(
            f"{function}(): {name} has shape {vector.shape} of {vector.dtype}, but x has "
            f"{x.columns} columns of {x.dtype}; pass a {name} of shape ({x.columns},) of {x.dtype}"
        )


def check_statistics(function: str, x: Matrix, **arrays: Matrix | None) -> None:
    """Raise unless an array has one float32 for each row of `x`, without gaps."""
    for name, array in arrays.items():
        if array is None:
            continue
        gaps = array.rows > 1 and array.row_stride != 4 * array.columns
        if array.shape != x.shape[:-1] or array.dtype.name != "f32" or gaps:
            raise ValueError(
                f"{function}(): {name} has shape {array.shape} of {array.dtype}"
                f"{' with gaps' if gaps else ''}; it takes one f32 for each row of x: pass a "
                f"contiguous float32 array of shape {x.shape[:-1]}"
            )


def optional(name: str, array: Any, dtype: object = None) -> Matrix | None:
    """Return where an array that may be absent lies."""
    return None if array is None else Matrix(name, array, dtype)


def normalise(
    op: RowOperation,
    stream: Any,
    numbers: tuple[float],
    dtype: object,
    plan: RowPlan | None,
    *,
    x: Any,
    out: Any,
    weight: Any = None,
    bias: Any = None,
    residual: Any = None,
    residual_out: Any = None,
    **statistics: Any,
) -> None:
    """Check the arrays that the function `op.name` was given, and launch it.

    `statistics` are the arrays for those of `op`, by the names of the parameters and in its order.
    """
    source, target = Matrix("x", x, dtype), Matrix("out", out, dtype)
    scale, shift = optional("weight", weight, dtype), optional("bias", bias, dtype)
    added = optional("residual", residual, dtype)
    summed = optional("residual_out", residual_out, dtype)
    kept = {name: optional(name, array) for name, array in statistics.items()}
    check(op.name, source, out=target, residual=added, residual_out=summed)
    check_vector(op.name, "weight", scale, source)
    check_vector(op.name, "bias", shift, source)
    check_statistics(op.name, source, **kept)
    first, second, *_ = *kept.values(), None, None
    run(
        op,
        source,
        target,
        residual=added,
        residual_out=summed,
        weight=scale,
        bias=shift,
        statistics=(first, second),
        scalar=numbers[0],
        stream=stream,
        plan=plan,
    )


def run(
    op: RowOperation,
    x: Matrix,
    y: Matrix | None,
    *,
    residual: Matrix | None = None,
    residual_out: Matrix | None = None,
    weight: Matrix | None = None,
    bias: Matrix | None = None,
    statistics: tuple[Matrix | None, Matrix | None] = (None, None),
    scalar: float = 0.0,
    stream: Any = None,
    plan: RowPlan | None = None,
) -> None:
    """Launch an operation on the rows of `x`."""
    if x.nbytes == 0:
        return
    width = access_width(x, y, residual, residual_out, weight, bias)
    options = RowOptions(
        weight=weight is not None,
        bias=bias is not None,
        residual=residual is not None,
        residual_out=residual_out is not None,
        statistics=(statistics[0] is not None, statistics[1] is not None),
        output=y is not None,
        index=statistics[1] is not None and statistics[1].dtype.name == "i64",
    )
    kernel, blocks, threads = prepared(op, x.rows, x.columns, x.dtype, width, plan, options)
    arrays = RowArrays(
        x=rows_of(x),
        residual=rows_of(residual),
        weight=address_of(weight),
        bias=address_of(bias),
        y=rows_of(y),
        total=rows_of(residual_out),
        statistics=(address_of(statistics[0]), address_of(statistics[1])),
    )
    sizes = RowSizes(x.rows, x.columns * x.dtype.itemsize // width, x.columns)
    _host.launch(kernel, blocks, threads, stream, arrays, sizes, np.float32(scalar))


@functools.lru_cache(4096)
def prepared(
    op: RowOperation,
    rows: int,
    columns: int,
    dtype: DType,
    width: int,
    plan: RowPlan | None,
    options: RowOptions,
) -> tuple[Any, int, int]:
    """Return the kernel, and the blocks and threads of its launch."""
    if plan is None or (width < 16 and plan.bulk):  # bulk copies move multiples of 16 B
        plan = plan_for(op.name, columns, dtype.itemsize, width, options)
    kernel = kernel_for(op, rows, columns, dtype, width, plan, options)
    return kernel, -(-rows // plan.rows) * plan.cluster, plan.block_threads


def rows_of(matrix: Matrix | None) -> RowMemory:
    """Return where the rows of an array are, for a kernel."""
    return RowMemory(0, 0) if matrix is None else RowMemory(matrix.address, matrix.row_stride)


def address_of(vector: Matrix | None) -> int:
    """Return the address of an array, or 0."""
    return 0 if vector is None else int(vector.address)
