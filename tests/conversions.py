"""Reference conversions between float formats, by search for the format's nearest value."""

import ml_dtypes
import numpy as np

#: Format: how NumPy stores it, its one NaN, whether it saturates.
FORMATS = {
    "f16": (np.float16, 0x7FFF, False),
    "bf16": (ml_dtypes.bfloat16, 0x7FFF, False),
    "e4m3": (ml_dtypes.float8_e4m3fn, 0x7F, True),
    "e5m2": (ml_dtypes.float8_e5m2, 0x7F, True),
}


@np.errstate(invalid="ignore")  # a signalling NaN
def rounded(values, name, relu=False):
    """Return the bits of float32 `values` rounded to a format, to nearest and ties to even."""
    numpy, nan, saturate = FORMATS[name]
    size = np.dtype(numpy).itemsize
    # In every format the magnitudes grow with their bits, so a place in this list is the bits.
    grid = np.arange(2 ** (8 * size - 1)).astype(f"u{size}").view(numpy).astype(np.float64)
    grid = grid[np.isfinite(grid)]
    largest = len(grid) - 1
    grid = np.append(grid, 2 * grid[-1] - grid[-2])  # where infinity would stand in the row
    x = np.abs(values.astype(np.float64))
    above = np.clip(np.searchsorted(grid, x), 1, largest + 1)
    to_upper, to_lower = grid[above] - x, x - grid[above - 1]
    up = (to_upper < to_lower) | ((to_upper == to_lower) & (above % 2 == 0))
    bits = np.where(up, above, above - 1)
    if saturate:
        bits = np.minimum(bits, largest)
    negative = np.signbit(values)
    bits = np.where(negative, 0 if relu else bits | 1 << (8 * size - 1), bits)
    return np.where(np.isnan(values), nan, bits).astype(f"u{size}")


def packed(high, low):
    """Return pairs of bits, each as one word of twice the size."""
    size = low.dtype.itemsize
    return (high.astype(np.uint32) << 8 * size | low).astype(f"u{2 * size}")


@np.errstate(invalid="ignore")
def unpacked(pairs, name):
    """Return the high and the low values of pairs, as float32."""
    numpy, _, _ = FORMATS[name]
    values = np.ascontiguousarray(pairs).view(numpy).astype(np.float32).reshape(-1, 2)
    return values[:, 1], values[:, 0]


def hard_floats(count, seed):
    """Return `count` float32: any bits at all, and many on and around the formats' limits."""
    rng = np.random.default_rng(seed)
    any_bits = rng.integers(0, 2**32, count, np.uint32).view(np.float32)
    near = rng.choice(_limits(), count).view(np.uint32) + rng.integers(-1, 2, count)
    moderate = rng.standard_normal(count) * 10.0 ** rng.integers(-9, 6, count)
    kinds = any_bits, near.astype(np.uint32).view(np.float32), moderate.astype(np.float32)
    return np.choose(rng.integers(0, 3, count), kinds)


def _limits():
    """Return every value of the 8-bit formats, their midpoints, and the extremes of the others."""
    found = [0.0, np.inf, np.nan, 65504, 65520, 2.0**-24, 2.0**-25, 3.4e38, 3.3895e38, 1e-45]
    for name in ("e4m3", "e5m2"):
        grid = np.arange(128).astype(np.uint8).view(FORMATS[name][0]).astype(np.float64)
        grid = grid[np.isfinite(grid)]
        found += [*grid, *(grid[1:] + grid[:-1]) / 2]
    with np.errstate(over="ignore"):
        positive = np.array(found, np.float32)
    return np.concatenate([positive, -positive])
