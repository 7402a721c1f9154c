"""The gradients of attention: `launch` has the function, `kernel` the five products."""

from numba_tma.kernels.attention.backward.launch import attention_backward

__all__ = ["attention_backward"]
