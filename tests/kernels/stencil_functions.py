"""Functions of stencils, and their results by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from numba_tma.kernels.stencil.api import Stencil

STEP = 2
WEIGHTS = np.arange(1, 10, dtype=np.float64).reshape(3, 3)


def cross(a):
    return a[-1, 0] + 2 * a[1, 0] + 4 * a[0, -1] + 8 * a[0, STEP] - a[0, 0]


def box(a):
    near = a[-1, 0, 0] + 2 * a[1, 0, 0] + 4 * a[0, -1, -2] + 8 * a[0, 1, STEP]
    return near + 16 * a[1, -1, 1] - 32 * a[-1, 1, -1] - 6 * a[0, 0, 0]


def line(a):
    total = a[0]
    for d in range(-3, 4):
        total += d * a[d]
    return total


def behind(a):
    return a[-2, 0] + a[0, 1]


def flux(a, c, w):
    return c * a[-1, 0] + w[0, 0] * a[0, 1], a[1, 0] - w[0, -2]


def correlate(a):
    total = 0.0
    for i in range(-1, 2):
        for j in range(-1, 2):
            total += WEIGHTS[i + 1, j + 1] * a[i, j]
    return total


def convolve(a):
    total = 0.0
    for i in range(-1, 2):
        for j in range(-1, 2):
            total += WEIGHTS[1 - i, 1 - j] * a[i, j]
    return total


class Shifted:
    """An array whose relative index gives the array of those neighbours."""

    def __init__(self, array: Any, boundaries: tuple[str, ...], radii: tuple[int, ...]) -> None:
        self.shape, self.radii, self.padded = array.shape[-len(radii) :], radii, array
        for axis, (mode, radius) in enumerate(zip(boundaries, radii)):
            width = [(0, 0)] * array.ndim
            width[axis - len(radii)] = (radius, radius)
            if mode in ("zero", "constant", "nan"):
                value = np.nan if mode == "nan" else 0
                self.padded = np.pad(self.padded, width, constant_values=value)
            else:
                self.padded = np.pad(self.padded, width, mode)

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        along = zip(index, self.radii, self.shape)
        return self.padded[(..., *(slice(r + i, r + i + n) for i, r, n in along))].copy()


def expected(stencil: Stencil, *arguments: Any) -> Any:
    """Return the results of a stencil, by NumPy: in float32, float64 or int64, then rounded."""
    reads = stencil.reads
    given = dict(zip(reads.parameters, arguments))
    first = given[reads.arrays[0]]
    kind = first.dtype.kind
    wide = np.int64 if kind in "iu" else np.float64 if first.dtype == "f8" else np.float32
    for name, radii in zip(reads.arrays, reads.radii):
        given[name] = Shifted(given[name].astype(wide), stencil.boundaries, radii)
    results = stencil.fn(*(given[name] for name in reads.parameters))
    results = results if isinstance(results, tuple) else (results,)
    kept = np.ones(first.shape, bool)
    for axis, (mode, (low, high)) in enumerate(zip(stencil.boundaries, reads.neighbourhood)):
        place = np.arange(first.shape[axis - reads.axes])
        inside = (place + low >= 0) & (place + high < len(place))
        if mode == "constant":
            kept &= inside.reshape((-1, *(1,) * (reads.axes - 1 - axis)))
    rounded = tuple(np.where(kept, r, stencil.cval).astype(first.dtype) for r in results)
    return rounded if len(rounded) > 1 else rounded[0]
