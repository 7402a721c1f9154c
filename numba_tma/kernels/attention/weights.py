"""Attention's numbers: from scores to weights and sums, element by element."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from numba_tma import ptx
from numba_tma.backend.interface import device_function
from numba_tma.device.arithmetic import log2
from numba_tma.device.fragment_moves import packed_e4m3
from numba_tma.kernels.attention.masks import MINUS_INFINITY
from numba_tma.kernels.attention.plan import Problem

ZERO, ONE = np.float32(0), np.float32(1)
LN_2, LOG2_E = np.float32(math.log(2)), np.float32(math.log2(math.e))
# Weights of e4m3, at most 448, are multiplied with 2**8. So they have all 4 bits down to 2**-14 of
# the row's largest so far, and become 0 below 2**-18 of it.
LIFT = np.float32(8)


@device_function
def shift_of(top: Any, scale: Any) -> Any:
    """Return what is added to a scaled score; 0 where all are -inf, since inf - inf is NaN."""
    return -top * scale if top > MINUS_INFINITY else ZERO


@device_function
def lifted_shift_of(top: Any, scale: Any) -> Any:
    """Return what `shift_of` does, for weights that are 2**LIFT times as large."""
    return LIFT - top * scale if top > MINUS_INFINITY else ZERO


@device_function
def weight(score: Any, scale: Any, shift: Any) -> Any:
    """Return exp(score - maximum), both times the scale: one multiply-add and a power of 2."""
    return ptx.ex2_approx_ftz_f32(score * scale + shift)


@device_function
def decay_of(before: Any, top: Any, scale: Any) -> Any:
    """Return exp(maximum before - maximum), both times the scale.

    Of the difference: so it is 1 where the maximum stays. What `weight` makes of the maximum is off
    by the rounding of its shift, and steps would add that up.
    """
    return ptx.ex2_approx_ftz_f32((before - top) * scale) if top > MINUS_INFINITY else ONE


@device_function
def inverse(total: Any) -> Any:
    """Return 1 / total; 0 for a row that sees no key."""
    return ptx.rcp_approx_ftz_f32(total) if total != ZERO else ZERO


@device_function
def log_of_sum(total: Any, shift: Any) -> Any:
    """Return the natural logarithm of the sum of exp(score); -inf for a row that sees no key."""
    return (log2(total) - shift) * LN_2


@functools.cache
def weighing(problem: Problem) -> tuple[Any, Any]:
    """Return the device functions `shift_of` and `operand` of a problem."""
    DTYPE = problem.dtype.name

    @device_function
    def operand(weights: Any) -> Any:
        """Return weights as the product with V takes them."""
        return weights.to(DTYPE)

    if problem.is_narrow:
        return lifted_shift_of, packed_e4m3
    return shift_of, operand


@functools.cache
def scaling(problem: Problem) -> Any:
    """Return the device function `scales` of a problem."""
    Q, K, V, SOFTCAP = problem.q_scale, problem.k_scale, problem.v_scale, problem.softcap

    @device_function
    def scales(factor: Any, more: Any, batch: Any, head: Any, heads: Any, sharing: Any) -> Any:
        """Return the scale of a head's scores, that of a soft cap, and that of its values."""
        of_scores, of_values = ONE, ONE
        if Q:
            of_scores = more.q_scale[batch * heads + head]
        if K:
            of_scores *= more.k_scale[(batch * heads + head) // sharing]
        if V:
            of_values = more.v_scale[(batch * heads + head) // sharing]
        if SOFTCAP:
            return factor, more.softcap * of_scores, of_values
        return factor * of_scores, more.softcap, of_values

    return scales
