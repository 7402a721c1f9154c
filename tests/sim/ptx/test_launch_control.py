"""Blocks that take the places of blocks that have not begun."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim

ANSWER = tma.Tile(4, np.uint32)


@cuda.jit
def count_blocks(runs, taken):
    """Add 1 to each block's place in `runs`, and each taken block's in `taken`."""
    answer, full, empty = tma.shared_tile(ANSWER), tma.shared_barrier(), tma.shared_barrier()
    thread = cuda.threadIdx.x
    if thread == 0:
        full.init(1)
        empty.init(cuda.blockDim.x)
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    x, y, parity, going = cuda.blockIdx.x, cuda.blockIdx.y, 0, True
    while going:
        if thread == 0:
            empty.wait(1 - parity)
            full.arrive_expect_tx(16)
            ptx.clusterlaunchcontrol_try_cancel(answer, full)
            runs[x, y] += 1
        full.wait(parity)
        words = (ptx.ld_shared_u64(answer.address), ptx.ld_shared_u64(answer.address + 8))
        going = ptx.clusterlaunchcontrol_query_cancel_is_canceled(words)
        if going:
            x = ptx.clusterlaunchcontrol_query_cancel_get_first_ctaid(words, "x")
            y = ptx.clusterlaunchcontrol_query_cancel_get_first_ctaid(words, "y")
            four = ptx.clusterlaunchcontrol_query_cancel_get_first_ctaid_v4(words)
            assert four == (x, y, 0, 0)
            if thread == 0:
                taken[x, y] += 1
        ptx.fence_proxy_async()
        empty.arrive()
        parity ^= 1


@pytest.mark.parametrize("grid", [(1, 1), (7, 1), (3, 4)])
def test_every_block_s_work_is_done_once(grid):
    shares = set()
    for seed in range(4):
        sim.seed(seed)
        runs, taken = np.zeros(grid, np.int32), np.zeros(grid, np.int32)
        count_blocks[grid, 32](runs, taken)
        np.testing.assert_array_equal(runs, 1)
        assert taken[0, 0] == 0 and taken.max() <= 1
        shares.add(int(taken.sum()))
    assert grid == (1, 1) or len(shares) > 1, "each seed takes as many blocks"


@pytest.mark.parametrize("seed", range(4))
def test_a_cluster_is_taken_as_one(seed):
    runs = np.zeros(12, np.int32)

    @cuda.jit
    @tma.cluster(2)
    def kernel(runs):
        answer, full = tma.shared_tile(ANSWER), tma.shared_barrier()
        rank = ptx.cluster_ctarank()
        if cuda.threadIdx.x == 0:
            full.init(1)
            ptx.fence_mbarrier_init()
        tma.cluster_sync()
        x, parity, going = cuda.blockIdx.x, 0, True
        while going:
            if cuda.threadIdx.x == 0:
                runs[x] += 1
                full.arrive_expect_tx(16)
            tma.cluster_sync()
            if cuda.threadIdx.x == 0 and rank == 0:
                ptx.clusterlaunchcontrol_try_cancel(answer, full, "all")
            full.wait(parity)
            words = (ptx.ld_shared_u64(answer.address), ptx.ld_shared_u64(answer.address + 8))
            going = ptx.clusterlaunchcontrol_query_cancel_is_canceled(words)
            if going:
                x = ptx.clusterlaunchcontrol_query_cancel_get_first_ctaid(words, "x") + rank
            ptx.fence_proxy_async()
            tma.cluster_sync()
            parity ^= 1

    sim.seed(seed)
    kernel[12, 32](runs)
    np.testing.assert_array_equal(runs, 1)


def test_an_answer_of_nothing_has_no_bit_set():
    words = []

    @cuda.jit
    def kernel():
        answer, full = tma.shared_tile(ANSWER), tma.shared_barrier()
        full.init(1)
        ptx.fence_mbarrier_init()
        full.arrive_expect_tx(16)
        ptx.clusterlaunchcontrol_try_cancel(answer, full)
        full.wait(0)
        words.extend(answer[i] for i in range(4))

    kernel[1, 1]()
    assert words == [0] * 4


def ask(times=1, offset=0, read=True):
    """Return a kernel whose thread asks several times, one answer after the other."""

    @cuda.jit
    def kernel():
        answer, full = tma.shared_tile(ANSWER), tma.shared_barrier()
        full.init(1)
        ptx.fence_mbarrier_init()
        for i in range(times):
            full.arrive_expect_tx(16)
            ptx.clusterlaunchcontrol_try_cancel(answer.address + offset, full)
            full.wait(i % 2)
            if read:
                words = (ptx.ld_shared_u64(answer.address), ptx.ld_shared_u64(answer.address + 8))
                ptx.clusterlaunchcontrol_query_cancel_is_canceled(words)
            ptx.fence_proxy_async()
        ptx.clusterlaunchcontrol_query_cancel_get_first_ctaid(words, "x")

    return kernel


def test_a_request_after_a_failure_is_undefined():
    with pytest.raises(
        sim.SimulatorError, match="after an answer that nothing was cancelled is un"
    ):
        ask(times=2)[1, 1]()


def test_the_index_of_nothing_is_undefined():
    with pytest.raises(sim.SimulatorError, match="get_first_ctaid of an answer that nothing was"):
        ask()[1, 1]()


def test_an_answer_is_aligned():
    with pytest.raises(sim.BadOperand, match="address .*; it must be a multiple of 16"):
        ask(offset=8)[1, 1]()
