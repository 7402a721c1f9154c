"""Multicast, partitioned loads and copies between blocks in simulated clusters."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim

pytestmark = pytest.mark.skipif(not hasattr(tma, "cluster"), reason="there are no clusters here")

SEEDS = range(12)
TILE = tma.Tile((4, 16), "u32")
WORDS = TILE.size


def in_cluster(n, body):
    """Return `body` as a kernel of clusters of `n`."""
    return cuda.jit(tma.cluster(n)(body))


def meet():
    ptx.barrier_cluster_arrive()
    ptx.barrier_cluster_wait()


def started(expected):
    """Return a tile and its barrier, which expects bytes and is known to the whole cluster."""
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        barrier.init(1)
        tma.fence_mbarrier_init()
        if expected:
            barrier.arrive_expect_tx(expected)
    cuda.syncthreads()
    meet()
    return tile, barrier


def multicast(x, source, images, mask, issuer, n, bulk):
    rank, cluster = cuda.blockIdx.x % n, cuda.blockIdx.x // n
    receives = mask >> rank & 1
    tile, barrier = started(TILE.nbytes if receives else 0)
    if cuda.threadIdx.x == 0 and rank == issuer:
        if bulk:
            rows = source[4 * cluster : 4 * cluster + 4]
            ptx.cp_async_bulk_load(tile, rows, TILE.nbytes, barrier, multicast=mask)
        else:
            x.load(tile, (4 * cluster, 0), barrier, multicast=mask)
    if receives:
        barrier.wait(0)
        for i in range(cuda.threadIdx.x, WORDS, cuda.blockDim.x):
            images[cuda.blockIdx.x, i] = tile[i // 16, i % 16]
    meet()


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("n", [2, 4])
def test_the_blocks_of_the_mask_get_the_tile(n, bulk):
    x = np.random.default_rng(n).integers(1, 2**32, (8, 16), np.uint32)
    kernel = in_cluster(n, multicast)
    for seed, mask in enumerate([1, (1 << n) - 1, 1 << n - 1, 0b01, 0b10]):
        sim.seed(seed)
        images = np.zeros((2 * n, WORDS), np.uint32)
        kernel[2 * n, 2](tma.tensor_map(x, TILE), x, images, mask, seed % n, n, bulk)
        for block in range(2 * n):
            expected = x[4 * (block // n) :][:4].reshape(-1) * (mask >> block % n & 1)
            np.testing.assert_array_equal(images[block], expected)


def test_a_block_that_does_not_expect_the_bytes():
    def kernel(x):
        rank = cuda.blockIdx.x
        tile, barrier = started(TILE.nbytes if rank == 0 else 0)
        if rank == 0:
            x.load(tile, (0, 0), barrier, multicast=0b11)
        else:
            barrier.arrive()
        barrier.wait(0)
        meet()

    x = tma.tensor_map(np.zeros((4, 16), np.uint32), TILE)
    with pytest.raises(sim.WrongByteCount, match="expect the bytes of every tile"):
        in_cluster(2, kernel)[2, 1](x)


def test_a_block_that_is_not_ready():
    def kernel(x):
        tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
        barrier.init(1)
        tma.fence_mbarrier_init()
        barrier.arrive_expect_tx(TILE.nbytes)
        if cuda.blockIdx.x == 0:
            x.load(tile, (0, 0), barrier, multicast=0b11)
        barrier.wait(0)
        meet()

    x = tma.tensor_map(np.zeros((4, 16), np.uint32), TILE)
    with pytest.raises(sim.SimulatorError, match="cluster_sync"):
        in_cluster(2, kernel)[2, 1](x)


def test_a_tile_that_another_block_still_reads():
    def kernel(x):
        rank = cuda.blockIdx.x
        tile, barrier = started(TILE.nbytes)
        for phase in range(2):
            if rank == 0:
                x.load(tile, (0, 0), barrier, multicast=0b11)
            barrier.wait(phase)
            tile[0, 0]
            if phase == 0:
                barrier.arrive_expect_tx(TILE.nbytes)
                if repaired:
                    meet()
        meet()

    x = tma.tensor_map(np.zeros((4, 16), np.uint32), TILE)
    repaired = True
    for seed in SEEDS:
        sim.seed(seed)
        in_cluster(2, kernel)[2, 1](x)
    repaired = False
    with pytest.raises(sim.SimulatorError):
        for seed in SEEDS:
            sim.seed(seed)
            in_cluster(2, kernel)[2, 1](x)


@pytest.mark.parametrize("swizzle", [tma.Swizzle.NONE, tma.Swizzle.B64])
@pytest.mark.parametrize(("n", "groups"), [(2, 1), (4, 1), (4, 2)])
def test_blocks_load_a_tile_together(n, groups, swizzle):
    size = n // groups
    whole = tma.Tile((8 * size, 16), "u32", swizzle)
    x = np.random.default_rng(n).integers(0, 2**32, (2 * groups * whole.shape[0], 16), np.uint32)

    def kernel(x, images):
        tile, barrier = tma.shared_tile(whole), tma.shared_barrier()
        block = cuda.blockIdx.x
        rank = block % n
        barrier.init(1)
        tma.fence_mbarrier_init()
        barrier.arrive_expect_tx(whole.nbytes)
        meet()
        coords = (block // size * whole.shape[0], 0)
        mask = None if groups == 1 else (1 << size) - 1 << rank // size * size
        tma.load_partitioned(x, tile, coords, barrier, rank % size, multicast=mask)
        barrier.wait(0)
        for i in range(whole.shape[0]):
            for j in range(16):
                images[block, i, j] = tile[i, j]
        meet()

    box = tma.Tile((8, 16), "u32", swizzle)
    for seed in SEEDS[:4]:
        sim.seed(seed)
        images = np.zeros((2 * n, *whole.shape), np.uint32)
        in_cluster(n, kernel)[2 * n, 1](tma.tensor_map(x, box), images)
        for block in range(2 * n):
            first = block // size * whole.shape[0]
            np.testing.assert_array_equal(images[block], x[first : first + whole.shape[0]])


def ring(seen, n):
    """Every block gives its tile to the next."""
    rank = cuda.blockIdx.x % n
    mine, tile, barrier = tma.shared_tile(TILE), tma.shared_tile(TILE), tma.shared_barrier()
    for i in range(WORDS):
        mine[i // 16, i % 16] = 100 * cuda.blockIdx.x + i
    tma.fence_proxy_async()
    barrier.init(1)
    tma.fence_mbarrier_init()
    barrier.arrive_expect_tx(TILE.nbytes)
    meet()
    target, full = (ptx.mapa(a.address, (rank + 1) % n) for a in (tile, barrier))
    ptx.cp_async_bulk_copy_cluster(target, mine, TILE.nbytes, full)
    barrier.wait(0)
    seen[cuda.blockIdx.x] = [tile[i // 16, i % 16] for i in range(WORDS)]
    meet()
    mine[0, 0] = 0  # all have what they were given


@pytest.mark.parametrize("n", [2, 4])
def test_a_block_gives_its_tile_to_the_next(n):
    for seed in SEEDS:
        sim.seed(seed)
        seen = np.zeros((2 * n, WORDS), np.int64)
        in_cluster(n, ring)[2 * n, 1](seen, n)
        for block in range(2 * n):
            giver = block // n * n + (block - 1) % n
            np.testing.assert_array_equal(seen[block], 100 * giver + np.arange(WORDS))


def sum_in_first(totals, n, meets):
    rank = cuda.blockIdx.x
    mine, total, barrier = tma.shared_tile(TILE), tma.shared_tile(TILE), tma.shared_barrier()
    for i in range(WORDS):
        mine[i // 16, i % 16] = rank + i
        total[i // 16, i % 16] = 1000
    tma.fence_proxy_async()
    barrier.init(1)
    tma.fence_mbarrier_init()
    if rank == 0:
        barrier.arrive_expect_tx(n * TILE.nbytes)
    meet()
    target, full = ptx.mapa(total.address, 0), ptx.mapa(barrier.address, 0)
    ptx.cp_reduce_async_bulk_cluster(target, mine, TILE.nbytes, full, "add.u32")
    if rank == 0:
        barrier.wait(0)
        totals[:] = [total[i // 16, i % 16] for i in range(WORDS)]
    if meets:
        meet()
    mine[0, 0] = 0


def test_blocks_sum_into_the_tile_of_one():
    for seed in SEEDS:
        sim.seed(seed)
        totals = np.zeros(WORDS, np.int64)
        in_cluster(4, sum_in_first)[4, 1](totals, 4, True)
        np.testing.assert_array_equal(totals, 1000 + 6 + 4 * np.arange(WORDS))


def test_a_source_is_written_before_the_other_block_has_it():
    with pytest.raises(sim.EarlyOverwrite, match="that a copy to a block of the cluster may still"):
        in_cluster(4, sum_in_first)[4, 1](np.zeros(WORDS, np.int64), 4, False)


def test_a_destination_and_a_barrier_in_two_blocks():
    def kernel():
        tile, barrier = started(TILE.nbytes)
        other = 1 - cuda.blockIdx.x
        for i in range(WORDS):
            tile[i // 16, i % 16] = i
        tma.fence_proxy_async()
        full = ptx.mapa(barrier.address, cuda.blockIdx.x)
        ptx.cp_async_bulk_copy_cluster(ptx.mapa(tile.address, other), tile, TILE.nbytes, full)

    with pytest.raises(sim.BadOperand, match=r"the destination lies in the block of rank \d, the"):
        in_cluster(2, kernel)[2, 1]()
