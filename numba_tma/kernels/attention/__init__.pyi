from numba_tma.kernels.attention.api import attention as attention
from numba_tma.kernels.attention.api import attention_varlen as attention_varlen
from numba_tma.kernels.attention.backward import attention_backward as attention_backward
from numba_tma.kernels.attention.plan import AttentionPlan as AttentionPlan
from numba_tma.kernels.attention.tcgen05_plan import Tcgen05AttentionPlan as Tcgen05AttentionPlan
