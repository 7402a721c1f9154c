"""What the arrival of a tcgen05.commit tells the threads that wait for it."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim
from tests.tiers import every

TILE = tma.Tile((4, 32), "u32")
STAGES, TILES = 2, 5


def ring(x, reads, released):
    """Load `TILES` tiles into a ring whose stages `released` gives back."""
    stages = [tma.shared_tile(TILE) for _ in range(STAGES)]
    full, empty = tma.shared_barriers(STAGES), tma.shared_barriers(STAGES)
    if cuda.threadIdx.x == 0:
        for s in range(STAGES):
            full[s].init(1)
            empty[s].init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    for t in range(TILES):
        s, phase = t % STAGES, t // STAGES & 1
        if cuda.threadIdx.x == 0:
            empty[s].wait(phase ^ 1)
            full[s].arrive_expect_tx(TILE.nbytes)
            x.load(stages[s], (4 * t, 0), full[s])
        elif cuda.threadIdx.x == 32:
            full[s].wait(phase)
            reads(stages[s])
            released(empty[s])
    if cuda.threadIdx.x == 0:
        for t in range(TILES - STAGES, TILES):
            empty[t % STAGES].wait(t // STAGES & 1)


def run(reads, released):
    x = tma.tensor_map(np.arange(4 * TILES * 32, dtype=np.uint32).reshape(-1, 32), TILE)
    cuda.jit(lambda x: ring(x, reads, released))[1, 64](x)


@pytest.mark.parametrize("seed", every(3, range(3)))
def test_a_ring_released_by_commits(seed):
    sim.seed(seed)
    run(lambda stage: None, lambda empty: ptx.tcgen05_commit(empty, 1))


def test_a_commit_does_not_release_the_threads_own_reads():
    text = "after thread .32, 0, 0. .* has read them, and nothing orders that read before this load"
    with pytest.raises(sim.EarlyOverwrite, match=text):
        run(lambda stage: stage[0, 0], lambda empty: ptx.tcgen05_commit(empty, 1))
    run(lambda stage: stage[0, 0], lambda empty: empty.arrive())


def test_a_commit_does_not_know_loads_that_its_thread_has_not_waited_for():
    def kernel(x):
        tile, full, done = tma.shared_tile(TILE), tma.shared_barrier(), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            done.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            full.arrive_expect_tx(TILE.nbytes)
            x.load(tile, (0, 0), full)
            if waits:
                full.wait(0)
            ptx.tcgen05_commit(done, 1)
            full.wait(0)
        else:
            done.wait(0)
            tile[0, 0]

    x = tma.tensor_map(np.zeros((4, 32), np.uint32), TILE)
    waits = True
    cuda.jit(kernel)[1, 2](x)
    waits = False
    with pytest.raises(sim.EarlyRead, match="wait for that phase first"):
        cuda.jit(kernel)[1, 2](x)


# ------------------------------------------------------------- loads that signal the pair


def pair(x, out, blocks, per_rank):
    """Let `per_rank(rank, tile, barrier)` load, and the even blocks wait for both tiles."""
    tile, barrier, rank = tma.shared_tile(TILE), tma.shared_barrier(), ptx.cluster_ctarank()
    if cuda.threadIdx.x == 0:
        barrier.init(1)
        tma.fence_mbarrier_init()
        if rank % 2 == 0:
            barrier.arrive_expect_tx(2 * TILE.nbytes)
    tma.cluster_sync()
    if cuda.threadIdx.x == 0:
        per_rank(x, rank, tile, barrier)
    if rank % 2 == 0:
        barrier.wait(0)
    tma.cluster_sync()
    out[rank, cuda.threadIdx.x] = tile[0, cuda.threadIdx.x]
    tma.cluster_sync()


def launched(blocks, per_rank):
    x = np.arange(blocks * 4 * 32, dtype=np.uint32).reshape(-1, 32)
    out = np.zeros((blocks, 32), np.uint32)
    kernel = cuda.jit(tma.cluster(blocks)(lambda x, out: pair(x, out, blocks, per_rank)))
    kernel[blocks, 32](tma.tensor_map(x, TILE), out)
    return x, out


def to_the_leader(x, rank, tile, barrier):
    leader = ptx.mapa(barrier, rank & ~1)
    ptx.cp_async_bulk_tensor_load_cta_group(tile, x, (4 * rank, 0), leader, 2)


@pytest.mark.parametrize("seed", every(4, range(4)))
@pytest.mark.parametrize("blocks", [2, 4])
def test_both_blocks_signal_the_leader(blocks, seed):
    sim.seed(seed)
    x, out = launched(blocks, to_the_leader)
    np.testing.assert_array_equal(out, x[::4])


@pytest.mark.parametrize("seed", every(4, range(4)))
def test_a_multicast_signals_the_block_of_each_pair(seed):
    def loads(x, rank, tile, barrier):
        leader = ptx.mapa(barrier, rank & ~1)
        if rank < 2:  # to the block of the same parity in each pair
            ptx.cp_async_bulk_tensor_load_cta_group(
                tile, x, (4 * rank, 0), leader, 2, multicast=0b101 << rank
            )

    sim.seed(seed)
    x, out = launched(4, loads)
    np.testing.assert_array_equal(out, x[[0, 4, 0, 4]])


def test_the_peers_bytes_are_expected_by_the_leader():
    def own(x, rank, tile, barrier):
        ptx.cp_async_bulk_tensor_load_cta_group(tile, x, (0, 0), barrier, 1)

    with pytest.raises(sim.SimulatorError):
        launched(2, own)


def test_a_peer_that_reads_before_it_knows():
    def loads(x, rank, tile, barrier):
        to_the_leader(x, rank, tile, barrier)
        if rank == 1:
            tile[0, 0]

    with pytest.raises(sim.EarlyRead, match="before the load that fills them is known to be comp"):
        launched(2, loads)


@pytest.mark.parametrize(
    ("blocks", "target", "group", "text"),
    [
        (2, lambda rank: rank & ~1, 1, "with cta_group 1 the barrier is in the destination's blo"),
        (4, lambda rank: rank ^ 2, 2, "pair of this block has the ranks 0 and 1: map the barrier"),
        (3, lambda rank: rank, 2, "is for pairs of blocks, and the cluster has 3"),
    ],
)
def test_barriers_that_a_load_does_not_reach(blocks, target, group, text):
    def loads(x, rank, tile, barrier):
        there = ptx.mapa(barrier, target(rank))
        if group == 2 and rank == 0 or group == 1 and rank == 1:
            ptx.cp_async_bulk_tensor_load_cta_group(tile, x, (0, 0), there, group)

    with pytest.raises(sim.BadOperand, match=text):
        launched(blocks, loads)


def test_a_first_commit_of_many_threads():
    """Each thread's first commit makes its own components of the clocks."""

    def kernel():
        bars, t = tma.shared_barriers(4), cuda.threadIdx.x
        if t == 0:
            for i in range(4):
                bars[i].init(16)
        cuda.syncthreads()
        ptx.tcgen05_commit(bars[t // 16], 1)
        bars[t // 16].wait(0)

    cuda.jit(kernel)[1, 64]()
