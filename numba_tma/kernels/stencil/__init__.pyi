from numba_tma.kernels.stencil.api import stencil as stencil
from numba_tma.kernels.stencil.plan import StencilPlan as StencilPlan
