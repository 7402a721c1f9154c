"""Block-scaled formats: quantisation by its definition, and scales in atoms of 128 x 4."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Tile
from numba_tma.host.reference import reference_tile
from numba_tma.host.scale_factors import (
    FORMATS,
    blocked_shape,
    decode_scales,
    dequantize,
    from_blocked,
    quantize,
    scale_offset,
    scale_tile,
    tensor_scale,
    to_blocked,
)
from numba_tma.pipeline import BlockScaledTilePayload, TilePipeline

UE8M0 = ml_dtypes.float8_e8m0fnu

# ----------------------------------------------------------------------------- atoms


def test_an_atom_byte_by_byte():
    """The order of cuBLAS's figure: four scales of rows 0, 32, 64 and 96, then of 1, 33, ..."""
    row, k = np.indices((128, 4))
    image = to_blocked((row + 128 * (k % 2)).astype(np.uint8)).reshape(-1)
    expected = [(r + 32 * q + 128 * (n % 2)) % 256 for r in range(32) for q in range(4)
                for n in range(4)]  # fmt: skip
    assert image.tolist() == expected


def test_atoms_follow_each_other_along_k_first():
    scales = np.zeros((256, 8), np.uint8)
    for number, (i, j) in enumerate(itertools.product(range(2), range(2))):
        scales[128 * i : 128 * (i + 1), 4 * j : 4 * (j + 1)] = number
    assert np.array_equal(to_blocked(scales).reshape(-1), np.repeat(np.arange(4), 512))


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 300), scales=st.integers(1, 11), seed=st.integers(0, 99))
def test_every_scale_is_at_its_offset_and_comes_back(rows, scales, seed):
    codes = np.random.default_rng(seed).integers(1, 256, (rows, scales), np.uint8)
    matrix = codes.view(ml_dtypes.float8_e8m0fnu)
    blocked = to_blocked(matrix)
    assert blocked.shape == blocked_shape(rows, scales) and blocked.dtype == matrix.dtype
    row, k = np.indices(codes.shape)
    image = blocked.view(np.uint8).reshape(-1)
    assert np.array_equal(image[scale_offset(row, k, scales)], codes)
    assert np.count_nonzero(image) == codes.size  # the padding is 0
    for given_as in (blocked, blocked.reshape(-1)):
        back = from_blocked(given_as, rows, scales)
        assert back.dtype == matrix.dtype and np.array_equal(back.view(np.uint8), codes)


def test_leading_axes_are_kept():
    scales = np.random.default_rng(0).integers(0, 256, (3, 130, 5), np.uint8)
    blocked = to_blocked(scales)
    assert blocked.shape == (3, 2, 2, 2, 256)
    for matrix, atoms in zip(scales, blocked):
        assert np.array_equal(to_blocked(matrix), atoms)
    assert np.array_equal(from_blocked(blocked, 130, 5), scales)


def test_one_box_loads_the_scales_of_a_tile():
    """The bytes in shared memory are those of the sub-matrix's own atoms, K first."""
    codes = np.random.default_rng(1).integers(0, 256, (384, 24), np.uint8)
    tile = scale_tile(256, 256, "mxfp8")
    assert tile == Tile((2, 2, 2, 256), "ue8m0") and tile.box == tile.shape
    assert tile.nbytes == tile.shared_nbytes == 256 * 8
    array = to_blocked(codes).view(ml_dtypes.float8_e8m0fnu)
    image = reference_tile(array, tile, (128 // 128, 256 // (4 * 32), 0, 0))
    assert np.array_equal(image, to_blocked(codes[128:, 8:16]).reshape(-1))


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ((128, 128, "mxfp8"), (1, 1, 2, 256)),
        ((192, 64, "nvfp4"), (2, 1, 2, 256)),  # whole atoms
        ((8, 256, "mxfp4"), (1, 2, 2, 256)),
        ((256, 256, "nvfp4"), (2, 4, 2, 256)),
    ],
)
def test_tiles_of_scales(arguments, shape):
    tile = scale_tile(*arguments)
    kind = FORMATS[arguments[2]]
    assert tile == Tile(shape, kind.scale)
    assert tile == scale_tile(*arguments[:2], dtype=kind.scale, block=kind.block)
    assert scale_tile(1, 128) == scale_tile(128, 128, "mxfp8"), "of ue8m0, for 32 elements each"


