"""Online softmax, from S to P: masks, soft cap, exponentials, maxima, rescaling, scales of heads.

Exponentials are powers of 2: the scale of the scores includes log2(e). P = 2**(S * scale + shift)
with shift = -(row maximum) * scale takes one multiply-add and one `ex2` for each score.

A soft cap turns a score into cap tanh(score / cap). `apply_mask` computes the tanh alone; the cap
is part of the scale.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numba_tma import ptx
from numba_tma.backend.interface import device_function
from numba_tma.device.arithmetic import log2
from numba_tma.host.annotations import Integer, Real, Registers
from numba_tma.host.warpgroup import ROWS
from numba_tma.kernels.attention.plan import AttentionForm, AttentionProblem

ZERO, ONE = np.float32(0), np.float32(1)
MINUS_INFINITY = np.float32(-np.inf)
LN_2, LOG2_E = np.float32(math.log(2)), np.float32(math.log2(math.e))
#: P of e4m3, whose largest number is 448, is multiplied with 2**8. Elements down to 2**-14 of the
#: row's maximum so far then keep all 4 bits, and those below 2**-18 of it become 0.
FP8_LIFT = np.float32(8)


# ------------------------------------------------------------------------------------ masks


@device_function
def apply_mask(form: AttentionForm, scores: Registers, rows: Any, scales: Any) -> Any:
    """Return S of a K tile with -inf where a key is not seen. Most tiles need no mask: see below.

    Each mask is under a condition on the tile that all threads of the warpgroup share, so a tile
    that the rows see whole costs a comparison for each side.
    """
    if form.softcap:
        scores = scores.map(capped, scales.softcap)
    if form.masks_right:
        if rows.stop < form.block_k:
            if form.packed_heads > 1:
                scores = scores.map_coords(before_stop_packed, rows.stop, form.packed_heads)
            else:
                scores = scores.map_coords(before_stop, rows.stop)
    if form.masks_end:
        if rows.end < form.block_k:
            scores = scores.map_coords(before_end, rows.end)
    if form.masks_left:
        if rows.start > 1 - ROWS:
            scores = scores.map_coords(from_start, rows.start)
    return scores


@device_function
def capped(score: float, scale: float) -> Any:
    """Return tanh(score * scale), where the scale is that of the scores over the cap."""
    return ptx.tanh_approx_f32(score * scale)


@device_function
def before_end(score: Real, row: Integer, column: Any, end: Any) -> Any:
    """Return the score of a column before `end`, else -inf."""
    return score if column < end else MINUS_INFINITY


@device_function
def before_stop(score: Real, row: Integer, column: Any, stop: Any) -> Any:
    """Return the score of a column before `stop` + row, else -inf."""
    return score if np.int32(column - row) < stop else MINUS_INFINITY


@device_function
def before_stop_packed(
    score: Real, row: Integer, column: Integer, stop: Integer, heads: Integer
) -> Any:
    """Return the score of a column before `stop` + query, else -inf; a query has `heads` rows."""
    return score if np.int32(column - row // np.int32(heads)) < stop else MINUS_INFINITY


@device_function
def from_start(score: Real, row: Integer, column: Any, start: Any) -> Any:
    """Return the score of a column from `start` + row on, else -inf."""
    return score if np.int32(column - row) >= start else MINUS_INFINITY


# ----------------------------------------------------------------- numbers of one row or score


@device_function
def shift_of(row_max: Registers, scale: Real) -> Any:
    """Return what is added to a scaled score; 0 where all are -inf, since inf - inf is NaN."""
    return -row_max * scale if row_max > MINUS_INFINITY else ZERO


@device_function
def fp8_shift_of(row_max: Registers, scale: Real) -> Any:
    """Return the shift that makes P 2**FP8_LIFT times as large."""
    return FP8_LIFT - row_max * scale if row_max > MINUS_INFINITY else ZERO


@device_function
def exponential(score: Real, scale: Real, shift: Registers) -> Any:
    """Return exp(score - row maximum), both scaled: one multiply-add and one ex2."""
    return ptx.ex2_approx_ftz_f32(score * scale + shift)


@device_function
def rescale_of(old_max: Registers, row_max: Registers, scale: Real) -> Any:
    """Return exp(old maximum - new maximum), both scaled.

    It is computed from the difference, so it is exactly 1 where the maximum stays. The exponential
    of the old maximum with the new shift is off by the shift's rounding, which would add up.
    """
    return ptx.ex2_approx_ftz_f32((old_max - row_max) * scale) if row_max > MINUS_INFINITY else ONE


@device_function
def inverse(row_sum: Registers) -> Any:
    """Return 1 / row sum; 0 for a row that sees no key."""
    return ptx.rcp_approx_ftz_f32(row_sum) if row_sum != ZERO else ZERO


@device_function
def log_of_sum(row_sum: Registers, shift: Registers) -> Any:
    """Return lse, the natural logarithm of the sum of exp(score); -inf for a row without keys."""
    return (log2(row_sum) - shift) * LN_2


# ------------------------------------------------------------------------------------ scales


class Scales(NamedTuple):
    """What the numbers of one head are multiplied with, float32."""

    scores: Any  #: S before ex2: the softmax scale, or the soft cap, times log2(e)
    softcap: Any  #: S before tanh
    values: Any  #: O


@functools.cache
def scale_function(problem: AttentionProblem) -> Callable[..., Any]:
    """Return the device function `scales_of` of a problem."""
    Q, K, V, SOFTCAP = problem.q_scale, problem.k_scale, problem.v_scale, problem.softcap

    @device_function
    def scales_of(
        scale: Real, batch: Integer, head: Integer, heads: Integer, group: Any, options: Any
    ) -> Any:
        """Return the scales of a head; `group` heads of Q share a head of K and V."""
        of_scores, of_values = ONE, ONE
        if Q:
            of_scores = options.q_scale[batch * heads + head]
        if K:
            of_scores *= options.k_scale[(batch * heads + head) // group]
        if V:
            of_values = options.v_scale[(batch * heads + head) // group]
        if SOFTCAP:
            return Scales(scale, options.softcap * of_scores, of_values)
        return Scales(scale * of_scores, ONE, of_values)

    return scales_of
