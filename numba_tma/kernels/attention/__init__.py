"""Attention: forward (`api`, `kernel`), packed sequences, and gradients (`backward`)."""

from numba_tma.kernels.attention.api import attention, attention_varlen
from numba_tma.kernels.attention.backward import attention_backward

__all__ = ["attention", "attention_backward", "attention_varlen"]
