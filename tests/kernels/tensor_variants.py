"""Matmuls of one block by the variants of tcgen05.mma: sparse, weight-stationary, with masks.

One thread loads, multiplies and commits; the epilogue's threads write D. Each kernel has one stage
of all of K.
"""

import functools

import ml_dtypes
import numpy as np
from numba import cuda

import numba_tma as tma

SWIZZLE = tma.Swizzle.B128
ROLES = tma.Roles(epilogue=tma.Warpgroups(1), mma=tma.Warps(1))
#: Lanes 1 and 64 of D are left alone.
MASK = (2, 0, 1, 0)
NAMES = {
    "bf16": "bfloat16", "f16": "float16", "tf32": "float32", "e4m3": "float8_e4m3fn", "i8": "int8",
}  # fmt: skip


@functools.cache
def sparse(n, dtype, k, m=128, ws=False):
    """Return tiles and kernel: a sparse A of m x k, of which half is stored, times B of n x k."""
    tiles = tma.Tile((m, k // 2), dtype, SWIZZLE), tma.Tile((n, k), dtype, SWIZZLE)
    metadata = tma.metadata_tile(k, dtype)
    memory = tma.TensorMemory(256, role=ROLES.mma)
    acc = {"i8": "i32"}.get(dtype, "f32")
    nbytes = sum(tile.nbytes for tile in (*tiles, metadata))

    @cuda.jit
    def kernel(a, b, words, out):
        left, right = tma.shared_tile(tiles[0]), tma.shared_tile(tiles[1])
        held, full, done = tma.shared_tile(metadata), tma.shared_barrier(), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            done.init(1)
            tma.fence_mbarrier_init()
        tmem = memory.start()
        d = tmem.tile(m, n, acc, 0, ws)
        which = tmem.metadata(m, k, dtype, 128, ws)
        if ROLES.mma.is_member() and tma.elect_sync():
            full.arrive_expect_tx(nbytes)
            a.load(left, (0, 0), full)
            b.load(right, (0, 0), full)
            words.load(held, (0, 0, 0), full)
            full.wait(0)
            tma.tcgen05_copy(which, held)
            if ws:
                tma.tcgen05_mma_ws(d, left, right, accumulate=False, a_metadata=which)
            else:
                tma.tcgen05_mma(d, left, right, accumulate=False, a_metadata=which)
            tma.ptx.tcgen05_commit(done, 1)
        if ROLES.epilogue.is_member():
            done.wait(0)
            tma.ptx.tcgen05_fence_after_thread_sync()
            column = cuda.threadIdx.x // m * (n // (128 // m))
            for i in range(0, n // (128 // m), 4):
                d0, d1, d2, d3 = d.load(i, 4)
                out[d.row, column + i], out[d.row, column + i + 1] = d0, d1
                out[d.row, column + i + 2], out[d.row, column + i + 3] = d2, d3
        tmem.close()

    return (*tiles, metadata), kernel


@functools.cache
def stationary(m, in_tensor_memory=False, mask=None):
    """Return tiles and kernel: a weight-stationary product of m x 64, with K 64 of bf16."""
    tiles = tma.Tile((m, 64), "bf16", SWIZZLE), tma.Tile((64, 64), "bf16", SWIZZLE)
    memory = tma.TensorMemory(128, role=ROLES.mma)
    width, nbytes = 64 * m // 128, sum(tile.nbytes for tile in tiles)

    @cuda.jit
    def kernel(a, b, x, out):
        left, right = tma.shared_tile(tiles[0]), tma.shared_tile(tiles[1])
        full, ready, done = tma.shared_barrier(), tma.shared_barrier(), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            ready.init(128)
            done.init(1)
            tma.fence_mbarrier_init()
        tmem = memory.start()
        d = tmem.tile(m, 64, ws=True)
        p = tmem.operand(m, 64, "bf16", 64, ws=True)
        if ROLES.epilogue.is_member():
            for k in range(0, 64, 4):
                row = p.row
                p.store(k, (x[row, k], x[row, k + 1], x[row, k + 2], x[row, k + 3]))
            ready.arrive()
        elif tma.elect_sync():
            full.arrive_expect_tx(nbytes)
            a.load(left, (0, 0), full)
            b.load(right, (0, 0), full)
            full.wait(0)
            ready.wait(0)
            tma.ptx.tcgen05_fence_after_thread_sync()
            if in_tensor_memory:
                tma.tcgen05_mma_ws(d, p, right, accumulate=False, zero_columns=mask)
            else:
                tma.tcgen05_mma_ws(d, left, right, accumulate=False, buffer="b2", negate_a=True)
            tma.ptx.tcgen05_commit(done, 1)
        if ROLES.epilogue.is_member():
            done.wait(0)
            tma.ptx.tcgen05_fence_after_thread_sync()
            column = cuda.threadIdx.x // m * width
            for i in range(0, width, 4):
                d0, d1, d2, d3 = d.load(i, 4)
                out[d.row, column + i], out[d.row, column + i + 1] = d0, d1
                out[d.row, column + i + 2], out[d.row, column + i + 3] = d2, d3
        tmem.close()

    return tiles, kernel


@functools.cache
def masked(first="fill", second="lastuse", other=0):
    """Return tiles and kernel: two accumulators of one A, which the collector keeps; one masked.

    With `other` the second product has A of so many steps along K later.
    """
    tiles = tma.Tile((128, 64), "bf16", SWIZZLE), tma.Tile((32, 64), "bf16", SWIZZLE)
    memory = tma.TensorMemory(64, role=ROLES.mma)
    nbytes = sum(tile.nbytes for tile in tiles)

    @cuda.jit
    def kernel(a, b, out):
        left, full, done = tma.shared_tile(tiles[0]), tma.shared_barrier(), tma.shared_barrier()
        right = tma.shared_tile(tiles[1])
        if cuda.threadIdx.x == 0:
            full.init(1)
            done.init(1)
            tma.fence_mbarrier_init()
        tmem = memory.start()
        d0, d1 = tmem.tile(128, 32), tmem.tile(128, 32, column=32)
        if ROLES.mma.is_member() and tma.elect_sync():
            full.arrive_expect_tx(nbytes)
            a.load(left, (0, 0), full)
            b.load(right, (0, 0), full)
            full.wait(0)
            da, db = left.matrix_descriptor(), right.matrix_descriptor()
            for k in range(4):
                tma.tcgen05_mma(
                    d0, da.advance(k), db.advance(k), accumulate=k > 0, k_steps=1,
                    collector=first,
                )  # fmt: skip
                tma.tcgen05_mma(
                    d1, da.advance((k + other) % 4), db.advance(k), accumulate=k > 0, k_steps=1,
                    collector=second,
                )  # fmt: skip
            tma.tcgen05_mma(d1, left, right, accumulate=True, disable_output_lanes=MASK)
            tma.ptx.tcgen05_commit(done, 1)
        if ROLES.epilogue.is_member():
            done.wait(0)
            tma.ptx.tcgen05_fence_after_thread_sync()
            for i in range(0, 32, 4):
                for half, d in ((0, d0), (32, d1)):
                    e0, e1, e2, e3 = d.load(i, 4)
                    out[d.row, half + i], out[d.row, half + i + 1] = e0, e1
                    out[d.row, half + i + 2], out[d.row, half + i + 3] = e2, e3
        tmem.close()

    return tiles, kernel


INTEGERS = tma.Tile((32, 32), "i8", tma.Swizzle.B32)
MEMORY = tma.TensorMemory(64, role=ROLES.mma)


@cuda.jit
def integer_weights(b, x, out):
    """Out = X B' with X, 128 x 32 integers of 8 bits, stored to tensor memory; sums saturate."""
    right, full, bars = tma.shared_tile(INTEGERS), tma.shared_barrier(), tma.shared_barriers(2)
    if cuda.threadIdx.x == 0:
        full.init(1)
        bars[0].init(128)
        bars[1].init(1)
        tma.fence_mbarrier_init()
    tmem = MEMORY.start()
    d, left = tmem.tile(128, 32, "i32"), tmem.operand(128, 32, "i8", 32)
    if ROLES.epilogue.is_member():
        row = left.row
        for k in range(0, 32, 4):
            left.store(k, (x[row, k], x[row, k + 1], x[row, k + 2], x[row, k + 3]))
        bars[0].arrive()
        bars[1].wait(0)
        tma.ptx.tcgen05_fence_after_thread_sync()
        for i in range(0, 32, 4):
            d0, d1, d2, d3 = d.load(i, 4)
            out[row, i], out[row, i + 1] = d0, d1
            out[row, i + 2], out[row, i + 3] = d2, d3
    elif tma.elect_sync():
        full.arrive_expect_tx(INTEGERS.nbytes)
        b.load(right, (0, 0), full)
        full.wait(0)
        bars[0].wait(0)
        tma.ptx.tcgen05_fence_after_thread_sync()
        tma.tcgen05_mma(d, left, right, accumulate=False, saturate=True)
        tma.ptx.tcgen05_commit(bars[1], 1)
    tmem.close()


def sparse_rows(m, k, dtype, seed=0):
    """Return rows of small integers, of which half are zero in each group."""
    size = 2 if dtype == "tf32" else 4
    rng = np.random.default_rng(seed)
    order = rng.random((m, k // size, size)).argsort(axis=-1)
    dense = rng.integers(-2, 3, (m, k // size, size)) * (order < size // 2)
    return dense.reshape(m, k).astype(getattr(ml_dtypes, NAMES[dtype], None) or NAMES[dtype])
