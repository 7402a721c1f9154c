"""wgmma and fragments in the simulator: what they compute, and what is reported of wrong kernels."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import Swizzle, Tile
from numba_tma import simulator as sim
from numba_tma.dtypes import as_dtype
from tests.matrix_operands import Operand

BF16 = ml_dtypes.bfloat16


def raises(kind, kernel, threads, *args):
    with pytest.raises(kind) as caught:
        kernel[1, threads](*args)
    return str(caught.value)


# --------------------------------------------------------------------- a small matmul

SQUARE = Tile((64, 64), "bf16", Swizzle.B128)


class Matmul:
    """C = A B^T in tiles of 64 x 64 x 64, with hooks for what can be done wrong."""

    def __init__(self, warpgroups=1, stages=2):
        self.roles = roles = tma.Roles(math=tma.Warpgroups(warpgroups), load=tma.Warps(1))
        self.a_tile = a_tile = Tile((64 * warpgroups, 64), "bf16", Swizzle.B128)
        pipe_object = tma.TilePipeline(
            stages, a=a_tile, b=SQUARE, producer=roles.load, consumer=roles.math
        )

        @cuda.jit
        def kernel(a, b, c, num_k, in_flight, wait, end):
            pipe = pipe_object.start()
            out = tma.shared_tile(a_tile)
            row, column = cuda.blockIdx.x * a_tile.shape[0], cuda.blockIdx.y * 64
            if pipe.is_producer():
                for k, stage in pipe.produce(0, num_k):
                    a.load(stage.a, (row, k * 64), stage.barrier)
                    b.load(stage.b, (column, k * 64), stage.barrier)
            elif pipe.is_consumer():
                mine = cuda.threadIdx.x // 128 * 64
                acc = tma.fragment(64)
                for _, stage in pipe.consume(0, num_k, in_flight=in_flight):
                    a_part = stage.a.matrix_descriptor().advance(row=mine)
                    acc = tma.wgmma(acc, a_part, stage.b.matrix_descriptor())
                    acc = wait(acc)
                acc = end(acc)
                pipe.release_pending()
                acc.to("bf16").store(out, (mine, 0))
                tma.fence_proxy_async()
                roles.math.sync()
                if roles.math.is_member() and cuda.threadIdx.x == 0:
                    c.store(out, (row, column))
                    tma.ptx.cp_async_bulk_commit_group()
                    tma.ptx.cp_async_bulk_wait_group_read(0)
            pipe.close()

        self.kernel = kernel

    def __call__(self, m, n, k, in_flight=1, wait=None, end=tma.wgmma_wait, seed=0):
        rng = np.random.default_rng(seed)
        a, b = (rng.standard_normal((rows, k)).astype(BF16) for rows in (m, n))
        c = np.zeros((m, n), BF16)
        a_map, b_map, c_map = (
            tma.tensor_map(x, t) for x, t in ((a, self.a_tile), (b, SQUARE), (c, self.a_tile))
        )
        grid = m // self.a_tile.shape[0], n // 64
        wait = wait or (lambda acc: tma.wgmma_wait(acc, 1))
        self.kernel[grid, self.roles.threads](a_map, b_map, c_map, k // 64, in_flight, wait, end)
        return c.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64).T


@pytest.mark.parametrize("warpgroups", [1, 2])
def test_a_warp_specialised_matmul(warpgroups):
    c, expected = Matmul(warpgroups)(64 * warpgroups, 128, 320)
    np.testing.assert_allclose(c, expected, rtol=2**-8, atol=1e-4 * abs(expected).max())


def test_one_tile_at_a_time_needs_no_stage_in_flight():
    c, expected = Matmul()(64, 64, 192, in_flight=0, wait=tma.wgmma_wait, end=lambda acc: acc)
    np.testing.assert_allclose(c, expected, rtol=2**-8, atol=1e-4 * abs(expected).max())


def test_a_stage_released_before_the_wait():
    text = raised = None
    for seed in range(3):
        sim.seed(seed)
        with pytest.raises(sim.EarlyOverwrite) as raised:
            Matmul()(64, 64, 256, in_flight=0)
        text = str(raised.value)
        assert "a load into bytes that a wgmma of warps 0 to 3 of block (0, 0, 0)" in text
        assert "test_mma_sim.py" in text and "must pass wgmma_wait() for it, and only then" in text


def test_a_result_used_before_the_wait():
    with pytest.raises(sim.UnfinishedProduct, match=r"Fragment.to: .* pass it through wgmma_wait"):
        Matmul()(64, 64, 64, end=lambda acc: acc)
    with pytest.raises(sim.UnfinishedProduct, match="arithmetic: the fragment is what wgmma"):
        Matmul()(64, 64, 128, wait=lambda acc: tma.wgmma_wait(acc, 1) * 2)


def test_a_wait_counts_only_for_what_is_passed_through_it():
    def elsewhere(acc):
        tma.wgmma_wait(tma.fragment(64))
        return acc

    with pytest.raises(sim.UnfinishedProduct, match=r"wgmma_wait\(fragment\), and use what that"):
        Matmul()(64, 64, 64, end=elsewhere)
