"""The copy engine moves bytes from a block's shared memory to another's, and reduces into it."""

import functools

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.reference import reduce_elements
from numba_tma.ptx.reduce import ClusterReduction
from tests.gpu.copies import CANARY, TRIES
from tests.gpu.worker import on_gpu

NBYTES = 2048
WORDS = NBYTES // 4
TILE = tma.Tile(WORDS, "u32")
THREADS, CLUSTERS = 64, 3
SIZES = [2, 4, 8]
TYPES = {"s32": "i32", "b32": "u32"}
REDUCTIONS = ClusterReduction.__args__


@functools.cache
def ring_kernel(n):
    """Return a kernel in which every block writes a tile and gives it to the next block."""

    @cuda.jit
    @tma.cluster(n)
    def pass_on(x, received, first, nbytes, completed):
        mine, theirs, barrier = tma.shared_tile(TILE), tma.shared_tile(TILE), tma.shared_barrier()
        block, thread = cuda.blockIdx.x, cuda.threadIdx.x
        rank = block % n
        for i in range(thread, WORDS, THREADS):
            mine[i] = x[block * WORDS + i]
            theirs[i] = CANARY
        tma.fence_proxy_async()
        if thread == 0:
            barrier.init(1)
            tma.fence_mbarrier_init()
            barrier.arrive_expect_tx(nbytes)
        cuda.syncthreads()
        ptx.barrier_cluster_arrive()
        ptx.barrier_cluster_wait()
        if thread == 0:
            following = (rank + 1) % n
            ptx.cp_async_bulk_copy_cluster(
                ptx.mapa(theirs.address + first, following),
                mine.address + first,
                nbytes,
                ptx.mapa(barrier.address, following),
            )
            for _ in range(TRIES):
                if barrier.test_wait(0):
                    completed[block] = 1
                    break
        cuda.syncthreads()
        for i in range(thread, WORDS, THREADS):
            received[block * WORDS + i] = theirs[i]
        ptx.barrier_cluster_arrive()  # nobody ends while its memory is written or read
        ptx.barrier_cluster_wait()

    return pass_on


@pytest.mark.parametrize("n", SIZES)
@on_gpu
def test_a_block_gives_its_tile_to_the_next(n):
    blocks = CLUSTERS * n
    x = np.random.default_rng(n).integers(0, 2**32, (CLUSTERS, n, WORDS), np.uint32)
    for first, nbytes in ((0, NBYTES), (0, 16), (48, 1024), (NBYTES - 32, 32)):
        received = cuda.to_device(np.zeros(x.size, np.uint32))
        completed = cuda.to_device(np.zeros(blocks, np.int32))
        ring_kernel(n)[blocks, THREADS](
            cuda.to_device(x.reshape(-1)), received, first, nbytes, completed
        )
        assert completed.copy_to_host().all()
        expected = np.full_like(x, CANARY)
        part = slice(first // 4, (first + nbytes) // 4)
        expected[:, :, part] = np.roll(x, 1, axis=1)[:, :, part]
        np.testing.assert_array_equal(received.copy_to_host().reshape(x.shape), expected)


@functools.cache
def reduction_kernel(n, operation):
    """Return a kernel in which all blocks of a cluster reduce into the tile of its first."""

    @cuda.jit
    @tma.cluster(n)
    def reduce_to_first(operands, totals, completed):
        operand, total = tma.shared_tile(TILE), tma.shared_tile(TILE)
        loaded, reduced = tma.shared_barrier(), tma.shared_barrier()
        block, thread = cuda.blockIdx.x, cuda.threadIdx.x
        rank, cluster = block % n, block // n
        done = False
        if thread == 0:
            loaded.init(1)
            reduced.init(1)
            tma.fence_mbarrier_init()
            loaded.arrive_expect_tx(2 * NBYTES)
            ptx.cp_async_bulk_load(operand, operands[block * NBYTES :], NBYTES, loaded)
            ptx.cp_async_bulk_load(total, totals[cluster * NBYTES :], NBYTES, loaded)
            if rank == 0:
                reduced.arrive_expect_tx(n * NBYTES)
            for _ in range(TRIES):
                if loaded.test_wait(0):
                    done = True
                    break
        cuda.syncthreads()
        ptx.barrier_cluster_arrive()
        ptx.barrier_cluster_wait()
        if thread == 0 and done:
            ptx.cp_reduce_async_bulk_cluster(
                ptx.mapa(total.address, 0),
                operand,
                NBYTES,
                ptx.mapa(reduced.address, 0),
                operation,
            )
            if rank == 0:
                for _ in range(TRIES):
                    if reduced.test_wait(0):
                        completed[cluster] = 1
                        break
                ptx.cp_async_bulk_store(totals[cluster * NBYTES :], total, NBYTES)
                ptx.cp_async_bulk_commit_group()
                ptx.cp_async_bulk_wait_group(0)
        ptx.barrier_cluster_arrive()
        ptx.barrier_cluster_wait()

    return reduce_to_first


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("operation", REDUCTIONS)
@on_gpu
def test_blocks_reduce_into_the_tile_of_one(operation, n):
    name, kind = operation.split(".")
    dtype = as_dtype(TYPES.get(kind, kind))
    count = NBYTES // dtype.itemsize
    rng = np.random.default_rng(REDUCTIONS.index(operation))
    bounds = np.iinfo(dtype.numpy)

    def drawn(*shape):
        far = rng.integers(bounds.min, bounds.max, shape, dtype.numpy, endpoint=True)
        near = rng.integers(0, 6, shape).astype(dtype.numpy)
        return np.where(rng.random(shape) < 0.5, far, near)

    totals, operands = drawn(CLUSTERS, count), drawn(CLUSTERS, n, count)
    if name in ("inc", "dec"):
        operands[:] = operands[:, :1]  # counting is the same in any order only up to one limit
    device = cuda.to_device(totals.reshape(-1).view(np.uint8))
    completed = cuda.to_device(np.zeros(CLUSTERS, np.int32))
    reduction_kernel(n, operation)[CLUSTERS * n, THREADS](
        cuda.to_device(operands.reshape(-1).view(np.uint8)), device, completed
    )
    assert completed.copy_to_host().all()
    for rank in range(n):
        totals = reduce_elements(name, totals, operands[:, rank])
    found = device.copy_to_host().view(dtype.numpy).reshape(totals.shape)
    np.testing.assert_array_equal(found, totals)
