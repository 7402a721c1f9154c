"""im2col on the GPU: every byte of a load, store and reduction agrees with the NumPy model."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numba import cuda

import numba_tma as tma
from numba_tma.host.driver import compute_capability, encode_im2col
from numba_tma.host.dtypes import as_dtype, byte_names
from numba_tma.host.pixel_box import im2col_store_values
from tests.gpu import copies, im2col_copies
from tests.gpu.copies import GUARD_BYTES, SHARED_BYTES, SWIZZLES, Tensor
from tests.gpu.im2col_copies import OPERATIONS, Case
from tests.gpu.worker import on_gpu

TILE_BYTES = SHARED_BYTES - GUARD_BYTES
TENSOR_BYTES = 1 << 18

# For each of 51 combinations of type and rank.
eight = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
forty = settings(eight, max_examples=40)


@st.composite
def cases(draw, dtype, rank, aligned=True, inside=False, swizzle=None):
    """A load that starts at a base pixel, or, if not `aligned`, anywhere in the box.

    With `inside`, the box lies inside the tensor, as stores need it.
    """
    dtype = as_dtype(dtype)
    axes = rank - 2
    tile = draw(tiles(dtype, swizzle))
    widest = {1: 40, 2: 12, 3: 6}[axes]
    extents = [draw(st.integers(1, widest)) for _ in range(axes)]
    stride = tuple(draw(st.sampled_from([1, 1, 1, 2, 3, 8])) for _ in range(axes))
    lower, upper, place = [], [], []
    for extent, step in zip(extents, stride):
        low = draw(st.integers(0, extent - 1) if inside else st.integers(-3, 3))
        least = low + 1 - extent  # the box holds a pixel
        high = draw(st.integers(least, 0) if inside else st.integers(least, max(least, 0) + 4))
        count = (extent + high - low - 1) // step + 1
        lower.append(low)
        upper.append(high)
        start = step * draw(st.integers(0, count - 1))
        if not aligned:
            start = draw(st.integers(0, extent + high - low - 1))
        place.append(low + start)
    far = draw(st.integers(0, 7)) == 0
    offset = st.integers(0, {3: 65535, 4: 255, 5: 31}[rank] if far else 3)
    chunk = 16 // dtype.itemsize
    tensor = draw(tensors(draw(st.integers(1, 3)), extents, tile))
    channel = chunk * draw(st.one_of(st.just(0), st.integers(0, tensor.shape[-1] // chunk)))
    return Case(
        tile=tile,
        tensor=tensor,
        box=tma.PixelBox(tuple(lower), tuple(upper), stride),
        coords=(draw(st.integers(0, tensor.shape[0] - 1)), *place, channel),
        offsets=tuple(draw(offset) for _ in range(axes)),
        oob_fill=draw(st.sampled_from(["zeros", "nan"])) if dtype.is_float else "zeros",
        l2_promotion=draw(st.sampled_from([None, 64, 128, 256])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@st.composite
def tiles(draw, dtype, swizzle):
    swizzle = draw(st.sampled_from(SWIZZLES)) if swizzle is None else swizzle
    chunk = 16 // dtype.itemsize
    most = 256 // chunk if swizzle is tma.Swizzle.NONE else swizzle.span // 16
    channels = chunk * draw(st.one_of(st.just(most), st.integers(1, most)))
    pitch = channels * dtype.itemsize if swizzle is tma.Swizzle.NONE else swizzle.span
    pixels = draw(st.one_of(st.integers(1, 64), st.integers(1, min(1024, TILE_BYTES // pitch))))
    return tma.Tile((min(pixels, TILE_BYTES // pitch), channels), dtype, swizzle)


@st.composite
def tensors(draw, images, extents, tile):
    """A tensor, channels last, with gaps between its pixels, rows and images."""
    itemsize = tile.itemsize
    channels = draw(st.integers(1, tile.shape[1] + 16 // itemsize))
    shape, strides = [*extents, channels], [itemsize]
    stride = channels * itemsize
    for extent in reversed(extents):
        stride = -(-stride // 16) * 16 + 16 * draw(st.integers(0, 1))
        strides.insert(0, stride)
        stride *= extent
    stride = -(-stride // 16) * 16
    images = max(1, min(images, TENSOR_BYTES // stride))
    return Tensor((images, *shape), (stride, *strides), itemsize, 16 * draw(st.integers(0, 3)))


@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize("dtype", byte_names)
@eight
@given(data=st.data())
def test_loads(dtype, rank, data):
    check_load(data.draw(cases(dtype, rank)))


@pytest.mark.parametrize("rank", [3, 4, 5])
@forty
@given(data=st.data())
def test_loads_that_start_between_base_pixels(rank, data):
    """The stride counts from where the walk is, and anew from the lower corner."""
    check_load(data.draw(cases("u16", rank, aligned=False)))


@pytest.mark.parametrize("rank", [3, 4, 5])
@eight
@given(data=st.data())
def test_loads_that_start_past_the_last_image(rank, data):
    case = data.draw(cases("f32", rank))
    image = case.tensor.shape[0] + data.draw(st.integers(0, 3))
    check_load(replace(case, coords=(image, *case.coords[1:])))


@pytest.mark.parametrize("rank", [3, 4, 5])
@eight
@given(data=st.data())
def test_loads_that_start_before_the_first_image(rank, data):
    case = data.draw(cases("f32", rank))
    check_load(replace(case, coords=(data.draw(st.integers(-2, -1)), *case.coords[1:])))


@pytest.mark.parametrize("rank", [3, 4, 5])
@eight
@given(data=st.data())
def test_loads_that_start_before_the_first_channel(rank, data):
    case = data.draw(cases("f32", rank))
    channel = -4 * data.draw(st.integers(1, 3))
    check_load(replace(case, coords=(*case.coords[:-1], channel)))


@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize("dtype", ["u8", "f16", "i32", "f64"])
@eight
@given(data=st.data())
def test_stores(dtype, rank, data):
    check_store(data.draw(cases(dtype, rank, inside=True)))


@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize("operation", OPERATIONS)
@eight
@given(data=st.data())
def test_reductions(operation, rank, data):
    check_reduction(data.draw(cases("u32", rank, inside=True)), operation)


@on_gpu
def check_load(case):
    memory, tile = case.memory(), case.tile
    expected = copies.canaries(-(-tile.shared_nbytes // 4) * 4 + GUARD_BYTES)
    copied = copies.copied_bytes(tile)
    expected[: copied.size][copied] = tma.reference_im2col(
        case.tensor.of(memory), tile, case.coords, case.offsets, case.box, oob_fill=case.oob_fill
    )[copied]
    image, completed = im2col_copies.load(case, cuda.to_device(memory), expected.size)
    assert completed, f"the barrier expected {tile.nbytes} B, and that is not what came"
    np.testing.assert_array_equal(image, expected)


def whole_chunks(tensor):
    """Return the tensor with its channels filled up to 16 bytes, all of which a store writes."""
    chunk = 16 // tensor.itemsize
    *outer, channels = tensor.shape
    return replace(tensor, shape=(*outer, -(-channels // chunk) * chunk))


@on_gpu
def check_store(case):
    memory, tile = case.memory(), case.tile
    image = np.random.default_rng(case.seed + 1).integers(0, 256, tile.shared_nbytes, np.uint8)
    device = cuda.to_device(memory)
    im2col_copies.store(case, device, image)
    tensor = whole_chunks(case.tensor).of(memory)
    tma.reference_im2col_store(tensor, image, tile, case.coords, case.box)
    np.testing.assert_array_equal(device.copy_to_host(), memory)


COMBINED = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, new: np.where(old >= new, 0, old + 1),
    "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - 1),
}


@on_gpu
def check_reduction(case, operation):
    # Whole rows of 16 bytes: what a reduction does past a row's end is not asked here.
    case = replace(case, tensor=whole_chunks(case.tensor))
    memory, tile = case.memory(), case.tile
    image = np.random.default_rng(case.seed + 1).integers(0, 256, tile.shared_nbytes, np.uint8)
    device = cuda.to_device(memory)
    im2col_copies.store(case, device, image, operation)
    tensor = case.tensor.of(memory)
    positions, values = im2col_store_values(tensor, image, tile, case.coords, case.box)
    tensor[positions] = COMBINED[operation](tensor[positions], values)
    np.testing.assert_array_equal(device.copy_to_host(), memory)


# ----------------------------------------------------------------------- a convolution

MATRIX_TILE = tma.Tile((64, 32), "f32", tma.Swizzle.B128)
TRIES = 100_000


@cuda.jit
def gather(x, out, lower, stride, dilation, outputs, completed):
    """Write the im2col matrix of an NHWC input, a tile at a time: blocks share its rows."""
    tile, barrier = tma.shared_tile(MATRIX_TILE), tma.shared_barrier()
    thread = cuda.threadIdx.x
    if thread == 0:
        barrier.init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    parity = 0
    start = cuda.blockIdx.x * 64
    image, place = start // (outputs[0] * outputs[1]), start % (outputs[0] * outputs[1])
    h = lower[0] + place // outputs[1] * stride[0]
    w = lower[1] + place % outputs[1] * stride[1]
    for r in range(out.shape[1]):
        for s in range(out.shape[2]):
            for channel in range(0, out.shape[3], 32):
                if thread == 0:
                    barrier.arrive_expect_tx(MATRIX_TILE.nbytes)
                    x.load_im2col(
                        tile,
                        (image, h, w, channel),
                        (r * dilation[0], s * dilation[1]),
                        barrier,
                        multicast=1,
                    )
                done = False
                for _ in range(TRIES):
                    if barrier.test_wait(parity):
                        done = True
                        break
                if not done:
                    completed[0] = 0
                parity ^= 1
                for row in range(64):
                    if start + row < out.shape[0] and channel + thread < out.shape[3]:
                        out[start + row, r, s, channel + thread] = tile[row, thread]
                cuda.syncthreads()


@pytest.mark.parametrize(
    ("shape", "filter", "padding", "stride", "dilation"),
    [
        ((3, 14, 14, 64), (3, 3), (1, 1), (1, 1), (1, 1)),
        ((2, 15, 17, 48), (5, 3), (2, 0), (2, 1), (1, 2)),
        ((5, 7, 9, 32), (1, 1), (0, 0), (2, 2), (1, 1)),
        ((2, 12, 11, 40), (3, 2), ((3, 1), (0, 2)), (1, 3), (2, 3)),
        ((1, 30, 30, 16), (7, 7), (3, 3), (4, 4), (1, 1)),
    ],
)
def test_the_im2col_matrix_of_a_convolution(shape, filter, padding, stride, dilation):
    check_matrix(shape, filter, padding, stride, dilation)


@on_gpu
def check_matrix(shape, filter, padding, stride, dilation):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    device = cuda.to_device(x)
    x_map = tma.im2col_map(
        device, MATRIX_TILE, filter=filter, padding=padding, stride=stride, dilation=dilation
    )
    outputs = x_map.output_shape
    pads = [p if isinstance(p, tuple) else (p, p) for p in padding]
    padded = np.pad(x, ((0, 0), *pads, (0, 0)))
    expected = np.array(
        [
            padded[
                n,
                p * stride[0] : p * stride[0] + (filter[0] - 1) * dilation[0] + 1 : dilation[0],
                q * stride[1] : q * stride[1] + (filter[1] - 1) * dilation[1] + 1 : dilation[1],
            ]
            for n in range(shape[0])
            for p in range(outputs[0])
            for q in range(outputs[1])
        ]
    )
    out = cuda.to_device(np.full(expected.shape, np.nan, np.float32))
    completed = cuda.to_device(np.ones(1, np.int32))
    blocks = -(-expected.shape[0] // 64)
    lower = x_map.pixel_box.lower
    gather[blocks, 32](x_map, out, lower, stride, dilation, outputs, completed)
    assert completed.copy_to_host()[0], "a tile's bytes did not come"
    np.testing.assert_array_equal(out.copy_to_host(), expected)


# ------------------------------------------------------------------ the driver's rules


@on_gpu
def encode_with(**changes):
    """Encode past our rules; return whether the driver takes it."""
    memory = cuda.device_array(1 << 20, np.uint8)
    given = {
        "dtype": as_dtype("f16"),
        "address": memory.device_ctypes_pointer.value,
        "shape": (2, 30, 40, 64),
        "strides": (30 * 40 * 128, 40 * 128, 128, 2),
        "column": (64, 64),
        "box": tma.PixelBox((-1, -1), (1, 1), (1, 1)),
        "interleave": None,
        "swizzle": tma.Swizzle.B128,
        "l2_promotion": 128,
        "oob_fill": "zeros",
    }
    given["address"] += changes.pop("shift", 0)
    try:
        encode_im2col(**given | changes)
    except RuntimeError as error:
        assert "CUDA_ERROR_INVALID_VALUE" in str(error), error
        return False
    return True


def corners(lower, upper, stride=(1, 1)):
    return tma.PixelBox(lower, upper, stride)


NONE = tma.Swizzle.NONE


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"column": (1024, 64)},
        {"column": (1, 256), "swizzle": NONE},
        {"box": corners((-128, -128), (127, 127), (8, 8))},
        {"box": corners((29, 39), (0, 0))},
        {"interleave": 16, "swizzle": NONE},
        {"interleave": 32, "swizzle": tma.Swizzle.B32},
    ],
    ids=str,
)
def test_the_driver_takes_what_the_rules_allow(changes):
    assert encode_with(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"column": (1025, 64)},
        {"column": (0, 64)},
        {"column": (64, 257), "swizzle": NONE},
        {"column": (64, 0)},
        {"column": (64, 12), "swizzle": NONE},
        {"column": (64, 128)},
        {"box": corners((-129, 0), (0, 0))},
        {"box": corners((0, 0), (0, 128))},
        {"box": corners((0, 0), (0, 0), (9, 1))},
        {"box": corners((0, 0), (0, 0), (1, 0))},
        {"box": corners((30, 0), (0, 0))},
        {"shift": 8},
        {"strides": (30 * 40 * 128, 40 * 128, 120, 2)},
    ],
    ids=str,
)
def test_the_driver_refuses_what_the_rules_refuse(changes):
    assert not encode_with(**changes)


def test_the_wide_modes_are_refused_before_compute_capability_10():
    assert "the wide modes begin with 10.0" in wide_refusal()


@on_gpu
def wide_refusal():
    if compute_capability(0) >= (10, 0):
        pytest.skip("this GPU has the wide modes")
    array = cuda.device_array((2, 9, 128, 64), np.float16)
    try:
        tma.im2col_wide_map(array, tma.Tile((128, 64), "f16", tma.Swizzle.B128))
    except ValueError as error:
        return str(error)
    return "accepted"
