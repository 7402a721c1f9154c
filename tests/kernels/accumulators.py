"""A kernel that hands accumulators over in tensor memory, for the compiler and the simulator.

Warps 0 to 3 stand for matrix multiplications: they store accumulators, tile by tile, where a
`tcgen05.mma` would leave them. Warps 4 to 7, the epilogue, load them and write them out. There are
two stages of columns, each with an mbarrier that says it is full and one that says it is empty.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.backend.interface import u32

COLUMNS = 32
STAGES = 2
THREADS = 256
#: Where tcgen05_alloc writes the address, and room for the mbarriers: full, then empty.
HELD = tma.Tile(4, np.uint32)
BARRIERS = tma.Tile(4 * STAGES, np.uint32)


@cuda.jit
def hand_over(tiles, out):
    """Copy `tiles`, of 128 x COLUMNS each, to `out`, through tensor memory."""
    held, barriers = tma.shared_tile(HELD), tma.shared_tile(BARRIERS)
    thread = cuda.threadIdx.x
    warp = thread // 32
    if thread == 0:
        for stage in range(STAGES):
            tma.Barrier(u32(barriers.address + 8 * stage)).init(4)
            tma.Barrier(u32(barriers.address + 8 * (STAGES + stage))).init(128)
        ptx.fence_mbarrier_init()
    if warp == 0:
        ptx.tcgen05_alloc(held, STAGES * COLUMNS, 1)
        ptx.tcgen05_relinquish_alloc_permit(1)
    cuda.syncthreads()
    base = ptx.ld_shared_u32(held.address)
    row = thread % 128
    first = u32(base + (warp % 4 << 21))
    for tile in range(len(tiles)):
        stage, parity = tile % STAGES, tile // STAGES % 2
        at = u32(first + stage * COLUMNS)
        full = tma.Barrier(u32(barriers.address + 8 * stage))
        empty = tma.Barrier(u32(barriers.address + 8 * (STAGES + stage)))
        if thread < 128:
            empty.wait(1 - parity)
            ptx.tcgen05_fence_after_thread_sync()
            for c in range(0, COLUMNS, 4):
                four = (
                    tiles[tile, row, c],
                    tiles[tile, row, c + 1],
                    tiles[tile, row, c + 2],
                    tiles[tile, row, c + 3],
                )
                ptx.tcgen05_st_32x32b(u32(at + c), four, 4)
            ptx.tcgen05_wait_st()
            if ptx.elect_sync():
                ptx.tcgen05_commit(full, 1)
        else:
            full.wait(parity)
            ptx.tcgen05_fence_after_thread_sync()
            values = ptx.tcgen05_ld_32x32b(at, COLUMNS)
            ptx.tcgen05_wait_ld()
            ptx.tcgen05_fence_before_thread_sync()
            empty.arrive()
            for c in range(COLUMNS):
                out[tile, row, c] = values[c]
    cuda.syncthreads()
    if warp == 0:
        ptx.tcgen05_dealloc(base, STAGES * COLUMNS, 1)
