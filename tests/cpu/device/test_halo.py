"""Halo tiles: their boxes, what is refused, and what a compiled kernel costs."""

import re

import numpy as np
import pytest
from numba import types
from numba.core.errors import TypingError

import numba_tma as tma
from numba_tma.tools import testing
from tests.kernels.halo_kernels import LINE, PLANE, SLICE, line_kernel, plane_kernel, slice_kernel

INT = types.int32


@pytest.mark.parametrize("dtype", ["u8", "f16", "f32", "f64"])
@pytest.mark.parametrize("radius", [0, 1, 2, 5, 8])
def test_the_box_has_all_neighbours_and_aligned_rows(dtype, radius):
    for shape in (7, (3, 20), (1, 5, 64)):
        halo = tma.Halo(shape, dtype, radius)
        box, origin = halo.tile.shape, halo.origin
        for own, extent, first in zip(halo.shape, box, origin):
            assert first >= radius and extent - first - own >= radius
        assert box[:-1] == tuple(n + 2 * radius for n in halo.shape[:-1])
        itemsize = halo.dtype.itemsize
        assert origin[-1] * itemsize % 16 == 0 and origin[-1] * itemsize < radius * itemsize + 16
        assert halo.tile.shape[-1] * itemsize % 16 == 0
        assert (box[-1] - origin[-1] - halo.shape[-1] - radius) * itemsize < 16


def test_a_radius_for_each_axis():
    halo = tma.Halo((1, 4, 8), np.float32, (0, 1, 2))
    assert halo.tile == tma.Tile((1, 6, 16), "f32") and halo.origin == (0, 1, 4)
    assert halo.interior == tma.Tile((1, 4, 8), "f32")
    assert repr(halo) == "Halo((1, 4, 8), f32, (0, 1, 2))"
    assert halo == tma.Halo((1, 4, 8), "f32", [0, 1, 2])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (((4, 8), "f32", -1), "radius=-1): a radius is a number of elements, 0 or more"),
        (((4, 8), "f32", 1.5), "radius=1.5): a radius is a number of elements"),
        (((4, 8), "f32", (1, True)), "radius=(1, True)): a radius is a number"),
        (((4, 8), "f32", (1,)), "1 radii for a tile of 2 axes, (4, 8)"),
        (((4, 32), "e2m1", 1), "kernels read neighbours one by one"),
    ],
)
def test_halos_that_are_refused(arguments, expected):
    with pytest.raises(ValueError, match=re.escape(expected)):
        tma.Halo(*arguments)


@pytest.mark.parametrize("modes", [("edge", "zero"), ["edge"], "edge"])
def test_boundaries_of_axes_are_modes_or_none(modes):
    with pytest.raises(ValueError, match="modes is a tuple with one of 'edge', 'reflect', 'symm"):
        tma.Boundaries(modes)
    assert tma.Boundaries(("wrap", None)).modes == ("wrap", None)


def signature(halo, *others):
    return (tma.map_type(halo.tile), *others)


def test_no_kernel_needs_local_memory():
    plane = signature(PLANE, types.float32[:, :], types.float32[:, :], INT, INT)
    for kernel, of in (
        (line_kernel("reflect"), signature(LINE, types.float64[:], INT)),
        (plane_kernel("wrap", True), plane),
        (slice_kernel("edge"), signature(SLICE, types.float16[:, :, :], INT, INT, INT)),
    ):
        found = testing.inspect(kernel, of, 96)
        assert found.report.stack_frame == found.report.spill_stores == 0


@pytest.mark.parametrize(
    ("boundary", "source", "expected"),
    [
        ("mirror", True, "boundary='mirror': use one of 'edge', 'reflect', 'symmetric', 'wrap'"),
        ("wrap", False, "give the array as source="),
    ],
)
def test_boundaries_that_are_refused(boundary, source, expected):
    plane = signature(PLANE, types.float32[:, :], types.float32[:, :], INT, INT)
    with pytest.raises(TypingError, match=re.escape(expected)):
        testing.compile_ptx(plane_kernel(boundary, source), plane)


def test_another_tile_is_no_box():
    other = tma.Tile((4, 16), "f32")

    def kernel():
        PLANE.inner(tma.shared_tile(other))

    with pytest.raises(TypingError, match=r"takes a shared tile of Tile\(\(8, 16\), f32"):
        testing.compile_ptx(kernel, ())
