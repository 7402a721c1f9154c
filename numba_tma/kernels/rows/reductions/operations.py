"""The steps of sums and maxima of rows."""

from __future__ import annotations

import numpy as np

from numba_tma import ptx
from numba_tma.backend.interface import device_function
from numba_tma.device.row_share import first_largest
from numba_tma.device.share import Share
from numba_tma.device.vectors import four, total
from numba_tma.host.annotations import Integer, Real, Registers
from numba_tma.kernels.rows.kernel import RowOperation
from numba_tma.kernels.rows.rmsnorm.operation import add_lanes, add_parts


@device_function
def sum_of(
    share: Share, values: Registers, first: Integer, limit: Integer, scalar: Real
) -> tuple[Registers, Registers]:
    """Return the thread's part, (sum, 0, 0, 0), and the values unchanged."""
    zero = np.float32(0)
    return four(total(values), zero, zero, zero), values


@device_function
def unchanged(
    values: Registers, own: Registers, row_stats: Registers, columns: Integer, scalar: Real
) -> Registers:
    """Return the values."""
    return values


@device_function
def as_reduced(row_stats: Registers, columns: Integer, scalar: Real) -> Registers:
    """Return the row's statistics as they are."""
    return row_stats


@device_function
def largest_of(
    share: Share, values: Registers, first: Integer, limit: Integer, scalar: Real
) -> tuple[Registers, Registers]:
    """Return the thread's part, (maximum, its column, 0, 0), and the values unchanged."""
    return first_largest(share, values, first, limit), values


@device_function
def merge_largest(part: Registers, other: Registers, scalar: Real) -> Registers:
    """Return the part with the larger element.

    NaN is larger than any number. Of equal elements, the one in the lower column counts.
    """
    ours_is_nan, theirs_is_nan = part[0] != part[0], other[0] != other[0]
    larger = not ours_is_nan and (theirs_is_nan or other[0] > part[0])
    equal = (theirs_is_nan and ours_is_nan) or other[0] == part[0]
    if larger or (equal and other[1] < part[1]):
        result = other
    else:
        result = part
    return result


@device_function
def combine_lanes(part: Registers, lanes: int, scalar: Real) -> Registers:
    """Return the part of the lane with the largest element among neighbouring lanes."""
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
    combine_lanes=add_lanes,
    merge=add_parts,
    apply=unchanged,
    statistics=as_reduced,
)
ROW_MAX = RowOperation(
    name="row_max",
    reduce=largest_of,
    combine_lanes=combine_lanes,
    merge=merge_largest,
    apply=unchanged,
    statistics=as_reduced,
)
