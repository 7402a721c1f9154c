"""Activations: GELU by erf and by tanh, and SwiGLU. Arithmetic limits them, so it is counted.

GELU is x Phi(x), with Phi the normal distribution. ``erf`` in single precision takes 25 to 30
instructions an element and is wrong below x = -5, where 1 + erf cancels. Here, for 16-bit types,

    gelu(x) = max(x, 0) - a Phi(-a),    a = min(|x|, LIMIT),

which cancels nowhere, and Phi(-a) = 2^q(a): q is smooth, starts at -1 and falls about as
a^2 / (2 ln 2), so that a polynomial of degree 7 has it to 2^-10 (bf16) and 2^-17 (f16) over all a
for which the result does not round to zero. The polynomials are minimax fits (Remez) to
log2(erfc(a / sqrt 2) / 2) in double precision. 13.5 instructions an element, of which one goes to
the special-function unit: |x| and min 1, polynomial 7, ex2 1, a scaling 1, max 1, the last
multiply-add 1, and 1.5 to unpack and to pack.

In bf16 the tail goes down to 2^-134, below what ex2.approx.ftz returns, so that the factor a lends
2^-13 to the exponent. Before the one rounding the error is below a quarter of an ulp of bf16 and
f16, subnormal results included, and after it below two thirds of one.

float32 needs 2^-24 of q, which no polynomial in a has. But

    Phi(-a) = t / 2 * 2^(m p(m) - a^2 / (2 ln 2)),    t = 1 / (1 + 0.27 a),    m = a t,

where p is smooth over all m, which end at 3: degree 7 has m p(m) to 2^-23.5. That is 24
instructions; ``erfc`` takes 52. The relative error is (1.5 x^2 + 8) 2^-24: the exponent is wrong
by roundings of its own size, ex2 by 3 2^-24.

NaN gives NaN and infinity infinity. -infinity gives 0 by erf, the limit; torch gives NaN there. By
tanh and in SwiGLU it gives NaN, as torch does. A zero may have either sign.

The functions are plain bodies of one element: pointwise kernels and the epilogue of matmul
compile them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numba_tma import ptx

_DOWN: Any = np.float32(2.0**-13)
_ZERO: Any = np.float32(0)
_ONE: Any = np.float32(1)
_HALF: Any = np.float32(0.5)

# q(a) + 13, lowest power first.
_BF16_LIMIT: Any = np.float32(13.75)
_BF16 = tuple(
    map(
        np.float32,
        (
            11.99906063079834,
            -1.1415398120880127,
            -0.4749109447002411,
            -0.04339056834578514,
            0.005210121162235737,
            -0.00038839297485537827,
            1.6014317225199193e-05,
            -2.7742834163291263e-07,
        ),
    )
)
_F16_LIMIT: Any = np.float32(6)
_F16 = tuple(
    map(
        np.float32,
        (
            12.000004768371582,
            -1.1512510776519775,
            -0.4584643840789795,
            -0.05396007001399994,
            0.00850789062678814,
            -0.0009305247804149985,
            6.159828626550734e-05,
            -1.8348109733778983e-06,
        ),
    )
)


def _gelu_by_polynomial(limit: Any, c: tuple[Any, ...]) -> Callable[..., Any]:
    c0, c1, c2, c3, c4, c5, c6, c7 = c

    def gelu(x):  # type: ignore[no-untyped-def]
        a = ptx.min_f32(abs(x), limit)
        q = ((((((c7 * a + c6) * a + c5) * a + c4) * a + c3) * a + c2) * a + c1) * a + c0
        return ptx.max_nan_f32(x, _ZERO) - (a * _DOWN) * ptx.ex2_approx_ftz_f32(q)

    return gelu


gelu_bf16 = _gelu_by_polynomial(_BF16_LIMIT, _BF16)
gelu_f16 = _gelu_by_polynomial(_F16_LIMIT, _F16)

_F32_LIMIT: Any = np.float32(14.5)  # where the result has become zero
_F32_STEP: Any = np.float32(0.27)
_MINUS_HALF_LOG2_E: Any = np.float32(-0.5 / math.log(2))
_F32 = tuple(
    map(
        np.float32,
        (
            -0.7615756988525391,
            0.0038918291684240103,
            0.014790206216275692,
            0.0007382469484582543,
            -0.00011824074317701161,
            -0.0003864698810502887,
            0.00011349356645951048,
            -9.695969310996588e-06,
        ),
    )
)


def gelu_f32(x):  # type: ignore[no-untyped-def]
    """GELU of a float32."""
    c0, c1, c2, c3, c4, c5, c6, c7 = _F32
    a = ptx.min_f32(abs(x), _F32_LIMIT)
    m = a * ptx.rcp_approx_ftz_f32(_F32_STEP * a + _ONE)
    p = ((((((c7 * m + c6) * m + c5) * m + c4) * m + c3) * m + c2) * m + c1) * m + c0
    q = p * m + a * _MINUS_HALF_LOG2_E * a
    return ptx.max_nan_f32(x, _ZERO) - _HALF * m * ptx.ex2_approx_f32(q)


# 1 + tanh(u) is 2 / (1 + exp(-2 u)), which does not cancel where u is negative.
_LINEAR = np.float32(-2 * math.sqrt(2 / math.pi) / math.log(2))
_CUBIC = np.float32(-2 * math.sqrt(2 / math.pi) / math.log(2) * 0.044715)
_LOG2_E = np.float32(-1 / math.log(2))


def gelu_tanh_lane(x):  # type: ignore[no-untyped-def]
    """GELU by tanh: x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3)))."""
    e = ptx.ex2_approx_ftz_f32(x * (_CUBIC * (x * x) + _LINEAR))
    return x * ptx.rcp_approx_ftz_f32(_ONE + e)


def swiglu_lane(gate, up):  # type: ignore[no-untyped-def]
    """SwiGLU: gate / (1 + exp(-gate)) up."""
    e = ptx.ex2_approx_ftz_f32(gate * _LOG2_E)
    return gate * ptx.rcp_approx_ftz_f32(_ONE + e) * up
