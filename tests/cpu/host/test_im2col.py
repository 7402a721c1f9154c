"""im2col maps: the convolution's arithmetic, the model of the copies, every rule, and kernels."""

import ctypes
import itertools
import re

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import driver
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, types

import numba_tma as tma
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.host import driver as _driver
from numba_tma.host import encoding as _encoding
from numba_tma.host import im2col
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.pixel_box import PixelBox, reference_im2col, reference_im2col_store
from numba_tma.tools.testing import compile_ptx, ptxas

ADDRESS = 0x7F00_0000_0000
few = settings(max_examples=60, deadline=None, derandomize=True, database=None)


# ------------------------------------------------------------------------------ the model


def im2col_matrix(x, filter, padding, stride, dilation):
    """Return the im2col matrix as NumPy makes it, (output pixels, *filter, channels)."""
    spatial = x.ndim - 2
    padded = np.pad(x, ((0, 0), *padding, (0, 0)))
    outputs = [
        (n - (f - 1) * d - 1) // s + 1
        for n, f, s, d in zip(padded.shape[1:-1], filter, stride, dilation)
    ]
    rows = []
    for image, *place in itertools.product(range(x.shape[0]), *map(range, outputs)):
        window = padded[image]
        for axis in range(spatial):
            start = place[axis] * stride[axis]
            picked = start + dilation[axis] * np.arange(filter[axis])
            window = np.take(window, picked, axis)
        rows.append(window)
    return np.array(rows), tuple(outputs)


