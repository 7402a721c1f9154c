from numba_tma.kernels.stencil.api import stencil as stencil
