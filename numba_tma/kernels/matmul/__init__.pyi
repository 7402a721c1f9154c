from numba_tma.kernels.matmul.block_scaled import block_scaled_matmul as block_scaled_matmul
from numba_tma.kernels.matmul.block_scaled_plan import ScaledConfig as ScaledConfig
from numba_tma.kernels.matmul.dense import matmul as matmul
from numba_tma.kernels.matmul.grouped import grouped_matmul as grouped_matmul
from numba_tma.kernels.matmul.plan import Config as Config
from numba_tma.kernels.matmul.plan import MmaConfig as MmaConfig
from numba_tma.kernels.matmul.plan import SwappedConfig as SwappedConfig
from numba_tma.kernels.matmul.plan import Tcgen05Config as Tcgen05Config
