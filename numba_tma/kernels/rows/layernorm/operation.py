"""LayerNorm's steps: mean and variance, combined without cancellation, and the standardisation.

Each thread computes the mean of its values and the sum of squared differences from that mean.
Lanes, warps and blocks combine these by the formulas of Chan, Golub and LeVeque, so a mean far from
0 cancels no digits of the variance. 1 / standard deviation and the division by a count are
approximations (rsqrt.approx, rcp.approx).
"""

from __future__ import annotations

import numpy as np

from numba_tma.backend.interface import device_function
from numba_tma.device.arithmetic import larger, reciprocal, rsqrt
from numba_tma.device.combine import lanes_sum
from numba_tma.device.row_share import keep, num_present
from numba_tma.device.share import Share
from numba_tma.device.vectors import four, total
from numba_tma.host.annotations import Integer, Real, Registers
from numba_tma.kernels.rows.kernel import RowOperation


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
