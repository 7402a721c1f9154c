from numba_tma.kernels.copy.api import copy as copy
from numba_tma.kernels.copy.grouped import grouped_copy as grouped_copy
