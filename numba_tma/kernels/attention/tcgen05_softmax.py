"""Online softmax of the kernel of Blackwell's tensor cores: a thread has one row of S.

So maxima and sums need no other thread. What scores, maxima and sums are multiplied with is that of
`softmax.py`.

The maximum of a row is replaced only where it has grown by more than `THRESHOLD` in log2, so P may
be as large as 2**THRESHOLD. Any maximum near the true one is correct, since it cancels in O / l;
and 16-bit P keeps as many bits above 1 as below. The rescaling of O, which goes through tensor
memory, becomes rare after the first K/V tiles.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i32
from numba_tma.device.arithmetic import exp2, larger
from numba_tma.device.vectors import largest, map_columns, map_lanes, total
from numba_tma.host.annotations import Integer, Real, Registers
from numba_tma.host.tensor_tiles import LANES
from numba_tma.kernels.attention.softmax import (
    MINUS_INFINITY,
    ONE,
    ZERO,
    capped,
    exponential,
    log_of_sum,
    shift_of,
)

#: Growth of a row's maximum, in log2 of P, from which on the maximum is replaced.
THRESHOLD = np.float32(8)


class RowMaximum(NamedTuple):
    """The maximum that a row's P is relative to, after a K/V tile."""

    value: Any  #: the maximum of the scores, or an earlier one that is at most THRESHOLD smaller
    factor: Any  #: exp(previous maximum - this one): what O and the row sum are rescaled by


@device_function
def load_scores(form: Any, scores: Any, rows: Any, lane: Integer, scales: Any) -> Any:
    """Return the thread's row of S, with -inf where a key is not seen.

    Each mask is under a condition that all threads of the warpgroup share.
    """
    row = map_columns(unchanged, scores.load(0, form.block_k), 0, form.block_k, ())
    if form.softcap:
        row = map_lanes(capped, (row,), (scales.softcap,))
    if form.masks_right:
        if rows.stop < form.block_k:
            row = map_columns(before, row, 0, form.block_k, (i32(rows.stop + lane),))
    if form.masks_end:
        if rows.end < form.block_k:
            row = map_columns(before, row, 0, form.block_k, (rows.end,))
    if form.masks_left:
        if rows.start > 1 - LANES:
            row = map_columns(from_start, row, 0, form.block_k, (i32(rows.start + lane),))
    return row


@device_function
def unchanged(score: Real, column: Integer) -> Any:
    """Return the score."""
    return score


@device_function
def before(score: Real, column: Integer, stop: Integer) -> Any:
    """Return the score of a column before `stop`, else -inf."""
    return score if column < stop else MINUS_INFINITY


@device_function
def from_start(score: Real, column: Integer, start: Integer) -> Any:
    """Return the score of a column from `start` on, else -inf."""
    return score if column >= start else MINUS_INFINITY


@device_function
def next_maximum(row: Registers, old: Real, scale: Real) -> RowMaximum:
    """Return the maximum after a K/V tile: the old one unless it has grown beyond the threshold.

    The first finite maximum has grown by infinity.
    """
    new = larger(largest(row), old)
    growth = (new - old) * scale if new > old else ZERO
    if growth > THRESHOLD:
        return RowMaximum(new, exp2(-growth))
    return RowMaximum(old, ONE)


@device_function
def weights_of(row: Registers, row_max: Real, scale: Real) -> Any:
    """Return the thread's row of P."""
    return map_lanes(exponential, (row,), (scale, shift_of(row_max, scale)))


@device_function
def sum_of(weights: Registers) -> Any:
    """Return the sum of a row of P, before it is rounded."""
    return total(weights)


@device_function
def store_row_lse(
    form: Any, state: Any, scale: Real, row: Integer, at: Integer, sequence: Any, options: Any
) -> None:
    """Store the lse of the thread's row, if it is asked for and the row is one of the sequence.

    `at` is the number of the head's first element in lse, (batch, heads, queries).
    """
    if form.lse:
        if row < sequence.queries:
            lse = log_of_sum(state.row_sum, shift_of(state.row_max, scale))
            ptx.st_global_f32(options.lse + 4 * (at + row), lse)
