"""Every function of TileLang's cpasync and mbar, in the words of numba_tma.

A test bears the name of the function whose use it writes down. The answers in full are in
docs/guide/migration.md.
"""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx

WARP = 32
TILE = tma.Tile((4, 32), "u32")
FOUR = tma.Tile((WARP, 4), "u32")


def numbers(*shape):
    return np.random.default_rng(7).integers(0, 2**31, shape).astype(np.uint32)


def words_copied(copy):
    """Return 16 bytes for each thread, and those that its copy and a wait left of sevens."""

    @cuda.jit
    def kernel(source, out):
        tile, thread = tma.shared_tile(FOUR), cuda.threadIdx.x
        for i in range(4):
            tile[thread, i] = 7
        copy(tile.address + 16 * thread, source[4 * thread :], thread % 2 == 0)
        ptx.cp_async_wait_all()
        for i in range(4):
            out[thread, i] = tile[thread, i]

    source, out = numbers(4 * WARP), np.zeros((WARP, 4), np.uint32)
    kernel[1, WARP](source, out)
    return source.reshape(-1, 4), out


@pytest.mark.parametrize("size", [4, 8, 16])
def test_cp_async_gs(size):
    def copy(dst, src, cond):
        if size == 16:
            ptx.cp_async_cg(dst, src)
        else:
            ptx.cp_async_ca(dst, src, size)

    source, out = words_copied(copy)
    np.testing.assert_array_equal(out[:, : size // 4], source[:, : size // 4])
    assert (out[:, size // 4 :] == 7).all()


@pytest.mark.parametrize("size", [8, 16])
def test_cp_async_gs_conditional(size):
    """A false condition copies nothing, and writes no zeros."""

    def copy(dst, src, cond):
        if size == 16:
            ptx.cp_async_cg_conditional(dst, src, cond)
        else:
            ptx.cp_async_ca_conditional(dst, src, size, cond)

    source, out = words_copied(copy)
    np.testing.assert_array_equal(out[::2, : size // 4], source[::2, : size // 4])
    assert (out[1::2] == 7).all()


@pytest.mark.parametrize("size", [8, 16])
def test_cp_async_shared_global(size):
    """The bytes from src_size on are zeros."""

    def copy(dst, src, cond):
        if size == 16:
            ptx.cp_async_cg(dst, src, src_size=4)
        else:
            ptx.cp_async_ca(dst, src, size, src_size=4)

    source, out = words_copied(copy)
    np.testing.assert_array_equal(out[:, 0], source[:, 0])
    assert not out[:, 1 : size // 4].any() and (out[:, size // 4 :] == 7).all()


def arrived(copied, count):
    """Return words that 32 threads copy, read by others after a wait on an mbarrier."""

    @cuda.jit
    def kernel(source, out):
        tile, barrier, thread = tma.shared_tile(FOUR), tma.shared_barrier(), cuda.threadIdx.x
        if thread == 0:
            barrier.init(count)  # mbarrier_init
            tma.fence_mbarrier_init()  # fence_barrier_init
        cuda.syncthreads()
        if thread < WARP:
            ptx.cp_async_cg(tile.address + 16 * thread, source[4 * thread :])
            copied(barrier)
        else:
            barrier.wait(0)
            for i in range(4):
                out[thread % WARP, i] = tile[thread % WARP, i]

    source, out = numbers(4 * WARP), np.zeros((WARP, 4), np.uint32)
    kernel[1, 2 * WARP](source, out)
    np.testing.assert_array_equal(out, source.reshape(-1, 4))


def test_mbarrier_cp_async_arrive():
    """Its arrival is added to the count: each thread arrives besides."""

    def copied(barrier):
        ptx.cp_async_mbarrier_arrive(barrier)
        barrier.arrive()  # mbarrier_arrive

    arrived(copied, WARP)


def test_mbarrier_cp_async_arrive_noinc():
    arrived(ptx.cp_async_mbarrier_arrive_noinc, WARP)


@pytest.mark.parametrize("expects", ["mbarrier_arrive_and_expect_tx", "mbarrier_expect_tx"])
@pytest.mark.parametrize("read", [True, False])
def test_tma_load_and_tma_store(expects, read):
    """Also prefetch_tma_descriptor, mbarrier_wait, fence_proxy_async, tma_store_arrive, _wait."""

    @cuda.jit
    def kernel(x, y):
        tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
        thread = cuda.threadIdx.x
        if thread == 0:
            x.prefetch()
            barrier.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if thread == 0:
            if expects == "mbarrier_expect_tx":
                barrier.expect_tx(TILE.nbytes)
                barrier.arrive()
            else:
                barrier.arrive_expect_tx(TILE.nbytes)
            x.load(tile, (4, 0), barrier)
        barrier.wait(0)
        for row in range(4):
            tile[row, thread] = tile[row, thread] + 1
        tma.fence_proxy_async()
        cuda.syncthreads()
        if thread == 0:
            y.store(tile, (0, 0))
            ptx.cp_async_bulk_commit_group()
            if read:
                ptx.cp_async_bulk_wait_group_read(0)
            else:
                ptx.cp_async_bulk_wait_group(0)

    x, y = numbers(8, 32), np.zeros((4, 32), np.uint32)
    kernel[1, WARP](tma.tensor_map(x, TILE), tma.tensor_map(y, TILE))
    np.testing.assert_array_equal(y, x[4:] + 1)


def test_tma_load_of_a_pointer():
    """The form with a pointer and a number of bytes: a bulk load, and its store."""

    @cuda.jit
    def kernel(x, y):
        tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
        barrier.init(1)
        tma.fence_mbarrier_init()
        barrier.arrive_expect_tx(TILE.nbytes)
        ptx.cp_async_bulk_load(tile, x, TILE.nbytes, barrier)
        barrier.wait(0)
        ptx.cp_async_bulk_store(y, tile, TILE.nbytes)
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)

    x, y = numbers(128), np.zeros(128, np.uint32)
    kernel[1, 1](x, y)
    np.testing.assert_array_equal(x, y)


def test_extract_tensormap_ptr():
    """A kernel takes the map as an argument, and so does a function that it calls."""

    @cuda.jit(device=True)
    def load(x, tile, barrier):
        x.load(tile, (0, 0), barrier)

    @cuda.jit
    def kernel(x, out):
        tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
        barrier.init(1)
        tma.fence_mbarrier_init()
        barrier.arrive_expect_tx(TILE.nbytes)
        load(x, tile, barrier)
        barrier.wait(0)
        out[0] = tile[3, 31]

    x, out = numbers(4, 32), np.zeros(1, np.uint32)
    kernel[1, 1](tma.tensor_map(x, TILE), out)
    assert out[0] == x[3, 31]


def test_tma_reduce():
    @cuda.jit
    def kernel(y):
        tile, thread = tma.shared_tile(TILE), cuda.threadIdx.x
        for row in range(4):
            tile[row, thread] = 3
        tma.fence_proxy_async()
        cuda.syncthreads()
        if thread == 0:
            y.reduce(tile, (0, 0), "add")
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group(0)

    y = numbers(4, 32)
    before = y.copy()
    kernel[2, WARP](tma.tensor_map(y, TILE))
    np.testing.assert_array_equal(y, before + 6)


def test_mbarrier_arrive_with_cta_id():
    @cuda.jit
    @tma.cluster(2)
    def kernel(out):
        barrier, rank = tma.shared_barrier(), ptx.cluster_ctarank()
        if cuda.threadIdx.x == 0:
            barrier.init(1)
            tma.fence_mbarrier_init()
        tma.cluster_sync()
        if cuda.threadIdx.x == 0:
            ptx.mbarrier_arrive_remote(ptx.mapa(barrier, 1 - rank))
        barrier.wait(0)
        out[rank] = 1
        tma.cluster_sync()

    out = np.zeros(2)
    kernel[2, WARP](out)
    assert out.all()
