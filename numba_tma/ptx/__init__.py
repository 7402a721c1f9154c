"""PTX: one function per instruction.

A function emits its instruction and nothing else. Election, fences, commits and loops belong to the
layers above. The folder ``ptx/`` at the top of the repository shows each instruction as PTX that
ptxas assembles.
"""

# ruff: noqa: F403
# The `__all__` of each family lists its public names.

from numba_tma.ptx._instruction import TABLE as TABLE
from numba_tma.ptx._instruction import Instruction as Instruction
from numba_tma.ptx.arithmetic import *
from numba_tma.ptx.async_copy import *
from numba_tma.ptx.atomic import *
from numba_tma.ptx.blackwell import *
from numba_tma.ptx.bulk import *
from numba_tma.ptx.cache import *
from numba_tma.ptx.cluster import *
from numba_tma.ptx.convert import *
from numba_tma.ptx.fence import *
from numba_tma.ptx.global_memory import *
from numba_tma.ptx.im2col import *
from numba_tma.ptx.im2col_wide import *
from numba_tma.ptx.launch_control import *
from numba_tma.ptx.matrix import *
from numba_tma.ptx.matrix_sm100 import *
from numba_tma.ptx.mbarrier import *
from numba_tma.ptx.mbarrier_remote import *
from numba_tma.ptx.memory import *
from numba_tma.ptx.mma import *
from numba_tma.ptx.mma_scaled import *
from numba_tma.ptx.reduce import *
from numba_tma.ptx.register import *
from numba_tma.ptx.setmaxnreg import *
from numba_tma.ptx.sync import *
from numba_tma.ptx.tcgen05 import *
from numba_tma.ptx.tcgen05_copy import *
from numba_tma.ptx.tcgen05_ld_red import *
from numba_tma.ptx.tcgen05_mma import *
from numba_tma.ptx.tcgen05_mma_scaled import *
from numba_tma.ptx.tcgen05_mma_ws import *
from numba_tma.ptx.tensor import *
from numba_tma.ptx.tensormap import *
from numba_tma.ptx.tensormap_sm100 import *
from numba_tma.ptx.wgmma import *
