"""Halo tiles on the GPU, against NumPy's padded arrays."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.device.halo import BOUNDARIES
from tests.gpu.worker import on_gpu
from tests.kernels.halo_kernels import PLANE, SLICE, plane_kernel, slice_kernel


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("shape", [(9, 20), (1, 4), (2, 36), (301, 404)])
@on_gpu
def test_neighbours_in_a_plane(shape, boundary):
    x = np.random.default_rng(0).integers(0, 8, shape).astype(np.float32)
    (rows, columns), p = shape, np.pad(x, 2, boundary)
    expected = p[:rows, 2:-2] + 10 * p[4:, 2:-2] + 100 * p[2:-2, :columns]
    expected = expected + 1000 * p[2:-2, 4:] + 0.5 * p[1 : rows + 1, 3 : columns + 3]
    source = cuda.to_device(x)
    for from_source in (True,) if boundary == "wrap" else (True, False):
        y = cuda.to_device(np.full_like(x, np.nan))
        x_map = tma.tensor_map(source, PLANE.tile)
        plane_kernel(boundary, from_source)[50, 160](x_map, y, source, *shape)
        np.testing.assert_array_equal(y.copy_to_host(), expected)


@pytest.mark.parametrize("boundary", ["edge", "reflect", "symmetric"])
@on_gpu
def test_neighbours_of_streamed_planes(boundary):
    shape = (37, 22, 104)
    x = np.random.default_rng(1).integers(0, 8, shape).astype(np.float16)
    y = cuda.to_device(np.full_like(x, np.nan))
    x_map = tma.tensor_map(cuda.to_device(x), SLICE.tile)
    slice_kernel(boundary)[(7, 6), 160](x_map, y, *shape)
    p, inner = np.pad(x, 1, boundary), slice(1, -1)
    expected = p[:-2, inner, inner] + 2 * p[2:, inner, inner] + 4 * p[inner, :-2, inner]
    expected += 8 * p[inner, 2:, inner] + 16 * p[inner, inner, :-2] + 32 * p[inner, inner, 2:]
    np.testing.assert_array_equal(y.copy_to_host(), expected)
