"""RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight, row by row.

Cost model: each row is read once and written once; statistics and scaling are done on the stage in
shared memory, in place, from which TMA stores the row. Blocks draw rows from a queue, so that the
rows in flight lie close together, and hold 48 to 64 KB of loads in flight per multiprocessor.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.dtypes import DType
from numba_tma.kernels._host import (
    Matrix,
    check_same,
    current_device,
    empty_like,
    launch,
    launched_again,
    multiprocessors,
    queue_counter,
    split_row,
    stream_key,
)
from numba_tma.layout import MAX_BOX, Tile
from numba_tma.pipeline import TilePipeline, TileQueue
from numba_tma.shared import shared_barrier, shared_tile
from numba_tma.tensor_map import tensor_map


@cuda.jit(device=True, forceinline=True)
def load_weight(pipe, weight, tile, full):  # type: ignore[no-untyped-def]
    """Load the weights once for all rows of the block. Executed by every consumer thread."""
    if cuda.threadIdx.x == 0:
        full.init(1)
        ptx.fence_mbarrier_init()
        full.arrive_expect_tx(tile.tile.nbytes)
        weight.load(tile, (0, 0, 0), full)
    pipe.sync_consumers()
    full.wait(0)


@functools.cache
def block_per_row(columns: int, dtype: DType, stages: int, threads: int) -> Any:
    """Return the kernel in which all consumer warps of a block share a row."""
    chunks, width = split_row(columns, dtype)
    PIPE = TilePipeline(stages, x=Tile((1, chunks, width), dtype))
    WEIGHT, ROW = Tile((1, chunks, width), dtype), Tile(columns, dtype)
    lanes = 16 // dtype.itemsize  # elements of a 16-byte vector
    vectors, warps = columns // lanes, threads // 32
    per_thread = -(-vectors // threads)
    whole = vectors % threads == 0

    @cuda.jit
    def rmsnorm_rows(x, weight, y, counter, rows, eps):  # type: ignore[no-untyped-def]
        pipe = PIPE.start()
        weight_tile = shared_tile(WEIGHT)
        weight_full = shared_barrier()
        sums = cuda.shared.array(warps, np.float32)
        thread = cuda.threadIdx.x
        if pipe.is_producer():
            for row, stage in pipe.produce_from(TileQueue(counter, rows)):
                x.load(stage.x, (row, 0, 0), stage.barrier)
        else:
            load_weight(pipe, weight, weight_tile, weight_full)
            w = weight_tile.view(ROW)
            for row, stage in pipe.consume_from(in_flight=1):
                tile = stage.x.view(ROW)
                square_sum = np.float32(0)
                for k in range(per_thread):
                    vector = thread + k * threads
                    if whole or vector < vectors:
                        v = tile.read_vector(vector * lanes)
                        square_sum += (v * v).sum()
                for offset in (16, 8, 4, 2, 1):
                    square_sum += cuda.shfl_xor_sync(0xFFFFFFFF, square_sum, offset)
                if thread % 32 == 0:
                    sums[thread // 32] = square_sum
                pipe.sync_consumers()
                total = np.float32(0)
                for warp in range(warps):
                    total += sums[warp]
                scale = np.float32(1) / math.sqrt(total / np.float32(columns) + eps)
                for k in range(per_thread):
                    vector = thread + k * threads
                    if whole or vector < vectors:
                        at = vector * lanes
                        tile.write_vector(at, tile.read_vector(at) * w.read_vector(at) * scale)
                pipe.store(y, stage.x, (row, 0, 0))  # which also keeps `sums` until all have read
            pipe.release_pending()

    return rmsnorm_rows


@functools.cache
def warp_per_row(columns: int, dtype: DType, stages: int, rows_per_stage: int) -> Any:
    """Return the kernel in which each consumer warp takes whole rows, several to a stage."""
    chunks, width = split_row(columns, dtype)
    PIPE = TilePipeline(stages, x=Tile((rows_per_stage, chunks, width), dtype))
    WEIGHT, ROW = Tile((1, chunks, width), dtype), Tile(columns, dtype)
    ROWS = Tile((rows_per_stage, columns), dtype)
    lanes = 16 // dtype.itemsize
    vectors = columns // lanes
    per_lane = -(-vectors // 32)
    whole = vectors % 32 == 0

    @cuda.jit
    def rmsnorm_rows(x, weight, y, counter, rows, eps):  # type: ignore[no-untyped-def]
        pipe = PIPE.start()
        weight_tile = shared_tile(WEIGHT)
        weight_full = shared_barrier()
        thread = cuda.threadIdx.x
        warp, lane = thread // 32, thread % 32
        tiles = (rows + rows_per_stage - 1) // rows_per_stage
        if pipe.is_producer():
            for t, stage in pipe.produce_from(TileQueue(counter, tiles)):
                x.load(stage.x, (t * rows_per_stage, 0, 0), stage.barrier)
        else:
            load_weight(pipe, weight, weight_tile, weight_full)
            w = weight_tile.view(ROW)
            for t, stage in pipe.consume_from(in_flight=1):
                tile = stage.x.view(ROWS)
                for row in range(warp, rows_per_stage, pipe.num_consumers() // 32):
                    square_sum = np.float32(0)
                    for k in range(per_lane):
                        vector = lane + k * 32
                        if whole or vector < vectors:
                            v = tile.read_vector((row, vector * lanes))
                            square_sum += (v * v).sum()
                    for offset in (16, 8, 4, 2, 1):
                        square_sum += cuda.shfl_xor_sync(0xFFFFFFFF, square_sum, offset)
                    scale = np.float32(1) / math.sqrt(square_sum / np.float32(columns) + eps)
                    for k in range(per_lane):
                        vector = lane + k * 32
                        if whole or vector < vectors:
                            v = tile.read_vector((row, vector * lanes))
                            v = v * w.read_vector(vector * lanes) * scale
                            tile.write_vector((row, vector * lanes), v)
                pipe.store(y, stage.x, (t * rows_per_stage, 0, 0))
            pipe.release_pending()

    return rmsnorm_rows


@dataclass(frozen=True)
class Plan:
    """How a row length is worked on: which kernel, its stages, consumer threads, blocks per SM."""

    rows_per_stage: int  # 0: a block shares each row
    stages: int
    threads: int
    blocks_per_multiprocessor: int


DEMO_PLAN = Plan(rows_per_stage=0, stages=4, threads=512, blocks_per_multiprocessor=2)
SHARED_BYTES = 226 << 10  # of a block, less what barriers and partial sums take


def plan_for(columns: int, dtype: DType) -> Plan:
    """Return how rows of this length are cut up; measured on an H200.

    What counts is 48 to 64 KB of loads in flight per multiprocessor; a ring holds two stages more
    than that, one being worked on and one being stored.
    """
    row = columns * dtype.itemsize
    if row <= 2048:
        return Plan(min(MAX_BOX, 16384 // row), 3, 256, 2)
    if row <= 8192:
        return Plan(0, 4, 256, 2)
    if row <= 16384:
        return Plan(0, 5, 512, 1)
    stages = min(4, SHARED_BYTES // row - 1)  # one row's worth is the weights'
    if stages < 2:
        raise ValueError(
            f"rmsnorm(): a row of {columns} {dtype.name} is {row:,} B; rows of up to "
            f"{SHARED_BYTES // 3:,} B fit into shared memory twice, with the weights"
        )
    return Plan(0, stages, 512, 1)


def rmsnorm(
    x: Any,
    weight: Any,
    *,
    eps: float = 1e-6,
    out: Any = None,
    stream: Any = None,
    dtype: object = None,
    plan: Plan | None = None,
) -> Any:
    """Normalise the rows of `x` by their root mean square and scale them by `weight`.

    Parameters
    ----------
    x
        Device array (..., columns) of f32, f16 or bf16: torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``. Rows are a multiple of 16 B long.
    weight
        Device array (columns,) of the same type.
    eps
        Added to the mean square.
    out
        Where to write; a new array like `x` if None. May be `x`.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        What the bits of the arrays mean where their own type cannot say it: bf16 held as uint16.
    plan
        How to cut the work up; what `plan_for` says if None.

    Returns
    -------
    Any
        `out`. Statistics are computed in float32 and the result is rounded once.

    Raises
    ------
    ValueError
        If shapes or types disagree, or a row cannot be addressed by TMA.
    """
    out = empty_like(x) if out is None else out
    _rmsnorm((x, weight, out), stream, eps, dtype, plan)
    return out


@launched_again
def _rmsnorm(
    arrays: tuple[Any, Any, Any], stream: Any, eps: float, dtype: object, plan: Plan | None
) -> None:
    source, scale, target = (
        Matrix(name, array, dtype) for name, array in zip(("x", "weight", "out"), arrays)
    )
    check_same("rmsnorm", x=source, out=target)
    columns, element = source.columns, source.dtype
    if element.name not in ("f32", "f16", "bf16"):
        raise ValueError(f"rmsnorm(): x is {element}; it normalises f32, f16 and bf16")
    if scale.shape != (columns,) or scale.dtype is not element:
        raise ValueError(
            f"rmsnorm(): weight has shape {scale.shape} of {scale.dtype}, but x has {columns} "
            f"columns of {element}; pass a weight of shape ({columns},) of {element}"
        )
    if source.nbytes == 0:
        return
    chunks, width = split_row(columns, element)
    p = plan_for(columns, element) if plan is None else plan
    tile = Tile((max(1, p.rows_per_stage), chunks, width), element)
    kernel = (
        warp_per_row(columns, element, p.stages, p.rows_per_stage)
        if p.rows_per_stage
        else block_per_row(columns, element, p.stages, p.threads)
    )
    tiles = -(-source.rows // tile.shape[0])
    blocks = min(p.blocks_per_multiprocessor * multiprocessors(), tiles)
    launch(
        kernel,
        blocks,
        p.threads + 32,
        stream,
        tensor_map(source.view(chunks, width), tile, dtype=element),
        tensor_map(scale.view(chunks, width), Tile((1, chunks, width), element), dtype=element),
        tensor_map(target.view(chunks, width), tile, dtype=element),
        queue_counter(current_device(), stream_key(stream)),
        source.rows,
        np.float32(eps),
    )
