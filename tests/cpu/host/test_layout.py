"""The model of a copy is checked against loops that move one element at a time."""

import itertools
import math
import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from numba_tma.host.dtypes import as_dtype, byte_names, complex_names
from numba_tma.host.layout import Swizzle, Tile, box_violations, swizzle_index
from numba_tma.host.reference import reference_store, reference_tile

SWIZZLED = list(Swizzle)[1:]


# ---- Swizzle ----


def test_swizzle_spans_and_alignments():
    assert [int(s) for s in Swizzle] == [0, 1, 2, 3, 4, 6]  # as the driver counts them
    assert [s.span for s in Swizzle] == [16, 32, 64, 128, 128, 128]
    assert [s.atom for s in Swizzle] == [16, 16, 16, 16, 32, 64]
    assert [s.alignment for s in Swizzle] == [128, 256, 512, 1024, 512, 256]


def test_swizzle_none_moves_nothing():
    offsets = np.arange(4096)
    assert np.array_equal(swizzle_index(Swizzle.NONE, offsets), offsets)


@pytest.mark.parametrize("swizzle", Swizzle)
def test_swizzle_permutes_each_aligned_block_and_is_its_own_inverse(swizzle):
    offsets = np.arange(4 * swizzle.alignment)
    moved = swizzle_index(swizzle, offsets)
    blocks = moved.reshape(4, swizzle.alignment)
    for number, block in enumerate(blocks):
        start = number * swizzle.alignment
        assert np.array_equal(np.sort(block), np.arange(start, start + swizzle.alignment))
    assert np.array_equal(swizzle_index(swizzle, moved), offsets)


