"""RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight, row by row.

Cost model: each row is read once and written once, and stays on the chip in between, so that DRAM
decides; the weights come from the caches. How rows are cut up is said in `_rows`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numba_tma.backend.interface import device_function
from numba_tma.device.arithmetic import reciprocal, rsqrt
from numba_tma.device.combine import lanes_sum
from numba_tma.device.vectors import four, total
from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.kernels._host.memo import launched_again
from numba_tma.kernels._host.outputs import empty_like
from numba_tma.kernels.rows.kernel import RowOperation
from numba_tma.kernels.rows.launching import normalise
from numba_tma.kernels.rows.plan import RowPlan


@device_function
def sum_of_squares(share: Any, values: Any, first: Any, limit: Any, eps: Any) -> Any:
    """Return (sum of squares), and the values."""
    zero = np.float32(0)
    return four(total(values * values), zero, zero, zero), values


@device_function
def add_lanes(part: Any, lanes: Any, scalar: Any) -> Any:
    """Add the sums."""
    zero = np.float32(0)
    return four(lanes_sum(part[0], lanes), zero, zero, zero)


@device_function
def divide_by_rms(values: Any, own: Any, whole: Any, columns: Any, eps: Any) -> Any:
    """Divide by the root mean square."""
    return values * rsqrt(whole[0] * reciprocal(np.float32(columns)) + eps)


@device_function
def rstd_of(whole: Any, columns: Any, eps: Any) -> Any:
    """Return (1 / root mean square)."""
    zero = np.float32(0)
    return four(rsqrt(whole[0] * reciprocal(np.float32(columns)) + eps), zero, zero, zero)


@device_function
def add_parts(part: Any, other: Any, eps: Any) -> Any:
    """Add the sums."""
    return part + other


RMSNORM = RowOperation(
    name="rmsnorm",
    reduce=sum_of_squares,
    combine=add_lanes,
    merge=add_parts,
    apply=divide_by_rms,
    statistics=rstd_of,
)


def rmsnorm(
    x: DeviceArray,
    weight: DeviceArray | None = None,
    *,
    eps: float = 1e-6,
    residual: DeviceArray | None = None,
    residual_out: DeviceArray | None = None,
    rstd: DeviceArray | None = None,
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: RowPlan | None = None,
) -> DeviceArray:
    """Normalise the rows of `x` by their root mean square and scale them by `weight`.

    Parameters
    ----------
    x
        Device array (..., columns) of f32, f16 or bf16: torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``. Rows that start and end at multiples of
        16 B are accessed 16 B at a time, others by as much as divides both.
    weight
        Device array (columns,) of the same type; 1 if None.
    eps
        Added to the mean square.
    residual
        Device array like `x` that is added to it first, in float32.
    residual_out
        Where to write the sum of `x` and `residual`. May be either.
    rstd
        Where to write 1 / root mean square: float32, one for each row.
    out
        Where to write; a new array like `x` if None. May be `x`.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        What the bits of the arrays mean where their own type cannot say it: bf16 held as uint16.
    plan
        How to cut the work up; what is measured to be fast if None.

    Returns
    -------
    DeviceArray
        `out`. Everything is computed in float32 and rounded once.

    Raises
    ------
    ValueError
        If shapes or types disagree.
    """
    out = empty_like(x) if out is None else out
    arrays = (x, weight, out, residual, residual_out, rstd)
    _rmsnorm(arrays, stream, (eps,), dtype, plan)
    return out


@launched_again("rmsnorm", "x", "weight", "out", "residual", "residual_out", "rstd")
def _rmsnorm(
    arrays: tuple[DeviceArray | None, ...],
    stream: StreamLike,
    numbers: tuple[float],
    dtype: DTypeLike | None,
    plan: RowPlan | None,
) -> None:
    x, weight, out, residual, residual_out, rstd = arrays
    normalise(
        *(RMSNORM, stream, numbers[0], dtype, plan),
        x=x,
        out=out,
        weight=weight,
        residual=residual,
        residual_out=residual_out,
        rstd=rstd,
    )
