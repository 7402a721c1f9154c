"""PTX, one function per instruction: what the GPU is told, and nothing more.

No function here elects, fences, commits or loops; the layers above do. The folder ``ptx/`` at the
top of the repository shows each one as assemblable PTX.
"""

from numba_tma.ptx._instruction import TABLE, Instruction
from numba_tma.ptx.atomic import atom_inc
from numba_tma.ptx.bulk import (
    cp_async_bulk_commit_group,
    cp_async_bulk_load,
    cp_async_bulk_store,
    cp_async_bulk_wait_group,
    cp_async_bulk_wait_group_read,
)
from numba_tma.ptx.cache import (
    CachePolicy,
    createpolicy_evict_first,
    createpolicy_evict_last,
    createpolicy_evict_normal,
)
from numba_tma.ptx.fence import fence_mbarrier_init, fence_proxy_async
from numba_tma.ptx.im2col import (
    cp_async_bulk_prefetch_tensor_im2col,
    cp_async_bulk_tensor_im2col_load,
    cp_async_bulk_tensor_im2col_store,
    cp_reduce_async_bulk_tensor_im2col,
)
from numba_tma.ptx.im2col_wide import (
    cp_async_bulk_prefetch_tensor_im2col_w,
    cp_async_bulk_prefetch_tensor_im2col_w_128,
    cp_async_bulk_tensor_im2col_w_128_load,
    cp_async_bulk_tensor_im2col_w_load,
)
from numba_tma.ptx.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_init,
    mbarrier_inval,
    mbarrier_test_wait,
    mbarrier_test_wait_parity,
    mbarrier_try_wait,
    mbarrier_try_wait_parity,
)
from numba_tma.ptx.memory import ld_shared_u32, st_shared_u32
from numba_tma.ptx.register import ctaid_x, laneid, nctaid_x, nctaid_y, nctaid_z, ntid_x, tid_x
from numba_tma.ptx.sync import bar_warp_sync, barrier_arrive, barrier_sync, elect_sync
from numba_tma.ptx.tensor import (
    cp_async_bulk_tensor_load,
    cp_async_bulk_tensor_store,
    prefetch_tensormap,
)

__all__ = [
    "TABLE",
    "CachePolicy",
    "Instruction",
    "atom_inc",
    "bar_warp_sync",
    "barrier_arrive",
    "barrier_sync",
    "cp_async_bulk_commit_group",
    "cp_async_bulk_load",
    "cp_async_bulk_prefetch_tensor_im2col",
    "cp_async_bulk_prefetch_tensor_im2col_w",
    "cp_async_bulk_prefetch_tensor_im2col_w_128",
    "cp_async_bulk_store",
    "cp_async_bulk_tensor_im2col_load",
    "cp_async_bulk_tensor_im2col_store",
    "cp_async_bulk_tensor_im2col_w_128_load",
    "cp_async_bulk_tensor_im2col_w_load",
    "cp_async_bulk_tensor_load",
    "cp_async_bulk_tensor_store",
    "cp_async_bulk_wait_group",
    "cp_async_bulk_wait_group_read",
    "cp_reduce_async_bulk_tensor_im2col",
    "createpolicy_evict_first",
    "createpolicy_evict_last",
    "createpolicy_evict_normal",
    "ctaid_x",
    "elect_sync",
    "fence_mbarrier_init",
    "fence_proxy_async",
    "laneid",
    "ld_shared_u32",
    "mbarrier_arrive",
    "mbarrier_arrive_expect_tx",
    "mbarrier_expect_tx",
    "mbarrier_init",
    "mbarrier_inval",
    "mbarrier_test_wait",
    "mbarrier_test_wait_parity",
    "mbarrier_try_wait",
    "mbarrier_try_wait_parity",
    "nctaid_x",
    "nctaid_y",
    "nctaid_z",
    "ntid_x",
    "prefetch_tensormap",
    "st_shared_u32",
    "tid_x",
]
