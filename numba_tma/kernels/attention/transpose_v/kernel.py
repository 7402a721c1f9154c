"""The kernel of V' for e4m3: wgmma reads 8-bit operands along the sum, which for P V are the keys.

A tile is read as (keys, head dim) and written as (head dim, keys). Within each 16, keys are written
in the order in which a thread holds P as `packed_e4m3` leaves it, without an exchange between
threads. A sum over keys may go in any order, so that costs nothing.

Cost model: every byte is read once and written once, both in runs of at least 64 B.
"""

from __future__ import annotations

import functools

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.device.shared import shared_barrier, shared_tile
from numba_tma.device.vectors import read_block, write_transposed
from numba_tma.host.annotations import Kernel
from numba_tma.host.layout import Tile
from numba_tma.kernels.attention.transpose_v import BITS, KEYS, THREADS, transpose_tiles

CHUNK = 16  # sides of a block of bytes that a thread transposes


@functools.cache
def transpose_v_kernel(head_dim: int) -> Kernel:
    """Return the kernel in which each block transposes one tile."""
    SOURCE, TARGET = transpose_tiles(head_dim)
    FLAT_SOURCE = Tile((KEYS, head_dim), BITS, SOURCE.swizzle)
    FLAT_TARGET = Tile((head_dim, KEYS), BITS, TARGET.swizzle)
    DOWN, ACROSS = KEYS // CHUNK, head_dim // CHUNK  # blocks of a tile

    @cuda.jit
    def transpose_v(source, target, heads, tiles):  # type: ignore[no-untyped-def]
        tile, transposed, full = shared_tile(SOURCE), shared_tile(TARGET), shared_barrier()
        thread, block = cuda.threadIdx.x, np.uint32(cuda.blockIdx.x)
        key, head = block % np.uint32(tiles) * KEYS, block // np.uint32(tiles)
        batch, head = head // np.uint32(heads), head % np.uint32(heads)
        if thread == 0:
            full.init(1)
            ptx.fence_mbarrier_init()
            full.arrive_expect_tx(SOURCE.nbytes)
            source.load(tile, (batch, key, head, 0), full)
        cuda.syncthreads()
        full.wait(0)
        x, y = tile.view(FLAT_SOURCE), transposed.view(FLAT_TARGET)
        for i in range(thread, DOWN * ACROSS, THREADS):
            # Along diagonals, so that neighbouring threads use different banks.
            down, across = i % DOWN, (i % DOWN + i // DOWN) % ACROSS
            row, column = np.uint32(down * CHUNK), np.uint32(across * CHUNK)
            b = read_block(x, (row, column))
            # Rows as `packed_e4m3` has its columns.
            left = (b[0], b[1], b[8], b[9], b[2], b[3], b[10], b[11])
            right = (b[4], b[5], b[12], b[13], b[6], b[7], b[14], b[15])
            write_transposed(y, (column, row), left + right)
        ptx.fence_proxy_async("shared::cta")
        cuda.syncthreads()
        if thread == 0:
            target.store(transposed, (batch, 0, head, key))
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group_read(0)

    return transpose_v
