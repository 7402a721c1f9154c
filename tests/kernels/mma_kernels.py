"""Kernels around wgmma, as a user would write them: a matmul and the inner part of attention.

Each function returns a kernel and the argument types that it is compiled for. Their machine code is
looked at (tests/cpu), and what they compute (tests/gpu).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda, types

import numba_tma as tma
from numba_tma import ptx
from numba_tma.host.environment import simulated
from tests.kernels.matrix_operands import Operand

B128 = tma.Swizzle.B128
ALL_LANES = 0xFFFFFFFF
Kernel = tuple[Any, tuple[Any, ...]]

# ----------------------------------------------------------------------------- matmul

#: Of the tiles of A (rows, K) and of B (columns, K).
BM, BN, BK = 128, 256, 64
A, B = tma.Tile((BM, BK), "bf16", B128), tma.Tile((BN, BK), "bf16", B128)


def map_of(tile: tma.Tile) -> Any:
    """Return the type of a map that copies `tile`; the simulator has no types."""
    return None if simulated() else tma.TensorMapType(tile.ndim, tile)


@functools.cache
def matmul(stages: int = 4) -> Kernel:
    """Return the kernel of C = A B^T in float32: one warpgroup loads, two have 64 rows each."""
    ROLES = tma.Roles(load=tma.Warpgroups(1, registers=40), math=tma.Warpgroups(2))
    PIPE = tma.TilePipeline(stages, a=A, b=B, producer=ROLES.load, consumer=ROLES.math)

    @cuda.jit(launch_bounds=ROLES.launch_bounds)
    def multiply(a, b, c, num_tiles, tiles_n, num_k):
        pipe = PIPE.start()
        tile = cuda.blockIdx.x
        if pipe.is_producer():
            ROLES.load.set_registers()
            while tile < num_tiles:
                row, column = tile // tiles_n * BM, tile % tiles_n * BN
                for k, stage in pipe.produce(0, num_k):
                    a.load(stage.a, (row, k * BK), stage.barrier)
                    b.load(stage.b, (column, k * BK), stage.barrier)
                tile += cuda.gridDim.x
        else:
            ROLES.math.set_registers()
            # The same register for the whole warp, so that descriptors are computed once a warp.
            upper = cuda.shfl_sync(ALL_LANES, ROLES.math.thread() // 128, 0) * 64
            while tile < num_tiles:
                row, column = tile // tiles_n * BM + upper, tile % tiles_n * BN
                acc = tma.fragment(BN)
                for _, stage in pipe.consume(0, num_k, in_flight=1):
                    left = stage.a.matrix_descriptor().advance(row=upper)
                    acc = tma.wgmma(acc, left, stage.b.matrix_descriptor())
                    acc = tma.wgmma_wait(acc, 1)
                acc = tma.wgmma_wait(acc)
                pipe.release_pending()
                acc.store_global(c, row, column)
                tile += cuda.gridDim.x
        pipe.close()

    i32 = types.int32
    return multiply, (map_of(A), map_of(B), types.float32[:, ::1], i32, i32, i32)


# --------------------------------------------------------------------------- attention

DEPTH, KEYS, QUERIES = 128, 128, 128
HELD, QUERY = tma.Tile((KEYS, DEPTH), "bf16", B128), tma.Tile((QUERIES, DEPTH), "bf16", B128)
LOWEST = np.float32(-1e30)


@cuda.jit(device=True)
def larger(a, b):
    return max(a, b)


@cuda.jit(device=True)
def weight(score, top, scale):
    """Return 2 to the power of how far a score is from the largest of its row."""
    return ptx.ex2_approx_ftz_f32(score * scale - top * scale)


@cuda.jit(device=True)
def decay(before, now, scale):
    return ptx.ex2_approx_ftz_f32((before - now) * scale)


@functools.cache
def attention() -> Kernel:
    """Return the kernel of softmax(Q K^T scale) V, in powers of 2, for one head.

    The scores of the next keys are computed while the values of the last are added up.
    """
    ROLES = tma.Roles(load=tma.Warpgroups(1, registers=24), math=tma.Warpgroups(2))
    ONCE = tma.TilePipeline(1, q=QUERY, producer=ROLES.load, consumer=ROLES.math)
    PIPE = tma.TilePipeline(2, k=HELD, v=HELD, producer=ROLES.load, consumer=ROLES.math)

    @cuda.jit(launch_bounds=ROLES.launch_bounds)
    def attend(q, k, v, out, num_tiles, scale):
        once, pipe = ONCE.start(sync=False), PIPE.start()
        first = cuda.blockIdx.x * QUERIES
        if pipe.is_producer():
            ROLES.load.set_registers()
            for _, held in once.produce(0, 1):
                q.load(held.q, (first, 0), held.barrier)
            for tile, stage in pipe.produce(0, num_tiles):
                k.load(stage.k, (tile * KEYS, 0), stage.barrier)
                v.load(stage.v, (tile * KEYS, 0), stage.barrier)
        else:
            ROLES.math.set_registers()
            upper = cuda.shfl_sync(ALL_LANES, ROLES.math.thread() // 128, 0) * 64
            total, sums, top = tma.fragment(DEPTH), tma.rows(0), tma.rows(LOWEST)
            for _, held in once.consume(0, 1):
                queries = held.q.matrix_descriptor().advance(row=upper)
                consumer = pipe.consumer()
                stage = consumer.wait()
                keys, values = stage.k.matrix_descriptor(), stage.v.matrix_descriptor("MN")
                scores = tma.wgmma(tma.fragment(KEYS), queries, keys, scale_d=False)
                scores = tma.wgmma_wait(scores)
                top = scores.row_max().map(larger, top)
                weights = scores.map(weight, top, scale)
                sums = weights.row_sum(quad=False)
                narrow = weights.to("bf16")
                for _ in range(1, num_tiles):
                    following = consumer.wait()
                    keys = following.k.matrix_descriptor()
                    scores = tma.wgmma(tma.fragment(KEYS), queries, keys, scale_d=False)
                    total = tma.wgmma(total, narrow, values)
                    scores = tma.wgmma_wait(scores, 1)
                    before, top = top, scores.row_max().map(larger, top)
                    weights = scores.map(weight, top, scale)
                    shrink = before.map(decay, top, scale)
                    sums = sums * shrink + weights.row_sum(quad=False)
                    total = tma.wgmma_wait(total, after=sums) * shrink
                    consumer.release()
                    narrow, values = weights.to("bf16"), following.v.matrix_descriptor("MN")
                total = tma.wgmma_wait(tma.wgmma(total, narrow, values))
                consumer.release()
            total /= sums.quad_sum()
            total.store_global(out, first + upper, 0)
        pipe.close()
        once.close()

    tiles = (map_of(QUERY), map_of(HELD), map_of(HELD))
    return attend, (*tiles, types.float32[:, ::1], types.int32, types.float32)


# ---------------------------------------------------------------------------- one tile


@functools.cache
def product(a: Operand, b: Operand, n: int, accumulator: str = "f32") -> Kernel:
    """Return the kernel that multiplies rows of a tile of A, from `first_row` on, by n of B's.

    One warpgroup for each 64 rows. The result is added to `start`, unless `scale_d` is False.
    """
    A, B = a.tile, b.tile
    first_a, first_b, a_major, b_major = (0,) * A.ndim, (0,) * B.ndim, a.major, b.major
    nbytes = A.nbytes + B.nbytes

    @cuda.jit(device=True)
    def filled(_, value):
        return value

    @cuda.jit
    def multiply(a_map, b_map, first_row, start, scale_d, out):
        left, right, full = tma.shared_tile(A), tma.shared_tile(B), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            full.arrive_expect_tx(nbytes)
            a_map.load(left, first_a, full)
            b_map.load(right, first_b, full)
        full.wait(0)
        row = cuda.threadIdx.x // 128 * 64
        x = left.matrix_descriptor(a_major).advance(row=first_row + row)
        acc = tma.fragment(n, accumulator).map(filled, start)
        acc = tma.wgmma(acc, x, right.matrix_descriptor(b_major), scale_d=scale_d)
        acc = tma.wgmma_wait(acc)
        acc.store_global(out, row, 0)

    element = {"f32": types.float32, "f16": types.uint16, "i32": types.int32}[accumulator]
    value = types.int32 if accumulator == "i32" else types.float32
    given = (types.int32, value, types.boolean, element[:, ::1])
    return multiply, (map_of(A), map_of(B), *given)