def test_a_payload_holds_them():
    a = Tile((128, 256), "e2m1", 3)
    scales = scale_tile(128, 256, "nvfp4")
    ring = TilePipeline(3, BlockScaledTilePayload(a, a, scales, scales))
    assert ring.tx_bytes == 2 * (128 * 128) + 2 * (128 * 16)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: scale_tile(128, 64, "mxfp8"), "128 rows x 128 elements"),
        (lambda: scale_tile(0, 64, "nvfp4"), "a positive number of rows"),
        (lambda: scale_tile(128, 128 * 300, "mxfp8"), "a copy takes up to 256"),
        (lambda: scale_tile(128, 128, "fp4"), "format is 'fp4'; block-scaled formats are mxfp8, "),
        (lambda: scale_tile(128, 128, dtype="e4m3"), "dtype is e4m3; scales are of ue8m0 or ue4m3"),
        (lambda: scale_tile(128, 128, block=64), "block is 64; a scale is that of 16 or 32"),
        (lambda: to_blocked(np.zeros((4, 4), np.float32)), "one byte each"),
        (lambda: to_blocked(np.zeros(4, np.uint8)), "has shape (4,)"),
        (lambda: from_blocked(np.zeros(512, np.uint8), 129, 4), "(129, 4) scales take (2, 1, 2,"),
        (lambda: quantize(np.zeros((2, 40)), "mxfp8"), "a multiple of 32 along the last axis"),
        (lambda: quantize(np.zeros(()), "mxfp8"), "x=...) has shape (); mxfp8 takes a multiple of"),
        (lambda: quantize(np.full((2, 32), np.inf), "mxfp8"), "not finite, which mxfp8 cannot"),
        (lambda: quantize(np.zeros((2, 32)), "fp8"), "format is 'fp8'"),
        (lambda: dequantize(np.zeros((2, 30)), np.zeros((2, 4), np.uint8)), "do not divide"),
    ],
)
def test_errors(make, said):
    with pytest.raises(ValueError) as raised:
        make()
    assert said in str(raised.value)


# ---------------------------------------------------------------------- quantisation


def test_known_values():
    x = np.zeros((1, 32))
    x[0, :4] = [448, -1.0, 0.4375, 500]
    values, scales = quantize(x, "mxfp8")  # floor(log2(500)) = 8 = emax: the scale is 1
    assert scales.view(np.uint8).tolist() == [[127]]
    assert values[0, :4].tolist() == [448, -1, 0.4375, 448]  # saturated
    values, scales = quantize(x, "mxfp4")  # 2**(8 - 2)
    assert scales.astype(np.float32).tolist() == [[64]]
    assert values[0, :4].astype(np.float32).tolist() == [6, 0, 0, 6]  # 448 / 64 = 7
    values, scales = quantize(x[:, :16], "nvfp4")  # 500 / 6 = 83.3, and e4m3 has 80 and 88
    assert scales.astype(np.float32).tolist() == [[80]]
    assert values[0, :4].astype(np.float32).tolist() == [6, 0, 0, 6]


