"""What a kernel over rows computes: `RowOperation`, the device functions of a norm or reduction."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.device.row_share import Share
from numba_tma.host.annotations import DeviceFunction


@dataclass(frozen=True, eq=False)  # one object per operation, compared by identity
class RowOperation:
    """What a kernel computes: five device functions, and two optional ones.

    A part is a vector of four float32: the statistics of some elements of a row, such as
    (sum of squares, 0, 0, 0). The row's statistics, `row_stats`, are the part of all its elements.
    `scalar` is a float32 argument of the launch: eps of a norm, scale of a softmax.

    Parameters
    ----------
    name
        The public function, for errors and kernels' names.
    reduce
        ``(share, values, first, limit, scalar)`` returns the thread's part, and the values that
        `apply` gets. `first` and `limit` are those of device/row_share.py. In `rows_in_shared`
        they are counted from the start of the slot, or of the row if `RowOptions.index` is set.
    combine_lanes
        ``(part, lanes, scalar)`` returns, in each of `lanes` neighbouring lanes, the part of all
        their elements.
    merge
        ``(part, other, scalar)`` returns the part of two slots of one thread; `rows_in_shared`
        alone calls it.
    apply
        ``(values, own, row_stats, columns, scalar)`` returns the result. `values` and `own`, the
        thread's part, are what `reduce` returned.
    statistics
        ``(row_stats, columns, scalar)`` returns a vector. Its first two elements are what the
        kernel can write for each row.
    finish
        As `apply`, for `rows_in_shared`, which loads the values again: `values` are as loaded, not
        those that `reduce` returned, and `own` is `row_stats`. `apply` if None.
    combine_equal_lanes
        As `combine_lanes`, where every lane's part is of the same number of elements;
        `combine_lanes` if None.
    """

    name: str
    reduce: DeviceFunction
    combine_lanes: DeviceFunction
    merge: DeviceFunction
    apply: DeviceFunction
    statistics: DeviceFunction
    finish: DeviceFunction | None = None
    combine_equal_lanes: DeviceFunction | None = None

    def lanes_combination(self, share: Share) -> DeviceFunction:
        """Return the function that combines lanes that hold such shares."""
        equal = share.whole and self.combine_equal_lanes
        return self.combine_equal_lanes if equal else self.combine_lanes
