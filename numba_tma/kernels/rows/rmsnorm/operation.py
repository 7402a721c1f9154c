"""RMSNorm's steps: the sum of squares, and the division by the root of its mean.

1 / sqrt and 1 / columns are approximations (rsqrt.approx and rcp.approx: device/arithmetic.py has
their errors).
"""

from __future__ import annotations

import numpy as np

from numba_tma.backend.interface import device_function
from numba_tma.device.arithmetic import reciprocal, rsqrt
from numba_tma.device.combine import lanes_sum
from numba_tma.device.share import Share
from numba_tma.device.vectors import four, total
from numba_tma.host.annotations import Integer, Real, Registers
from numba_tma.kernels.rows.kernel import RowOperation


@device_function
def sum_of_squares(
    share: Share, values: Registers, first: Integer, limit: Integer, eps: Real
) -> tuple[Registers, Registers]:
    """Return the thread's part, (sum of squares, 0, 0, 0), and the values unchanged."""
    zero = np.float32(0)
    return four(total(values * values), zero, zero, zero), values


@device_function
def add_lanes(part: Registers, lanes: int, scalar: Real) -> Registers:
    """Return (sum over `lanes` neighbouring lanes, 0, 0, 0)."""
    zero = np.float32(0)
    return four(lanes_sum(part[0], lanes), zero, zero, zero)


@device_function
def divide_by_rms(
    values: Registers, own: Registers, row_stats: Registers, columns: Integer, eps: Real
) -> Registers:
    """Return values / sqrt(mean square + eps); `eps` is the `scalar` of `RowOperation`."""
    return values * rsqrt(row_stats[0] * reciprocal(np.float32(columns)) + eps)


@device_function
def rstd_of(row_stats: Registers, columns: Integer, eps: Real) -> Registers:
    """Return (1 / root mean square, 0, 0, 0); the array `rstd` gets element 0."""
    zero = np.float32(0)
    return four(rsqrt(row_stats[0] * reciprocal(np.float32(columns)) + eps), zero, zero, zero)


@device_function
def add_parts(part: Registers, other: Registers, eps: Real) -> Registers:
    """Add the parts of two slots, element by element."""
    return part + other


RMSNORM = RowOperation(
    name="rmsnorm",
    reduce=sum_of_squares,
    combine_lanes=add_lanes,
    merge=add_parts,
    apply=divide_by_rms,
    statistics=rstd_of,
)
