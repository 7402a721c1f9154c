"""Copies: contiguous bytes by bulk copies, matrices of any row stride by tensor tiles.

Cost model: every byte is read once and written once. On an H200 DRAM decides, and it rewards a
narrow window of addresses in flight: small chunks in the hardware's block order reach the rate of
the best copy, a wide persistent stride loses 8 %.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda

from numba_tma import ptx
from numba_tma.kernels._host import (
    Matrix,
    check_same,
    current_device,
    launch,
    launched_again,
    multiprocessors,
    queue_counter,
    stream_key,
    tile_for,
)
from numba_tma.layout import Tile
from numba_tma.pipeline import TilePipeline, TileQueue
from numba_tma.shared import shared_barrier, shared_tile
from numba_tma.tensor_map import tensor_map

CHUNK = Tile(4096, "u8")


@cuda.jit
def copy_chunks(source, destination):  # type: ignore[no-untyped-def]
    """Copy one chunk of contiguous bytes per block: a bulk load, and a bulk store."""
    chunk = shared_tile(CHUNK)
    full = shared_barrier()
    nbytes = source.shape[0]
    start = cuda.blockIdx.x * CHUNK.nbytes
    if cuda.threadIdx.x == 0:
        length = min(CHUNK.nbytes, nbytes - start) // 16 * 16
        full.init(1)
        ptx.fence_mbarrier_init()
        full.arrive_expect_tx(length)
        if length > 0:
            ptx.cp_async_bulk_load(chunk, source[start:], length, full)
            full.wait(0)
            ptx.cp_async_bulk_store(destination[start:], chunk, length)
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group_read(0)
    # The last bytes of an array that is not a multiple of 16 B long.
    if start + CHUNK.nbytes >= nbytes and nbytes % 16 > cuda.threadIdx.x:
        last = nbytes - 1 - cuda.threadIdx.x
        destination[last] = source[last]


@functools.cache
def copy_tiles_kernel(tile: Tile, stages: int) -> Any:
    """Return the pipelined copy of matrices by tiles of shape `tile`."""
    PIPE = TilePipeline(stages, x=tile)
    tile_rows, tile_columns = tile.shape

    @cuda.jit
    def copy_tiles(source, destination, counter, row_tiles, column_tiles):  # type: ignore[no-untyped-def]
        pipe = PIPE.start()
        if pipe.is_producer():
            queue = TileQueue(counter, row_tiles * column_tiles)
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


def copy(source: Any, out: Any, *, stream: Any = None) -> Any:
    """Copy `source` to `out` on the GPU.

    Parameters
    ----------
    source, out
        Device arrays of the same shape and type: torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``. Contiguous ones are copied as bytes;
        those with a gap between rows tile by tile.
    stream
        A numba, torch or CuPy stream; the default stream if None.

    Returns
    -------
    Any
        `out`.

    Raises
    ------
    ValueError
        If shapes or types differ, or TMA cannot address an array.
    """
    _copy((source, out), stream)
    return out


@launched_again
def _copy(arrays: tuple[Any, Any], stream: Any) -> None:
    x, y = Matrix("source", arrays[0]), Matrix("out", arrays[1])
    check_same("copy", source=x, out=y)
    if x.nbytes == 0:
        return
    if x.is_contiguous() and y.is_contiguous():
        for name, matrix in (("source", x), ("out", y)):
            if matrix.address % 16:
                raise ValueError(
                    f"copy(): {name} starts at {matrix.address:#x}, which is {matrix.address % 16} "
                    "B after a multiple of 16 B; TMA needs a multiple of 16 B: copy from a "
                    "16-byte boundary"
                )
        blocks = -(-x.nbytes // CHUNK.nbytes)
        launch(copy_chunks, blocks, 32, stream, x.as_bytes(), y.as_bytes())
    else:
        _copy_matrix(x, y, stream)


def _copy_matrix(x: Matrix, y: Matrix, stream: Any, stages: int = 2) -> None:
    y.require_whole_chunks("copy(): out")
    tile = tile_for(x.columns, x.dtype, 8192)
    source = tensor_map(x.view(x.columns), tile, dtype=x.dtype)
    destination = tensor_map(y.view(y.columns), tile, dtype=y.dtype)
    row_tiles, column_tiles = (-(-n // t) for n, t in zip((x.rows, x.columns), tile.shape))
    blocks = min(4 * multiprocessors(), row_tiles * column_tiles)
    counter = queue_counter(current_device(), stream_key(stream))
    kernel = copy_tiles_kernel(tile, stages)
    launch(kernel, blocks, 64, stream, source, destination, counter, row_tiles, column_tiles)
