"""`suggest_launch` in the simulator: from the pipelines among a kernel's globals."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.tools.bench import readme

TILE = tma.Tile((8, 32), "f32")
ROLES = tma.Roles(math=tma.Warps(4), load=tma.Warps(1))
BY_ROLES = tma.TilePipeline(2, x=TILE, producer=ROLES.load, consumer=ROLES.math)
RING = tma.CircularBuffer(3, x=tma.Tile((256, 64), "f32"))


def test_a_pipeline_without_roles():
    advice = tma.suggest_launch(readme.scale, (None, None, None, None))
    assert (advice.grid, advice.block) == (2, 544)
    assert "shared memory (131,152 B a block)" in repr(advice)


@tma.cluster((2, 1))
def paired(x):
    BY_ROLES.start()


def test_roles_and_a_cluster():
    advice = tma.suggest_launch(cuda.jit(paired), (None,))
    assert advice.block == ROLES.threads and advice.grid % 2 == 0


def test_a_ring_of_the_whole_block():
    @cuda.jit
    def kernel(x):
        RING.start()

    advice = tma.suggest_launch(kernel, (None,))
    assert (advice.grid, advice.block) == (2, 512)


PIPE = tma.TilePipeline(7, x=TILE)


@cuda.jit
def double(x, y, n_tiles):
    pipe = PIPE.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(cuda.blockIdx.x, n_tiles, cuda.gridDim.x):
            x.load(stage.x, (tile * 8, 0), stage.barrier)
    else:
        for tile, stage in pipe.consume(cuda.blockIdx.x, n_tiles, cuda.gridDim.x):
            for i, j in pipe.indices(stage.x):
                stage.x[i, j] *= np.float32(2)
            pipe.store(y, stage.x, (tile * 8, 0))


def test_the_suggestion_launches():
    x = np.arange(60 * 32, dtype=np.float32).reshape(60, 32)
    y = np.zeros_like(x)
    arguments = tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), 8
    advice = tma.suggest_launch(double, arguments)
    double[advice.grid, advice.block](*arguments)
    np.testing.assert_array_equal(y, 2 * x)


def test_a_device_function_is_no_kernel():
    with pytest.raises(TypeError, match="is no kernel"):
        tma.suggest_launch(lambda: None, ())
