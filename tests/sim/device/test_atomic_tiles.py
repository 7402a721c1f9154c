"""Atomic operations on elements of simulated tiles: values, orders, races, and fences."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator
from tests.kernels.atomic_tiles import (
    CASES,
    change_by,
    changing,
    check_exchange,
    check_lock,
    check_operation,
    tile_of,
)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_every_operation(name, dtype):
    check_operation(name, dtype)


@pytest.mark.parametrize("seed", range(4))
def test_exchanges_and_locks_in_several_orders(seed):
    simulator.seed(seed)
    check_exchange()
    check_lock()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("held[0, 0] = 1", "cuda.atomic.add(held, (0, 0), 1)"),
        ("values[thread] = held[0, 0]", "cuda.atomic.add(held, (0, 0), 1)"),
        ("cuda.atomic.max(held, (0, 0), 1)", "held[0, 0] = 2"),
    ],
)
def test_an_atomic_does_not_order_plain_accesses(before, after):
    text = f"if thread == 0:\n        {before}\n    elif thread == 33:\n        {after}"
    tile = tile_of("f32")
    x = np.zeros(tile.shape, np.float32)
    maps = [tma.tensor_map(array, tile) for array in (x, x.copy())]
    with pytest.raises(simulator.DataRace):
        changing(tile, change_by(text))[1, 64](*maps, np.zeros(64, "f4"))


def test_an_atomic_is_fenced_before_the_copy_engine_reads():
    tile = tile_of("f32")
    x, y = (np.zeros(tile.shape, np.float32) for _ in range(2))

    @cuda.jit
    def kernel(x, y):
        held = tma.shared_tile(tile)
        for index in held.indices(cuda.threadIdx.x, 32):
            held[index] = 1
        tma.fence_proxy_async()
        cuda.syncthreads()
        cuda.atomic.add(held, (3, 5), 1)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            y.store(held, (0, 0))
            tma.ptx.cp_async_bulk_commit_group()
            tma.ptx.cp_async_bulk_wait_group(0)

    with pytest.raises(simulator.MissingFence):
        kernel[1, 32](*(tma.tensor_map(array, tile) for array in (x, y)))


def test_values_become_elements():
    tile = tile_of("i32")
    x = np.zeros(tile.shape, np.int32)
    y = np.zeros_like(x)

    @cuda.jit(device=True)
    def change(held, i, j, values, thread):
        if thread == 0:
            cuda.atomic.add(held, (0, 0), -1.5)
            cuda.atomic.add(held, (0, 1), 2**31 - 1)
            cuda.atomic.add(held, (0, 1), 1)

    changing(tile, change)[1, 64](tma.tensor_map(x, tile), tma.tensor_map(y, tile), np.zeros(1))
    assert y[0, :2].tolist() == [-1, -(2**31)]
