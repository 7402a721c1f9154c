"""The simulator refuses each wrong kernel of the table, with the compiler's sentence."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from tests.mutants.refused import REFUSED, TILE, loader


def launch(kernel, block=64, tiles=4):
    x = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)
    y = np.zeros_like(x)
    kernel[1, block](tma.tensor_map(x, TILE), y, tiles)
    return x, y


@pytest.mark.parametrize("wrong", REFUSED, ids=repr)
def test_the_simulator_refuses(wrong):
    with pytest.raises(Exception) as caught:
        launch(wrong.build(), wrong.threads)
    assert wrong.simulated in str(caught.value)


def test_what_is_wrong_in_those_kernels_is_all_that_is_wrong():
    copied = loader(consumer="y[t * 4, cuda.threadIdx.x] = stage.x[0, cuda.threadIdx.x]")
    x, y = launch(copied)
    assert np.array_equal(y[::4], x[::4])


@pytest.mark.parametrize(
    ("backwards", "tiles"), [("(n - 1, -1, -1)", [3, 2, 1, 0]), ("(n - 1, 0, -2)", [3, 1])]
)
def test_loops_run_backwards(backwards, tiles):
    kernel = loader(
        loop=f"pipe.produce{backwards}",
        consume=f"pipe.consume{backwards}",
        consumer="y[t * 4, cuda.threadIdx.x] = stage.x[0, cuda.threadIdx.x]",
    )
    x, y = launch(kernel)
    rows = [4 * tile for tile in tiles]
    assert np.array_equal(y[rows], x[rows]) and np.count_nonzero(y.any(axis=1)) == len(rows)


@pytest.mark.parametrize("block", [2048, (32, 64), (64, 32)])
def test_a_block_has_at_most_1024_threads(block):
    with pytest.raises(ValueError, match=r"has 2,048 threads; a block has at most 1,024"):
        launch(loader(), block)


def test_a_signature_of_maps_is_accepted():
    @cuda.jit((tma.TensorMapType(2, TILE),))
    def kernel(x):
        x.prefetch()

    kernel[1, 32](tma.tensor_map(np.zeros((4, 32), np.float32), TILE))


def test_the_host_uses_what_kernels_may_not():
    x_map = tma.tensor_map(np.zeros((8, 32), np.float32), TILE)
    assert x_map.shape == (8, 32) and TILE.offset(1, 0) == 128 and x_map.array.shape == (8, 32)


@cuda.jit(device=True)
def makes_a_tile():
    return tma.Tile((4, 32), "f32")


def test_device_functions_see_what_kernels_see():
    @cuda.jit
    def kernel():
        makes_a_tile()

    with pytest.raises(TypeError, match=r"Tile\(...\) is for the host"):
        kernel[1, 1]()
