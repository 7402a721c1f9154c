"""GELU and SwiGLU, element by element, in a model of the GPU's arithmetic: all 16-bit inputs.

The device functions are plain Python over float32; here they run on NumPy arrays, in which a
multiply-add rounds twice and the approximations are exact. tests/gpu holds the GPU to the same.
"""

import math

import ml_dtypes
import numpy as np
import pytest

from numba_tma.kernels.pointwise.formulas import (
    gelu_bf16,
    gelu_f16,
    gelu_f32,
    gelu_tanh_lane,
    swiglu_lane,
)

BF16 = ml_dtypes.bfloat16
#: Type: its GELU, the error before rounding and after it, in ulp of the result.
GELU = {"bf16": (BF16, gelu_bf16, 0.25, 0.67), "f16": (np.float16, gelu_f16, 0.25, 0.6)}


def every(dtype):
    """Return all finite values of a 16-bit type as float32."""
    x = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float32)
    return x[np.isfinite(x)]


def ulp(exact, dtype):
    info = ml_dtypes.finfo(dtype)
    _, exponents = np.frexp(np.maximum(np.abs(exact), float(info.smallest_normal)))
    return np.ldexp(1.0, exponents - 1 - info.nmant)


def exact_gelu(x):
    return np.array([0.5 * v * math.erfc(-v * math.sqrt(0.5)) for v in x.astype(float)])


@pytest.mark.parametrize("name", GELU)
@np.errstate(all="ignore")
def test_gelu_of_every_input(name):
    dtype, function, before, after = GELU[name]
    x = every(dtype)
    y, exact = function(x), exact_gelu(x)
    assert y.dtype == np.float32
    error = np.abs(y - exact) / ulp(exact, dtype)
    assert error.max() < before, f"{error.max()} ulp of {name} at {x[error.argmax()]}"
    rounded = np.abs(y.astype(dtype).astype(float) - exact) / ulp(exact, dtype)
    rounded = rounded[np.isfinite(rounded)]  # the largest inputs are at the end of the format
    assert rounded.max() < after
    assert (np.sign(y.astype(dtype).astype(float)) * np.sign(x) >= 0).all()


@np.errstate(all="ignore")
def test_gelu_of_float32():
    """To (1.5 x^2 + 8) 2^-24 of the result, or to two of the smallest subnormal numbers."""
    small = np.geomspace(2.0**-140, 14.5, 100_000)
    x = np.concatenate([np.linspace(-15, 15, 200_001), small, -small, [0.0, 1e38, -1e38]])
    x = x.astype(np.float32)
    y, exact = gelu_f32(x), exact_gelu(x)
    assert y.dtype == np.float32
    square = np.minimum(x.astype(float) ** 2, 15**2)
    assert (np.abs(y - exact) <= (1.5 * square + 8) * 2.0**-24 * np.abs(exact) + 2.0**-148).all()
    assert (np.sign(y) * np.sign(x) >= 0).all()


@pytest.mark.parametrize("function", [gelu_bf16, gelu_f16, gelu_f32])
def test_gelu_of_what_is_not_finite(function):
    y = function(np.array([np.nan, np.inf, -np.inf], np.float32))
    assert np.isnan(y[0]) and y[1] == np.inf and abs(y[2]) < 2.0**-26


@pytest.mark.parametrize("dtype", [BF16, np.float16], ids=["bf16", "f16"])
@np.errstate(all="ignore")
def test_gelu_by_tanh_and_silu_of_every_input(dtype):
    x = every(dtype)
    wide = x.astype(np.float64)
    u = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    silu = swiglu_lane(x, np.float32(1))
    for y, exact in (
        (gelu_tanh_lane(x), wide / (1 + np.exp(-2 * u))),
        (silu, wide / (1 + np.exp(-wide))),
    ):
        kept = np.abs(exact) > 2.0**-118  # what is smaller may be flushed to zero
        error = np.abs(y - exact) / ulp(exact, dtype)
        assert error[kept].max() < 0.05
        assert (np.abs(y[~kept]) <= 2.0**-118).all()
