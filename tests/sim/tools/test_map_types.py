"""numba_tma.map_type in the simulator: what stands for the compiler's types."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma

TILE = tma.Tile((8, 32), "f32")


@pytest.mark.parametrize("given", [(TILE,), (np.zeros((16, 64), np.float32), TILE)])
def test_a_signature_with_it_is_taken(given):
    described = tma.map_type(*given)
    assert (described.rank, described.tile) == (2, TILE)

    @cuda.jit((described,))
    def kernel(x):
        x.prefetch()

    kernel[1, 32](tma.tensor_map(np.zeros((16, 64), np.float32), TILE))


def test_a_map_has_its_type():
    tensor_map = tma.tensor_map(np.zeros((16, 64), np.float32), TILE)
    assert tma.map_type(tensor_map) == tma.map_type(np.zeros((16, 64), np.float32), TILE)
