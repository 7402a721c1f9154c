"""Matrices in tensor memory in the simulator: what is stored is loaded; errors."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from tests.kernels.tensor_kernels import packed, round_trip

RNG = np.random.default_rng(0)


def test_rows_go_to_their_lanes_and_return():
    x, y = RNG.standard_normal((2, 128, 2)).astype(np.float32)
    wide, narrow = np.zeros_like(x), np.zeros_like(y)
    round_trip[1, 128](x, y, wide, narrow)
    np.testing.assert_array_equal(wide, x)
    np.testing.assert_array_equal(narrow, y.astype(np.float16).astype(np.float32))


def test_two_16_bit_elements_of_an_operand_share_a_cell():
    x = RNG.standard_normal((128, 4)).astype(np.float32)
    out = np.zeros((128, 2), np.float32)
    packed[1, 128](x, out)
    expected = x.astype(ml_dtypes.bfloat16).view(np.float32)
    np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))


def fails(body):
    with pytest.raises(sim.SimulatorError) as caught:
        cuda.jit(body)[1, 128]()
    return str(caught.value)


TMEM = tma.TensorMemory(64)


def test_tiles_that_share_columns():
    def body():
        tmem = TMEM.start()
        tmem.tile(128, 32)
        tmem.tile(128, 32, "f32", 16)

    assert "share columns 16 to 31 of TensorMemory(64)" in fails(body)


def test_columns_that_are_not_freed():
    def body():
        TMEM.start()

    assert "tcgen05_dealloc" in fails(body)
