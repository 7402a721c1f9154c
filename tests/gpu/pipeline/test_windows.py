"""Windows on the GPU: each tile has its neighbours, while the producer runs ahead."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from tests.gpu.worker import on_gpu
from tests.kernels.window_kernels import (
    COLUMNS,
    PLANE,
    ROWS,
    TILE,
    WIDTH,
    expected_sums,
    passed_on,
    stencil,
    window_sums,
)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(
    ("before", "after", "stages"),
    [(0, 0, 1), (0, 0, 3), (1, 1, 3), (1, 1, 4), (2, 2, 5), (2, 2, 8), (3, 0, 5), (0, 1, 2)],
)
@on_gpu
def test_each_tile_has_its_neighbours(before, after, stages, backwards):
    x = np.random.default_rng(0).integers(1, 9, (300, COLUMNS)).astype(np.float32)
    chunks = [(0, 0), (5, 6), (7, 9), (0, 300), (40, 30), (100, 117), (1, 4)]
    for warps in (1, 4):
        ROLES, kernel = window_sums(before, after, stages, backwards, warps)
        y, order = cuda.to_device(np.zeros_like(x)), cuda.to_device(np.full(400, -1))
        kernel[1, ROLES.threads](
            tma.tensor_map(cuda.to_device(x), TILE), y, order, cuda.to_device(np.array(chunks))
        )
        np.testing.assert_array_equal(y.copy_to_host(), expected_sums(x, before, after, chunks))


@pytest.mark.parametrize("stages", [3, 4, 8])
@pytest.mark.parametrize("by_hand", [False, True])
@on_gpu
def test_a_stencil_of_planes(by_hand, stages):
    down, across, planes = 4, 3, 40
    shape = planes, down * ROWS, across * WIDTH
    x = np.random.default_rng(1).integers(-9, 9, shape).astype(np.float32)
    y, sides = cuda.to_device(np.full_like(x, np.nan)), np.pad(x, 1)
    ROLES, kernel = stencil(by_hand, stages)
    x_map = tma.tensor_map(cuda.to_device(x), PLANE)
    kernel[(across, down), ROLES.threads](x_map, y, 0, planes)
    around = sides[:-2, 1:-1, 1:-1] + sides[2:, 1:-1, 1:-1] + sides[1:-1, :-2, 1:-1]
    around += sides[1:-1, 2:, 1:-1] + sides[1:-1, 1:-1, :-2] + sides[1:-1, 1:-1, 2:]
    np.testing.assert_array_equal(y.copy_to_host(), around - 6 * x)


@pytest.mark.parametrize("stages", [3, 4, 7])
@on_gpu
def test_variables_pass_stages_on(stages):
    x = np.random.default_rng(2).integers(1, 9, (300, COLUMNS)).astype(np.float32)
    y = cuda.to_device(np.zeros_like(x))
    passed_on(stages)[1, 96](tma.tensor_map(cuda.to_device(x), TILE), y, 300)
    np.testing.assert_array_equal(y.copy_to_host()[1:-1], x[:-2] + x[1:-1] + x[2:])
