"""RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight, row by row.

Cost model: each row is read once and written once; statistics and scaling are done on the stage in
shared memory, in place, from which TMA stores the row. Blocks draw rows from a queue, so that the
rows in flight lie close together, and hold 48 to 64 KB of loads in flight per multiprocessor.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.dtypes import DType, as_dtype
from numba_tma.kernels._host import (
    as_stream,
    current_device,
    leading_rows,
    multiprocessors,
    queue_counter,
    split_row,
    stream_key,
)
from numba_tma.layout import Tile
from numba_tma.pipeline import TilePipeline, TileQueue
from numba_tma.shared import shared_barrier, shared_tile
from numba_tma.tensor_map import tensor_map


@functools.cache
def block_per_row(columns: int, dtype: DType, stages: int, threads: int) -> Any:
    """Return the kernel in which all consumer warps of a block share a row."""
    chunks, width = split_row(columns, dtype)
    PIPE = TilePipeline(stages, x=Tile((1, chunks, width), dtype))
    WEIGHT, ROW = Tile((chunks, width), dtype), Tile(columns, dtype)
    lanes = 16 // dtype.itemsize  # elements of a 16-byte vector
    vectors, warps = columns // lanes, threads // 32
    per_thread = -(-vectors // threads)
    whole = vectors % threads == 0

    @cuda.jit
    def rmsnorm_rows(x, weight, y, counter, rows, eps):  # type: ignore[no-untyped-def]
        pipe = PIPE.start()
        weight_tile = shared_tile(WEIGHT)
        weight_full = shared_barrier()
        sums = cuda.shared.array((2, warps), np.float32)
        thread = cuda.threadIdx.x
        if pipe.is_producer():
            for row, stage in pipe.produce_from(TileQueue(counter, rows)):
                x.load(stage.x, (row, 0, 0), stage.barrier)
        else:
            if thread == 0:
                weight_full.init(1)
                ptx.fence_mbarrier_init()
                weight_full.arrive_expect_tx(WEIGHT.nbytes)
                weight.load(weight_tile, (0, 0), weight_full)
            pipe.sync_consumers()
            weight_full.wait(0)
            w = weight_tile.view(ROW)
            turn = 0
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
                    sums[turn, thread // 32] = square_sum
                pipe.sync_consumers()
                total = np.float32(0)
                for warp in range(warps):
                    total += sums[turn, warp]
                scale = np.float32(1) / math.sqrt(total / np.float32(columns) + eps)
                for k in range(per_thread):
                    vector = thread + k * threads
                    if whole or vector < vectors:
                        at = vector * lanes
                        tile.write_vector(at, tile.read_vector(at) * w.read_vector(at) * scale)
                pipe.store(y, stage.x, (row, 0, 0))
                turn = 1 - turn
            pipe.release_pending()

    return rmsnorm_rows


@functools.cache
def warp_per_row(columns: int, dtype: DType, stages: int, rows_per_stage: int) -> Any:
    """Return the kernel in which each consumer warp takes whole rows, several to a stage."""
    chunks, width = split_row(columns, dtype)
    PIPE = TilePipeline(stages, x=Tile((rows_per_stage, chunks, width), dtype))
    WEIGHT, ROW = Tile((chunks, width), dtype), Tile(columns, dtype)
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
            if thread == 0:
                weight_full.init(1)
                ptx.fence_mbarrier_init()
                weight_full.arrive_expect_tx(WEIGHT.nbytes)
                weight.load(weight_tile, (0, 0), weight_full)
            pipe.sync_consumers()
            weight_full.wait(0)
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
