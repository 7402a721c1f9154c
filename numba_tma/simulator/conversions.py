"""The rows of `convert` in NumPy, bit for bit as the hardware computes them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from numba_tma.host.dtypes import as_dtype

#: The largest finite value, to which the 8-bit formats saturate.
_LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "e4m3": 0x7F, "e5m2": 0x7F}


@np.errstate(over="ignore", invalid="ignore")  # the latter of a signalling NaN
def to_pair(name: str, low_and_high: Iterable[float], relu: str | None) -> int:
    """Return two values rounded to the format `name`, packed."""
    numpy = as_dtype(name).numpy
    values = np.array(tuple(low_and_high), np.float32)
    missing = np.isnan(values)
    if relu:
        values = np.where(np.signbit(values), np.float32(0), values)
    if name in _LARGEST:
        values = np.clip(values, -_LARGEST[name], _LARGEST[name])
    bits = values.astype(numpy).view(f"u{numpy.itemsize}")
    low, high = np.where(missing, _NAN[name], bits)
    return int(low) | int(high) << 8 * numpy.itemsize


@np.errstate(invalid="ignore")
def from_pair(name: str, pair: int) -> tuple[float, float]:
    """Return the low and the high value of a packed pair."""
    numpy = as_dtype(name).numpy
    bits = np.array([int(pair) & 2 ** (16 * numpy.itemsize) - 1], f"<u{2 * numpy.itemsize}")
    low, high = bits.view(numpy).astype(np.float32)
    return low, high


def to_tf32(value: float, rounding: str) -> int:
    """Return a float32's bits with the mantissa rounded to 10 bits, the other 13 zero."""
    bits = int(np.float32(value).view(np.uint32))
    if np.isnan(value):
        return 0x7FFFFFFF
    if np.isinf(value):
        return bits
    half = 0x1000 if rounding == "rna" else 0xFFF + (bits >> 13 & 1)
    return bits + half & 0xFFFFE000
