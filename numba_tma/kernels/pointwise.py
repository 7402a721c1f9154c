"""Pointwise kernels: tiles stream through a pipeline and are worked on in place.

Cost model: every input is read once and the output written once. All inputs of a tile share one
stage and one barrier, and the result goes out from the first input's tile.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda

from numba_tma.kernels._host import (
    Matrix,
    check_same,
    current_device,
    empty_like,
    launch,
    multiprocessors,
    queue_counter,
    stream_key,
    tile_for,
)
from numba_tma.layout import MAX_BOX, Tile
from numba_tma.pipeline import TilePipeline, TileQueue
from numba_tma.tensor_map import tensor_map

# Measured on an H200: two tiles of 16 KB a stage, one block per multiprocessor.
TILE_BYTES, STAGES, THREADS, BLOCKS_PER_MULTIPROCESSOR = 16384, 4, 128, 1


@functools.cache
def scale_add_kernel(tile: Tile) -> Any:
    """Return the kernel alpha * x + beta * y over tiles of this shape."""
    PIPE = TilePipeline(STAGES, x=tile, y=tile)
    FLAT = Tile(tile.size, tile.dtype)
    rows, columns = tile.shape
    lanes = 16 // tile.itemsize
    vectors = tile.size // lanes

    @cuda.jit
    def scale_add_tiles(x, y, out, alpha, beta, counter, row_tiles, column_tiles):  # type: ignore[no-untyped-def]
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce_from(TileQueue(counter, row_tiles * column_tiles)):
                at = (t // column_tiles * rows, t % column_tiles * columns)
                x.load(stage.x, at, stage.barrier)
                y.load(stage.y, at, stage.barrier)
        else:
            for t, stage in pipe.consume_from(in_flight=1):
                xs, ys = stage.x.view(FLAT), stage.y.view(FLAT)
                for vector in range(cuda.threadIdx.x, vectors, pipe.num_consumers()):
                    i = vector * lanes
                    xs.write_vector(i, xs.read_vector(i) * alpha + ys.read_vector(i) * beta)
                pipe.store(out, stage.x, (t // column_tiles * rows, t % column_tiles * columns))
            pipe.release_pending()

    return scale_add_tiles


def scale_add(
    x: Any, y: Any, alpha: float, beta: float, *, out: Any = None, stream: Any = None
) -> Any:
    """Compute ``alpha * x + beta * y``.

    Parameters
    ----------
    x, y
        Device arrays of the same shape and type (f32, f16, bf16): torch, CuPy, numba, or anything
        with ``__cuda_array_interface__`` or ``__dlpack__``. Rows (or the whole of contiguous
        arrays) are a multiple of 16 B long.
    alpha, beta
        Numbers, used as float32.
    out
        Where to write; a new array like `x` if None. May be `x` or `y`.
    stream
        A numba, torch or CuPy stream; the default stream if None.

    Returns
    -------
    Any
        `out`, computed in float32 and rounded once.

    Raises
    ------
    ValueError
        If shapes or types disagree, or TMA cannot address an array.
    """
    out = empty_like(x) if out is None else out
    matrices = {"x": Matrix("x", x), "y": Matrix("y", y), "out": Matrix("out", out)}
    check_same("scale_add", **matrices)
    first = matrices["x"]
    if first.dtype.name not in ("f32", "f16", "bf16"):
        raise ValueError(f"scale_add(): x is {first.dtype}; it works on f32, f16 and bf16")
    if first.nbytes == 0:
        return out
    row, columns = _cut(list(matrices.values()))
    if columns == first.columns:
        matrices["out"].require_whole_chunks("scale_add(): out")
    tile = tile_for(columns, first.dtype, TILE_BYTES)
    maps = [tensor_map(m.cut(row, columns), tile, dtype=m.dtype) for m in matrices.values()]
    row_tiles, column_tiles = (-(-n // t) for n, t in zip((row, columns), tile.shape))
    blocks = min(BLOCKS_PER_MULTIPROCESSOR * multiprocessors(), row_tiles * column_tiles)
    launch(
        scale_add_kernel(tile),
        blocks,
        THREADS + 32,
        stream,
        *maps,
        np.float32(alpha),
        np.float32(beta),
        queue_counter(current_device(), stream_key(stream)),
        row_tiles,
        column_tiles,
    )
    return out


def _cut(matrices: list[Matrix]) -> tuple[int, int]:
    """Return (rows, columns) of the matrix that all arrays are seen as.

    Contiguous arrays may be cut anywhere: into rows of a box's width if that divides them.
    """
    first = matrices[0]
    if all(m.is_contiguous() for m in matrices):
        size = first.rows * first.columns
        for width in (MAX_BOX, MAX_BOX // 2, MAX_BOX // 4, MAX_BOX // 8):
            if size % width == 0:
                return size // width, width
    return first.rows, first.columns
