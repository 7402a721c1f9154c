"""Outputs of empty inputs: all elements of an array are one number."""

from __future__ import annotations

import functools

import numpy as np
from numba import cuda

from numba_tma.host.annotations import Kernel, StreamLike
from numba_tma.host.arrays import Array
from numba_tma.kernels._host.launch import launch

THREADS = 128


@functools.cache
def fill_kernel() -> Kernel:
    """Return the kernel that writes the same bits to each word, one thread a word."""

    @cuda.jit
    def fill_words(words, bits):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < words.size:
            words[i] = bits

    return fill_words


def fill(array: Array | None, value: float, stream: StreamLike) -> None:
    """Write `value` to each element of a contiguous array; None is skipped."""
    if array is None or not array.size:
        return
    bits = np.array(value, array.dtype.numpy).view(f"u{array.itemsize}")[()]
    words = array.as_bits().view((array.size,)).as_numba()
    launch(fill_kernel(), -(-array.size // THREADS), THREADS, stream, words, bits)
