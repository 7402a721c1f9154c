"""Kernels: each a readable TMA pipeline and a host wrapper that takes any device array.

from numba_tma.kernels.activations import gelu, swiglu
from numba_tma.kernels.attention import attention
from numba_tma.kernels.attention_backward import attention_backward
from numba_tma.kernels.attention_varlen import attention_varlen
from numba_tma.kernels.block_scaled import block_scaled_matmul
from numba_tma.kernels.copy import copy
from numba_tma.kernels.grouped_copy import grouped_copy
from numba_tma.kernels.grouped_matmul import grouped_matmul
from numba_tma.kernels.layernorm import layernorm
from numba_tma.kernels.matmul import matmul
from numba_tma.kernels.norm_backward import layernorm_backward, rmsnorm_backward
from numba_tma.kernels.pointwise import add, pointwise, scale_add
from numba_tma.kernels.reductions import column_sum, row_argmax, row_max, row_sum
from numba_tma.kernels.rmsnorm import rmsnorm
from numba_tma.kernels.softmax import log_softmax, softmax
from numba_tma.kernels.transpose import transpose
"""
