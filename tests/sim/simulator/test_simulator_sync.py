"""Named barriers and warp-wide operations."""

import numpy as np
import pytest
from numba import cuda

from numba_tma import simulator as sim

FULL = 0xFFFFFFFF
SEEDS = range(10)


def launch(body, threads, *args, seeds=SEEDS):
    for seed in seeds:
        sim.seed(seed)
        cuda.jit(body)[1, threads](*args)


def test_named_barriers_separate_groups_of_warps():
    def body():
        cells = sim.allocate_shared("cells", 4 * 128, 16)
        t = cuda.threadIdx.x
        group, barrier = t // 64, 1 + t // 64
        for turn in range(3):
            sim.shared_write(cells + 4 * t, np.int32(turn))
            sim.barrier_sync(barrier, 64)
            partner = group * 64 + (t + 33) % 64
            assert sim.shared_read(cells + 4 * partner, np.dtype(np.int32)) == turn
            sim.barrier_sync(barrier, 64)

    launch(body, 128)


def test_a_producer_arrives_and_does_not_wait():
    def body(order):
        t = cuda.threadIdx.x
        if t < 32:
            cuda.nanosleep(1)
            order[0] += 1
            sim.barrier_arrive(4, 64)
        else:
            sim.barrier_sync(4, 64)
            assert order[0] % 32 == 0

    launch(body, 64, np.zeros(1))


def test_barrier_0_is_syncthreads():
    def body():
        if cuda.threadIdx.x < 32:
            cuda.syncthreads()
        else:
            sim.barrier_sync(0, 64)

    launch(body, 64)


