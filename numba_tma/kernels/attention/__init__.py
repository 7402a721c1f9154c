"""Attention: forward (`api`, `kernel`, on Blackwell `tcgen05_kernel`), packed, and gradients."""

from numba_tma.kernels.attention.api import attention, attention_varlen
from numba_tma.kernels.attention.backward import attention_backward
from numba_tma.kernels.attention.plan import AttentionPlan
from numba_tma.kernels.attention.tcgen05_plan import Tcgen05AttentionPlan

__all__ = [
    "AttentionPlan",
    "Tcgen05AttentionPlan",
    "attention",
    "attention_backward",
    "attention_varlen",
]
