"""Multicast: one read of global memory reaches the blocks of the mask, and no others."""

import functools

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from tests.gpu.copies import CANARY, TRIES
from tests.gpu.worker import on_gpu

TILE = tma.Tile((8, 32), "u32", tma.Swizzle.B128)
WORDS = TILE.nbytes // 4
CLUSTERS, THREADS = 3, 64
SIZES = [2, 4, 8]


@functools.cache
def multicast_kernel(n, bulk):
    """Return a kernel in which one block of each cluster loads for the blocks of the mask."""

    @cuda.jit
    @tma.cluster(n)
    def multicast(x, source, issuer, mask, images, completed):
        tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
        block, thread = cuda.blockIdx.x, cuda.threadIdx.x
        rank, cluster = block % n, block // n
        receives = (mask >> rank) & 1
        for i in range(thread, WORDS, THREADS):
            ptx.st_shared_u32(tile.address + 4 * i, CANARY)
        tma.fence_proxy_async()
        if thread == 0:
            barrier.init(1)
            tma.fence_mbarrier_init()
            if receives:
                barrier.arrive_expect_tx(TILE.nbytes)
        cuda.syncthreads()
        ptx.barrier_cluster_arrive()
        ptx.barrier_cluster_wait()
        if thread == 0:
            if rank == issuer:
                if bulk:
                    chunk = source[cluster * WORDS :]
                    ptx.cp_async_bulk_load(tile, chunk, TILE.nbytes, barrier, multicast=mask)
                else:
                    x.load(tile, (cluster * 8, 0), barrier, multicast=mask)
            if receives:
                for _ in range(TRIES):
                    if barrier.test_wait(0):
                        completed[block] = 1
                        break
        cuda.syncthreads()
        # Of those that get nothing, only the other blocks' completion says that it did not come.
        ptx.barrier_cluster_arrive()
        ptx.barrier_cluster_wait()
        for i in range(thread, WORDS, THREADS):
            images[block * WORDS + i] = ptx.ld_shared_u32(tile.address + 4 * i)

    return multicast


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("n", SIZES)
@on_gpu
def test_the_blocks_of_the_mask_get_the_tile(n, bulk):
    rng = np.random.default_rng(n)
    x = rng.integers(0, 2**32, (CLUSTERS * 8, 32), np.uint32)
    device = cuda.to_device(x)
    x_map, flat = tma.tensor_map(device, TILE), device.reshape(x.size)
    everyone = (1 << n) - 1
    masks = {everyone, 1, 1 << (n - 1), everyone & 0x55, *map(int, rng.integers(1, 1 << n, 6))}
    for mask in sorted(masks):
        for issuer in {0, n - 1, int(rng.integers(n))}:
            images = cuda.to_device(np.zeros(CLUSTERS * n * WORDS, np.uint32))
            completed = cuda.to_device(np.zeros(CLUSTERS * n, np.int32))
            multicast_kernel(n, bulk)[CLUSTERS * n, THREADS](
                x_map, flat, issuer, mask, images, completed
            )
            found = images.copy_to_host().reshape(CLUSTERS, n, WORDS)
            ready = completed.copy_to_host().reshape(CLUSTERS, n)
            for cluster in range(CLUSTERS):
                rows = x[cluster * 8 : cluster * 8 + 8]
                image = tma.reference_tile(rows, TILE, (0, 0)).view(np.uint32)
                if bulk:
                    image = rows.reshape(-1)
                for rank in range(n):
                    receives = mask >> rank & 1
                    what = f"rank {rank} of mask {mask:#b}, issued by {issuer}"
                    assert ready[cluster, rank] == receives, what
                    expected = image if receives else np.full(WORDS, CANARY, np.uint32)
                    np.testing.assert_array_equal(found[cluster, rank], expected, what)


@functools.cache
def partitioned_kernel(n, groups, tile, rows):
    """Return a kernel in which the blocks of each group of a cluster load one tile together."""
    size = n // groups
    words, slice_rows = tile.nbytes // 4, rows // size

    @cuda.jit
    @tma.cluster(n)
    def partitioned(x, images, completed):
        whole, barrier = tma.shared_tile(tile), tma.shared_barrier()
        block, thread = cuda.blockIdx.x, cuda.threadIdx.x
        rank = block % n
        group = rank // size
        for i in range(thread, words, THREADS):
            ptx.st_shared_u32(whole.address + 4 * i, CANARY)
        tma.fence_proxy_async()
        if thread == 0:
            barrier.init(1)
            tma.fence_mbarrier_init()
            barrier.arrive_expect_tx(tile.nbytes)
        cuda.syncthreads()
        ptx.barrier_cluster_arrive()
        ptx.barrier_cluster_wait()
        if thread == 0:
            coords = ((block // size) * rows, 0)
            if groups == 1:
                tma.load_partitioned(x, whole, coords, barrier, rank)
            else:
                mask = ((1 << size) - 1) << (group * size)
                tma.load_partitioned(x, whole, coords, barrier, rank % size, multicast=mask)
            for _ in range(TRIES):
                if barrier.test_wait(0):
                    completed[block] = 1
                    break
        cuda.syncthreads()
        for i in range(thread, words, THREADS):
            images[block * words + i] = ptx.ld_shared_u32(whole.address + 4 * i)
        ptx.barrier_cluster_arrive()  # nobody ends while a neighbour may still write here
        ptx.barrier_cluster_wait()

    return partitioned, slice_rows


@pytest.mark.parametrize("swizzle", [tma.Swizzle.NONE, tma.Swizzle.B128])
@pytest.mark.parametrize(("n", "groups"), [(2, 1), (4, 1), (8, 1), (4, 2), (8, 2), (8, 4)])
@on_gpu
def test_blocks_load_a_tile_together(n, groups, swizzle):
    size = n // groups
    rows, blocks = 8 * size, CLUSTERS * n
    tile = tma.Tile((rows, 32), "u32", swizzle)
    kernel, slice_rows = partitioned_kernel(n, groups, tile, rows)
    shape = (blocks // size * rows, 32)
    x = np.random.default_rng(n).integers(0, 2**32, shape, np.uint32)
    x_map = tma.tensor_map(cuda.to_device(x), tma.Tile((slice_rows, 32), "u32", swizzle))
    images = cuda.to_device(np.zeros(blocks * tile.nbytes // 4, np.uint32))
    completed = cuda.to_device(np.zeros(blocks, np.int32))
    kernel[blocks, THREADS](x_map, images, completed)
    assert completed.copy_to_host().all()
    for block, image in enumerate(images.copy_to_host().reshape(blocks, -1)):
        expected = tma.reference_tile(x, tile, (block // size * rows, 0)).view(np.uint32)
        np.testing.assert_array_equal(image, expected, f"block {block}")
