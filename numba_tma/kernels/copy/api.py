"""Copies: contiguous bytes by bulk copies, matrices of any row stride by tensor tiles.

Cost model: every byte is read once and written once. On an H200 DRAM decides, and it rewards a
narrow window of addresses in flight: small chunks in the hardware's block order reach the rate of
the best copy, a wide persistent stride loses 8 %.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from numba import cuda

from numba_tma import ptx
from numba_tma.device.shared import shared_barrier, shared_tile
from numba_tma.device.vectors import load_vector, store_vector
from numba_tma.host.layout import Tile
from numba_tma.host.tensor_map import tensor_map
from numba_tma.kernels._host.launching import (
    STREAMED,
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
from numba_tma.pipeline import TilePipeline, TileQueue


@dataclass(frozen=True)
class Plan:
    """How contiguous bytes are copied: in blocks of so many bytes and threads, and by what."""

    chunk_bytes: int = 2048
    threads: int = 32
    store: str = "tma"  #: "tma"; "registers": from shared memory by threads; "vector": without TMA


@functools.cache
def copy_chunks_kernel(plan: Plan) -> Any:
    """Return the kernel that copies one chunk of contiguous bytes per block."""
    CHUNK, BYTES = Tile(plan.chunk_bytes // 4, "u32"), plan.chunk_bytes
    VECTOR, threads = Tile(4, "u32"), plan.threads
    through_tma = plan.store == "tma"

    @cuda.jit
    def copy_chunks(source, destination):  # type: ignore[no-untyped-def]
        chunk = shared_tile(CHUNK)
        full = shared_barrier()
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
        # The last bytes of an array that is not a multiple of 16 B long.
        if start + BYTES >= nbytes and nbytes % 16 > cuda.threadIdx.x:
            last = nbytes - 1 - cuda.threadIdx.x
            destination[last] = source[last]

    return copy_chunks


@functools.cache
def copy_vectors_kernel(nbytes: int) -> Any:
    """Return the kernel in which each thread copies a vector of `nbytes` of a row, without TMA."""
    item = min(nbytes, 4)
    VECTOR = Tile(nbytes // item, f"u{8 * item}")

    @cuda.jit
    def copy_vectors(source, destination, source_pitch, pitch, rows, row_bytes):  # type: ignore[no-untyped-def]
        of_a_row = (row_bytes + nbytes - 1) // nbytes
        vector, row = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, 0
        if rows > 1:
            row, vector = vector // of_a_row, vector % of_a_row
        here, there, at = row * source_pitch, row * pitch, vector * nbytes
        if row < rows and at + nbytes <= row_bytes:
            store_vector(destination, there + at, load_vector(source, here + at, VECTOR), VECTOR)
        elif row < rows:
            for last in range(at, row_bytes):
                destination[there + last] = source[here + last]

    return copy_vectors


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


def copy(source: Any, out: Any, *, stream: Any = None, plan: Plan | None = None) -> Any:
    """Copy `source` to `out` on the GPU.

    Parameters
    ----------
    source, out
        Device arrays of the same shape and type: torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``. Contiguous ones are copied as bytes;
        those with a gap between rows tile by tile. What TMA cannot address (it moves what starts
        and ends at multiples of 16 B) is copied by threads, in vectors as wide as both arrays are
        aligned.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    plan
        How contiguous arrays are cut up.

    Returns
    -------
    Any
        `out`.

    Raises
    ------
    ValueError
        If shapes or types differ, or the last axis of an array is not contiguous.
    """
    _copy((source, out), stream, (), plan)
    return out


@launched_again
def _copy(arrays: tuple[Any, Any], stream: Any, numbers: tuple[()], plan: Plan | None) -> None:
    x, y = Matrix("source", arrays[0]), Matrix("out", arrays[1])
    check_same("copy", source=x, out=y)
    if x.nbytes == 0:
        return
    plan = Plan() if plan is None else plan
    aligned = x.address % 16 == y.address % 16 == 0
    if x.is_contiguous() and y.is_contiguous():
        if aligned and plan.store != "vector":
            blocks = -(-x.nbytes // plan.chunk_bytes)
            kernel = copy_chunks_kernel(plan)
            launch(kernel, blocks, plan.threads, stream, x.as_bytes(), y.as_bytes())
        else:
            size = x.rows * x.columns
            _copy_vectors(x.part(1, size), y.part(1, size), stream)
    elif aligned and all(n % 16 == 0 for n in (x.row_stride, y.row_stride, x.nbytes // x.rows)):
        _copy_matrix(x, y, stream)
    else:
        _copy_vectors(x, y, stream)


def _copy_vectors(x: Matrix, y: Matrix, stream: Any, threads: int = 128) -> None:
    row_bytes = x.nbytes // x.rows
    strides = (x.row_stride, y.row_stride) if x.rows > 1 else ()
    nbytes = math.gcd(16, x.address, y.address, *strides)
    blocks = -(-x.rows * -(-row_bytes // nbytes) // threads)
    kernel, sizes = copy_vectors_kernel(nbytes), (x.row_stride, y.row_stride, x.rows, row_bytes)
    launch(kernel, blocks, threads, stream, x.span(), y.span(), *sizes)


def _copy_matrix(x: Matrix, y: Matrix, stream: Any, stages: int = 2) -> None:
    tile = tile_for(x.columns, x.dtype, 8192)
    source = tensor_map(x.view(x.columns), tile, dtype=x.dtype)
    destination = tensor_map(y.view(y.columns), tile, dtype=y.dtype)
    row_tiles, column_tiles = (-(-n // t) for n, t in zip((x.rows, x.columns), tile.shape))
    blocks = min(4 * multiprocessors(), row_tiles * column_tiles)
    counter = queue_counter(current_device(), stream_key(stream))
    kernel = copy_tiles_kernel(tile, stages)
    launch(kernel, blocks, 64, stream, source, destination, counter, row_tiles, column_tiles)
