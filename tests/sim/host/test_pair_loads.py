"""Loads of CTA pairs in the simulator: both blocks' bytes count on the even block's barrier."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import Tile, ptx
from numba_tma.simulator import BadOperand

TILE = Tile((8, 8), "f32")
RNG = np.random.default_rng(0)


def by_rows(x, tile, full, rank):
    x.gather(tile, (8 * rank, 1, 2, 3, 4, 5, 6, -1), 8, full, cta_group=2)


def by_pixels(x, tile, full, rank):
    x.load_im2col(tile, (0, 0, rank, 8), (1, 1), full, cta_group=2)


def of_a_sequence(x, tile, full, rank):
    x.sequence(3, 10).load(tile, (8 * rank, 8), full, cta_group=2)


def make(load, cluster=(2, 1)):
    """Both blocks load; each reads its tile after the even block has seen the bytes of both."""

    @cuda.jit
    @tma.cluster(cluster)
    def kernel(x, out):
        tile, full = tma.shared_tile(TILE), tma.shared_barrier()
        thread, rank = cuda.threadIdx.x, ptx.cluster_ctarank()
        if thread == 0:
            full.init(1)
            tma.fence_mbarrier_init()
        tma.cluster_sync()
        if thread == 0:
            if rank == 0:
                full.arrive_expect_tx(2 * TILE.nbytes)
            load(x, tile, full, rank)
        if rank == 0:
            full.wait(0)
        tma.cluster_sync()
        for i in range(thread, 64, 32):
            out[rank, i // 8, i % 8] = tile[i // 8, i % 8]

    return kernel


MATRIX = RNG.standard_normal((20, 16)).astype(np.float32)
IMAGE = RNG.standard_normal((1, 6, 6, 16)).astype(np.float32)


def expected_rows(rank):
    picked = MATRIX[[8 * rank, 1, 2, 3, 4, 5, 6, 0], 8:].copy()
    picked[-1] = 0
    return picked


def expected_sequence(rank):
    whole = np.zeros((16, 8), np.float32)
    whole[:10] = MATRIX[3:13, 8:]
    return whole[8 * rank : 8 * rank + 8]


def expected_pixels(rank):
    box = IMAGE[0, :4, :4, 8:]  # base pixels; the copied ones lie (1, 1) further
    base = [(p, q) for p in range(4) for q in range(4)][rank : rank + 8]
    assert box.shape == (4, 4, 8)
    return np.array([IMAGE[0, p + 1, q + 1, 8:] for p, q in base])


CASES = {
    "rows": (by_rows, lambda: tma.gather_map(MATRIX, TILE), expected_rows),
    "sequence": (of_a_sequence, lambda: tma.ragged_tensor_map(MATRIX, TILE), expected_sequence),
    "pixels": (
        by_pixels,
        lambda: tma.im2col_map(IMAGE, TILE, filter=3),
        expected_pixels,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_both_blocks_load_what_the_even_block_awaits(name):
    load, map_of, expected = CASES[name]
    out = np.full((2, 8, 8), 9, np.float32)
    make(load)[(2, 1), 32](map_of(), out)
    np.testing.assert_array_equal(out, [expected(0), expected(1)])


@pytest.mark.parametrize("name", CASES)
def test_a_block_without_a_pair(name):
    load, map_of, _ = CASES[name]
    with pytest.raises(BadOperand, match="pairs of blocks"):
        make(load, cluster=(1, 1))[(1, 1), 32](map_of(), np.zeros((2, 8, 8), np.float32))
