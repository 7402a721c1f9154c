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

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.device.vectors import read_block, store_vector, write_transposed
from numba_tma.host.annotations import Kernel
from numba_tma.kernels._host.limits import STREAMED
from numba_tma.kernels.transpose.plan import LINE, PATCH, PATCH_THREADS, SECTOR, TransposePlan


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


@functools.cache
def patch_kernel(dtype: tma.DType, aligned: bool) -> Kernel:
    """Return the kernel without TMA: patches pass through shared memory by elements.

    Neighbouring threads load, and then store, neighbouring elements. A thread's loads are all in
    flight before its first store to shared memory, except in patches that reach over an edge.

    Only whole sectors are written. If the target's rows are not `aligned` to sectors, a block
    therefore loads a halo, the source rows of one sector before the patch: it writes each row of
    the target from the start of a sector, which lies as far before the patch as the row does.
    """
    element, side, halo = dtype.numpy, PATCH, 0 if aligned else SECTOR // dtype.itemsize
    # The padding spreads a column over the banks.
    shape = (side + halo, side + max(1, 4 // dtype.itemsize))
    lines = PATCH_THREADS // side  # rows that the block accesses at once; divides the halo
    loads, stores = (side + halo) // lines, side // lines
    of_a_sector = np.uint32(max(1, halo) - 1)

    @cuda.jit
    def transpose_patches(source, target, row_patches, column_patches, origin, each, pitch):  # type: ignore[no-untyped-def]
        patch = cuda.shared.array(shape, element)
        x, y = np.uint32(cuda.threadIdx.x % side), np.uint32(cuda.threadIdx.x // side)
        _, rows, columns = source.shape
        p, across = np.uint32(cuda.blockIdx.x), np.uint32(column_patches)
        of_matrix = np.uint32(np.uint32(row_patches) * across)
        batch, p = np.uint32(p // of_matrix), np.uint32(p % of_matrix)
        row, column = np.int32(p // across * side) - halo, np.uint32(p % across * side)
        # Elements of the target's row `column` after the start of a sector, and of the next ones.
        after, step = np.uint32(origin + batch * each + column * pitch), np.uint32(pitch)
        if row >= 0 and row + halo + side <= rows and column + side <= columns:
            first = np.uint32(row)
            loaded = cuda.local.array(loads, element)  # registers: the loops are unrolled
            for k in range(loads):
                loaded[k] = source[batch, first + np.uint32(y + k * lines), column + x]
            for k in range(loads):
                patch[np.uint32(y + k * lines), x] = loaded[k]
            cuda.syncthreads()
            for k in range(stores):
                line = np.uint32(y + k * lines)
                at = np.uint32(x + halo - (after + line * step & of_a_sector))
                loaded[k] = patch[at, line]
            for k in range(stores):
                line = np.uint32(y + k * lines)
                at = np.uint32(x + halo - (after + line * step & of_a_sector))
                target[batch, column + line, first + at] = loaded[k]
        else:
            for k in range(y, side + halo, lines):
                if 0 <= row + k and row + k < rows and column + x < columns:
                    patch[k, x] = source[batch, row + k, column + x]
            cuda.syncthreads()
            for k in range(y, side, lines):
                place = np.int32(x + halo - (after + k * step & of_a_sector))
                if column + k < columns and 0 <= row + place and row + place < rows:
                    target[batch, column + k, row + place] = patch[place, k]

    return transpose_patches
