"""The kernels of `copy`: chunks of contiguous bytes, tiles of a matrix, and vectors without TMA.

Cost model: each byte is read once and written once, so DRAM decides. On an H200 DRAM is fastest
when the addresses in flight lie close together: small chunks in the hardware's order of blocks
reach 4,294 GB/s (1 GiB; torch 4,232), while persistent blocks that stride over the array lose 8 %.

`copy_chunks` therefore has one chunk a block and no `TilePipeline`: other blocks of the SM hide the
latency that further stages would. `copy_tiles` copies rows with gaps, where a block's tiles are
far apart in any order, by a pipeline whose stages TMA both fills and empties.
"""

from __future__ import annotations

import functools

from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.device.units import STEPS, place_in_row, place_in_rows
from numba_tma.device.vectors import store_vector
from numba_tma.host.annotations import Kernel
from numba_tma.kernels._host.limits import STREAMED
from numba_tma.kernels.copy.plan import CopyPlan


@functools.cache
def copy_chunks_kernel(plan: CopyPlan) -> Kernel:
    """Return the kernel in which each block copies one chunk of contiguous bytes."""
    CHUNK, BYTES = tma.Tile(plan.chunk_bytes // 4, "u32"), plan.chunk_bytes
    VECTOR, threads = tma.Tile(4, "u32"), plan.threads
    through_tma = plan.store == "tma"

    @cuda.jit
    def copy_chunks(source, destination):  # type: ignore[no-untyped-def]
        chunk = tma.shared_tile(CHUNK)
        full = tma.shared_barrier()
        nbytes = source.shape[0]
        start = cuda.blockIdx.x * BYTES
        length = min(BYTES, nbytes - start) // 16 * 16
        if cuda.threadIdx.x == 0:
            full.init(1)
            ptx.fence_mbarrier_init()
            if length > 0:
                full.arrive_expect_tx(length)
                ptx.cp_async_bulk_load(chunk, source[start:], length, full, STREAMED)
                if through_tma:
                    full.wait(0)
                    ptx.cp_async_bulk_store(destination[start:], chunk, length)
            if through_tma:
                ptx.cp_async_bulk_commit_group()
                ptx.cp_async_bulk_wait_group_read(0)
        if not through_tma:
            cuda.syncthreads()
            if length > 0:
                full.wait(0)
            for i in range(16 * cuda.threadIdx.x, length, 16 * threads):
                store_vector(destination, start + i, chunk.read_vector(i // 4), VECTOR)
        # Bulk copies move multiples of 16 B; the threads copy the last bytes of other arrays.
        if start + BYTES >= nbytes and nbytes % 16 > cuda.threadIdx.x:
            last = nbytes - 1 - cuda.threadIdx.x
            destination[last] = source[last]

    return copy_chunks


@functools.cache
def copy_units_kernel(itemsize: int, threads: int, flat: bool, form: str) -> Kernel:
    """Return the kernel in which each thread copies a unit of 16 B of rows that begin anywhere."""
    SINGLE, place_of = tma.Tile(1, f"u{8 * itemsize}"), place_in_row if flat else place_in_rows
    load, words, store = STEPS[form]

    @cuda.jit
    def copy_units(source, destination, rows, nbytes, units):  # type: ignore[no-untyped-def]
        number = cuda.blockIdx.x * threads + cuda.threadIdx.x
        place = place_of(number, destination, rows, nbytes, units)
        store(SINGLE, destination, place, words(load(SINGLE, source, place)))

    return copy_units


@functools.cache
def copy_tiles_kernel(tile: tma.Tile, stages: int) -> Kernel:
    """Return the kernel in which tiles of a matrix pass through a pipeline of `stages`."""
    PIPE = tma.TilePipeline(stages, x=tile)
    tile_rows, tile_columns = tile.shape

    @cuda.jit
    def copy_tiles(source, destination, counter, row_tiles, column_tiles):  # type: ignore[no-untyped-def]
        pipe = PIPE.start()
        if pipe.is_producer():
            queue = tma.TileQueue(counter, row_tiles * column_tiles)
            for t, stage in pipe.produce_from(queue):
                row, column = t // column_tiles, t % column_tiles
                source.load(stage.x, (row * tile_rows, column * tile_columns), stage.barrier)
        else:
            for t, stage in pipe.consume_from(in_flight=1):
                row, column = t // column_tiles, t % column_tiles
                at = (row * tile_rows, column * tile_columns)
                pipe.store(destination, stage.x, at, written=False)
            pipe.release_pending()

    return copy_tiles
