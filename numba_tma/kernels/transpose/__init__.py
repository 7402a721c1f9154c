"""Transposition of matrices, and of the last two axes of anything larger."""

from numba_tma.kernels.transpose.api import transpose

__all__ = ["transpose"]
