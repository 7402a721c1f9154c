"""Arithmetic in single precision that Python has no operator for: fast functions, minima, NaN.

The approximations take one instruction of the special-function unit, a quarter of a warp a cycle.
With .ftz a subnormal operand counts as 0, and what would be a subnormal result is 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numba_tma.ptx._instruction import f32, instruction

_SMALLEST = np.float32(2.0**-126)


def _flush(number: Any) -> Any:
    value = np.asarray(number, np.float32)
    return np.where(np.abs(value) < _SMALLEST, np.copysign(np.float32(0), value), value)[()]


@instruction("ex2.approx.ftz.f32 {result}, {value};", isa=(1, 4), sm=80, pure=True)
def ex2_approx_ftz_f32(value: f32) -> f32:
    """Return 2 to the power of `value`, to a relative error of 2^-22.5. Executed by any thread."""
    with np.errstate(all="ignore"):
        return _flush(np.exp2(_flush(value)))


@instruction("rcp.approx.ftz.f32 {result}, {value};", isa=(1, 4), sm=80, pure=True)
def rcp_approx_ftz_f32(value: f32) -> f32:
    """Return 1 / `value`, to 1 ulp; of 0 infinity, of what is above 2^126 0.

    Executed by any thread.
    """
    with np.errstate(all="ignore"):
        return _flush(np.float32(1) / _flush(value))


@instruction("tanh.approx.f32 {result}, {value};", isa=(7, 0), sm=80, pure=True)
def tanh_approx_f32(value: f32) -> f32:
    """Return the hyperbolic tangent of `value`, to a relative error of 2^-11.

    Executed by any thread.
    """
    return np.tanh(np.float32(value))


@instruction("min.f32 {result}, {a}, {b};", isa=(1, 0), sm=80, pure=True)
def min_f32(a: f32, b: f32) -> f32:
    """Return the smaller of two numbers; of a number and NaN the number. Executed by any thread."""
    return np.fmin(np.float32(a), np.float32(b))


@instruction("max.NaN.f32 {result}, {a}, {b};", isa=(7, 0), sm=80, pure=True)
def max_nan_f32(a: f32, b: f32) -> f32:
    """Return the larger of two numbers, or NaN if one is. Executed by any thread."""
    return np.maximum(np.float32(a), np.float32(b))
