"""The kernel of `grouped_copy`: a warp a block, which edits two maps for each matrix."""

from __future__ import annotations

import functools

from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.host.annotations import Kernel

# Columns of the table, which has a row for each matrix.
TILES, ROWS, COLUMNS, SOURCE, SOURCE_STRIDE, OUT, OUT_STRIDE = range(7)


@functools.cache
def grouped_copy_kernel(tile: tma.Tile) -> Kernel:
    """Return the kernel that copies matrices by tiles of shape `tile`, with one warp a block."""
    tile_rows, tile_columns = tile.shape

    @cuda.jit
    def grouped_copy_tiles(template, maps, table):  # type: ignore[no-untyped-def]
        """Copy the matrices of `table`; each block edits two elements of `maps`."""
        buffer, full = tma.shared_tile(tile), tma.shared_barrier()
        scratch = tma.shared_tile(tma.DESCRIPTOR)
        source, out = maps[2 * cuda.blockIdx.x], maps[2 * cuda.blockIdx.x + 1]
        issues = cuda.threadIdx.x == 0
        if issues:
            full.init(1)
            ptx.fence_mbarrier_init()
        cuda.syncwarp()
        # Tiles are numbered through all matrices: matrix g has the tiles from `first` on.
        g = first = parity = 0
        t = cuda.blockIdx.x
        edited = False
        while g < table.shape[0]:
            if t >= first + table[g, TILES]:
                first += table[g, TILES]
                g += 1
                edited = False
                continue
            rows, columns = table[g, ROWS], table[g, COLUMNS]
            if not edited:
                if issues:
                    ptx.cp_async_bulk_wait_group(0)  # the last store through the old map is done
                shape = (rows, columns)
                tma.edit_map(
                    source, template, scratch, table[g, SOURCE], shape, (table[g, SOURCE_STRIDE],)
                )
                tma.edit_map(out, template, scratch, table[g, OUT], shape, (table[g, OUT_STRIDE],))
                source.fence_acquire()
                out.fence_acquire()
                edited = True
            if issues:
                across = (columns + tile_columns - 1) // tile_columns
                row, column = (t - first) // across, (t - first) % across
                at = (row * tile_rows, column * tile_columns)
                ptx.cp_async_bulk_wait_group_read(0)  # the last store has read the buffer
                full.arrive_expect_tx(tile.nbytes)
                source.load(buffer, at, full)
                full.wait(parity)
                out.store(buffer, at)
                ptx.cp_async_bulk_commit_group()
            parity ^= 1
            t += cuda.gridDim.x
        if issues:
            ptx.cp_async_bulk_wait_group_read(0)

    return grouped_copy_tiles
