"""RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight, row by row.

`operation` says how it is computed, ../kernel.py in which steps, and ../plan.py how threads share
rows.

Cost model: a row is read from DRAM once and written once; in between it stays in registers or in
shared memory. Weights are read from the L2 cache. DRAM bandwidth limits the kernel. Two kinds of
rows can be too long for this, and registers then spill to local memory: aligned rows that exceed
the shared memory of 8 blocks (1.8 MB, or half of that with a residual), and rows of more than
262,144 elements that do not allow 16-byte accesses.
"""

from __future__ import annotations

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.kernels.rows.launching import RowFunction, normaliser
from numba_tma.kernels.rows.plan import RowPlan

RMSNORM = RowFunction("rmsnorm", "rmsnorm.operation", "RMSNORM")


def rmsnorm(
    x: DeviceArray,
    weight: DeviceArray | None = None,
    *,
    eps: float = 1e-6,
    residual: DeviceArray | None = None,
    residual_out: DeviceArray | None = None,
    rstd: DeviceArray | None = None,
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: RowPlan | None = None,
) -> DeviceArray:
    """Normalise the rows of `x` by their root mean square and scale them by `weight`.

    Parameters
    ----------
    x
        Device array (..., columns) of f32, f16 or bf16: torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``. Rows may start anywhere; those that
        start and end at multiples of 16 B are fastest.
    weight
        Device array (columns,) of the same type; 1 if None.
    eps
        Added to the mean square.
    residual
        Device array like `x`; it is added to `x` first, in float32.
    residual_out
        Array that gets the sum of `x` and `residual`; may be either of them.
    rstd
        Array that gets 1 / root mean square: float32, one per row.
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
    arrays = (x, weight, out, residual, residual_out, rstd)
    return _rmsnorm(arrays, stream, (eps,), dtype, plan)


_rmsnorm = normaliser(RMSNORM, "x", "weight", "out", "residual", "residual_out", "rstd")