@st.composite
def convolutions(draw):
    axes = draw(st.integers(1, 3))
    filter = tuple(draw(st.integers(1, 3)) for _ in range(axes))
    dilation = tuple(draw(st.integers(1, 3)) for _ in range(axes))
    padding = tuple((draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(axes))
    stride = tuple(draw(st.integers(1, 3)) for _ in range(axes))
    least = [max(1, (f - 1) * d + 1 - sum(p)) for f, d, p in zip(filter, dilation, padding)]
    extents = tuple(n + draw(st.integers(0, 4)) for n in least)
    shape = (draw(st.integers(1, 3)), *extents, draw(st.integers(1, 12)))
    return shape, filter, padding, stride, dilation


@few
@given(convolutions(), st.integers(1, 40), st.sampled_from(tma.Swizzle), st.data())
def test_the_tiles_of_all_filter_positions_are_the_im2col_matrix(problem, pixels, swizzle, data):
    shape, filter, padding, stride, dilation = problem
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    x = rng.integers(1, 1 << 15, shape, np.uint16)
    box = PixelBox.of_filter(filter, padding, stride, dilation)
    expected, outputs = im2col_matrix(x, filter, padding, stride, dilation)
    assert box.output_shape(shape[1:-1]) == outputs
    tile = tma.Tile((pixels, 8), "u16", swizzle)
    start = data.draw(st.integers(0, len(expected) - 1))
    image, *place = np.unravel_index(start, (shape[0], *outputs))
    base = [lo + s * p for lo, s, p in zip(box.lower, stride, place)]
    channel = 8 * data.draw(st.integers(0, 1))
    for position in itertools.product(*map(range, filter)):
        offsets = [p * d for p, d in zip(position, dilation)]
        shared = reference_im2col(x, tile, (image, *base, channel), offsets, box)
        wanted = np.zeros((pixels, 8), np.uint16)
        found = expected[(slice(start, start + pixels), *position, slice(channel, channel + 8))]
        wanted[: found.shape[0], : found.shape[1]] = found
        rows, columns = np.indices(tile.shape)
        np.testing.assert_array_equal(
            shared.view(np.uint16)[tile.offset(rows, columns) // 2], wanted
        )


def walked(*args, **kwargs):
    return reference_im2col(*args, **kwargs).view(np.float32).reshape(-1, 4)[:, 0].tolist()


def pixels_of(*shape):
    """Return a tensor of the shape with 4 channels, all of them the pixel's number from 1 on."""
    count = int(np.prod(shape))
    return np.repeat(np.arange(1, count + 1, dtype=np.float32), 4).reshape(*shape, 4)


def test_a_walk_goes_on_in_the_next_row_and_image_and_past_the_last():
    tile, box = tma.Tile((10, 4), "f32"), PixelBox((0, 0), (0, 0), (1, 1))
    x = pixels_of(2, 2, 2)
    assert walked(x, tile, (0, 0, 1, 0), (0, 0), box) == [2, 3, 4, 5, 6, 7, 8, 0, 0, 0]
    assert walked(x, tile, (1, 1, 1, 0), (0, 0), box)[:3] == [8, 0, 0]
    assert walked(x, tile, (2, 0, 0, 0), (0, 0), box) == [0] * 10
    assert walked(x, tile, (-1, 1, 1, 0), (0, 0), box)[:3] == [0, 1, 2]


def test_a_box_is_of_a_tensor_with_as_many_axes():
    box = PixelBox((0, 0), (0, 0), (1, 1))
    for n in (1, 3):
        with pytest.raises(ValueError, match="zip"):
            box.output_shape((8,) * n)
        with pytest.raises(ValueError, match="zip"):
            box.holds((8, 8), (0,) * n)
        with pytest.raises(ValueError, match="zip"):
            box.at_row((8, 8), (0,) * n)


def test_a_walk_turns_round_at_the_corners_of_the_box():
    tile, x = tma.Tile((9, 4), "f32"), pixels_of(1, 3, 3)
    box = PixelBox((-1, -1), (-1, -1), (1, 1))
    assert walked(x, tile, (0, -1, -1, 0), (0, 0), box) == [0, 0, 0, 0, 1, 2, 0, 4, 5]
    assert walked(x, tile, (0, -1, -1, 0), (2, 2), box) == [5, 6, 0, 8, 9, 0, 0, 0, 0]


def test_a_walk_steps_by_the_strides_and_begins_anew_at_the_lower_corner():
    tile, x = tma.Tile((5, 4), "f32"), pixels_of(1, 4, 5)
    box = PixelBox((0, 0), (0, 0), (2, 2))
    assert walked(x, tile, (0, 0, 0, 0), (0, 0), box) == [1, 3, 5, 11, 13]
    assert walked(x, tile, (0, 0, 1, 0), (0, 0), box) == [2, 4, 11, 13, 15]


def test_depth_turns_before_the_image():
    tile, box = tma.Tile((6, 4), "f32"), PixelBox((0, 0, 0), (0, 0, -1), (1, 1, 1))
    x = pixels_of(2, 2, 1, 2)
    assert walked(x, tile, (0, 0, 0, 0, 0), (0, 0, 0), box) == [1, 3, 5, 7, 0, 0]


def test_outside_is_filled_with_nan_where_asked():
    x = pixels_of(1, 1)
    box = PixelBox((-1,), (1,), (1,))
    image = reference_im2col(x, tma.Tile((3, 4), "f32"), (0, -1, 0), (0,), box, oob_fill="nan")
    assert np.isnan(image.view(np.float32)).tolist() == [True] * 4 + [False] * 4 + [True] * 4


@few
@given(convolutions(), st.integers(1, 20), st.data())
def test_a_store_writes_back_what_a_load_read(problem, pixels, data):
    shape, _, _, stride, _ = problem
    x = np.random.default_rng(1).integers(1, 1 << 15, shape, np.uint16)
    box = PixelBox((0,) * len(stride), (0,) * len(stride), stride)
    place = [s * data.draw(st.integers(0, (n - 1) // s)) for n, s in zip(shape[1:-1], stride)]
    coords = (data.draw(st.integers(0, shape[0] - 1)), *place, 0)
    tile = tma.Tile((pixels, 8), "u16")
    image = reference_im2col(x, tile, coords, (0,) * len(stride), box)
    y = np.zeros_like(x)
    reference_im2col_store(y, image, tile, coords, box)
    assert np.array_equal(reference_im2col(y, tile, coords, (0,) * len(stride), box), image)
    outputs = box.output_shape(shape[1:-1])
    left = np.prod((shape[0], *outputs)) - np.ravel_multi_index(
        (coords[0], *(p // s for p, s in zip(place, stride))), (shape[0], *outputs)
    )
    assert np.count_nonzero(y) == min(pixels, left) * min(8, shape[-1])


@pytest.mark.parametrize(
    ("coords", "offsets", "tile", "message"),
    [
        ((0, 3, 0, 0), (0, 0), (4, 4), r"the first pixel is \(3, 0\), outside of the box"),
        ((0, -1, 0, 0), (0, 0), (4, 4), r"which is 0 to 2, 0 to 2 per spatial axis"),
        ((0, 0, 0), (0, 0), (4, 4), "there are 3 coordinates, 2 offsets and a box of 2 axes"),
        ((0, 0, 0, 0), (0,), (4, 4), "4 coordinates, 1 offsets"),
        ((0, 0, 0, 0), (0, 0), (1, 4, 4), r"which must be \(pixels, channels\)"),
    ],
)
def test_the_model_refuses(coords, offsets, tile, message):
    box = PixelBox((0, 0), (0, 0), (1, 1))
    with pytest.raises(ValueError, match=message):
        reference_im2col(pixels_of(1, 3, 3), tma.Tile(tile, "f32"), coords, offsets, box)


@pytest.mark.parametrize("filter", [(3,), (3, 3), (3, 3, 3)])
@pytest.mark.parametrize("padding", [((1, 1),), ((1, 1),) * 2])
@pytest.mark.parametrize("dilation", [(1,), (1, 1)])
def test_a_filter_has_as_many_axes_as_its_padding_and_dilation(filter, padding, dilation):
    if len(filter) == len(padding) == len(dilation):
        box = PixelBox.of_filter(filter, padding, (1,) * len(filter), dilation)
        assert box.upper == (1 - 2,) * len(filter)
    else:
        with pytest.raises(ValueError, match="shorter|longer"):
            PixelBox.of_filter(filter, padding, (1,) * len(filter), dilation)


def test_the_model_refuses_another_item_size():
    with pytest.raises(TypeError, match=r"the array's float32 has 4 B, .* 2 B"):
        box = PixelBox((0, 0), (0, 0), (1, 1))
        reference_im2col(pixels_of(1, 3, 3), tma.Tile((4, 8), "f16"), (0,) * 4, (0, 0), box)


# ---------------------------------------------------------------------- what is encoded


class Array:
    """Offers __cuda_array_interface__ for memory that does not exist."""

    def __init__(self, shape, typestr="<f2", address=ADDRESS, strides=None):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (address, False),
            "version": 3,
            "strides": strides,
        }


class FakeDriver:
    """Records what would have been encoded."""

    capability = {"MAJOR": 9, "MINOR": 0}
    device = 0

    def __init__(self):
        self.calls = []

    def encode(self, *arguments):
        self.calls.append([getattr(a, "name", a) for a in arguments])
        return driver.CUresult.CUDA_SUCCESS, driver.CUtensorMap()

    def current_device(self):
        return driver.CUresult.CUDA_SUCCESS, driver.CUdevice(self.device)

    def attribute(self, which, device):
        return driver.CUresult.CUDA_SUCCESS, self.capability[which.name.rpartition("_")[2]]


@pytest.fixture(autouse=True)
def fake_driver(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(driver, "cuTensorMapEncodeIm2col", fake.encode)
    monkeypatch.setattr(driver, "cuTensorMapEncodeIm2colWide", fake.encode)
    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", fake.encode)
    monkeypatch.setattr(driver, "cuCtxGetDevice", fake.current_device)
    monkeypatch.setattr(driver, "cuDeviceGetAttribute", fake.attribute)
    caches = (im2col._encode, _encoding.encode, _driver.compute_capability)
    for cache in caches:
        cache.cache_clear()
    yield fake
    for cache in caches:
        cache.cache_clear()


def ints(values):
    return [int(v) for v in values]


def test_the_driver_is_asked_for_a_convolution_innermost_axis_first(fake_driver):
    tile = tma.Tile((128, 64), "f16", tma.Swizzle.B128)
    x = Array((8, 30, 20, 64))
    tma.im2col_map(
        x, tile, filter=(5, 3), padding=(2, (1, 0)), stride=(2, 1), dilation=(1, 4), oob_fill="nan"
    )
    (call,) = fake_driver.calls
    assert call[:3] == ["CU_TENSOR_MAP_DATA_TYPE_FLOAT16", 4, ADDRESS]
    assert ints(call[3]) == [64, 20, 30, 8]
    assert ints(call[4]) == [128, 20 * 128, 30 * 20 * 128]
    assert call[5:7] == [[-1, -2], [0 - 2 * 4, 2 - 4]]  # {w, h}
    assert call[7:9] == [64, 128]
    assert ints(call[9]) == [1, 1, 2, 1]
    assert call[10:] == [
        "CU_TENSOR_MAP_INTERLEAVE_NONE",
        "CU_TENSOR_MAP_SWIZZLE_128B",
        "CU_TENSOR_MAP_L2_PROMOTION_L2_128B",
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA",
    ]


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_a_map_of_each_rank(rank, fake_driver):
    shape = (2, 9, 8, 7)[: rank - 1] + (16,)
    x = tma.im2col_map(Array(shape), (32, 8), filter=3, padding=1, stride=2)
    assert type(x) is tma.Im2colMap
    assert (x.rank, x.mode, x.shape) == (rank, "im2col", shape)
    assert x.tile == tma.Tile((32, 8), "f16")
    assert x.box == (32, 8)
    assert x.element_strides == (1, *(2,) * (rank - 2), 1)
    assert x.pixel_box == PixelBox((-1,) * (rank - 2), (-1,) * (rank - 2), (2,) * (rank - 2))
    assert x.output_shape == (5, 4, 4)[: rank - 2]
    assert "im2col" in repr(x) and "lower=(-1" in repr(x)
    assert len(fake_driver.calls) == 1
    tma.im2col_map(Array(shape), (32, 8), filter=[3] * (rank - 2), padding=1, stride=2)
    tma.im2col_map(Array(shape), (32, 8), filter=3, padding=1, stride=2)
    assert len(fake_driver.calls) == 2, "equal maps are encoded once"


def test_corners_stand_for_a_filter():
    x = Array((2, 9, 8, 16))
    box = PixelBox((-2, 1), (0, -3), (1, 1))
    found = tma.im2col_map(x, (8, 8), lower_corner=(-2, 1), upper_corner=(0, -3))
    assert found.pixel_box == box
    assert tma.im2col_map(x, (8, 8), lower_corner=1).pixel_box.upper == (0, 0)
    assert tma.im2col_map(x, (8, 8)).pixel_box == PixelBox((0, 0), (0, 0), (1, 1))


def test_another_address_makes_an_im2col_map_of_it(fake_driver, monkeypatch):
    monkeypatch.setattr(_encoding, "replace_address", lambda value, address: value)
    x = tma.im2col_map(Array((2, 9, 8, 16)), (8, 8), filter=3, padding=1)
    moved = x.replace_address(Array((2, 9, 8, 16), address=ADDRESS + 4096))
    assert type(moved) is tma.Im2colMap and moved.address == ADDRESS + 4096
    assert moved.pixel_box == x.pixel_box and moved.output_shape == (9, 8)


@pytest.mark.parametrize("pixels", [8, 256, 257, 1024])
def test_a_column_is_one_copy_of_any_length(pixels, fake_driver):
    x = tma.im2col_map(Array((2, 90, 80, 64)), tma.Tile((pixels, 64), "f16", tma.Swizzle.B128))
    assert x.copies.starts == ((0, (0, 0)),) and x.copies.box == x.tile
    assert x.copies.summary == "" and not x.copies.fold
    assert f"1 of {pixels} base pixels" in x.explain()


def test_explain(fake_driver):
    x = tma.im2col_map(Array((2, 30, 40, 64)), (512, 64), filter=3, padding=1, stride=(1, 2))
    text = x.explain()
    assert "copies     1 of 512 base pixels, along the inner axes first, 64 channels each" in text
    assert "base pixels from -1 to 28 in steps of 1\n" in text
    assert "base pixels from -1 to 38 in steps of 2\n" in text
    assert "64 channels (1 to 256)" in text
    assert "not compiled: the map's pixel box has the corners (-1, -1) and (-1, -1)" in text


def test_the_largest_numbers_are_taken():
    x = Array((2, 200, 300, 256))
    tma.im2col_map(x, (1024, 256), lower_corner=-128, upper_corner=127, stride=8)
    tma.im2col_map(Array((2, 99, 99, 99, 8)), (8, 8), lower_corner=-16, upper_corner=15)
    tma.im2col_map(Array((2, 99999, 8)), (8, 8), lower_corner=-32768, upper_corner=32767)


def test_what_the_driver_refuses_is_shown(fake_driver, monkeypatch):
    error = driver.CUresult.CUDA_ERROR_INVALID_VALUE
    monkeypatch.setattr(driver, "cuTensorMapEncodeIm2col", lambda *a: (error, None))
    with pytest.raises(RuntimeError, match="cuTensorMapEncodeIm2col failed") as caught:
        tma.im2col_map(Array((2, 9, 8, 16)), (8, 8))
    assert "pixelBoxLowerCorner = [0, 0]" in str(caught.value)


# --------------------------------------------------------------------------- every rule


NHWC = (2, 9, 8, 16)


@pytest.mark.parametrize(
    ("shape", "column", "options", "message"),
    [
        ((9, 16), (8, 8), {}, "array has rank 2; im2col takes 3 (NWC), 4 (NHWC) or 5 (NDHWC), "
         "channels last: add axes of extent 1, array[None, ...]"),
        ((1,) * 5 + (8,), (8, 8), {}, "array has rank 6; im2col takes 3 (NWC), 4 (NHWC) or 5 "
         "(NDHWC), channels last: index or merge some axes"),
        (NHWC, (8, 8, 8), {}, "the tile (8, 8, 8) has rank 3; an im2col copy fills (pixels, "
         "channels), e.g. Tile((64, 64), ...)"),
        (NHWC, (1025, 8), {}, "pixels is 1025; a copy takes 1 to 1024: use 2 copies"),
        (NHWC, (0, 8), {}, "pixels is 0; a copy takes 1 to 1024: use at least 1"),
        (NHWC, (8, 264), {}, "channels is 264; a copy takes 1 to 256: use 2 copies"),
        (NHWC, (8, 0), {}, "channels is 0; a copy takes 1 to 256: use at least 1"),
        (NHWC, (8, 12), {}, "channels is 12 f16 = 24 B; TMA needs a multiple of 16 B along the "
         "innermost axis: use 8 or 16"),
        (NHWC, (8, 64), {"swizzle": tma.Swizzle.B64}, "channels is 64 f16 = 128 B; swizzle B64 "
         "spans 64 B: use 32 or fewer elements (and 2 copies), or Swizzle.NONE"),
        (NHWC, (8, 8), {"swizzle": 9}, "swizzle is 9; TMA has Swizzle.NONE, B32, B64 and B128, "
         "and from compute capability 10.0 on B128_ATOM_32B and B128_ATOM_64B"),
        (NHWC, (8, 8), {"l2_promotion": 32}, "l2_promotion is 32; TMA has None, 64, 128 and 256"),
        (NHWC, (8, 8), {"oob_fill": "ones"}, "oob_fill is 'ones'; TMA has \"zeros\" and \"nan\""),
        (NHWC, (8, 8), {"interleave": 8}, "interleave is 8; TMA has None, 16 and 32 bytes"),
        (NHWC, (8, 8), {"interleave": 32}, "interleave=32 needs swizzle B32, not NONE"),
        (NHWC, (8, 8), {"dtype": "f32"}, "dtype f32 has 4 B per element, the array's float16 2 B"),
        (NHWC, (8, 8), {"stride": 9}, "axis 1: stride is 9; TMA takes 1 to 8: view the array with "
         "every 9th pixel, stride 1"),
        (NHWC, (8, 8), {"stride": (1, 0)}, "axis 2: stride is 0; TMA takes 1 to 8: use 1"),
        (NHWC, (8, 8), {"stride": (1, 1, 1)}, "stride is (1, 1, 1), of length 3; the array has 2 "
         "spatial axes: give one each, or one number for all"),
        (NHWC, (8, 8), {"stride": 1.5}, "stride is 1.5; give an integer, or one per spatial axis"),
        (NHWC, (8, 8), {"filter": (3,)}, "filter is (3,), of length 1; the array has 2 spatial "
         "axes"),
        (NHWC, (8, 8), {"filter": (3, 0)}, "axis 2: filter is 0; a filter has at least 1 element"),
        (NHWC, (8, 8), {"filter": 3, "dilation": (0, 1)}, "axis 1: dilation is 0; 1 means no gaps: "
         "use at least 1"),
        (NHWC, (8, 8), {"dilation": (1, 1, 1)}, "dilation is (1, 1, 1), of length 3"),
        (NHWC, (8, 8), {"padding": (1,)}, "padding is (1,), of length 1; the array has 2 spatial"),
        (NHWC, (8, 8), {"padding": (1, (1, 2, 3))}, "padding is (1, (1, 2, 3)); give an integer, "
         "or per spatial axis an integer or (before, after)"),
        (NHWC, (8, 8), {"padding": (-1, 0)}, "axis 1: padding is (-1, -1); it adds pixels and is "
         "never negative: to leave some out, slice the array"),
        (NHWC, (8, 8), {"padding": (0, (-1, 2))}, "axis 2: padding is (-1, 2); it adds pixels"),
        (NHWC, (8, 8), {"padding": (0, (2, -1))}, "axis 2: padding is (2, -1); it adds pixels"),
        ((2, 9999, 9999, 16), (8, 8), {"filter": (258, 1)}, "axis 1: the last filter element has "
         "the offset (filter - 1) * dilation = 257; im2col of rank 4 takes 0 to 255: split the "
         "filter, with one map each"),
        (NHWC, (8, 8), {"padding": 129}, "axis 1: the lower corner is -129 = -padding; im2col of "
         "rank 4 takes -128 to 127: pad the array itself, and shift the coordinates"),
        ((2, 9999, 9999, 16), (8, 8), {"filter": 131}, "axis 1: the upper corner is -130 = padding "
         "- (filter - 1) * dilation; im2col of rank 4 takes -128 to 127: slice the array, or make "
         "maps of parts of it"),
        ((2, 9, 8, 7, 16), (8, 8), {"upper_corner": 16}, "axis 1: the upper corner is 16; im2col "
         "of rank 5 takes -16 to 15: pad the array itself, and shift the coordinates"),
        ((2, 99999, 16), (8, 8), {"lower_corner": 32768}, "axis 1: the lower corner is 32768; "
         "im2col of rank 3 takes -32768 to 32767: slice the array"),
        (NHWC, (8, 8), {"filter": 10}, "axis 1: no pixel lies in the box, from 0 to extent 9 + "
         "upper corner -9, that end excluded: the filter is longer than the padded axis: pad more"),
        (NHWC, (8, 8), {"lower_corner": (9, 0)}, "axis 1: no pixel lies in the box, from 9 to "
         "extent 9 + upper corner 0, that end excluded: raise the upper corner or lower the lower"),
        (NHWC, (8, 8), {"lower_corner": 0, "filter": 3}, "lower_corner and upper_corner stand for "
         "filter, padding and dilation: give either the corners or those"),
        (NHWC, (8, 8), {"upper_corner": (0,)}, "upper_corner is (0,), of length 1"),
        ((2, 0, 8, 16), (8, 8), {}, "axis 1 has 0 elements; TMA needs 1 to 2**32: skip empty"),
        ((2, 9, 8, 12), (8, 8), {}, "axis 2 stride is 24 B; TMA needs a multiple of 16 B: pad axis "
         "3 to 16 columns"),
        ((2, 9, 8, 8), (8, 8), {"interleave": 32, "swizzle": tma.Swizzle.B32}, "axis 2 stride is "
         "16 B; TMA needs a multiple of 32 B"),
    ],
)  # fmt: skip
def test_a_rule_and_its_repair(shape, column, options, message, fake_driver):
    with pytest.raises(ValueError) as caught:
        tma.im2col_map(Array(shape), column, **options)
    text = str(caught.value)
    assert text.startswith("im2col_map: ") and message in text
    assert "Given: array of shape" in text
    assert fake_driver.calls == []


@pytest.mark.parametrize(
    ("shape", "limit"),
    [((2, 99999, 16), 65535), ((2, 999, 8, 16), 255), ((2, 99, 8, 8, 16), 31)],
)
def test_the_last_filter_element_may_have_the_largest_offset(shape, limit, fake_driver):
    others = len(shape) - 3

    def make(offset):
        padding = (0, offset // 2), *(0,) * others
        tma.im2col_map(
            Array(shape), (8, 8), filter=(2, *(1,) * others), padding=padding, dilation=offset
        )

    make(limit)
    assert len(fake_driver.calls) == 1
    with pytest.raises(ValueError, match=rf"has the offset .* = {limit + 1}; .* 0 to {limit}:"):
        make(limit + 1)


def test_the_address_and_the_order_of_axes_are_checked():
    with pytest.raises(ValueError, match="array address is 0x7f0000000008, 8 B past a multiple"):
        tma.im2col_map(Array(NHWC, address=ADDRESS + 8), (8, 8))
    channels_first = Array((2, 9, 8, 16), strides=(2304, 16, 16, 144))
    with pytest.raises(ValueError, match="TMA needs a contiguous innermost axis"):
        tma.im2col_map(channels_first, (8, 8))


def test_all_rules_are_listed_at_once():
    with pytest.raises(ValueError) as caught:
        tma.im2col_map(
            Array(NHWC, "<i4", address=ADDRESS + 4),
            (2000, 6),
            filter=(0, 3),
            stride=(9, 1),
            oob_fill="nan",
        )
    text = str(caught.value)
    assert text.startswith("im2col_map: 6 rules are broken:\n  1. array address")
    for part in ("filter is 0", "stride is 9", "pixels is 2000", "channels is 6", 'oob_fill is "n'):
        assert part in text
    assert "filter (0, 3), padding 0, stride (9, 1), dilation 1" in text


@pytest.mark.parametrize("make", [tma.im2col_map, tma.im2col_wide_map])
def test_what_is_no_column_or_no_type_is_said_of_the_call(make):
    with pytest.raises(
        TypeError, match=rf"^{make.__name__}: 3.5 is no box; give a Tile, or one int"
    ):
        make(Array((1, 8, 8, 64)), 3.5)
    with pytest.raises(TypeError, match=rf"^{make.__name__}: array "):
        make(Array((1, 8, 8, 64), "|b1"), (8, 8))


def test_a_tile_of_another_type_is_refused():
    with pytest.raises(ValueError, match="make the tile Tile\\(\\(8, 8\\), f16\\)"):
        tma.im2col_map(Array(NHWC), tma.Tile((8, 8), "f32"))
    found = tma.im2col_map(Array(NHWC, "<u2"), (8, 8), dtype=ml_dtypes.bfloat16)
    assert found.dtype is as_dtype("bf16")


# --------------------------------------------------------------------------------- wide

WIDE = tma.Tile((128, 64), "f16", tma.Swizzle.B128)
SM_100A = (10, 0, "a")


def test_a_wide_map_is_of_a_walk_in_steps_of_1_from_edge_to_edge_by_default(fake_driver):
    fake_driver.capability = {"MAJOR": 10, "MINOR": 0}
    x = tma.im2col_wide_map(Array((8, 30, 20, 64)), WIDE)
    assert x.pixel_box == PixelBox((0, 0), (0, 0), (1, 1))
    assert fake_driver.calls[0][5:7] == [0, 0] and ints(fake_driver.calls[0][9]) == [1, 1, 1, 1]


@pytest.mark.parametrize("mode", ["w", "w128"])
def test_a_wide_map_is_encoded_where_the_gpu_has_it(mode, fake_driver):
    fake_driver.capability = {"MAJOR": 10, "MINOR": 0}
    x = tma.im2col_wide_map(
        Array((8, 30, 20, 64)), WIDE, mode=mode, lower_corner=-3, upper_corner=200, stride=2
    )
    (call,) = fake_driver.calls
    assert call[5:9] == [-3, 200, 64, 128]
    assert ints(call[9]) == [1, 2, 1, 1]
    assert call[10:12] == [
        "CU_TENSOR_MAP_INTERLEAVE_NONE",
        f"CU_TENSOR_MAP_IM2COL_WIDE_MODE_{mode.upper()}",
    ]
    assert x.mode == f"im2col_{mode}"
    assert x.pixel_box == PixelBox((0, -3), (0, 200), (1, 2))  # along H, the image as it is


@pytest.mark.parametrize(
    ("tile", "options", "message"),
    [
        (WIDE, {}, "this GPU has compute capability 9.0; the wide modes begin with 10.0: use "
         "im2col_map"),
        (WIDE, {"mode": "w64"}, "mode is 'w64'; TMA has \"w\" and \"w128\""),
        (tma.Tile((64, 64), "f16", tma.Swizzle.B128), {"mode": "w128"}, "pixels is 64; mode "
         "\"w128\" copies 128: use 128, or mode \"w\""),
        (tma.Tile((128, 8), "f16"), {}, "swizzle is NONE; the wide modes have only B64, B128 and "
         "B128_ATOM_32B"),
        (tma.Tile((128, 8), "f16", tma.Swizzle.B32), {}, "swizzle is B32; the wide modes"),
        (WIDE, {"lower_corner": -32769}, "axis 2: the lower corner is -32769; im2col of rank 3 "
         "takes -32768 to 32767"),
        (WIDE, {"lower_corner": 20}, "axis 2: no pixel lies in the box"),
        (WIDE, {"stride": 9}, "axis 2: stride is 9"),
        (WIDE, {"stride": (1, 2)}, "stride is (1, 2), of length 2; the array has 1 spatial axis"),
    ],
)  # fmt: skip
def test_a_rule_of_the_wide_maps(tile, options, message, fake_driver):
    with pytest.raises(ValueError) as caught:
        tma.im2col_wide_map(Array((8, 30, 20, 64)), tile, **options)
    text = str(caught.value)
    assert text.startswith("im2col_wide_map: ") and message in text
    assert fake_driver.calls == []


# ------------------------------------------------------------------- 128-byte swizzles
ATOMS = [tma.Swizzle.B128_ATOM_32B, tma.Swizzle.B128_ATOM_64B]


@pytest.mark.parametrize("swizzle", ATOMS)
def test_chunks_of_other_sizes_need_compute_capability_10(swizzle, fake_driver):
    tiled, column = tma.Tile((8, 64), "f16", swizzle), Array((2, 9, 8, 64))
    message = f"swizzle is {swizzle.name}, which begins with compute capability 10.0; this GPU has"
    with pytest.raises(ValueError, match=f"tensor_map: 1 rule is broken:\n  1. {message} 9.0"):
        tma.tensor_map(Array((64, 64)), tiled)
    with pytest.raises(ValueError, match=f"im2col_map: 1 rule is broken:\n  1. {message} 9.0"):
        tma.im2col_map(column, tiled)
    assert fake_driver.calls == []
    fake_driver.capability = {"MAJOR": 12, "MINOR": 0}
    _driver.compute_capability.cache_clear()
    tma.tensor_map(Array((64, 64)), tiled)
    tma.im2col_map(column, tiled)
    atom = f"CU_TENSOR_MAP_SWIZZLE_128B_ATOM_{swizzle.atom}B"
    assert [atom in call for call in fake_driver.calls] == [True, True]


# ------------------------------------------------------------------------------- kernels

TILE = tma.Tile((64, 64), "f16", tma.Swizzle.B128)
OTHER = tma.Tile((32, 64), "f16", tma.Swizzle.B128)
MAP = TensorMapType(4, TILE, mode="im2col")


def test_the_type_of_a_map():
    x = tma.im2col_map(Array((2, 9, 8, 64)), TILE)
    assert str(x._numba_type_) == "TensorMap(im2col 4d, Tile((64, 64), f16, B128))"
    assert x._numba_type_ == MAP != TensorMapType(4, TILE) != TensorMapType(3, TILE, mode="im2col")
    padded = tma.im2col_map(Array((2, 9, 8, 64)), TILE, padding=1)
    assert str(padded._numba_type_).endswith("B128), loads only)")


def compiled(kernel, *parameters):
    return compile_ptx(cuda.jit(kernel), parameters or (MAP,), cc=(9, 0, "a"))


def test_a_kernel_loads_and_stores():
    def kernel(x, n, p, q, c, r, s):
        tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
        x.load_im2col(tile, (n, p, q, c), (r, s), barrier)
        x.load_im2col(tile, (n, p, q, c), offsets=(2, 1), barrier=barrier, multicast=3)
        x.load_im2col(tile, (0, -1, 2, 8), (r, s), barrier, tma.CachePolicy.EVICT_FIRST)
        x.store_im2col(tile, (n, p, q, c))
        x.store_im2col(tile, (n, p, q, c), tma.CachePolicy.EVICT_LAST)

    text = compiled(kernel, MAP, *[types.int32] * 6)
    assert text.count(".4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [") == 1
    assert text.count(".im2col.mbarrier::complete_tx::bytes.multicast::cluster [") == 1
    assert text.count(".im2col.mbarrier::complete_tx::bytes.L2::cache_hint [") == 1
    assert text.count(".4d.global.shared::cta.im2col_no_offs.bulk_group [") == 1
    assert text.count(".4d.global.shared::cta.im2col_no_offs.bulk_group.L2::cache_hint [") == 1


def load(x):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    x.load(tile, (0, 0, 0, 0), barrier)


def store(x):
    x.store(tma.shared_tile(TILE), (0, 0, 0, 0))


def load_im2col(x):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    x.load_im2col(tile, (0, 0, 0, 0), (0, 0), barrier)


def store_im2col(x):
    x.store_im2col(tma.shared_tile(TILE), (0, 0, 0, 0))


def store_at_minus_one(x):
    x.store_im2col(tma.shared_tile(TILE), (0, 0, -1, 0))


def offset_256(x):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    x.load_im2col(tile, (0, 0, 0, 0), (0, 256), barrier)


def negative_offset(x):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    x.load_im2col(tile, (0, 0, 0, 0), (-1, 0), barrier)


def one_offset(x):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    x.load_im2col(tile, (0, 0, 0, 0), (1,), barrier)


def three_coordinates(x):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    x.load_im2col(tile, (0, 0, 0), (1,), barrier)


def a_number_for_coordinates(x):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    x.load_im2col(tile, 5, (0, 0), barrier)


def a_number_to_store_at(x):
    x.store_im2col(tma.shared_tile(TILE), 5)


def channel_4(x):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    x.load_im2col(tile, (0, 0, 0, 4), (1, 1), barrier)


@pytest.mark.parametrize(
    ("kernel", "tensor_map", "message"),
    [
        (load, MAP, "TensorMap.load: the map is TensorMap(im2col 4d, Tile((64, 64), f16, B128)), "
         "one of columns of pixels: use load_im2col(tile, coords, offsets, barrier)"),
        (store, MAP, "TensorMap.store: the map is TensorMap(im2col 4d"),
        (load_im2col, TensorMapType(2, TILE), "TensorMap.load_im2col: the map is TensorMap(Tile(("
         "64, 64), f16, B128)), a tiled one: use its load and store, or make the map with im2col"),
        (store_im2col, TensorMapType(2, TILE), "TensorMap.store_im2col: the map is TensorMap(Tile"),
        (store_im2col, TensorMapType(4, WIDE, mode="im2col_w128"), "a wide one: use "
         "load_im2col(tile, coords, (w,), barrier)"),
        (one_offset, TensorMapType(4, TILE, mode="im2col_w"),
         "cp_async_bulk_tensor_im2col_w_load_cta() needs compute capability 10.0 or newer"),
        (load_im2col, TensorMapType(4, OTHER, mode="im2col"), "the map copies Tile((32, 64), f16, "
         "B128) but the tile in shared memory is Tile((64, 64), f16, B128); make the map with "
         "im2col_map(array, Tile((64, 64), f16, B128))"),
        (store_im2col, TensorMapType(4, TILE, mode="im2col", partial_rows="corners"),
         "TensorMap.store_im2col: corners"),
        (store_at_minus_one, MAP, "the coordinate of axis 2 is -1; a store starts inside"),
        (offset_256, MAP, "the offset of axis 2 is 256; TensorMap(im2col 4d, Tile((64, 64), f16, "
         "B128)) takes 0 to 255: move the coordinates instead"),
        (negative_offset, MAP, "takes a tuple of 1 to 3 integers from 0 to 65535"),
        (one_offset, MAP, "1 offsets for 4 coordinates; give one per spatial axis"),
        (three_coordinates, MAP, "3 coordinates for TensorMap(im2col 4d"),
        (a_number_for_coordinates, MAP, "cp_async_bulk_tensor_im2col_load(coordinates=...) takes"),
        (a_number_to_store_at, MAP, "cp_async_bulk_tensor_im2col_store(coordinates=...) takes"),
        (channel_4, MAP, "the innermost coordinate is 4, which is 8 B into the row"),
    ],
)  # fmt: skip
def test_a_wrong_copy_does_not_compile(kernel, tensor_map, message):
    with pytest.raises(Exception) as caught:
        compiled(kernel, tensor_map)
    assert message in str(caught.value)


def wide_loads(x):
    tile, barrier = tma.shared_tile(WIDE), tma.shared_barrier()
    x.load_im2col(tile, (0, 0, -1, 0), (31,), barrier)
    x.load_im2col(tile, (0, 0, -1, 0), (0,), barrier, None, 3)


def wide_offset_32(x):
    x.load_im2col(tma.shared_tile(WIDE), (0, 0, 0, 0), (32,), tma.shared_barrier())


def two_wide_offsets(x):
    x.load_im2col(tma.shared_tile(WIDE), (0, 0, 0, 0), (1, 1), tma.shared_barrier())


def narrow_tile(x):
    x.load_im2col(tma.shared_tile(OTHER), (0, 0, 0, 0), (1,), tma.shared_barrier())


@pytest.mark.parametrize("mode", ["w", "w128"])
def test_wide_loads_are_one_instruction_without_a_halo(mode):
    text = compile_ptx(wide_loads, (TensorMapType(4, WIDE, mode=f"im2col_{mode}"),), cc=SM_100A)
    ptxas(text)
    found = re.findall(
        r"shared::(\w+)\.global\.(im2col::w\S*)\.mbarrier\S* .*\{(%\w+), (%\w+)\}", text
    )
    values = dict(re.findall(r"mov\.\w+\s+(%\w+), (-?\d+);", text))
    kind = {"w": "im2col::w", "w128": "im2col::w::128"}[mode]
    own = "cta" if mode == "w" else "cluster"
    assert [(space, k) for space, k, *_ in found] == [(own, kind), ("cluster", kind)]
    assert [(values[halo], values[w]) for *_, halo, w in found] == [("0", "31"), ("0", "0")]


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (wide_offset_32, "the offset of axis 2 is 32; TensorMap(im2col_w 4d, Tile((128, 64), f16, "
         "B128)) takes 0 to 31"),
        (two_wide_offsets, "2 offsets for TensorMap(im2col_w 4d"),
        (narrow_tile, "make the map with im2col_wide_map(array, Tile((32, 64), f16, B128))"),
    ],
)  # fmt: skip
def test_a_wrong_wide_copy_does_not_compile(kernel, message):
    with pytest.raises(Exception) as caught:
        compile_ptx(kernel, (TensorMapType(4, WIDE, mode="im2col_w"),), cc=SM_100A)
    assert message in str(caught.value)


def test_a_map_says_why_it_takes_no_stores():
    padded = tma.im2col_map(Array((2, 9, 8, 64)), TILE, padding=1)
    assert "the map's pixel box has the corners (-1, -1) and (1, 1)" in padded.partial_rows
    narrow = tma.im2col_map(Array((2, 9, 8, 4), "<f2", strides=(1152, 128, 16, 2)), (8, 8))
    assert "im2col_map(..., overwrite_padding=True)" in narrow.partial_rows
    free = Array((2, 9, 8, 4), "<f2", strides=(1152, 128, 16, 2))
    assert tma.im2col_map(free, (8, 8), overwrite_padding=True).partial_rows == ""


def test_a_device_function_takes_any_map_of_the_rank():
    @cuda.jit(device=True)
    def prefetch(x):
        x.prefetch()

    def kernel(x):
        prefetch(x)

    assert "prefetch.tensormap" in compiled(kernel)


@pytest.mark.parametrize("method", ["load_im2col", "store_im2col"])
def test_methods_are_for_kernels(method):
    x = tma.im2col_map(Array(NHWC), (8, 8))
    arguments = ctypes.c_void_p(), (0, 0, 0, 0), (0, 0), None
    with pytest.raises(RuntimeError, match=f"TensorMap.{method} runs inside a @cuda.jit kernel"):
        getattr(x, method)(*arguments[: 4 if method == "load_im2col" else 2])
