"""Prefetches of tiles and bytes to L2 run, and do not change later copies."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from tests.gpu.copies import TRIES
from tests.gpu.worker import on_gpu

BYTES = tma.Tile(1024, "u8")


@cuda.jit
def prefetch_and_load(x_map, coords, x, out):
    """Prefetch a box and some bytes, with and without a hint; then load the bytes."""
    tile, barrier = tma.shared_tile(BYTES), tma.shared_barrier()
    hint = ptx.createpolicy_evict_last()
    x_map.prefetch()
    x_map.prefetch_tile(coords)
    x_map.prefetch_tile(coords, cache_hint=hint)
    ptx.cp_async_bulk_prefetch(x, BYTES.nbytes)
    ptx.cp_async_bulk_prefetch(x, 16, tma.CachePolicy.EVICT_FIRST)
    barrier.init(1)
    tma.fence_mbarrier_init()
    barrier.arrive_expect_tx(BYTES.nbytes)
    ptx.cp_async_bulk_load(tile, x, BYTES.nbytes, barrier)
    for _ in range(TRIES):
        if barrier.test_wait(0):
            for i in range(BYTES.size):
                out[i] = tile[i]
            break


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@on_gpu
def test_prefetches(rank):
    shape = (2,) * (rank - 1) + (1024 // 2 ** (rank - 1),)
    x = np.random.default_rng(rank).integers(0, 256, shape, np.uint8)
    tile = tma.Tile((1,) * (rank - 1) + (16,), "u8")
    for coords in ((0,) * rank, (-5,) * (rank - 1) + (-16,), (9,) * (rank - 1) + (1024,)):
        device, out = cuda.to_device(x), cuda.to_device(np.zeros(1024, np.uint8))
        flat = device.reshape(1024)
        prefetch_and_load[1, 1](tma.tensor_map(device, tile), coords, flat, out)
        np.testing.assert_array_equal(out.copy_to_host(), x.reshape(-1))
        np.testing.assert_array_equal(device.copy_to_host(), x)
