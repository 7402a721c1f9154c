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
from numba_tma.device.tensor_tile import TensorTile
from numba_tma.device.vectors import largest, map_columns, map_lanes, total
from numba_tma.host.annotations import Integer, Real, Registers
from numba_tma.host.tensor_tiles import LANES
from numba_tma.kernels.attention.softmax import (
    MINUS_INFINITY,
    ONE,
    ZERO,
    Scales,
    capped,
    exponential,
    log_of_sum,
    shift_of,
)
from numba_tma.kernels.attention.tcgen05_plan import Tcgen05AttentionForm
from numba_tma.kernels.attention.tiles import SequenceExtent, WarpgroupRows

#: Where the exponent of a power of 2 is 0, and what rounds a float32 to an integer plus 127.
LEAST: Any = np.float32(-127)
ROUNDING = np.float32(1.5 * 2**23 + 127)
#: Coefficients of r**1 to r**5 for 2**r, |r| <= 1/2: the smallest largest relative error.
C1, C2, C3, C4, C5 = map(
    np.float32, (0.6931470037, 0.2402224243, 0.0555073358, 0.0096715130, 0.0013264727)
)
#: Growth of a row's maximum, in log2 of P, from which on the maximum is replaced.
THRESHOLD = np.float32(8)


class RowMaximum(NamedTuple):
    """The maximum that a row's P is relative to, after a K/V tile."""

    value: Any  #: the maximum of the scores, or an earlier one that is at most THRESHOLD smaller
    factor: Any  #: exp(previous maximum - this one): what O and the row sum are rescaled by


@device_function
def load_scores(
    form: Tcgen05AttentionForm, scores: TensorTile, rows: WarpgroupRows, lane: int, scales: Scales
) -> Any:
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
def weights_of(form: Tcgen05AttentionForm, row: Registers, row_max: Real, scale: Real) -> Any:
    """Return the thread's row of P."""
    shift, period = shift_of(row_max, scale), form.polynomial_period
    if period:
        return map_columns(mixed_exponential, row, 0, form.block_k, (scale, shift, period))
    return map_lanes(exponential, (row,), (scale, shift))


@device_function
def mixed_exponential(
    score: Real, column: Integer, scale: Real, shift: Registers, period: Integer
) -> Any:
    """Return exp(score - row maximum), of each `period`-th column by a polynomial."""
    if column % period == period - 1:
        return exponential_by_polynomial(score, scale, shift)
    return exponential(score, scale, shift)


@device_function
def exponential_by_polynomial(score: Real, scale: Real, shift: Registers) -> Any:
    """Return what `exponential` does, by multiply-adds instead of ex2, as exactly.

    2**x = 2**k 2**r, with k the integer nearest to x and a polynomial of r, of degree 5: relative
    errors stay below 2**-22. Of x below -126.5 the result is 0, and of NaN it is NaN.
    """
    x = ptx.max_nan_f32(score * scale + shift, LEAST)
    rounded = x + ROUNDING  # its low bits are k + 127, the exponent of 2**k
    r = x - (rounded - ROUNDING)
    power = np.uint32(rounded.view(np.uint32) << np.uint32(23)).view(np.float32)
    return (((((C5 * r + C4) * r + C3) * r + C2) * r + C1) * r + ONE) * power


@device_function
def sum_of(weights: Registers) -> Any:
    """Return the sum of a row of P, before it is rounded."""
    return total(weights)


@device_function
def store_row_lse(
    form: Tcgen05AttentionForm,
    state: Any,
    scale: Real,
    row: int,
    at: int,
    sequence: SequenceExtent,
    options: Any,
) -> None:
    """Store the lse of the thread's row, if it is asked for and the row is one of the sequence.

    `at` is the number of the head's first element in lse, (batch, heads, queries).
    """
    if form.lse:
        if row < sequence.queries:
            lse = log_of_sum(state.row_sum, shift_of(state.row_max, scale))
            ptx.st_global_f32(options.lse + 4 * (at + row), lse)
