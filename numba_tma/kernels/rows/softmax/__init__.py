"""Softmax and log-softmax of rows: exp(scale * x) over its sum, and the logarithm of that.

`operation` says how they are computed. Cost model: a row is read from DRAM once and
written once. The special function units need about a quarter of the time in which DRAM moves the
row.
"""

from __future__ import annotations

import math

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.host.values import POSITIVE
from numba_tma.kernels.rows.launching import RowFunction, normaliser
from numba_tma.kernels.rows.plan import RowPlan

_SCALE = "scale", POSITIVE._replace(text="a positive number; negate x for a negative one")
_OF_NOTHING = -math.inf, 0.0
SOFTMAX = RowFunction("softmax", "softmax.operation", "SOFTMAX", _SCALE, _OF_NOTHING)
LOG_SOFTMAX = RowFunction("log_softmax", "softmax.operation", "LOG_SOFTMAX", _SCALE, _OF_NOTHING)


def softmax(
    x: DeviceArray,
    *,
    scale: float = 1.0,
    logsumexp: DeviceArray | None = None,
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: RowPlan | None = None,
) -> DeviceArray:
    """Return exp(scale * x) over its sum along the rows of `x`.

    Parameters
    ----------
    x
        Device array (..., columns) of f32, f16 or bf16: torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``. Rows may start anywhere; those that
        start and end at multiples of 16 B are fastest.
    scale
        Positive factor of the elements, applied first.
    logsumexp
        Array that gets the logarithm of the sum of exponentials: float32, one per row.
    out
        Array that gets the result; a new array like `x` if None. May be `x`.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        Element type of arrays whose own type cannot say it, such as bf16 held as uint16.
    plan
        How rows are shared among threads; the fastest measured plan if None.

    Returns
    -------
    DeviceArray
        `out`. Everything is computed in float32 and rounded once. A row of nothing but -inf, or
        with a NaN or +inf, becomes NaN, as in torch.

    Raises
    ------
    ValueError
        If shapes or types disagree, or `scale` is not positive.
    """
    return _softmax((x, out, logsumexp), stream, (scale,), dtype, plan)


def log_softmax(
    x: DeviceArray,
    *,
    scale: float = 1.0,
    logsumexp: DeviceArray | None = None,
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: RowPlan | None = None,
) -> DeviceArray:
    """Return the logarithm of `softmax`, with its parameters."""
    return _log_softmax((x, out, logsumexp), stream, (scale,), dtype, plan)


_softmax, _log_softmax = (normaliser(op, "x", "out", "logsumexp") for op in (SOFTMAX, LOG_SOFTMAX))
