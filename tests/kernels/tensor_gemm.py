"""Matmuls of one block on tensor memory, through pipelines: D = A B' with a tile of D a block.

`gemm` and `scaled` take tiles, so that each kind of product is a form of one kernel. `weights`
multiplies an operand in tensor memory, as attention does.
"""

import functools

import ml_dtypes
import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma.host.scale_factors import scale_tile

ROLES = tma.Roles(epilogue=tma.Warpgroups(1), mma=tma.Warps(1), load=tma.Warps(1))
STAGES = 2
SWIZZLE = tma.Swizzle.B128


def rings(n, acc, extra, **tiles):
    """Return the input ring and the accumulator of a block."""
    pipe = tma.TilePipeline(
        STAGES, producer=ROLES.load, consumer=ROLES.mma, released_by="tcgen05", **tiles
    )
    out = tma.OutputTilePipeline(
        1,
        tma.Tile((128, n), acc),
        mma=ROLES.mma,
        epilogue=ROLES.epilogue,
        memory="tensor",
        extra_columns=extra,
    )
    return pipe, out


@functools.cache
def gemm(n, dtype, k, acc="f32", b_major="K", k_steps=None):
    """Return tiles and kernel: 128 x n, k elements a stage; B may be (K, N)."""
    A = tma.Tile((128, k), dtype, SWIZZLE)
    B = tma.Tile((n, k) if b_major == "K" else (k, n), dtype, SWIZZLE)
    PIPE, OUT = rings(n, acc, 0, a=A, b=B)

    @cuda.jit
    def kernel(a, b, out, num_k):
        pipe, accumulators = PIPE.start(), OUT.start()
        if ROLES.load.is_member():
            for i, stage in pipe.produce(0, num_k):
                a.load(stage.a, (0, i * k), stage.barrier)
                b.load(stage.b, (0, i * k) if b_major == "K" else (i * k, 0), stage.barrier)
        elif ROLES.mma.is_member():
            tile = accumulators.acquire_for_mma()
            for i, stage in pipe.consume(0, num_k):
                tma.tcgen05_mma(
                    tile.accumulator,
                    stage.a,
                    stage.b.matrix_descriptor(b_major),
                    accumulate=i > 0,
                    k_steps=k_steps,
                )
            accumulators.release_from_mma(tile)
        elif ROLES.epilogue.is_member():
            tile = accumulators.acquire_for_epilogue()
            row = tile.accumulator.row
            for column in range(0, n, 4):
                d0, d1, d2, d3 = tile.load(column, 4)
                out[row, column], out[row, column + 1] = d0, d1
                out[row, column + 2], out[row, column + 3] = d2, d3
            accumulators.release_from_epilogue()
        pipe.close()
        accumulators.close()

    return (A, B), kernel


