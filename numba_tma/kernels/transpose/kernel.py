"""The kernels of `transpose`: TMA moves tiles, threads transpose them in registers.

Cost model: each byte is read once and written once, in runs of at least 128 B on both sides. A
tile lies in shared memory with 128-byte swizzle. A thread takes square blocks of 16-byte rows (8 x
8 elements of 2 bytes): it reads the rows of a block, and writes its columns as rows of the other
tile. The blocks of eight neighbouring threads lie on a diagonal, so each of these reads and writes
touches all banks once.

`transpose_tiles` has one tile a block and no `TilePipeline`: it reaches 4,157 GB/s for f32 (16384 x
16384; a copy 4,242), because other blocks of the SM load while a block transposes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.device.vectors import read_block, store_vector, write_transposed
from numba_tma.host.annotations import Kernel
from numba_tma.host.values import check_fields, one_of, whole
from numba_tma.kernels._host.limits import STREAMED

LINE = 128  #: bytes of a swizzled row


@dataclass(frozen=True)
class TransposePlan:
    """How a matrix is cut into tiles, and their order. Plans are part of cache keys.

    A tile consists of squares whose rows are 128-byte lines.
    """

    rows: int = 2  #: squares of a tile from top to bottom
    columns: int = 2  #: squares of a tile from left to right
    threads: int = 128  #: threads of a block
    group: int = 256  #: tile rows that blocks go through before they move to the next tile column
    store: str = "tma"  #: "tma", or "registers": threads store the rows of the transposed tile

    def __post_init__(self) -> None:
        check_fields(
            self,
            rows=whole(1, 32),
            columns=whole(1, 32),
            threads=whole(32, 1024, step=32),
            group=whole(1, (1 << 16) - 1),
            store=one_of("tma", "registers"),
        )
        blocks = 64 * self.rows * self.columns  # of 16-byte rows, which threads transpose
        if blocks % self.threads:
            raise ValueError(
                f"TransposePlan(threads={self.threads}): a tile of {self.rows} x {self.columns} "
                f"squares has {blocks} blocks of 16-byte rows, which {self.threads} threads cannot "
                f"share equally: use a divisor of {blocks}"
            )


#: Plans by element size in bytes.
PLANS = {
    1: TransposePlan(1, 1, 64),
    2: TransposePlan(2, 2),
    4: TransposePlan(4, 2, 256, store="registers"),
    8: TransposePlan(2, 2),
}


@functools.cache
def transpose_kernel(dtype: tma.DType, plan: TransposePlan) -> Kernel:
    """Return the kernel in which each block transposes one tile."""
    lanes, side = 16 // dtype.itemsize, LINE // dtype.itemsize
    height, width = plan.rows * side, plan.columns * side
    SOURCE = tma.Tile((1, height, width), dtype, tma.Swizzle.B128)
    TURNED = tma.Tile((1, width, height), dtype, tma.Swizzle.B128)
    FLAT_SOURCE = tma.Tile((height, width), dtype, tma.Swizzle.B128)
    FLAT_TURNED = tma.Tile((width, height), dtype, tma.Swizzle.B128)
    threads, group = plan.threads, np.uint32(plan.group)
    blocks = plan.rows * plan.columns * 64  # each square has 8 x 8 of them
    VECTOR, ITEM = tma.Tile(lanes, dtype), dtype.itemsize
    through_tma, of_a_row = plan.store == "tma", height // lanes
    blocks_each, squares = blocks // threads, np.uint32(plan.columns)
    # If each thread has one block, registers hold the whole tile between the read and the write.
    in_place = blocks_each == 1 and SOURCE == TURNED

    @cuda.jit
    def transpose_tiles(source, target, row_tiles, column_tiles, rows, columns, each, pitch):  # type: ignore[no-untyped-def]
        tile = tma.shared_tile(SOURCE)
        turned = tile if in_place else tma.shared_tile(TURNED)
        full = tma.shared_barrier()
        thread = cuda.threadIdx.x
        # Indices have 32 bits, because a 64-bit division is a call of some hundred instructions.
        t, down, across = np.uint32(cuda.blockIdx.x), np.uint32(row_tiles), np.uint32(column_tiles)
        batch, t = np.uint32(t // (down * across)), np.uint32(t % (down * across))
        # Blocks take groups of tile rows, so that neighbours write as well as read near each other.
        first = np.uint32(t // (group * across) * group)
        height_of_group = np.uint32(min(group, down - first))
        t = np.uint32(t - first * across)
        row = (first + t % height_of_group) * height
        column = np.uint32(t // height_of_group) * width
        if thread == 0:
            full.init(1)
            ptx.fence_mbarrier_init()
            full.arrive_expect_tx(SOURCE.nbytes)
            source.load(tile, (batch, row, column), full, STREAMED)
        cuda.syncthreads()
        full.wait(0)
        x, y = tile.view(FLAT_SOURCE), turned.view(FLAT_TURNED)
        for k in range(blocks_each):
            block = np.uint32(thread + k * threads)
            square, diagonal, line = block // 64, block // 8 % 8, block % 8
            i = (square // squares * 8 + line) * lanes
            j = (square % squares * 8 + (line ^ diagonal)) * lanes
            values = read_block(x, (i, j))
            if in_place:
                cuda.syncthreads()
            write_transposed(y, (j, i), values)
        if through_tma:
            ptx.fence_proxy_async("shared::cta")
        cuda.syncthreads()
        if not through_tma:
            for vector in range(thread, width * of_a_row, threads):
                of_tile, at = vector // of_a_row, vector % of_a_row * lanes
                if column + of_tile < columns and row + at < rows:
                    start = batch * each + (column + of_tile) * pitch + (row + at) * ITEM
                    store_vector(target, start, y.read_vector((of_tile, at)), VECTOR)
        elif thread == 0:
            target.store(turned, (batch, column, row))
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group_read(0)

    return transpose_tiles


PATCH, PATCH_ROWS = 32, 8


@functools.cache
def patch_kernel(dtype: tma.DType) -> Kernel:
    """Return the kernel without TMA: patches of 32 x 32 elements pass through shared memory."""
    element, shape = dtype.numpy, (PATCH, PATCH + 1)  # the padding spreads a column over 32 banks

    @cuda.jit
    def transpose_patches(source, target, row_patches, column_patches):  # type: ignore[no-untyped-def]
        patch = cuda.shared.array(shape, element)
        x, y = cuda.threadIdx.x % PATCH, cuda.threadIdx.x // PATCH
        _, rows, columns = source.shape
        p = cuda.blockIdx.x
        batch, p = p // (row_patches * column_patches), p % (row_patches * column_patches)
        row, column = p // column_patches * PATCH, p % column_patches * PATCH
        for k in range(y, PATCH, PATCH_ROWS):
            if row + k < rows and column + x < columns:
                patch[k, x] = source[batch, row + k, column + x]
        cuda.syncthreads()
        for k in range(y, PATCH, PATCH_ROWS):
            if column + k < columns and row + x < rows:
                target[batch, column + k, row + x] = patch[x, k]

    return transpose_patches
