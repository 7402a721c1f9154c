"""Loops over a tile's elements on the GPU, and the launches that `suggest_launch` suggests."""

import functools
import math

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.tools.bench import readme
from tests.gpu.worker import on_gpu

NONE, B64, B128 = tma.Swizzle.NONE, tma.Swizzle.B64, tma.Swizzle.B128


@functools.cache
def doubling(shape, swizzle, dtype, vectors, debug):
    TILE = tma.Tile(shape, dtype, swizzle)
    PIPE = tma.TilePipeline(3, x=TILE, debug=debug)
    ROWS, OTHERS = shape[0], (0,) * (len(shape) - 1)

    @cuda.jit
    def by_elements(x, y, factor, num_tiles):
        pipe = PIPE.start()
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        if pipe.is_producer():
            for tile, stage in pipe.produce(first, num_tiles, step):
                x.load(stage.x, (tile * ROWS,) + OTHERS, stage.barrier)  # noqa: RUF005
        else:
            for tile, stage in pipe.consume(first, num_tiles, step):
                for index in pipe.indices(stage.x):
                    stage.x[index] *= factor
                pipe.store(y, stage.x, (tile * ROWS,) + OTHERS)  # noqa: RUF005

    @cuda.jit
    def by_vectors(x, y, factor, num_tiles):
        pipe = PIPE.start()
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        if pipe.is_producer():
            for tile, stage in pipe.produce(first, num_tiles, step):
                x.load(stage.x, (tile * ROWS,) + OTHERS, stage.barrier)  # noqa: RUF005
        else:
            for tile, stage in pipe.consume(first, num_tiles, step):
                for index in pipe.vectors(stage.x):
                    stage.x.write_vector(index, stage.x.read_vector(index) * factor)
                pipe.store(y, stage.x, (tile * ROWS,) + OTHERS)  # noqa: RUF005

    return (by_vectors if vectors else by_elements), TILE


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize(
    ("shape", "swizzle", "dtype"),
    [
        ((8,), NONE, "f32"),  # fewer elements than threads
        ((256,), NONE, "f32"),
        ((40, 100), NONE, "f32"),  # rows of no power of 2
        ((64, 32), B128, "f32"),
        ((16, 8), B64, "f32"),  # padded rows
        ((16, 96), B128, "f16"),  # two slabs, the last one padded
        ((4, 6, 32), NONE, "f32"),
        ((2, 3, 4, 8), NONE, "f16"),
        ((2, 2, 3, 4, 8), NONE, "f32"),
    ],
)
@on_gpu
def test_each_element_is_worked_on_once(shape, swizzle, dtype, vectors):
    kernel, tile = doubling(shape, swizzle, dtype, vectors, False)
    tiles = 7
    clipped = 4 if len(shape) == 1 else 1  # TMA stores whole chunks of 16 B
    rows = tiles * shape[0] - clipped * (shape[0] > 1)
    count = rows * math.prod(shape[1:])
    host = (np.arange(count) % 1000).reshape(rows, *shape[1:]).astype(tile.dtype.numpy)
    source = cuda.to_device(host)
    for blocks, threads in ((1, 64), (3, 160), (2, 544), (2, 1024)):
        out = cuda.to_device(np.zeros_like(host))
        maps = tma.tensor_map(source, tile), tma.tensor_map(out, tile)
        kernel[blocks, threads](*maps, np.float32(2), tiles)
        np.testing.assert_array_equal(out.copy_to_host(), 2 * host)


@on_gpu
def test_debug_mode_has_the_same_elements():
    kernel, tile = doubling((40, 100), NONE, "f32", False, True)
    host = np.arange(4000 * 3, dtype=np.float32).reshape(120, 100)
    out = cuda.to_device(np.zeros_like(host))
    maps = tma.tensor_map(cuda.to_device(host), tile), tma.tensor_map(out, tile)
    kernel[2, 160](*maps, np.float32(2), 3)
    np.testing.assert_array_equal(out.copy_to_host(), 2 * host)


@pytest.mark.parametrize("form", readme.FORMS)
@on_gpu
def test_the_readme_s_kernel_with_the_suggested_launch(form):
    kernel = readme.FORMS[form]
    host = np.random.default_rng(0).random((64 * 1000 - 17, 128), np.float32)
    out = cuda.to_device(np.zeros_like(host))
    maps = tma.tensor_map(cuda.to_device(host), readme.TILE), tma.tensor_map(out, readme.TILE)
    arguments = (*maps, np.float32(2), 1000)
    advice = tma.suggest_launch(kernel, arguments)
    sms = cuda.get_current_device().MULTIPROCESSOR_COUNT
    assert (advice.grid, advice.block) == (sms, 544), advice
    assert len(kernel.overloads) == 1  # compiled, by the suggestion
    kernel[advice.grid, advice.block](*arguments)
    assert len(kernel.overloads) == 1
    np.testing.assert_array_equal(out.copy_to_host(), 2 * host)


@on_gpu
def test_the_suggested_grid_is_what_the_driver_says_fits():
    kernel, tile = doubling((64, 128), NONE, "f32", False, False)
    x = cuda.to_device(np.zeros((640, 128), np.float32))
    arguments = (tma.tensor_map(x, tile), tma.tensor_map(x, tile), np.float32(2), 10)
    advice = tma.suggest_launch(kernel, arguments)
    (compiled,) = kernel.overloads.values()
    function = compiled._codelibrary.get_cufunc()
    context = cuda.current_context()
    each = context.get_active_blocks_per_multiprocessor(function, advice.block, 0)
    assert advice.grid == each * cuda.get_current_device().MULTIPROCESSOR_COUNT, advice