@functools.cache
def scaled(n, dtype, k, scale, block):
    """Return tiles and kernel: a block-scaled product, scale factors copied stage by stage."""
    A, B = tma.Tile((128, k), dtype, SWIZZLE), tma.Tile((n, k), dtype, SWIZZLE)
    SFA, SFB = (scale_tile(rows, k, dtype=scale, block=block) for rows in (128, n))
    columns = 4 * SFA.size // 512
    PIPE, OUT = rings(n, "f32", 4 * (SFA.size + SFB.size) // 512, a=A, b=B, sfa=SFA, sfb=SFB)
    atoms = SFA.shape[1]

    @cuda.jit
    def kernel(a, b, sfa, sfb, out, num_k):
        pipe, accumulators = PIPE.start(), OUT.start()
        tmem = accumulators.tensor_memory
        a_scale = tmem.scales(SFA, n, block)
        b_scale = tmem.scales(SFB, n + columns, block)
        if ROLES.load.is_member():
            for i, stage in pipe.produce(0, num_k):
                a.load(stage.a, (0, i * k), stage.barrier)
                b.load(stage.b, (0, i * k), stage.barrier)
                sfa.load(stage.sfa, (0, i * atoms, 0, 0), stage.barrier)
                sfb.load(stage.sfb, (0, i * atoms, 0, 0), stage.barrier)
        elif ROLES.mma.is_member():
            tile = accumulators.acquire_for_mma()
            for i, stage in pipe.consume(0, num_k):
                tma.tcgen05_copy(a_scale, stage.sfa)
                tma.tcgen05_copy(b_scale, stage.sfb)
                tma.tcgen05_mma(
                    tile.accumulator,
                    stage.a,
                    stage.b,
                    accumulate=i > 0,
                    a_scale=a_scale,
                    b_scale=b_scale,
                )
            accumulators.release_from_mma(tile)
        elif ROLES.epilogue.is_member():
            tile = accumulators.acquire_for_epilogue()
            row = tile.accumulator.row
            for column in range(0, n, 4):
                d0, d1, d2, d3 = tile.load(column, 4)
                out[row, column], out[row, column + 1] = d0, d1
                out[row, column + 2], out[row, column + 3] = d2, d3
            accumulators.release_from_epilogue()
        pipe.close()
        accumulators.close()

    return (A, B, SFA, SFB), kernel


V = tma.Tile((32, 64), "bf16", SWIZZLE)  # (K, N): MN-major
TMEM = tma.TensorMemory(128, role=ROLES.mma)


@cuda.jit
def weights(p, v, out):
    """Out = P V with P, 128 x 32 in bf16, stored to tensor memory by the epilogue's threads."""
    tile, full, done = tma.shared_tile(V), tma.shared_barrier(), tma.shared_barriers(2)
    if cuda.threadIdx.x == 0:
        full.init(1)
        done[0].init(128)
        done[1].init(1)
        tma.fence_mbarrier_init()
    tmem = TMEM.start()
    result = tmem.tile(128, 64)
    scores = tmem.tile(128, 32, "f32", 64)
    left = scores.operand(32, "bf16", 16)
    if ROLES.epilogue.is_member():
        row = result.row
        for i in range(0, 32, 4):
            left.store(i, (p[row, i], p[row, i + 1], p[row, i + 2], p[row, i + 3]))
        done[0].arrive()
        done[1].wait(0)
        tma.ptx.tcgen05_fence_after_thread_sync()
        for column in range(0, 64, 4):
            d0, d1, d2, d3 = result.load(column, 4)
            out[row, column], out[row, column + 1] = d0, d1
            out[row, column + 2], out[row, column + 3] = d2, d3
    elif ROLES.mma.is_member():
        if tma.elect_sync():
            full.arrive_expect_tx(V.nbytes)
            v.load(tile, (0, 0), full)
            full.wait(0)
            done[0].wait(0)
            tma.ptx.tcgen05_fence_after_thread_sync()
            tma.tcgen05_mma(
                result, left, tile.matrix_descriptor("MN"), accumulate=False, negate_b=True
            )
            tma.ptx.tcgen05_commit(done[1], 1)
    tmem.close()


def integers(shape, dtype, seed, low=-2, high=3):
    """Return small integers of an element type, whose products are exact."""
    numbers = np.random.default_rng(seed).integers(low, high, shape)
    return numbers.astype(getattr(ml_dtypes, dtype, None) or dtype)


@functools.cache
def paired(n, k=64):
    """Return tiles and kernel: a pair of blocks, 256 x n; each loads half of A and half of B."""
    A, B = tma.Tile((128, k), "bf16", SWIZZLE), tma.Tile((n // 2, k), "bf16", SWIZZLE)
    PIPE = tma.TilePipeline(
        STAGES,
        a=A,
        b=B,
        producer=ROLES.load,
        consumer=ROLES.mma,
        released_by="tcgen05",
        cta_group=2,
    )
    OUT = tma.OutputTilePipeline(
        1,
        tma.Tile((128, n), "f32"),
        mma=ROLES.mma,
        epilogue=ROLES.epilogue,
        memory="tensor",
        cta_group=2,
    )

    @cuda.jit
    @tma.cluster(2)
    def kernel(a, b, out, num_k):
        pipe, accumulators = PIPE.start(), OUT.start()
        rank = cuda.blockIdx.x % 2
        if ROLES.load.is_member():
            for i, stage in pipe.produce(0, num_k):
                a.load(stage.a, (rank * 128, i * k), stage.barrier, cta_group=2)
                b.load(stage.b, (rank * (n // 2), i * k), stage.barrier, cta_group=2)
        elif ROLES.mma.is_member() and rank == 0:
            tile = accumulators.acquire_for_mma()
            for i, stage in pipe.consume(0, num_k):
                tma.tcgen05_mma(tile.accumulator, stage.a, stage.b, accumulate=i > 0)
            accumulators.release_from_mma(tile)
        elif ROLES.epilogue.is_member():
            tile = accumulators.acquire_for_epilogue()
            row = tile.accumulator.row
            for column in range(0, n, 4):
                d0, d1, d2, d3 = tile.load(column, 4)
                out[row, column], out[row, column + 1] = d0, d1
                out[row, column + 2], out[row, column + 3] = d2, d3
            accumulators.release_from_epilogue()
        pipe.close()
        accumulators.close()

    return (A, B), kernel
