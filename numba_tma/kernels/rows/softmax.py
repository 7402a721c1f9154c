"""Softmax and log-softmax of rows: exp(scale * x) over its sum, and the logarithm of that.

Cost model: a row is read from DRAM once and written once. `rows_in_registers` computes one
exponential per element, relative to the thread's own maximum, and multiplies all of them by one
factor when the row's maximum is known. The special function units need about a quarter of the time
in which DRAM moves the row. `rows_in_shared` computes two exponentials per element, because
registers hold only one slot of the row. Exponentials, logarithms and the division are
approximations (ex2.approx, lg2.approx, rcp.approx: device/arithmetic.py has their errors).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from numba_tma.backend.interface import device_function
from numba_tma.device.arithmetic import exp2, fused, larger, log2, reciprocal
from numba_tma.device.combine import lanes_max, lanes_sum
from numba_tma.device.row_share import Share, keep
from numba_tma.device.vectors import four, largest, total
from numba_tma.host.annotations import (
    DeviceArray,
    DTypeLike,
    Integer,
    Real,
    Registers,
    StreamLike,
)
from numba_tma.host.values import POSITIVE
from numba_tma.kernels._host.outputs import empty_like
from numba_tma.kernels.rows.kernel import RowOperation
from numba_tma.kernels.rows.launching import normaliser
from numba_tma.kernels.rows.plan import RowPlan

LOG2_E, LN_2 = np.float32(math.log2(math.e)), np.float32(math.log(2))
MINUS_INFINITY = np.float32(-math.inf)


@device_function
def finite(maximum: Real) -> Real:
    """Return the maximum, or 0 if it is -inf: -inf - -inf would be NaN."""
    return maximum if maximum > MINUS_INFINITY else np.float32(0)


@device_function
def exponentials_of(
    share: Share, values: Registers, first: Integer, limit: Integer, scale: Real
) -> tuple[Registers, Registers]:
    """Return the thread's part, and the exponentials.

    The part is (maximum, sum of exponentials, 0, 0); an exponential is exp(scale * (x - maximum)).
    """
    values = keep(share, values, first, limit, MINUS_INFINITY)
    maximum = largest(values)
    powers = exp2((values - finite(maximum)) * (scale * LOG2_E))
    return four(maximum, total(powers), np.float32(0), np.float32(0)), powers


@device_function
def combine_lanes(part: Registers, lanes: int, scale: Real) -> Registers:
    """Rescale the sums of neighbouring lanes to their common maximum and add them."""
    maximum = lanes_max(part[0], lanes)
    factor = exp2((part[0] - finite(maximum)) * (scale * LOG2_E))
    return four(maximum, lanes_sum(part[1] * factor, lanes), np.float32(0), np.float32(0))


@device_function
def rescale(
    values: Registers, own: Registers, row_stats: Registers, columns: Integer, scale: Real
) -> Registers:
    """Rescale exponentials from the thread's maximum to the row's, and divide by the row's sum."""
    return values * (exp2((own[0] - row_stats[0]) * (scale * LOG2_E)) * reciprocal(row_stats[1]))


@device_function
def logsumexp_of(row_stats: Registers, columns: Integer, scale: Real) -> Registers:
    """Return (logarithm of the sum of exponentials, 0, 0, 0)."""
    zero = np.float32(0)
    return four(row_stats[0] * scale + log2(row_stats[1]) * LN_2, zero, zero, zero)


@device_function
def sum_of_exponentials(
    share: Share, values: Registers, first: Integer, limit: Integer, scale: Real
) -> tuple[Registers, Registers]:
    """Return the part that `exponentials_of` returns, and the values unchanged."""
    part, _ = exponentials_of(share, values, first, limit, scale)
    return part, values


@device_function
def log_softmax_of(
    values: Registers, own: Registers, row_stats: Registers, columns: Integer, scale: Real
) -> Registers:
    """Return scale * (x - maximum) less the logarithm of the row's sum."""
    return (values - row_stats[0]) * scale - log2(row_stats[1]) * LN_2


@device_function
def merge_sums(part: Registers, other: Registers, scale: Real) -> Registers:
    """Rescale the sums of two slots to their common maximum and add them."""
    maximum, zero = larger(part[0], other[0]), np.float32(0)
    ours = part[1] * exp2((part[0] - finite(maximum)) * (scale * LOG2_E))
    theirs = other[1] * exp2((other[0] - finite(maximum)) * (scale * LOG2_E))
    return four(maximum, ours + theirs, zero, zero)


@device_function
def softmax_of(
    values: Registers, own: Registers, row_stats: Registers, columns: Integer, scale: Real
) -> Registers:
    """Return the softmax of values as loaded, from the row's maximum and sum."""
    return exp2(fused(values - row_stats[0], scale * LOG2_E, np.float32(0) - log2(row_stats[1])))


SCALE = replace(POSITIVE, text="a positive number; negate x for a negative one")
SOFTMAX = RowOperation(
    name="softmax",
    reduce=exponentials_of,
    combine_lanes=combine_lanes,
    merge=merge_sums,
    apply=rescale,
    finish=softmax_of,
    statistics=logsumexp_of,
    scalar=("scale", SCALE),
    of_nothing=(-math.inf, 0),
)
LOG_SOFTMAX = RowOperation(
    name="log_softmax",
    reduce=sum_of_exponentials,
    combine_lanes=combine_lanes,
    merge=merge_sums,
    apply=log_softmax_of,
    statistics=logsumexp_of,
    scalar=("scale", SCALE),
    of_nothing=(-math.inf, 0),
)


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
        ``__cuda_array_interface__`` or ``__dlpack__``. Rows may start anywhere: they are
        accessed 16 B at a time if they start as far behind a multiple of 16 B as those of all
        other arrays of the call, and else by as much as divides all of them.
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
    return _run(SOFTMAX, x, scale, logsumexp, out, stream, dtype, plan)


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
    return _run(LOG_SOFTMAX, x, scale, logsumexp, out, stream, dtype, plan)


def _run(
    op: RowOperation,
    x: DeviceArray,
    scale: float,
    logsumexp: DeviceArray | None,
    out: DeviceArray | None,
    stream: StreamLike,
    dtype: DTypeLike | None,
    plan: RowPlan | None,
) -> DeviceArray:
    out = empty_like(op.name, "x", x) if out is None else out
    _LAUNCHES[op.name]((x, out, logsumexp), stream, (scale,), dtype, plan)
    return out


_LAUNCHES = {op.name: normaliser(op, "x", "out", "logsumexp") for op in (SOFTMAX, LOG_SOFTMAX)}
