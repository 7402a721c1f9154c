"""Row by row: norms, softmax, their gradients, and reductions."""

from numba_tma.kernels.rows.backward import layernorm_backward, rmsnorm_backward
from numba_tma.kernels.rows.layernorm import layernorm
from numba_tma.kernels.rows.reductions import column_sum, row_argmax, row_max, row_sum
from numba_tma.kernels.rows.rmsnorm import rmsnorm
from numba_tma.kernels.rows.softmax import log_softmax, softmax

__all__ = [
    "column_sum",
    "layernorm",
    "layernorm_backward",
    "log_softmax",
    "rmsnorm",
    "rmsnorm_backward",
    "row_argmax",
    "row_max",
    "row_sum",
    "softmax",
]