def test_a_vector_is_a_row():
    x = np.arange(64.0)
    for part in (x[:32], x):
        values, scales = quantize(part, "mxfp8")
        row = quantize(part[None], "mxfp8")
        assert values.shape == part.shape and scales.shape == (len(part) // 32,)
        np.testing.assert_array_equal(dequantize(values, scales), dequantize(*row)[0])
    assert dequantize(np.ones(3), np.full(1, 2, UE8M0)).tolist() == [2, 2, 2]  # of any block


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_rounded_to_nearest_and_ties_to_even(name):
    kind = FORMATS[name]
    values = np.arange(1 << kind.element.bits - 1, dtype=np.uint8).view(kind.element.numpy)
    values = values[np.isfinite(values)].astype(np.float64)
    middles = (values[1:] + values[:-1]) / 2
    x = np.concatenate([values, middles, np.nextafter(middles, 0), np.nextafter(middles, 999)])
    nearest = [min(range(len(values)), key=lambda i: (abs(values[i] - n), i % 2)) for n in x]
    for sign in (1, -1):
        blocks = np.repeat(sign * x[:, None], kind.block, 1)
        blocks[:, 0] = values[-1]  # by which the scale is 1
        rounded, scales = quantize(blocks, name)
        assert (decode_scales(scales, kind.scale) == 1).all()
        assert (rounded[:, 1:] == sign * values[nearest][:, None]).all()
        assert rounded.view(np.uint8).max() < 1 << kind.element.bits


@pytest.mark.parametrize(
    ("name", "x", "code"),
    [("mxfp8", 1e300, 254), ("mxfp8", 2.0**-119, 0), ("mxfp8", 1e-300, 0), ("mxfp4", 2.0**129, 254),
     ("nvfp4", 2688, 0x7E), ("nvfp4", 2700, 0x7E), ("nvfp4", 1e9, 0x7E)],
)  # fmt: skip
def test_scales_end_where_their_type_does(name, x, code):
    values, scales = quantize(np.full(32, x), name)
    assert set(scales.view(np.uint8).tolist()) == {code}
    factor = decode_scales(scales, FORMATS[name].scale)[0]
    largest = float(ml_dtypes.finfo(values.dtype).max)
    assert set(values.astype(np.float64).tolist()) == {min(x / factor, largest) if x > 1e-99 else 0}


def test_blocks_whose_scale_is_0_are_zeros():
    x = np.full((2, 16), 2.0**-12)  # a sixth of which e4m3 rounds to 0
    x[1, ::2] = -4
    values, scales = quantize(x, "nvfp4")
    assert scales.view(np.uint8)[0] == 0 and not values[0].view(np.uint8).any()
    assert values[1].astype(np.float32).tolist() == [-6, 0] * 8


def test_decoded_scales():
    codes = np.arange(256, dtype=np.uint8)
    powers = decode_scales(codes, "ue8m0")
    assert powers[[0, 127, 254]].tolist() == [2.0**-127, 1, 2.0**127] and np.isnan(powers[255])
    e4m3 = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(decode_scales(codes, "ue4m3"), np.abs(e4m3))
    with pytest.raises(TypeError, match="scales are of ue8m0 or ue4m3"):
        decode_scales(codes, "u8")


@st.composite
def matrices(draw):
    """Normal numbers, each block at a magnitude of its own, some of them 0."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.standard_normal((3, 4, 32)) * 2.0 ** rng.integers(-40, 40, (3, 4, 1))
    return (x * (rng.random((3, 4, 1)) < 0.9)).reshape(3, 128)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "nvfp4"])
@settings(max_examples=25, deadline=None)
@given(x=matrices())
def test_mx_is_what_ocp_defines(name, x):
    """Scale by scale and value by value, by the definition of section 6.3 of the specification."""
    kind = FORMATS[name]
    values, scales = quantize(x, name)
    largest = float(ml_dtypes.finfo(kind.element.numpy).max)
    for block, (row, k) in zip(x.reshape(-1, 32), itertools.product(range(3), range(4))):
        power = -127 if not block.any() else np.floor(np.log2(np.abs(block).max()))
        power = power if not block.any() else power - np.floor(np.log2(largest))
        assert scales[row, k].astype(np.float64) == 2.0**power
        clipped = np.clip(block / 2.0**power, -largest, largest).astype(np.float32)
        got = values[row, 32 * k : 32 * (k + 1)]
        # float32 first: that may round twice, to a neighbour, but at a tie of float32 only.
        np.testing.assert_array_equal(got.view("u1"), clipped.astype(kind.element.numpy).view("u1"))
    again = quantize(dequantize(values, scales), name)
    np.testing.assert_array_equal(dequantize(*again), dequantize(values, scales))


@settings(max_examples=25, deadline=None)
@given(x=matrices())
def test_nvfp4_errs_by_half_a_step(x):
    x = np.clip(x, -(2.0**10), 2.0**10)
    tensor = tensor_scale(x)
    values, scales = quantize(x / tensor, "nvfp4")
    assert values.dtype == as_dtype("e2m1").numpy and scales.shape == (3, 8)
    factors = np.repeat(decode_scales(scales, "ue4m3"), 16, -1) * tensor
    # Between 4 and 6 a step of e2m1 is 2. The scale errs by 1/16, or by half of e4m3's last bit.
    bound = factors + np.abs(x) / 16 + 6 * 2.0**-10 * tensor
    assert (np.abs(dequantize(values, scales) * tensor - x) <= bound * 1.0001).all()
    assert tensor_scale(np.zeros(3)) == 1 and np.isclose(tensor_scale(np.array([-2688.0])), 1)
