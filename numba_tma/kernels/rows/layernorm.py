"""LayerNorm: y = (x - mean) / sqrt(variance + eps) * weight + bias, row by row.

Each thread computes the mean of its values and the sum of squared differences from that mean.
Lanes, warps and blocks combine these by the formulas of Chan, Golub and LeVeque, so a mean far from
0 cancels no digits of the variance. 1 / standard deviation and the division by a count are
approximations (rsqrt.approx, rcp.approx). Cost model: that of RMSNorm (rmsnorm.py).
"""

from __future__ import annotations

import numpy as np

from numba_tma.backend.interface import device_function
from numba_tma.device.arithmetic import larger, reciprocal, rsqrt
from numba_tma.device.combine import lanes_sum
from numba_tma.device.row_share import Share, keep, num_present
from numba_tma.device.vectors import four, total
from numba_tma.host.annotations import (
    DeviceArray,
    DTypeLike,
    Integer,
    Real,
    Registers,
    StreamLike,
)
from numba_tma.kernels._host.outputs import empty_like
from numba_tma.kernels.rows.kernel import RowOperation
from numba_tma.kernels.rows.launching import normaliser
from numba_tma.kernels.rows.plan import RowPlan


@device_function
def moments_of(
    share: Share, values: Registers, first: Integer, limit: Integer, eps: Real
) -> tuple[Registers, Registers]:
    """Return the thread's part, and the values unchanged.

    The part is (count, mean, sum of squared differences from the mean, 0).
    """
    zero = np.float32(0)
    count = num_present(share, first, limit)
    mean = total(values) * reciprocal(larger(count, np.float32(1)))
    differences = keep(share, values - mean, first, limit, zero)
    return four(count, mean, total(differences * differences), zero), values


@device_function
def combine_lanes(part: Registers, lanes: int, scalar: Real) -> Registers:
    """Return the part of all elements of `lanes` neighbouring lanes."""
    count = lanes_sum(part[0], lanes)
    mean = lanes_sum(part[0] * part[1], lanes) * reciprocal(larger(count, np.float32(1)))
    difference = part[1] - mean
    squares = lanes_sum(part[2] + part[0] * difference * difference, lanes)
    return four(count, mean, squares, np.float32(0))


@device_function
def combine_equal_lanes(part: Registers, lanes: int, scalar: Real) -> Registers:
    """As `combine_lanes`, where each lane has the same count: two sums instead of three."""
    mean = lanes_sum(part[1], lanes) * (np.float32(1) / np.float32(lanes))
    difference = part[1] - mean
    squares = lanes_sum(part[2] + part[0] * difference * difference, lanes)
    return four(part[0] * np.float32(lanes), mean, squares, np.float32(0))


@device_function
def standardise(
    values: Registers, own: Registers, row_stats: Registers, columns: Integer, eps: Real
) -> Registers:
    """Subtract the mean and divide by the standard deviation; `eps` is added to the variance."""
    return (values - row_stats[1]) * rsqrt(row_stats[2] * reciprocal(np.float32(columns)) + eps)


@device_function
def mean_and_rstd(row_stats: Registers, columns: Integer, eps: Real) -> Registers:
    """Return (mean, 1 / standard deviation, 0, 0), for the arrays `mean` and `rstd`."""
    zero = np.float32(0)
    return four(
        row_stats[1], rsqrt(row_stats[2] * reciprocal(np.float32(columns)) + eps), zero, zero
    )


@device_function
def merge_moments(part: Registers, other: Registers, eps: Real) -> Registers:
    """Return the part of the elements of two slots."""
    count = part[0] + other[0]
    fraction = other[0] * reciprocal(larger(count, np.float32(1)))
    difference = other[1] - part[1]
    squares = part[2] + other[2] + difference * difference * part[0] * fraction
    return four(count, part[1] + difference * fraction, squares, np.float32(0))


LAYERNORM = RowOperation(
    name="layernorm",
    reduce=moments_of,
    combine_lanes=combine_lanes,
    combine_equal_lanes=combine_equal_lanes,
    merge=merge_moments,
    apply=standardise,
    statistics=mean_and_rstd,
)


def layernorm(
    x: DeviceArray,
    weight: DeviceArray | None = None,
    bias: DeviceArray | None = None,
    *,
    eps: float = 1e-5,
    residual: DeviceArray | None = None,
    residual_out: DeviceArray | None = None,
    mean: DeviceArray | None = None,
    rstd: DeviceArray | None = None,
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: RowPlan | None = None,
) -> DeviceArray:
    """Bring the rows of `x` to mean 0 and variance 1, scale them by `weight` and add `bias`.

    Parameters
    ----------
    x
        Device array (..., columns) of f32, f16 or bf16: torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``. Rows may start anywhere: they are
        accessed 16 B at a time if they start as far behind a multiple of 16 B as those of all
        other arrays of the call, and else by as much as divides all of them.
    weight, bias
        Device arrays (columns,) of the same type; 1 and 0 if None.
    eps
        Added to the variance.
    residual
        Device array like `x`; it is added to `x` first, in float32.
    residual_out
        Array that gets the sum of `x` and `residual`; may be either of them.
    mean, rstd
        Arrays that get the mean and 1 / standard deviation: float32, one per row.
    out
        Array that gets the result; a new array like `x` if None. May be `x`.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        Element type of arrays whose own type cannot say it, such as bf16 held as uint16.
    plan
        How rows are shared among threads; the fastest measured plan if None.

    Returns
    -------
    DeviceArray
        `out`. Everything is computed in float32 and rounded once.

    Raises
    ------
    ValueError
        If shapes or types disagree.
    """
    out = empty_like("layernorm", "x", x) if out is None else out
    arrays = (x, weight, bias, out, residual, residual_out, mean, rstd)
    _layernorm(arrays, stream, (eps,), dtype, plan)
    return out


_layernorm = normaliser(
    LAYERNORM, "x", "weight", "bias", "out", "residual", "residual_out", "mean", "rstd"
)
