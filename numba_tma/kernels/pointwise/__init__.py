"""Element by element: any device function, and the usual activations."""

from numba_tma.kernels.pointwise.activations import gelu, swiglu
from numba_tma.kernels.pointwise.api import add, pointwise, scale_add

__all__ = ["add", "gelu", "pointwise", "scale_add", "swiglu"]
