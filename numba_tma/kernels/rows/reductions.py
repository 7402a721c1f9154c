"""Sums and maxima of rows, and sums of columns.

Cost model: each element is read once, which is all of the traffic. Rows are cut up as those of the
norms are (`_rows`); columns are summed by blocks that go down some of the rows (`_columns`).
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import device_function
from numba_tma.device.row_share import first_largest
from numba_tma.device.vectors import four, total
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.environment import simulated
from numba_tma.kernels._host.launching import Matrix, launched_again
from numba_tma.kernels.rows import columns as _columns
from numba_tma.kernels.rows import launching as _row_launch
from numba_tma.kernels.rows.kernel import RowOperation
from numba_tma.kernels.rows.plan import RowPlan
from numba_tma.kernels.rows.rmsnorm import add_lanes, add_parts


@device_function
def sum_of(share: Any, values: Any, first: Any, limit: Any, scalar: Any) -> Any:
    """Return (sum), and the values."""
    zero = np.float32(0)
    return four(total(values), zero, zero, zero), values


@device_function
def unchanged(values: Any, own: Any, whole: Any, columns: Any, scalar: Any) -> Any:
    """Return the values."""
    return values


@device_function
def part_of_row(whole: Any, columns: Any, scalar: Any) -> Any:
    """Return what was reduced."""
    return whole


@device_function
def largest_of(share: Any, values: Any, first: Any, limit: Any, scalar: Any) -> Any:
    """Return (maximum, its column), and the values."""
    return first_largest(share, values, first, limit), values


@device_function
def merge_largest(part: Any, other: Any, scalar: Any) -> Any:
    """Return the larger of two; the one that comes first where they are equal, NaN above all."""
    ours_is_nan, theirs_is_nan = part[0] != part[0], other[0] != other[0]
    larger = not ours_is_nan and (theirs_is_nan or other[0] > part[0])
    equal = (theirs_is_nan and ours_is_nan) or other[0] == part[0]
    if larger or (equal and other[1] < part[1]):
        result = other
    else:
        result = part
    return result


@device_function
def combine_lanes(part: Any, lanes: Any, scalar: Any) -> Any:
    """Return the largest of neighbouring lanes."""
    zero = np.float32(0)
    distance = 16
    while distance > 0:
        if distance < lanes:
            value = ptx.shfl_sync_bfly_f32(part[0], distance)
            column = ptx.shfl_sync_bfly_f32(part[1], distance)
            part = merge_largest(part, four(value, column, zero, zero), scalar)
        distance //= 2
    return part


ROW_SUM = RowOperation(
    name="row_sum",
    reduce=sum_of,
    combine=add_lanes,
    merge=add_parts,
    apply=unchanged,
    statistics=part_of_row,
)
ROW_MAX = RowOperation(
    name="row_max",
    reduce=largest_of,
    combine=combine_lanes,
    merge=merge_largest,
    apply=unchanged,
    statistics=part_of_row,
)


def row_sum(
    x: Any,
    *,
    out: Any = None,
    stream: Any = None,
    dtype: object = None,
    plan: RowPlan | None = None,
) -> Any:
    """Return the sums of the rows of `x`, in float32.

    Parameters
    ----------
    x
        Device array (..., columns) of f32, f16 or bf16: torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``.
    out
        Where to write: float32, one for each row; a new array if None.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        What the bits of `x` mean where its own type cannot say it: bf16 held as uint16.
    plan
        How to cut the work up; what is measured to be fast if None.

    Returns
    -------
    Any
        `out`.

    Raises
    ------
    ValueError
        If shapes or types are not those above.
    """
    return _reduce("row_sum", x, out, stream, dtype, plan)


def row_max(
    x: Any,
    *,
    out: Any = None,
    stream: Any = None,
    dtype: object = None,
    plan: RowPlan | None = None,
) -> Any:
    """Return the largest element of each row of `x`, in float32; NaN if a row has one.

    Parameters are those of `row_sum`.
    """
    return _reduce("row_max", x, out, stream, dtype, plan)


def row_argmax(
    x: Any,
    *,
    out: Any = None,
    stream: Any = None,
    dtype: object = None,
    plan: RowPlan | None = None,
) -> Any:
    """Return the column of the largest element of each row of `x`, as int64.

    The first of several, and the first NaN if there is one, as NumPy does. Parameters are those of
    `row_sum`, but that `out` is int64; rows have 1 to 2**24 elements.
    """
    return _reduce("row_argmax", x, out, stream, dtype, plan)


#: Of each function: the operation, and the type of the results.
_REDUCTIONS = {
    "row_sum": (ROW_SUM, "f32"),
    "row_max": (ROW_MAX, "f32"),
    "row_argmax": (ROW_MAX, "i64"),
}


def _reduce(name: str, x: Any, out: Any, stream: Any, dtype: object, plan: RowPlan | None) -> Any:
    if out is None:
        shape = _source(name, x, dtype).shape[:-1]
        out = new_array(x, shape, as_dtype(_REDUCTIONS[name][1]))
    _reduce_rows((x, out), stream, (), name, dtype, plan)
    return out


def _source(name: str, x: Any, dtype: object) -> Matrix:
    """Return the rows to reduce, or raise if they cannot be."""
    source = Matrix("x", x, dtype)
    if name == "row_argmax" and not 0 < source.columns <= 1 << 24:
        raise ValueError(
            f"row_argmax(): rows of {source.columns:,} elements; it finds columns of rows of 1 to "
            f"{1 << 24:,}"
        )
    _row_launch.check(name, source)
    if len(source.shape) == 1 and name != "column_sum":
        raise ValueError(f"{name}(): x has 1 axis; pass x.reshape(1, -1)")
    return source


@launched_again
def _reduce_rows(
    arrays: tuple[Any, Any],
    stream: Any,
    numbers: tuple[()],
    name: str,
    dtype: object,
    plan: RowPlan | None,
) -> None:
    source, result = _source(name, arrays[0], dtype), Matrix("out", arrays[1])
    (op, wanted), shape = _REDUCTIONS[name], source.shape[:-1]
    if result.shape != shape or result.dtype.name != wanted or not _is_dense(result):
        raise ValueError(
            f"{name}(): out has shape {result.shape} of {result.dtype}; it takes one {wanted} for "
            f"each row of x: pass a contiguous array of shape {shape} of {wanted}"
        )
    statistics = (None, result) if wanted == "i64" else (result, None)
    _row_launch.run(op, source, None, statistics=statistics, stream=stream, plan=plan)


def _is_dense(matrix: Matrix) -> bool:
    return matrix.rows <= 1 or matrix.is_contiguous()


def new_array(like: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """Return a new array of the library of `like`, of a type that NumPy has."""
    if simulated():
        return np.empty(shape, dtype.numpy)
    library = type(like).__module__.partition(".")[0]
    if library == "torch":
        torch = importlib.import_module("torch")
        return torch.empty(shape, dtype=getattr(torch, dtype.numpy.name), device=like.device)
    if library == "cupy":
        return importlib.import_module("cupy").empty(shape, dtype.numpy)
    return cuda.device_array(shape, dtype.numpy)


# ------------------------------------------------------------------------------- columns


def column_sum(
    x: Any, *, out: Any = None, stream: Any = None, dtype: object = None, parts: int | None = None
) -> Any:
    """Return the sums of the columns of `x`, added in float32 and always in the same order.

    Parameters
    ----------
    x
        Device array (..., columns) of f32, f16 or bf16: torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``.
    out
        Where to write: (columns,) of f32, f16 or bf16; a new array of f32 if None.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        What the bits of `x` mean where its own type cannot say it: bf16 held as uint16.
    parts
        How many partial sums are made at the same time; enough to fill the GPU if None. It
        decides the order of addition.

    Returns
    -------
    Any
        `out`.

    Raises
    ------
    ValueError
        If shapes or types are not those above.
    """
    if out is None:
        out = new_array(x, (_source("column_sum", x, dtype).columns,), as_dtype("f32"))
    _column_sum((x, out), stream, (), dtype, parts)
    return out


@launched_again
def _column_sum(
    arrays: tuple[Any, Any], stream: Any, numbers: tuple[()], dtype: object, parts: int | None
) -> list[Any]:
    """Launch, and return the workspace."""
    source, result = _source("column_sum", arrays[0], dtype), Matrix("out", arrays[1])
    shape = (source.columns,)
    if result.shape != shape or result.dtype.name not in ("f32", "f16", "bf16"):
        raise ValueError(
            f"column_sum(): out has shape {result.shape} of {result.dtype}; it takes the sum of "
            f"each column of x: pass an array of shape {shape} of f32, f16 or bf16"
        )
    if source.columns == 0:
        return []
    sums = _columns.partial_sums(source, stream, parts)
    _columns.add_rows(Matrix("sums", sums), result, stream)
    return [sums]
