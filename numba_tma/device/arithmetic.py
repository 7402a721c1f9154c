"""Fast functions of a float32, or of each element of a vector of them: one instruction each."""

from __future__ import annotations

from numba_tma import ptx
from numba_tma.backend.interface import device_function
from numba_tma.host.annotations import Registers


@device_function
def exp2(x: Registers) -> Registers:
    """Return 2**x, to a relative error of 2**-22.5 (ex2.approx.ftz)."""
    return ptx.ex2_approx_ftz_f32(x)


@device_function
def log2(x: Registers) -> Registers:
    """Return the logarithm to base 2 (lg2.approx)."""
    return ptx.lg2_approx_f32(x)


@device_function
def rsqrt(x: Registers) -> Registers:
    """Return 1 / sqrt(x), to a relative error of 2**-22.9 (rsqrt.approx)."""
    return ptx.rsqrt_approx_f32(x)


@device_function
def reciprocal(x: Registers) -> Registers:
    """Return 1 / x, to 1 ulp (rcp.approx)."""
    return ptx.rcp_approx_f32(x)


@device_function
def larger(a: Registers, b: Registers) -> Registers:
    """Return the larger of two numbers; NaN only if both are (max.f32)."""
    return ptx.max_f32(a, b)


@device_function
def fused(x: Registers, slope: Registers, shift: Registers) -> Registers:
    """Return slope * x + shift, rounded once (fma.rn)."""
    return ptx.fma_rn_f32(x, slope, shift)