@pytest.mark.parametrize("swizzle", SWIZZLED)
def test_swizzle_keeps_chunks_whole_within_their_span(swizzle):
    offsets = np.arange(2048)
    moved = swizzle_index(swizzle, offsets)
    assert np.array_equal(moved % swizzle.atom, offsets % swizzle.atom)
    assert np.array_equal(moved // swizzle.span, offsets // swizzle.span)


def test_swizzle_b128_as_the_hardware_was_seen_to_do_it():
    # Row r's 16-byte chunk c lands at c xor (address >> 7) & 7.
    for row, chunk in itertools.product(range(16), range(8)):
        assert swizzle_index(Swizzle.B128, row * 128 + chunk * 16) == row * 128 + (
            (chunk ^ (row & 7)) * 16
        )


@pytest.mark.parametrize(
    "swizzle, image",
    [
        (Swizzle.B32, [0, 1, 2, 3, 4, 5, 6, 7, 9, 8, 11, 10, 13, 12, 15, 14]),
        (Swizzle.B64, [0, 1, 2, 3, 4, 5, 6, 7, 9, 8, 11, 10, 13, 12, 15, 14, 18, 19, 16, 17]),
    ],
)
def test_narrower_swizzles_change_with_the_128_byte_line(swizzle, image):
    assert [swizzle_index(swizzle, 16 * chunk) // 16 for chunk in range(len(image))] == image


@pytest.mark.parametrize(
    "swizzle, lines",
    [
        (Swizzle.B128_ATOM_32B, ["01234567", "23016745", "45670123", "67452301"]),
        (Swizzle.B128_ATOM_64B, ["01234567", "45670123"]),
    ],
)
def test_larger_chunks_move_as_the_manual_draws_them(swizzle, lines):
    for row, line in enumerate(lines * 2):
        for place, chunk in enumerate(line):  # in units of 16 bytes
            assert swizzle_index(swizzle, 128 * row + 16 * int(chunk)) == 128 * row + 16 * place


# ---- Tile ----


def test_tile_is_normalised():
    tile = Tile([np.int64(64), 32], np.float32, 3)
    assert tile == Tile((64, 32), "f32", Swizzle.B128)
    assert tile.shape == (64, 32) and type(tile.shape[0]) is int
    assert tile.dtype is as_dtype("f32")
    assert tile.swizzle is Swizzle.B128
    assert Tile(128, "u8") == Tile((128,), "u8")


def test_tile_sizes():
    tile = Tile((4, 64, 32), "bf16", Swizzle.B64)
    assert (tile.ndim, tile.size, tile.itemsize) == (3, 8192, 2)
    assert (tile.nbytes, tile.alignment) == (16384, 512)


def test_tile_repr():
    assert repr(Tile((64, 32), np.float32, Swizzle.B128)) == "Tile((64, 32), f32, B128)"
    assert repr(Tile((64,), ml_dtypes.bfloat16)) == "Tile((64,), bf16, NONE)"


def test_tiles_are_values():
    a, b = Tile((64, 32), "f32"), Tile((64, 32), np.float32)
    assert a == b and hash(a) == hash(b)
    different = [
        Tile((32, 64), "f32"),
        Tile((64, 32), "tf32"),
        Tile((64, 32), "f32", Swizzle.B128),
        (a.shape, a.dtype, a.swizzle),
    ]
    assert all(a != other for other in different)
    assert pickle.loads(pickle.dumps(a)) == a
    assert hash(pickle.loads(pickle.dumps(a))) == hash(a)
    with pytest.raises(AttributeError):
        a.shape = (1,)


@pytest.mark.parametrize(
    "arguments, text",
    [
        (((), "f32"), "tile shape () has 0 axes; a tile has 1 to 5"),
        (
            ((1,) * 6, "f32"),
            "tile shape (1, 1, 1, 1, 1, 1) has 6 axes; a tile has 1 to 5",
        ),
        (
            ((64, 0), "f32"),
            "tile axis 1 is 0; a tile needs at least 1 element",
        ),
        (
            ((-1, 4), "f32"),
            "tile axis 0 is -1; a tile needs at least 1 element",
        ),
        (((4,), "f32", 5), "Tile(swizzle=5): swizzle is one of Swizzle.NONE"),
    ],
)
def test_impossible_tiles(arguments, text):
    with pytest.raises(ValueError) as caught:
        Tile(*arguments)
    assert str(caught.value).startswith("Tile(") and text in str(caught.value)


def test_tile_of_an_unknown_type():
    with pytest.raises(TypeError, match="datetime64"):
        Tile((4,), np.datetime64)


@pytest.mark.parametrize("shape", [4.0, (4.0,), True, (4, True), (np.True_, 4), "4", None])
def test_an_extent_is_an_integer_and_no_bool(shape):
    with pytest.raises(TypeError, match="shape is an integer, or a tuple of one for each axis"):
        Tile(shape, "f32")


def test_a_tile_may_be_larger_than_a_box():
    assert Tile((100_000,), "f32").nbytes == 400_000


@pytest.mark.parametrize("swizzle", Swizzle)
def test_offset_of_ints_and_arrays_agree(swizzle):
    tile = Tile((3, 16, swizzle.span // 2), "f16", swizzle)
    i, j, k = np.indices(tile.shape)
    offsets = tile.offset(i, j, k)
    for index in itertools.product(*(range(n) for n in tile.shape)):
        linear = int(np.ravel_multi_index(index, tile.shape))
        assert tile.offset(*index) == offsets[index] == swizzle_index(swizzle, 2 * linear)
    assert type(tile.offset(0, 1, 2)) is int
    assert np.array_equal(np.sort(offsets.ravel()), np.arange(tile.size) * 2)


def test_offset_broadcasts_and_does_not_wrap_round():
    tile = Tile((200, 256), "f32")
    rows = np.arange(200, dtype=np.uint8)
    assert np.array_equal(tile.offset(rows, 255), (np.arange(200) * 256 + 255) * 4)
    assert tile.offset(np.uint8(199), np.uint8(255)) == (199 * 256 + 255) * 4


@pytest.mark.parametrize(
    "index, text",
    [
        ((1,), r"takes 2 indices, got 1"),
        ((4, 0), r"index 4 is outside axis 0 of Tile\(\(4, 8\), f32, NONE\)"),
        ((0, -1), r"index -1 is outside axis 1"),
        ((0, np.array([0, 8])), r"index \[0 8\] is outside axis 1"),
    ],
)
def test_offset_outside_of_the_tile(index, text):
    with pytest.raises(IndexError, match=text):
        Tile((4, 8), "f32").offset(*index)


# ---- box rules ----


@pytest.mark.parametrize(
    "tile",
    [
        Tile((256, 256), "f64"),
        Tile((1, 1, 1, 1, 16), "u8"),
        Tile((256, 64), "bf16", Swizzle.B128),
        Tile((3, 5, 8), "f16", Swizzle.B32),
    ],
    ids=repr,
)
def test_legal_boxes(tile):
    assert box_violations(tile) == []
    assert box_violations(tile.shape, tile.dtype, tile.swizzle) == []


@pytest.mark.parametrize(
    "box, swizzle, texts",
    [
        (
            (0, 4),
            Swizzle.NONE,
            ["box axis 0 is 0; TMA copies 1 to 256 elements along an axis: use at least 1"],
        ),
        (
            (257, 4),
            Swizzle.NONE,
            [
                "box axis 0 is 257; TMA copies 1 to 256 elements along an axis: split it into 2 "
                "boxes of 256 or fewer; a Tile is split by itself"
            ],
        ),
        (
            (8, 33),
            Swizzle.NONE,
            [
                "box axis 1 is 33 f32 = 132 B; TMA needs a multiple of 16 B along the innermost "
                "axis: use 32 or 36"
            ],
        ),
        (
            (8, 1),
            Swizzle.NONE,
            [
                "box axis 1 is 1 f32 = 4 B; TMA needs a multiple of 16 B along the innermost "
                "axis: use 4"
            ],
        ),
        (
            (8, 64),
            Swizzle.B64,
            [
                "box axis 1 is 64 f32 = 256 B; swizzle B64 spans 64 B: use 16 or fewer "
                "elements, Swizzle.NONE, or Tile((8, 64), f32, B64), which splits it into 4 boxes"
            ],
        ),
        (
            (-1, 300, 301),
            Swizzle.B128,
            ["box axis 0 is -1", "box axis 1 is 300", "box axis 2 is 301; TMA copies 1 to 256"]
            + ["box axis 2 is 301 f32 = 1204 B; TMA needs a multiple", "swizzle B128 spans 128 B"],
        ),
    ],
)
def test_broken_box_rules_are_all_listed(box, swizzle, texts):
    found = box_violations(box, "f32", swizzle)
    assert len(found) == len(texts)
    assert all(text in violation for text, violation in zip(texts, found, strict=True))


def test_the_inner_rules_do_not_hold_for_interleaved_boxes():
    assert box_violations((1, 2, 3), "f32", Swizzle.NONE, 16) == []
    assert len(box_violations((1, 2, 257), "f32", Swizzle.NONE, 16)) == 1


# ---- loads and stores against slow loops ----


def slow_destination(tile, index):
    """Byte of an element in the image: its chunk moves, by the number of its line."""
    width = tile.swizzle.span if tile.swizzle else tile.shape[-1] * tile.itemsize
    row = 0
    for i, extent in zip(index[:-1], tile.shape[:-1], strict=True):
        row = row * extent + i
    byte = row * width + index[-1] * tile.itemsize
    size = {Swizzle.B128_ATOM_32B: 32, Swizzle.B128_ATOM_64B: 64}.get(tile.swizzle, 16)
    line, chunk, rest = byte // 128, byte % 128 // size, byte % size
    return line * 128 + (chunk ^ line % (tile.swizzle.span // size)) * size + rest


def slow_float32(bits, name):
    """What a load makes of one float32, by arithmetic instead of bits."""
    value = float(np.uint32(bits).view(np.float32))
    if "tf32" in name and math.isnan(value):
        return 0x7FFFE000
    if not math.isfinite(value):
        return bits
    if "tf32" in name and value:
        # One unit of the tenth mantissa bit; denormals have the exponent of the least normal.
        unit = 2.0 ** (max(math.frexp(value)[1], -125) - 11)
        value = math.copysign(round(abs(value) / unit) * unit, value)  # round() takes ties to even
        if abs(value) >= 2.0**128:
            value = math.copysign(math.inf, value)
    return int(np.float32(value).view(np.uint32))


def slow_elements(array, tile, coords, steps):
    """Yield the index in the tile and the one in the array, or None outside of it."""
    for index in itertools.product(*(range(extent) for extent in tile.shape)):
        position = tuple(c + s * i for c, s, i in zip(coords, steps, index, strict=True))
        inside = all(0 <= p < n for p, n in zip(position, array.shape, strict=True))
        yield index, position if inside else None


def slow_load(array, tile, coords, steps, fill):
    image = bytearray(tile.shared_nbytes)
    for index, position in slow_elements(array, tile, coords, steps):
        element = fill if position is None else array[position].tobytes()
        if position is not None and tile.dtype.name in ("tf32", "f32_ftz", "tf32_ftz"):
            bits = slow_float32(int.from_bytes(element, "little"), tile.dtype.name)
            element = bits.to_bytes(4, "little")
        start = slow_destination(tile, index)
        image[start : start + tile.itemsize] = element
    return np.frombuffer(bytes(image), np.uint8)


def slow_store(array, image, tile, coords, steps):
    for index, position in slow_elements(array, tile, coords, steps):
        if position is not None:
            start = slow_destination(tile, index)
            element = image[start : start + tile.itemsize].tobytes()
            array[position] = np.frombuffer(element, array.dtype)[0]


def random_array(shape, dtype, seed):
    """An array of random bits: denormals, infinities and NaNs are among the floats."""
    count = math.prod(shape) * dtype.itemsize
    random = np.random.default_rng(seed).integers(0, 256, count, np.uint8)
    return random.view(dtype.numpy).reshape(shape)


@st.composite
def copies(draw):
    """A tensor of any layout, a tile that fits its swizzle, coordinates around the tensor."""
    dtype = as_dtype(draw(st.sampled_from(byte_names + complex_names)))
    rank = draw(st.integers(1, 5))
    swizzle = draw(st.sampled_from(Swizzle))
    extents = st.integers(1, {1: 40, 2: 20, 3: 6, 4: 4, 5: 3}[rank])
    outer = tuple(draw(extents) for _ in range(rank - 1))
    width = 16 * draw(st.integers(1, swizzle.span // 16 if swizzle else 4))
    tile = Tile((*outer, width // dtype.itemsize), dtype, swizzle)
    shape = (*(draw(extents) for _ in outer), draw(st.integers(1, 200 // dtype.itemsize)))
    coords = tuple(draw(st.integers(-t - 1, n + 1)) for t, n in zip(tile.shape, shape, strict=True))
    steps = (*(draw(st.integers(1, 3)) for _ in outer), 1)
    array = random_array(shape, dtype, draw(st.integers(0, 2**32 - 1)))
    layout = draw(st.sampled_from(["contiguous", "padded", "permuted", "broadcast"]))
    if layout == "padded":
        array = np.repeat(array, 2, axis=-1)[..., : shape[-1]]
    elif layout == "permuted":
        array = np.asfortranarray(array)
    elif layout == "broadcast" and rank > 1:
        array = np.broadcast_to(array[:1], shape)
    fill = draw(st.sampled_from(["zeros", "nan"] if dtype.is_float else ["zeros"]))
    return array, tile, coords, steps, fill


@settings(max_examples=300, deadline=None)
@given(copies())
def test_reference_tile_equals_a_loop_over_elements(copy):
    array, tile, coords, steps, fill = copy
    fill_bytes = bytes(tile.itemsize) if fill == "zeros" else b"\xf7\x7f" * (tile.itemsize // 2)
    image = reference_tile(array, tile, coords, oob_fill=fill, element_strides=steps)
    assert image.dtype == np.uint8 and image.shape == (tile.shared_nbytes,)
    assert np.array_equal(image, slow_load(array, tile, coords, steps, fill_bytes))


@settings(max_examples=200, deadline=None)
@given(copies())
def test_reference_store_equals_a_loop_over_elements(copy):
    array, tile, coords, steps, _ = copy
    array = array.copy()
    image = random_array((tile.shared_nbytes,), as_dtype("u8"), 1)
    expected = array.copy()
    slow_store(expected, image, tile, coords, steps)
    assert reference_store(array, image, tile, coords, steps) is None
    assert array.tobytes() == expected.tobytes()


@settings(max_examples=100, deadline=None)
@given(copies())
def test_what_was_loaded_and_stored_back_changes_nothing(copy):
    array, tile, coords, steps, _ = copy
    array = array.copy()
    plain = Tile(tile.shape, tile.dtype.numpy.type, tile.swizzle)  # a load of tf32 rounds
    before = array.tobytes()
    image = reference_tile(array, plain, coords, element_strides=steps)
    reference_store(array, image, plain, coords, steps)
    assert array.tobytes() == before


def test_a_load_in_bounds_is_the_slice_itself():
    array = np.arange(100 * 64, dtype=np.float32).reshape(100, 64)
    image = reference_tile(array, Tile((8, 32), "f32"), (5, 4))
    assert np.array_equal(image.view(np.float32).reshape(8, 32), array[5:13, 4:36])


def test_a_swizzled_load_is_read_back_through_offset():
    array = np.arange(64 * 64, dtype=np.int32).reshape(64, 64)
    tile = Tile((16, 32), "i32", Swizzle.B128)
    image = reference_tile(array, tile, (8, 32)).view(np.int32)
    rows, columns = np.indices(tile.shape)
    assert np.array_equal(image[tile.offset(rows, columns) // 4], array[8:24, 32:])
    assert not np.array_equal(image.reshape(tile.shape), array[8:24, 32:])


def test_overlapping_rows():
    array = as_strided(np.arange(64, dtype=np.int32), (10, 8), (16, 4))
    image = reference_tile(array, Tile((3, 8), "i32"), (2, 0)).view(np.int32).reshape(3, 8)
    assert image.tolist() == [list(range(start, start + 8)) for start in (8, 12, 16)]


def test_element_strides_skip_elements_of_the_tensor():
    array = np.arange(20 * 8, dtype=np.int32).reshape(20, 8)
    tile = Tile((4, 8), "i32")
    image = reference_tile(array, tile, (1, 0), element_strides=(3, 1)).view(np.int32)
    assert np.array_equal(image.reshape(4, 8), array[1:13:3])
    target = np.zeros_like(array)
    reference_store(target, image.view(np.uint8), tile, (1, 0), (3, 1))
    assert np.array_equal(target[1:13:3], array[1:13:3])
    assert np.count_nonzero(target) == 32


@pytest.mark.parametrize("coords", [(100, 0), (0, 64), (-8, 0), (0, -32), (10**9, -(10**9))])
def test_a_tile_wholly_outside(coords):
    array = np.ones((100, 64), np.float32)
    tile = Tile((8, 32), "f32")
    assert not reference_tile(array, tile, coords).any()
    nans = reference_tile(array, tile, coords, oob_fill="nan").view(np.float32)
    assert np.isnan(nans).all()
    reference_store(array, np.zeros(tile.nbytes, np.uint8), tile, coords)
    assert (array == 1).all()


@pytest.mark.parametrize("name", [n for n in byte_names if as_dtype(n).is_float])
def test_nan_fill_is_a_nan_of_every_float_type(name):
    dtype = as_dtype(name)
    array = np.ones((4, 4), dtype.numpy)
    tile = Tile((4, 16 // dtype.itemsize), dtype)
    image = reference_tile(array, tile, (2, 0), oob_fill="nan")
    values = image.view(dtype.numpy).reshape(tile.shape).astype(np.float64)
    assert (values[:2, :4] == 1).all()
    assert np.isnan(values[2:]).all() and np.isnan(values[:, 4:]).all()


@pytest.mark.parametrize(
    "name, given_bits, loaded_bits",
    [
        ("tf32", 0x3F800FFF, 0x3F800000),  # below half a unit
        ("tf32", 0x3F801000, 0x3F800000),  # a tie goes to even
        ("tf32", 0xBF803000, 0xBF804000),
        ("tf32", 0x7F7FFFFF, 0x7F800000),  # rounds up to infinity
        ("tf32", 0x7F800000, 0x7F800000),
        ("tf32", 0xFF800001, 0x7FFFE000),  # all NaNs become one
        ("tf32", 0x00001000, 0x00000000),
        ("tf32", 0x00001001, 0x00002000),  # denormals are rounded, not flushed
        ("tf32_ftz", 0x00001001, 0x00002000),
        ("tf32_ftz", 0x80400000, 0x80400000),
        ("tf32_ftz", 0x807FFFFF, 0x80800000),
        ("f32_ftz", 0x807FFFFF, 0x807FFFFF),  # nor are they by f32_ftz
        ("f32_ftz", 0x00000001, 0x00000001),
        ("f32_ftz", 0x00800001, 0x00800001),
        ("f32_ftz", 0x3F800FFF, 0x3F800FFF),
        ("f32_ftz", 0xFFC00001, 0xFFC00001),
        ("f32", 0x00000001, 0x00000001),
    ],
)
def test_conversions_of_a_load(name, given_bits, loaded_bits):
    array = np.full((4,), given_bits, np.uint32).view(np.float32)
    image = reference_tile(array, Tile((4,), name), (0,)).view(np.uint32)
    assert [hex(bits) for bits in image] == [hex(loaded_bits)] * 4


def test_a_store_converts_nothing():
    array = np.zeros(4, np.float32)
    bits = np.full(4, 0x3F800001, np.uint32)
    reference_store(array, bits.view(np.uint8), Tile((4,), "tf32_ftz"), (0,))
    assert array.view(np.uint32).tolist() == bits.tolist()


def test_rows_narrower_than_the_span_are_padded_to_it():
    # Where the first 16 bytes of 32 B rows under B128 lie, as an H200 was seen to put them.
    tile = Tile((12, 32), "u8", Swizzle.B128)
    assert (tile.nbytes, tile.pitch, tile.shared_nbytes) == (12 * 32, 128, 12 * 128)
    seen = [0, 9, 18, 27, 36, 45, 54, 63, 64, 73, 82, 91]
    assert [tile.offset(row, 0) // 16 for row in range(12)] == seen
    image = reference_tile(np.full((12, 32), 7, np.uint8), tile, (0, 0)).reshape(-1, 16)
    assert (image[seen] == 7).all()
    assert image.sum() == 7 * tile.nbytes  # the padding is left as it was, here 0


@pytest.mark.parametrize(
    "change, error, text",
    [
        ({"coords": (0,)}, ValueError, "has 2 axes, the array 2, the coordinates 1"),
        ({"array": np.zeros(4, np.float32)}, ValueError, "the array 1"),
        ({"element_strides": (1,)}, ValueError, "the element strides 1; they must agree"),
        ({"element_strides": (1, 2)}, ValueError, "innermost element stride is 2"),
        ({"array": np.zeros((4, 4), np.float16)}, TypeError, "float16 has 2 B"),
        ({"oob_fill": "ones"}, ValueError, 'oob_fill is \'ones\'; f32 takes "zeros" or "nan"'),
        ({"oob_fill": "nan", "tile": Tile((4, 4), "i32")}, ValueError, 'i32 takes "zeros", as an'),
    ],
)
def test_copies_that_make_no_sense(change, error, text):
    arguments = {"array": np.zeros((4, 4), np.float32), "tile": Tile((4, 4), "f32")}
    arguments |= {"coords": (0, 0)} | change
    with pytest.raises(error, match=text):
        reference_tile(**arguments)


def test_a_store_needs_all_of_the_image():
    array = np.zeros((4, 4), np.float32)
    with pytest.raises(ValueError, match=r"image has shape \(60,\); .* takes 64 bytes"):
        reference_store(array, np.zeros(60, np.uint8), Tile((4, 4), "f32"), (0, 0))


@example(swizzle=Swizzle.B128, rows=8)
@given(swizzle=st.sampled_from(SWIZZLED), rows=st.integers(1, 40))
@settings(deadline=None)
def test_every_byte_of_a_full_width_tile_has_one_place(swizzle, rows):
    tile = Tile((rows, swizzle.span), "u8", swizzle)
    assert sorted(tile.offset(*np.indices(tile.shape)).ravel()) == list(range(tile.nbytes))
