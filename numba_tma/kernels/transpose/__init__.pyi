from numba_tma.kernels.transpose.api import transpose as transpose
