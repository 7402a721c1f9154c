"""Loads of CTA pairs in the simulator: both blocks' bytes count on the even block's barrier."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import Tile, ptx
from numba_tma.simulator import BadOperand, WrongByteCount

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


# ----------------------------------------------------------------- pixels in a row of an image

PIXELS = np.arange(3 * 5 * 6 * 8, dtype=np.float32).reshape(3, 5, 6, 8) + 1
WIDE = {
    "w": Tile((16, 8), "f32", tma.Swizzle.B64),
    "w128": Tile((128, 8), "f32", tma.Swizzle.B64),
}


def make_wide(tile, w_offset, multicast):
    """Block r loads the pixels from (r, 1 + r, 0) on; with `multicast` the even block's are both's.

    The even block waits for the bytes of both, at its own barrier.
    """
    pixels, channels = tile.shape

    @cuda.jit
    @tma.cluster(2)
    def kernel(x, out):
        held, full = tma.shared_tile(tile), tma.shared_barrier()
        thread, rank = cuda.threadIdx.x, ptx.cluster_ctarank()
        if thread == 0:
            full.init(1)
            tma.fence_mbarrier_init()
        tma.cluster_sync()
        if thread == 0 and rank == 0:
            full.arrive_expect_tx(2 * tile.nbytes)
        if thread == 0 and not multicast:
            x.load_im2col(held, (rank, 1 + rank, 0, 0), (w_offset,), full, cta_group=2)
        if thread == 0 and multicast and rank == 0:
            x.load_im2col(held, (0, 1, 0, 0), (w_offset,), full, multicast=3, cta_group=2)
        if rank == 0:
            full.wait(0)
        tma.cluster_sync()
        for i in range(thread, pixels * channels, 32):
            out[rank, i // channels, i % channels] = held[i // channels, i % channels]

    return kernel


def walked(first, pixels, w_offset, stride, upper):
    """Return the pixels that one load reads: along W, then of the next image."""
    (n, h, w), read = first, np.zeros((pixels, 8), np.float32)
    for pixel in range(pixels):
        if n < 3 and w + w_offset < 6:
            read[pixel] = PIXELS[n, h, w + w_offset]
        w += stride
        if w >= 6 + upper:
            n, w = n + 1, 0
    return read


@pytest.mark.parametrize("mode", WIDE)
@pytest.mark.parametrize("multicast", [False, True])
@pytest.mark.parametrize(("w_offset", "stride", "upper"), [(0, 1, 0), (2, 1, -2), (1, 2, 0)])
def test_wide_loads_of_a_pair(mode, multicast, w_offset, stride, upper):
    tile = WIDE[mode]
    source = tma.im2col_wide_map(PIXELS, tile, mode=mode, stride=stride, upper_corner=upper)
    out = np.full((2, *tile.shape), -1, np.float32)
    make_wide(tile, w_offset, multicast)[2, 32](source, out)
    firsts = [(0, 1, 0), (0, 1, 0)] if multicast else [(0, 1, 0), (1, 2, 0)]
    right = [walked(first, len(out[0]), w_offset, stride, upper) for first in firsts]
    np.testing.assert_array_equal(out, right)


@pytest.mark.parametrize("mode", WIDE)
def test_a_wide_load_of_a_pair_that_awaits_one_blocks_bytes(mode):
    """The bytes of the odd block count on the even block's barrier, too."""
    tile = WIDE[mode]

    @cuda.jit
    @tma.cluster(2)
    def kernel(x):
        held, full = tma.shared_tile(tile), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
        tma.cluster_sync()
        if cuda.threadIdx.x == 0:
            full.arrive_expect_tx(tile.nbytes)
            x.load_im2col(held, (0, 0, 0, 0), (0,), full, cta_group=2)
        full.wait(0)
        tma.cluster_sync()

    with pytest.raises(WrongByteCount, match="completed while .* of its loads are still under way"):
        kernel[2, 32](tma.im2col_wide_map(PIXELS, tile, mode=mode))
