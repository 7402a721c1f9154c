"""Copies of arrays, one or many in a launch."""

from numba_tma.kernels.copy.api import copy
from numba_tma.kernels.copy.grouped import grouped_copy

__all__ = ["copy", "grouped_copy"]
