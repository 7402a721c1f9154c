"""The sum of two matrices with a `CircularBuffer`, and the same in three parts by hand."""

from __future__ import annotations

from typing import Any

from numba import cuda, int64, types, uint32

import numba_tma as tma
from numba_tma import ptx
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.device.shared import SharedTile

STAGES, PREFETCH, THREADS = 4, 2, 128
ROWS, COLUMNS = 16, 128
TILE = tma.Tile((ROWS, COLUMNS), "f32")
ALL_STAGES = tma.Tile((STAGES * ROWS, COLUMNS), "f32")
VECTORS = TILE.size // 4 // THREADS  # 16-byte vectors of a tile that each thread adds

MAP = TensorMapType(2, TILE)
SIGNATURE = (MAP, MAP, types.float32[:, ::1], types.int64)


@cuda.jit(device=True, forceinline=True)
def add_tile(out, row, x, y, thread):
    """Write the sum of a tile of x and of y to the rows of `out` from `row`."""
    for k in range(VECTORS):
        at = thread + THREADS * k
        i, j = at // (COLUMNS // 4), at % (COLUMNS // 4) * 4
        total = x.read_vector((i, j)) + y.read_vector((i, j))
        out[row + i, j] = total[0]
        out[row + i, j + 1] = total[1]
        out[row + i, j + 2] = total[2]
        out[row + i, j + 3] = total[3]


def circular_add(war: str = "sync", in_flight: int = 0) -> tuple[Any, Any]:
    """Return the kernel with a circular buffer, and its signature."""
    BUFFER = tma.CircularBuffer(STAGES, PREFETCH, war=war, x=TILE, y=TILE)

    @cuda.jit
    def add(x, y, out, n_tiles):
        ring = BUFFER.start()
        thread = uint32(ring.thread())
        for tile, stage in ring.tiles(cuda.blockIdx.x, n_tiles, cuda.gridDim.x, in_flight):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * ROWS, 0), slot.barrier)
                y.load(slot.y, (ahead * ROWS, 0), slot.barrier)
            full = stage.wait()
            add_tile(out, tile * ROWS, full.x, full.y, thread)
        ring.close()

    return add, SIGNATURE


@cuda.jit(device=True, forceinline=True)
def load_tiles(x, y, tile, index, xs, ys, full):
    barrier = full + index * 8
    ptx.mbarrier_arrive_expect_tx(barrier, 2 * TILE.nbytes)
    ptx.cp_async_bulk_tensor_load(xs.address + index * TILE.nbytes, x, (tile * ROWS, 0), barrier)
    ptx.cp_async_bulk_tensor_load(ys.address + index * TILE.nbytes, y, (tile * ROWS, 0), barrier)


@cuda.jit(device=True, forceinline=True)
def tile_at(tiles, index):
    return SharedTile(TILE, tiles.address + index * TILE.nbytes, tiles.accesses)


@cuda.jit(device=True, forceinline=True)
def wait(barrier, phase):
    while not ptx.mbarrier_try_wait_parity(barrier, phase):
        pass


def add_by_hand(war: str = "sync") -> tuple[Any, Any]:
    """Return the kernel in three parts: prologue, body and epilogue."""
    by_mbarrier = war == "mbarrier"
    num_barriers = 2 * STAGES if by_mbarrier else STAGES

    @cuda.jit
    def add(x, y, out, n_tiles):
        xs, ys = tma.shared_tile(ALL_STAGES), tma.shared_tile(ALL_STAGES)
        barriers = tma.shared_barriers(num_barriers)
        full = uint32(barriers.address)
        empty = uint32(full + 8 * STAGES)
        thread, threads = ptx.tid_x(), ptx.ntid_x()
        if thread == 0:
            for stage in range(STAGES):
                ptx.mbarrier_init(full + stage * 8, 1)
                if by_mbarrier:
                    ptx.mbarrier_init(empty + stage * 8, threads >> 5)
            ptx.fence_mbarrier_init()
        ptx.barrier_sync(0, threads)

        tile, step = int64(cuda.blockIdx.x), cuda.gridDim.x
        ahead = tile
        loads = ptx.elect_sync() & (thread < 32)
        load_index, load_phase = uint32(0), uint32(1)
        for _ in range(PREFETCH):
            if loads and ahead < n_tiles:
                load_tiles(x, y, ahead, load_index, xs, ys, full)
            load_index = uint32(load_index + 1)
            ahead += step

        index, phase = uint32(0), uint32(0)
        while ahead < n_tiles:
            if ptx.elect_sync() & (thread < 32):
                if by_mbarrier:
                    wait(empty + load_index * 8, load_phase)
                load_tiles(x, y, ahead, load_index, xs, ys, full)
            if by_mbarrier:
                ptx.bar_warp_sync()
            load_index = uint32(load_index + 1)
            if load_index == STAGES:
                load_index = uint32(0)
                load_phase = uint32(load_phase ^ 1)
            wait(full + index * 8, phase)
            add_tile(out, tile * ROWS, tile_at(xs, index), tile_at(ys, index), thread)
            if by_mbarrier:
                ptx.bar_warp_sync()
                if ptx.elect_sync():
                    ptx.mbarrier_arrive(empty + index * 8)
            else:
                ptx.barrier_sync(0, threads)
            index = uint32(index + 1)
            if index == STAGES:
                index = uint32(0)
                phase = uint32(phase ^ 1)
            tile += step
            ahead += step

        while tile < n_tiles:
            wait(full + index * 8, phase)
            add_tile(out, tile * ROWS, tile_at(xs, index), tile_at(ys, index), thread)
            index = uint32(index + 1)
            if index == STAGES:
                index = uint32(0)
                phase = uint32(phase ^ 1)
            tile += step

        ptx.barrier_sync(0, threads)
        if thread == 0:
            barriers.inval()

    return add, SIGNATURE


#: By name of the golden: the kernel, and the same by hand.
CIRCULAR = {"circular_buffer": (circular_add, add_by_hand)}
