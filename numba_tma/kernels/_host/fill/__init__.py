"""Outputs of empty inputs: all elements of an array are one number."""

from __future__ import annotations

import numpy as np

from numba_tma.host.annotations import StreamLike
from numba_tma.host.arrays import Array
from numba_tma.host.cached_kernel import shipped
from numba_tma.kernels._host.launch import launch

THREADS = 128
fill_kernel = shipped("numba_tma.kernels._host.fill.kernel", "fill_kernel")


def fill(array: Array | None, value: float, stream: StreamLike) -> None:
    """Write `value` to each element of a contiguous array; None is skipped."""
    if array is None or not array.size:
        return
    bits = np.array(value, array.dtype.numpy).view(f"u{array.itemsize}")[()]
    words = array.as_bits().view((array.size,)).as_argument()
    launch(fill_kernel(), -(-array.size // THREADS), THREADS, stream, words, bits)
