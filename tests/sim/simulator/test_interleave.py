"""Interleaved maps in the simulator."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim

TILE = tma.Tile((1, 1, 2, 8, 4), "f32")


def copy_tile(x, y, coords):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    barrier.init(1)
    tma.fence_mbarrier_init()
    barrier.arrive_expect_tx(TILE.nbytes)
    x.load(tile, coords, barrier)
    barrier.wait(0)
    y.store(tile, coords)
    tma.ptx.cp_async_bulk_commit_group()
    tma.ptx.cp_async_bulk_wait_group(0)


def maps():
    x = np.arange(2 * 3 * 5 * 9 * 4, dtype=np.float32).reshape(2, 3, 5, 9, 4)
    y = np.zeros_like(x)
    return x, y, [tma.tensor_map(a, TILE, interleave=16) for a in (x, y)]


def test_a_tile_of_slices_is_copied_and_clipped():
    x, y, both = maps()
    cuda.jit(copy_tile)[1, 1](*both, (1, 2, 4, 3))
    expected = np.zeros_like(x)
    expected[1, 2, 4:, 3:] = x[1, 2, 4:, 3:]
    np.testing.assert_array_equal(y, expected)


def test_a_copy_takes_whole_slices():
    _, _, both = maps()
    with pytest.raises(sim.BadOperand, match="5 coordinates for .* but for the last: copies take"):
        cuda.jit(copy_tile)[1, 1](*both, (1, 2, 4, 3, 0))
