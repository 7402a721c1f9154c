"""LayerNorm: y = (x - mean) / sqrt(variance + eps) * weight + bias, row by row.

`operation` says how it is computed. Cost model: that of RMSNorm (rmsnorm.py).
"""

from __future__ import annotations

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.kernels.rows.launching import RowFunction, normaliser
from numba_tma.kernels.rows.plan import RowPlan

LAYERNORM = RowFunction("layernorm", "layernorm.operation", "LAYERNORM")


def layernorm(
    x: DeviceArray,
    weight: DeviceArray | None = None,
    bias: DeviceArray | None = None,
    *,
    eps: float = 1e-5,
    residual: DeviceArray | None = None,
    residual_out: DeviceArray | None = None,
    mean: DeviceArray | None = None,
    rstd: DeviceArray | None = None,
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: RowPlan | None = None,
) -> DeviceArray:
    """Bring the rows of `x` to mean 0 and variance 1, scale them by `weight` and add `bias`.

    Parameters
    ----------
    x
        Device array (..., columns) of f32, f16 or bf16: torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``. Rows may start anywhere; those that
        start and end at multiples of 16 B are fastest.
    weight, bias
        Device arrays (columns,) of the same type; 1 and 0 if None.
    eps
        Added to the variance.
    residual
        Device array like `x`; it is added to `x` first, in float32.
    residual_out
        Array that gets the sum of `x` and `residual`; may be either of them.
    mean, rstd
        Arrays that get the mean and 1 / standard deviation: float32, one per row.
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
        `out`. Everything is computed in float32 and rounded once.

    Raises
    ------
    ValueError
        If shapes or types disagree.
    """
    arrays = (x, weight, bias, out, residual, residual_out, mean, rstd)
    return _layernorm(arrays, stream, (eps,), dtype, plan)


_layernorm = normaliser(
    LAYERNORM, "x", "weight", "bias", "out", "residual", "residual_out", "mean", "rstd"
)
