"""Halo tiles in simulated kernels, against NumPy's padded arrays."""

import re
from pathlib import Path

import numpy as np
import pytest

import numba_tma as tma
from numba_tma.device.halo import BOUNDARIES, Boundaries, check_boundary
from numba_tma.simulator import BadOperand
from tests.kernels.halo_kernels import LINE, PLANE, SLICE, line_kernel, plane_kernel, slice_kernel


def drawn(shape, dtype):
    return np.random.default_rng(sum(shape)).integers(0, 8, shape).astype(dtype)


@pytest.mark.parametrize("boundary", [None, "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("n", [2, 24, 66])
def test_neighbours_on_a_line(n, boundary):
    x, y = drawn((n,), "f8"), np.full(n, np.nan)
    line_kernel(boundary)[2, 64](tma.tensor_map(x, LINE.tile), y, n)
    padded = np.pad(x, 3, boundary or "constant")
    np.testing.assert_array_equal(y, padded[:n] + 10 * x + 100 * padded[6:])


@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_beyond_the_edges():
    x, y = drawn((24,), "f8"), np.zeros(24)
    line_kernel(None)[1, 64](tma.tensor_map(x, LINE.tile, oob_fill="nan"), y, 24)
    assert np.isnan(y).tolist() == [True] * 3 + [False] * 18 + [True] * 3


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("shape", [(9, 20), (1, 4), (2, 36), (8, 8)])
def test_neighbours_in_a_plane(shape, boundary):
    """Corners, arrays that are shorter than the radius, and tiles of which most is outside."""
    x = drawn(shape, "f4")
    rows, columns = shape
    p = np.pad(x, 2, boundary)
    expected = p[:rows, 2:-2] + 10 * p[4:, 2:-2] + 100 * p[2:-2, :columns]
    expected = expected + 1000 * p[2:-2, 4:] + 0.5 * p[1 : rows + 1, 3 : columns + 3]
    for from_source in (True,) if boundary == "wrap" else (True, False):
        y = np.full_like(x, np.nan)
        x_map = tma.tensor_map(x, PLANE.tile)
        plane_kernel(boundary, from_source)[2, 64](x_map, y, x, *shape)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("boundary", ["edge", "symmetric"])
def test_neighbours_of_streamed_planes(boundary):
    shape = (3, 6, 24)
    x, y = drawn(shape, "f2"), np.full(shape, np.nan, np.float16)
    slice_kernel(boundary)[(2, 2), 96](tma.tensor_map(x, SLICE.tile), y, *shape)
    p = np.pad(x, 1, boundary)
    inner = slice(1, -1)
    expected = p[:-2, inner, inner] + 2 * p[2:, inner, inner] + 4 * p[inner, :-2, inner]
    expected += 8 * p[inner, 2:, inner] + 16 * p[inner, inner, :-2] + 32 * p[inner, inner, 2:]
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_padded_index_is_that_of_numpy(boundary):
    for n in (1, 2, 3, 7):
        padded = np.pad(np.arange(n), 20, boundary)
        found = [tma.padded_index(boundary, i, n) for i in range(-20, n + 20)]
        assert found == padded.tolist()


def test_a_boundary_that_does_not_exist():
    x = drawn((8, 8), "f4")
    for boundary, source, expected in (
        ("mirror", True, r"boundary='mirror': use one of 'edge', 'reflect', 'symmetric', 'wrap'"),
        ("wrap", False, r"fill\(boundary='wrap'\): .* give the array as source="),
    ):
        with pytest.raises(BadOperand, match=expected):
            kernel = plane_kernel(boundary, source)
            kernel[1, 64](tma.tensor_map(x, PLANE.tile), x.copy(), x, 8, 8)


def test_a_boundary_for_each_axis_has_all_axes():
    with pytest.raises(BadOperand, match="1 boundaries for the 2 axes of Halo"):
        check_boundary(PLANE, Boundaries(("edge",)), None)
    with pytest.raises(BadOperand, match="give the array as source="):
        check_boundary(PLANE, Boundaries((None, "wrap")), None)


def test_the_example_of_the_page():
    page = (Path(__file__).parents[3] / "docs/guide/stencils.md").read_text()
    names: dict = {}
    exec(re.search(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1], names)
    x = drawn((20, 68), "f4")
    y, p = np.full_like(x, np.nan), np.pad(x, 1)
    names["laplace"][2, 64](tma.tensor_map(x, names["HALO"].tile), y, *x.shape)
    around = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]
    np.testing.assert_array_equal(y, around - 4 * x)
