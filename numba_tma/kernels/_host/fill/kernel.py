"""The kernel that fills memory with one number."""

from __future__ import annotations

import functools

from numba import cuda

from numba_tma.host.annotations import Kernel


@functools.cache
def fill_kernel() -> Kernel:
    """Return the kernel that writes the same bits to each word, one thread a word."""

    @cuda.jit
    def fill_words(words, bits):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < words.size:
            words[i] = bits

    return fill_words
