"""Kernels: each a readable TMA pipeline and a host wrapper that takes any device array.

from numba_tma.kernels.activations import gelu, swiglu
from numba_tma.kernels.copy import copy
from numba_tma.kernels.grouped_copy import grouped_copy
from numba_tma.kernels.pointwise import add, pointwise, scale_add
from numba_tma.kernels.rmsnorm import rmsnorm
from numba_tma.kernels.transpose import transpose
"""
