"""Fragments in kernels: their `types`, their `math`, and their loads and stores (`memory`)."""

from numba_tma.backend.lowering.fragments import math, memory, types

__all__ = ["math", "memory", "types"]
