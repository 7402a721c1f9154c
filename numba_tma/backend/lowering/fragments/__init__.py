"""Fragments in kernels: their `types`, `math` with them, `memory` to and from tiles."""

from numba_tma.backend.lowering.fragments import math, memory, types

__all__ = ["math", "memory", "types"]
