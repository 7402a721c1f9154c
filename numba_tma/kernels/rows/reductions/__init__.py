"""Sums and maxima of rows, and sums of columns.

Cost model: each element is read from DRAM once. Row reductions use the kernels of kernel.py, which
then write the row's statistics and no rows; column sums use the two kernels of columns.py.
"""

from __future__ import annotations

import importlib

import numpy as np

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.host.arrays import Array
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.environment import simulated
from numba_tma.host.values import checked, optional, whole
from numba_tma.kernels._host.memo import launched_again
from numba_tma.kernels._host.outputs import check_outputs
from numba_tma.kernels.rows import columns as _columns
from numba_tma.kernels.rows.launching import FLOATS, PLAN, RowFunction, RowOperands, read_rows, run
from numba_tma.kernels.rows.plan import RowPlan

ROW_SUM = RowFunction("row_sum", "reductions.operations", "ROW_SUM", of_nothing=(0.0, 0.0))
ROW_MAX = RowFunction("row_max", "reductions.operations", "ROW_MAX")


def row_sum(
    x: DeviceArray,
    *,
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: RowPlan | None = None,
) -> DeviceArray:
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
        Element type of `x` if its own type cannot say it, such as bf16 held as uint16.
    plan
        How rows are shared among threads; the fastest measured plan if None.

    Returns
    -------
    DeviceArray
        `out`.

    Raises
    ------
    ValueError
        If shapes or types are not those above.
    """
    return _reduce("row_sum", x, out, stream, dtype, plan)


def row_max(
    x: DeviceArray,
    *,
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: RowPlan | None = None,
) -> DeviceArray:
    """Return the largest element of each row of `x`, in float32; NaN if a row has one.

    Parameters are those of `row_sum`; rows have 1 element or more.
    """
    return _reduce("row_max", x, out, stream, dtype, plan)


def row_argmax(
    x: DeviceArray,
    *,
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: RowPlan | None = None,
) -> DeviceArray:
    """Return the column of the largest element of each row of `x`, as int64.

    The first of several, and the first NaN if there is one, as NumPy does. Parameters are those of
    `row_sum`, but that `out` is int64; rows have 1 to 2**24 elements.
    """
    return _reduce("row_argmax", x, out, stream, dtype, plan)


#: Of each function: its operation, and the type of the results.
_REDUCTIONS = {
    "row_sum": (ROW_SUM, "f32"),
    "row_max": (ROW_MAX, "f32"),
    "row_argmax": (ROW_MAX, "i64"),
}


def _reduce(
    name: str,
    x: DeviceArray,
    out: DeviceArray | None,
    stream: StreamLike,
    dtype: DTypeLike | None,
    plan: RowPlan | None,
) -> DeviceArray:
    if out is None:
        shape = _read_matrix(name, x, dtype).shape[:-1]
        out = new_array(x, shape, as_dtype(_REDUCTIONS[name][1]))
    _LAUNCHES[name]((x, out), stream, (), name, dtype, plan)
    return out


def _read_matrix(name: str, x: DeviceArray, dtype: DTypeLike | None) -> Array:
    """Read rows that can be reduced."""
    source = read_rows(name, "x", x, dtype)
    columns = source.shape[-1]
    if name == "row_argmax" and not 0 < columns <= 1 << 24:
        raise ValueError(
            f"row_argmax(): rows of {columns:,} elements; it finds columns of rows of 1 to "
            f"{1 << 24:,}"
        )
    if name == "row_max" and not columns:
        raise source.error(
            f"has shape {source.shape}, and rows without elements have no largest one: pass rows "
            "of 1 element or more"
        )
    if len(source.shape) == 1:
        raise ValueError(f"{name}(): x has 1 axis; pass x.reshape(1, -1)")
    return source


def _prepare(
    arrays: tuple[DeviceArray, DeviceArray],
    stream: StreamLike,
    numbers: tuple[()],
    name: str,
    dtype: DTypeLike | None,
    plan: RowPlan | None,
) -> None:
    source, result = _read_matrix(name, arrays[0], dtype), Array.read(name, "out", arrays[1])
    (op, wanted), shape = _REDUCTIONS[name], source.shape[:-1]
    if result.shape != shape or result.dtype.name != wanted or not result.is_contiguous:
        raise result.error(
            f"has shape {result.shape} of {result.dtype}; it takes one {wanted} for each row of "
            f"x: pass a contiguous array of shape {shape} of {wanted}"
        )
    checked(name, "plan", plan, PLAN)
    check_outputs([result], [source])
    statistics = (None, result) if wanted == "i64" else (result, None)
    run(op, RowOperands(source, statistics=statistics), stream=stream, plan=plan)


_LAUNCHES = {name: launched_again(name, "x", "out")(_prepare) for name in _REDUCTIONS}


def new_array(like: DeviceArray, shape: tuple[int, ...], dtype: DType) -> DeviceArray:
    """Return a new array of the library of `like`, of a type that NumPy has."""
    if simulated():
        return np.empty(shape, dtype.numpy)
    library = type(like).__module__.partition(".")[0]
    if library == "torch":
        torch = importlib.import_module("torch")
        return torch.empty(shape, dtype=getattr(torch, dtype.numpy.name), device=like.device)
    if library == "cupy":
        return importlib.import_module("cupy").empty(shape, dtype.numpy)
    from numba import cuda

    return cuda.device_array(shape, dtype.numpy)


# ------------------------------------------------------------------------------- columns

PARTS = optional(whole(1, 1 << 16))


def column_sum(
    x: DeviceArray,
    *,
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    parts: int | None = None,
) -> DeviceArray:
    """Return the sums of the columns of `x`, added in float32 and always in the same order.

    Parameters
    ----------
    x
        Device array (..., columns) of f32, f16 or bf16: torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``.
    out
        Where to write: (columns,) of f32, f16 or bf16; a new array of f32 if None. Integers like
        those of `x` mean what `dtype` says.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        Element type of `x` if its own type cannot say it, such as bf16 held as uint16.
    parts
        Partial sums per column, 1 to 65,536, added in parallel; enough to fill the GPU if None. The
        number decides the order of addition.

    Returns
    -------
    DeviceArray
        `out`.

    Raises
    ------
    ValueError
        If shapes or types are not those above.
    """
    if out is None:
        columns = read_rows("column_sum", "x", x, dtype).shape[-1]
        out = new_array(x, (columns,), as_dtype("f32"))
    _column_sum((x, out), stream, (), dtype, parts)
    return out


@launched_again("column_sum", "x", "out")
def _column_sum(
    arrays: tuple[DeviceArray, DeviceArray],
    stream: StreamLike,
    numbers: tuple[()],
    dtype: DTypeLike | None,
    parts: int | None,
) -> list[DeviceArray]:
    """Launch, and return the workspace."""
    source = read_rows("column_sum", "x", arrays[0], dtype)
    result = Array.read("column_sum", "out", arrays[1]).with_bits_of(source)
    shape = (source.shape[-1],)
    if result.shape != shape or result.dtype.name not in FLOATS:
        raise result.error(
            f"has shape {result.shape} of {result.dtype}; it takes the sum of each column of x: "
            f"pass an array of shape {shape} of f32, f16 or bf16"
        )
    result.as_rows()  # raises if its elements have gaps
    parts = checked("column_sum", "parts", parts, PARTS)
    check_outputs([result], [source])
    if shape == (0,):
        return []
    return _columns.sum_columns(source.as_rows(), result, stream, parts)