MISUSES = {
    "no such barrier": (lambda: sim.barrier_sync(16, 32), sim.BadOperand, "barrier 16 does not"),
    "odd count": (lambda: sim.barrier_sync(1, 33), sim.BadOperand, "must be a multiple of 32"),
    "count 0": (lambda: sim.barrier_arrive(1, 0), sim.BadOperand, "for 0 threads"),
    "more than there are": (lambda: sim.barrier_sync(1, 96), sim.BadOperand, "at most the 64"),
    "counts differ": (
        lambda: sim.barrier_sync(1, 32 + cuda.threadIdx.x // 32 * 32),
        sim.BarrierMisuse,
        "meets named barrier 1 for",
    ),
    "twice": (
        lambda: [sim.barrier_arrive(1, 64) for _ in range(2)],
        sim.BarrierMisuse,
        "arrives twice before the others have come",
    ),
    "of the cluster twice": (
        lambda: [sim.barrier_cluster_arrive("") for _ in range(2)],
        sim.BarrierMisuse,
        "must execute barrier_cluster_wait between",
    ),
    "for the cluster unarrived": (
        lambda: sim.barrier_cluster_wait(""),
        sim.BarrierMisuse,
        "must execute barrier_cluster_arrive before",
    ),
    "not in the mask": (lambda: sim.syncwarp(1), sim.BadOperand, "which is not in the mask"),
    "different operations": (
        lambda: sim.elect_sync(FULL) if sim.lane_id() else sim.syncwarp(FULL),
        sim.BarrierMisuse,
        "all that meet must execute the same operation",
    ),
    "mode": (lambda: sim.shfl("left", 0, 1), sim.BadOperand, "mode is 'left'"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse(name):
    body, kind, text = MISUSES[name]
    with pytest.raises(kind) as caught:
        launch(lambda: body(), 64, seeds=[0])
    assert text in str(caught.value)


def test_different_masks_never_meet():
    def body():
        lane = sim.lane_id()
        sim.syncwarp(FULL if lane else 1 | 1 << 5)

    with pytest.raises(sim.Deadlock) as caught:
        launch(body, 32, seeds=[0])
    assert "mask 0xffffffff: 31 of 32 threads have arrived" in str(caught.value)
    assert "mask 0x00000021: 1 of 2 threads have arrived" in str(caught.value)


def test_syncwarp_orders_memory_of_its_lanes():
    def body():
        tile = sim.allocate_shared("tile", 64, 64)
        lane = sim.lane_id()
        if lane < 16:
            sim.shared_write(tile + 4 * lane, np.int32(lane))
            sim.fence_proxy_async()
            sim.syncwarp(0xFFFF)
            if lane == 3:
                sim.cp_async_bulk_store(np.zeros(64, np.uint8), tile)
                sim.cp_async_bulk_commit_group()
                sim.cp_async_bulk_wait_group_read(0)

    launch(body, 32)


def test_elect_sync_elects_one():
    def body(elected):
        lane = sim.lane_id()
        assert sim.elect_sync(FULL) == (lane == 0)
        if lane >= 8:
            elected[lane] += sim.elect_sync(0xFFFFFF00)

    elected = np.zeros(32)
    launch(body, 32, elected, seeds=[0, 1])
    assert elected.tolist() == [0] * 8 + [2] + [0] * 23


def test_shuffles():
    def body():
        lane = sim.lane_id()
        assert sim.shfl("idx", lane, 7, FULL) == 7
        assert sim.shfl("up", lane, 3, FULL) == (lane - 3 if lane >= 3 else lane)
        assert sim.shfl("down", lane, 3, FULL) == (lane + 3 if lane < 29 else lane)
        assert sim.shfl("bfly", lane, 5, FULL) == lane ^ 5
        assert cuda.shfl_sync(FULL, lane, 35) == 3
        assert cuda.shfl_up_sync(FULL, lane, 1) == max(lane - 1, 0)
        assert cuda.shfl_down_sync(FULL, lane, 1) == min(lane + 1, 31)
        assert cuda.shfl_xor_sync(FULL, lane, 16) == lane ^ 16
        value = cuda.shfl_sync(FULL, np.float32(lane), 2)
        assert value == 2 and value.dtype == np.float32
        if lane < 16:  # a lane outside of the mask gives nothing: one keeps one's own
            assert sim.shfl("down", lane, 8, 0xFFFF) == (lane + 8 if lane < 8 else lane)

    launch(body, 64, seeds=range(3))


def test_a_warp_sum():
    def body(x, total):
        value = x[cuda.threadIdx.x]
        for step in (16, 8, 4, 2, 1):
            value += cuda.shfl_xor_sync(FULL, value, step)
        total[cuda.threadIdx.x] = value

    x, total = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    launch(body, 64, x, total)
    np.testing.assert_array_equal(
        total, np.repeat([np.arange(32).sum(), np.arange(32, 64).sum()], 32)
    )


def test_votes():
    def body():
        lane = sim.lane_id()
        assert cuda.ballot_sync(FULL, lane % 2 == 0) == 0x55555555
        assert cuda.all_sync(FULL, lane < 32) and not cuda.all_sync(FULL, lane)
        assert cuda.any_sync(FULL, lane == 9) and not cuda.any_sync(FULL, False)
        assert cuda.eq_sync(FULL, True) and not cuda.eq_sync(FULL, lane == 3)
        assert cuda.match_any_sync(FULL, lane // 16) == 0xFFFF << lane // 16 * 16
        assert cuda.match_all_sync(FULL, 4) == (FULL, True)
        assert cuda.match_all_sync(FULL, lane) == (0, False)
        assert cuda.activemask() == FULL and cuda.lanemask_lt() == (1 << lane) - 1
        cuda.syncwarp()

    launch(body, 64, seeds=range(3))


def test_lanes_that_have_ended_are_not_waited_for():
    def body():
        if sim.lane_id() >= 20:
            return
        sim.syncwarp()
        for _ in range(200):
            cuda.nanosleep(1)
        sim.syncwarp(cuda.activemask())
        assert cuda.activemask() < 1 << 20

    launch(body, 32)


def test_a_block_that_is_no_whole_number_of_warps():
    def body():
        sim.syncwarp()
        assert sim.elect_sync(FULL) == (sim.lane_id() == 0)

    launch(body, 40)


@pytest.mark.parametrize("operation", ["elect_sync", "shfl", "ballot_sync"])
@pytest.mark.parametrize("masks", ["full", "own"])
def test_lanes_exchange_values_at_one_place_of_the_kernel(operation, masks):
    def exchange(mask):
        if operation == "elect_sync":
            sim.elect_sync(mask)
        elif operation == "shfl":
            sim.shfl("idx", 1, 0, mask)
        else:
            sim.ballot_sync(mask, True)

    @cuda.jit
    def kernel():
        low, high = (0x0000FFFF, 0xFFFF0000) if masks == "own" else (0xFFFFFFFF, 0xFFFFFFFF)
        if cuda.threadIdx.x < 16:
            exchange(low)
        else:
            exchange(high)

    if masks == "own":
        kernel[1, 32]()
        return
    with pytest.raises(sim.BarrierMisuse, match="the warp has diverged, and on a GPU the lanes"):
        kernel[1, 32]()
