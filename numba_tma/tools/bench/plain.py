"""Kernels as one writes them in numba-cuda without this library: an element for each thread.

bf16 comes as its bits, which plain Numba arrays hold.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
from numba import cuda


@cuda.jit(device=True, forceinline=True)
def widen(bits):  # type: ignore[no-untyped-def]
    """Return the float32 of the bits of a bf16."""
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@cuda.jit(device=True, forceinline=True)
def narrow(value):  # type: ignore[no-untyped-def]
    """Return the bits of the bf16 nearest to a float32, which is not NaN."""
    bits = np.float32(value).view(np.uint32)
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> 16)


@cuda.jit
def add(x, y, out):  # type: ignore[no-untyped-def]
    """Add float32."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def add_bf16(x, y, out):  # type: ignore[no-untyped-def]
    """Add bf16."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = narrow(widen(x[i]) + widen(y[i]))


@cuda.jit
def gelu_bf16(x, out):  # type: ignore[no-untyped-def]
    """GELU by erf of bf16."""
    i = cuda.grid(1)
    if i < out.size:
        value = widen(x[i])
        half = np.float32(0.5) * value
        out[i] = narrow(half * (np.float32(1) + math.erf(value * np.float32(0.7071067811865476))))


def run(torch: ModuleType, kernel: Any, *tensors: Any, threads: int = 256) -> Any:
    """Return a function that launches `kernel` on flat tensors, of bf16 as their bits."""
    arrays = [
        cuda.as_cuda_array(t.view(torch.int16) if t.dtype is torch.bfloat16 else t) for t in tensors
    ]
    configured = kernel[-(-tensors[-1].numel() // threads), threads]
    return lambda: configured(*arrays)
