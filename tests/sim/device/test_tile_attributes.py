"""Attributes of tiles and maps in simulated kernels."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from tests.kernels.tile_attributes import TILES, expected, reading


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles_and_maps_have_the_attributes_of_arrays(tile):
    x = np.zeros(tile.shape, tile.dtype.numpy)
    numbers, one = expected(tile)
    out, result = np.zeros_like(numbers), np.zeros_like(one)
    made = tma.tensor_map(x, tile)
    reading(tile)[1, 1](made, out, result)
    np.testing.assert_array_equal(out, numbers)
    assert result == one and result.dtype == made.dtype.held
    assert made.dtype is tile.dtype and made.ndim == made.rank  # on the host


@pytest.mark.parametrize("name", ["shape", "box", "strides"])
def test_the_array_of_a_map_is_known_to_the_host_alone(name):
    made = tma.tensor_map(np.zeros((8, 32), np.float32), (8, 32))
    names = {"cuda": cuda}
    exec(f"def kernel(x, out):\n    out[0] = x.{name}[0]", names)
    with pytest.raises(AttributeError, match=rf"TensorMap.{name} is for the host: read it before"):
        cuda.jit(names["kernel"])[1, 1](made, np.zeros(1, np.int64))


def test_packed_tiles_have_no_type_of_elements():
    tile = tma.Tile((8, 128), "e2m1")

    @cuda.jit
    def kernel(out):
        out[0] = tma.shared_tile(tile).dtype.itemsize

    with pytest.raises(TypeError, match="kernels hold no element of e2m1, which has 4 bits"):
        kernel[1, 1](np.zeros(1, np.int64))
