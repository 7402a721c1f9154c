"""`padded_empty` in the simulator: arrays that maps take, stored to whole and loaded back."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.uint8])
@pytest.mark.parametrize("of_numpy", [False, True])
def test_a_padded_array_is_stored_and_loaded(dtype, of_numpy):
    tile = tma.Tile((8, 16), dtype)
    x, y = (
        tma.padded_empty((8, 13), dtype, like=np.zeros(1) if of_numpy else None) for _ in range(2)
    )
    assert isinstance(x, np.ndarray) is of_numpy

    @cuda.jit
    def kernel(x, y):
        held, full = tma.shared_tile(tile), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
            full.arrive_expect_tx(tile.nbytes)
            x.load(held, (0, 0), full)
            full.wait(0)
            y.store(held, (0, 0))
            tma.ptx.cp_async_bulk_commit_group()
            tma.ptx.cp_async_bulk_wait_group(0)

    values = np.arange(8 * 13).reshape(8, 13).astype(dtype)
    x[:] = values
    kernel[1, 32](tma.tensor_map(x, tile), tma.tensor_map(y, tile, overwrite_padding=True))
    np.testing.assert_array_equal(np.asarray(getattr(y, "_ary", y)), values)
