"""The steps of softmax and log-softmax: maxima, exponentials relative to them, and their sums.

`rows_in_registers` computes one exponential per element, relative to the thread's own maximum, and
multiplies all of them by one factor when the row's maximum is known. `rows_in_shared` computes two
exponentials per element, because registers hold only one slot of the row. Exponentials, logarithms
and the division are approximations (ex2.approx, lg2.approx, rcp.approx: device/arithmetic.py has
their errors).
"""

from __future__ import annotations

import math

import numpy as np

from numba_tma.backend.interface import device_function
from numba_tma.device.arithmetic import exp2, fused, larger, log2, reciprocal
from numba_tma.device.combine import lanes_max, lanes_sum
from numba_tma.device.row_share import keep
from numba_tma.device.share import Share
from numba_tma.device.vectors import four, largest, total
from numba_tma.host.annotations import Integer, Real, Registers
from numba_tma.kernels.rows.kernel import RowOperation

LOG2_E, LN_2 = np.float32(math.log2(math.e)), np.float32(math.log(2))
MINUS_INFINITY = np.float32(-math.inf)


@device_function
def finite(maximum: Real) -> Real:
    """Return the maximum, or 0 if it is -inf: -inf - -inf would be NaN."""
    return maximum if maximum > MINUS_INFINITY else np.float32(0)


@device_function
def exponentials_of(
    share: Share, values: Registers, first: Integer, limit: Integer, scale: Real
) -> tuple[Registers, Registers]:
    """Return the thread's part, and the exponentials.

    The part is (maximum, sum of exponentials, 0, 0); an exponential is exp(scale * (x - maximum)).
    """
    values = keep(share, values, first, limit, MINUS_INFINITY)
    maximum = largest(values)
    powers = exp2((values - finite(maximum)) * (scale * LOG2_E))
    return four(maximum, total(powers), np.float32(0), np.float32(0)), powers


@device_function
def combine_lanes(part: Registers, lanes: int, scale: Real) -> Registers:
    """Rescale the sums of neighbouring lanes to their common maximum and add them."""
    maximum = lanes_max(part[0], lanes)
    factor = exp2((part[0] - finite(maximum)) * (scale * LOG2_E))
    return four(maximum, lanes_sum(part[1] * factor, lanes), np.float32(0), np.float32(0))


@device_function
def rescale(
    values: Registers, own: Registers, row_stats: Registers, columns: Integer, scale: Real
) -> Registers:
    """Rescale exponentials from the thread's maximum to the row's, and divide by the row's sum."""
    return values * (exp2((own[0] - row_stats[0]) * (scale * LOG2_E)) * reciprocal(row_stats[1]))


@device_function
def logsumexp_of(row_stats: Registers, columns: Integer, scale: Real) -> Registers:
    """Return (logarithm of the sum of exponentials, 0, 0, 0)."""
    zero = np.float32(0)
    return four(row_stats[0] * scale + log2(row_stats[1]) * LN_2, zero, zero, zero)


@device_function
def sum_of_exponentials(
    share: Share, values: Registers, first: Integer, limit: Integer, scale: Real
) -> tuple[Registers, Registers]:
    """Return the part that `exponentials_of` returns, and the values unchanged."""
    part, _ = exponentials_of(share, values, first, limit, scale)
    return part, values


@device_function
def log_softmax_of(
    values: Registers, own: Registers, row_stats: Registers, columns: Integer, scale: Real
) -> Registers:
    """Return scale * (x - maximum) less the logarithm of the row's sum."""
    return (values - row_stats[0]) * scale - log2(row_stats[1]) * LN_2


@device_function
def merge_sums(part: Registers, other: Registers, scale: Real) -> Registers:
    """Rescale the sums of two slots to their common maximum and add them."""
    maximum, zero = larger(part[0], other[0]), np.float32(0)
    ours = part[1] * exp2((part[0] - finite(maximum)) * (scale * LOG2_E))
    theirs = other[1] * exp2((other[0] - finite(maximum)) * (scale * LOG2_E))
    return four(maximum, ours + theirs, zero, zero)


@device_function
def softmax_of(
    values: Registers, own: Registers, row_stats: Registers, columns: Integer, scale: Real
) -> Registers:
    """Return the softmax of values as loaded, from the row's maximum and sum."""
    return exp2(fused(values - row_stats[0], scale * LOG2_E, np.float32(0) - log2(row_stats[1])))


SOFTMAX = RowOperation(
    name="softmax",
    reduce=exponentials_of,
    combine_lanes=combine_lanes,
    merge=merge_sums,
    apply=rescale,
    finish=softmax_of,
    statistics=logsumexp_of,
)
LOG_SOFTMAX = RowOperation(
    name="log_softmax",
    reduce=sum_of_exponentials,
    combine_lanes=combine_lanes,
    merge=merge_sums,
    apply=log_softmax_of,
    statistics=logsumexp_of,
)
