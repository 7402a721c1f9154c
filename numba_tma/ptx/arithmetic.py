"""Arithmetic without a Python operator: fast functions, fused products, extrema, bytes.

The approximations run on the special-function unit, at 16 lanes per cycle and SM. With .ftz a
subnormal operand counts as 0, and a subnormal result becomes 0. Without .ftz an approximation takes
three more instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numba_tma.ptx._instruction import f32, instruction, u32

__all__ = [
    "ex2_approx_ftz_f32", "ex2_approx_f32", "rcp_approx_ftz_f32", "rcp_approx_f32",
    "rsqrt_approx_f32", "lg2_approx_f32", "tanh_approx_f32", "fma_rn_f32", "min_f32", "max_f32",
    "max_nan_f32", "prmt_b32",
]  # fmt: skip

_SMALLEST = np.float32(2.0**-126)


def _flush(number: Any) -> Any:
    value: Any = number if isinstance(number, np.float32) else np.asarray(number, np.float32)[()]
    if value.ndim == 0:  # as below, for one number at a tenth of the time
        return np.copysign(np.float32(0), value) if abs(value) < _SMALLEST else value
    return np.where(np.abs(value) < _SMALLEST, np.copysign(np.float32(0), value), value)[()]


def _single(number: Any) -> Any:
    return np.float32(number)


@instruction("ex2.approx.ftz.f32 {result}, {value};", isa=(1, 4), sm=80, pure=True)
def ex2_approx_ftz_f32(value: f32) -> f32:
    """Return 2 to the power of `value`, to a relative error of 2^-22.5. Executed by any thread."""
    if isinstance(value, np.float32) and value < 128:  # nothing overflows, and all below is 0
        return np.exp2(value) if value >= -126 else np.float32(0)
    with np.errstate(all="ignore"):
        return _flush(np.exp2(_flush(value)))


@instruction("ex2.approx.f32 {result}, {value};", isa=(1, 4), sm=80, pure=True)
def ex2_approx_f32(value: f32) -> f32:
    """Return 2 to the power of `value`, to a relative error of 2^-22.5.

    Below 2^-126 the error is half of the smallest subnormal number. Executed by any thread.
    """
    with np.errstate(all="ignore"):
        return np.exp2(_single(value))


@instruction("rcp.approx.ftz.f32 {result}, {value};", isa=(1, 4), sm=80, pure=True)
def rcp_approx_ftz_f32(value: f32) -> f32:
    """Return 1 / `value`, to 1 ulp.

    The result is infinity for 0, and 0 for a value above 2^126. Executed by any thread.
    """
    with np.errstate(all="ignore"):
        return _flush(np.float32(1) / _flush(value))


@instruction("rcp.approx.f32 {result}, {value};", isa=(1, 4), sm=80, pure=True)
def rcp_approx_f32(value: f32) -> f32:
    """Return 1 / `value`, to 1 ulp; infinity for 0. Executed by any thread."""
    with np.errstate(all="ignore"):
        return _single(np.float32(1) / np.float32(value))


@instruction("rsqrt.approx.f32 {result}, {value};", isa=(1, 4), sm=80, pure=True)
def rsqrt_approx_f32(value: f32) -> f32:
    """Return 1 / sqrt(`value`), to a relative error of 2^-22.9.

    The result is infinity for 0, and NaN for a value below 0. Executed by any thread.
    """
    with np.errstate(all="ignore"):
        return np.float32(1) / np.sqrt(np.float32(value))


@instruction("lg2.approx.f32 {result}, {value};", isa=(1, 4), sm=80, pure=True)
def lg2_approx_f32(value: f32) -> f32:
    """Return the logarithm of `value` to base 2, to a relative error of 2^-22.

    For a value between 0.5 and 2 the error is absolute. Executed by any thread.
    """
    with np.errstate(all="ignore"):
        return np.log2(np.float32(value))


@instruction("tanh.approx.f32 {result}, {value};", isa=(7, 0), sm=80, pure=True)
def tanh_approx_f32(value: f32) -> f32:
    """Return the hyperbolic tangent of `value`, to a relative error of 2^-11.

    Executed by any thread.
    """
    return np.tanh(np.float32(value))


@instruction("fma.rn.f32 {result}, {a}, {b}, {c};", isa=(2, 0), sm=80, pure=True)
def fma_rn_f32(a: f32, b: f32, c: f32) -> f32:
    """Return `a` * `b` + `c`, rounded once. Executed by any thread."""
    with np.errstate(all="ignore"):
        return _single(np.float64(a) * np.float64(b) + np.float64(c))


@instruction("min.f32 {result}, {a}, {b};", isa=(1, 0), sm=80, pure=True)
def min_f32(a: f32, b: f32) -> f32:
    """Return the smaller of two numbers; if one is NaN, the other. Executed by any thread."""
    return np.fmin(np.float32(a), np.float32(b))


@instruction("max.f32 {result}, {a}, {b};", isa=(1, 0), sm=80, pure=True)
def max_f32(a: f32, b: f32) -> f32:
    """Return the larger of two numbers; if one is NaN, the other. Executed by any thread."""
    return np.fmax(np.float32(a), np.float32(b))


@instruction("max.NaN.f32 {result}, {a}, {b};", isa=(7, 0), sm=80, pure=True)
def max_nan_f32(a: f32, b: f32) -> f32:
    """Return the larger of two numbers; if one is NaN, NaN. Executed by any thread."""
    return np.maximum(np.float32(a), np.float32(b))


@instruction("prmt.b32 {result}, {a}, {b}, {selector};", isa=(2, 0), sm=80, pure=True)
def prmt_b32(a: u32, b: u32, selector: u32) -> u32:
    """Return four bytes selected from the eight of `a` (0 to 3) and `b` (4 to 7).

    Each 4-bit field of `selector` numbers a byte; the lowest field is for the result's lowest byte.
    If bit 3 of a field is set, the byte's sign bit is replicated instead. Executed by any thread.
    """
    given = int(a) & 0xFFFFFFFF | (int(b) & 0xFFFFFFFF) << 32
    result = 0
    for i in range(4):
        number = int(selector) >> 4 * i & 0xF
        byte = given >> 8 * (number & 7) & 0xFF
        result |= ((0xFF if byte & 0x80 else 0) if number & 8 else byte) << 8 * i
    return result
