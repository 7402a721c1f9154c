from numba_tma.kernels.pointwise.activations import gelu as gelu
from numba_tma.kernels.pointwise.activations import swiglu as swiglu
from numba_tma.kernels.pointwise.api import add as add
from numba_tma.kernels.pointwise.api import pointwise as pointwise
from numba_tma.kernels.pointwise.api import scale_add as scale_add
