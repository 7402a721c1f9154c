"""Attention: forward, backward, and packed sequences."""

from numba_tma.kernels.attention.api import attention
from numba_tma.kernels.attention.backward import attention_backward
from numba_tma.kernels.attention.varlen import attention_varlen

__all__ = ["attention", "attention_backward", "attention_varlen"]
