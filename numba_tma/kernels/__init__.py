"""Kernels: each a readable TMA pipeline and a host wrapper that takes any device array.

from numba_tma.kernels.pointwise.activations import gelu, swiglu
from numba_tma.kernels.attention.api import attention
from numba_tma.kernels.attention.backward import attention_backward
from numba_tma.kernels.attention.api import attention_varlen
from numba_tma.kernels.matmul.block_scaled import block_scaled_matmul
from numba_tma.kernels.copy.api import copy
from numba_tma.kernels.copy.grouped import grouped_copy
from numba_tma.kernels.matmul.grouped import grouped_matmul
from numba_tma.kernels.rows.layernorm import layernorm
from numba_tma.kernels.matmul import matmul
from numba_tma.kernels.rows.backward import layernorm_backward, rmsnorm_backward
from numba_tma.kernels.pointwise.api import add, pointwise, scale_add
from numba_tma.kernels.rows.reductions import column_sum, row_argmax, row_max, row_sum
from numba_tma.kernels.rows.rmsnorm import rmsnorm
from numba_tma.kernels.rows.softmax import log_softmax, softmax
from numba_tma.kernels.stencil.api import stencil
from numba_tma.kernels.transpose.api import transpose
"""
