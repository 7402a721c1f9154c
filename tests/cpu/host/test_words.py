"""Maps of complex numbers and records: the driver is asked for the map of their words."""

import importlib
import pickle
import re
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numba import cuda

import numba_tma as tma
from numba_tma import Swizzle, Tile
from numba_tma.host import encoding, im2col
from numba_tma.host.boxes import Copies, copies_of, copies_violations
from numba_tma.host.dtypes import as_dtype, complex_names
from numba_tma.host.layout import box_violations

ADDRESS = 1 << 40


class Array:
    """Looks like a GPU array."""

    def __init__(self, shape, typestr="<c8", strides=None, dtype=None):
        self.dtype = dtype
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": strides,
            "typestr": typestr,
            "data": (ADDRESS, False),
            "version": 3,
        }


def encoded(array, tile, make=tma.tensor_map, **options):
    """Return a map made without a driver, and what the driver would have been asked."""
    asked = []
    encode = mock.Mock(side_effect=lambda *given: asked.append(given) or b"")
    home = {tma.ragged_tensor_map: "ragged", tma.gather_map: "gather"}.get(make, "tensor_map")
    name = "ragged" if home == "ragged" else "encoding"
    with (
        mock.patch.object(
            importlib.import_module(f"numba_tma.host.{home}"),
            "current_device",
            lambda: 0,
        ),
        mock.patch(f"numba_tma.host.{name}.encode_tiled", encode),
        mock.patch("numba_tma.host.encoding.compute_capability", lambda device: (10, 0)),
    ):
        encoding.encode.cache_clear()
        made = make(array, tile, **options)
        encoding.encode.cache_clear()
    (call,) = asked
    # A map reads no innermost stride.
    layout = tuple(part[:-1] if n == 3 else part for n, part in enumerate(call))
    return made, (call[0].tensor_map, *layout[1:])


def in_words(shape, words=2):
    return (*shape[:-1], words * shape[-1])


RECORDS = [
    np.dtype([("x", "f4"), ("y", "f4"), ("id", "i4")]),
    np.dtype([("a", "u1"), ("b", "u1"), ("c", "u2"), ("d", "f4")]),
    np.dtype([("a", "u1"), ("b", "f8"), ("c", "u2")], align=True),
    *(np.dtype([("a", "u1"), ("b", "u1"), ("c", "u1")]), np.dtype([("a", "u2"), ("b", "u8")])),
]


@st.composite
def cases(draw):
    """An array with padded rows, and a tile that it is copied in."""
    dtype = as_dtype(draw(st.sampled_from([*complex_names, *RECORDS])))
    swizzles = list(Swizzle) if 16 % dtype.itemsize == 0 else [Swizzle.NONE]
    swizzle = draw(st.sampled_from(swizzles))
    rank = draw(st.integers(1, 4))
    outer = tuple(draw(st.integers(1, 20)) for _ in range(rank - 1))
    tile = Tile((*outer, dtype.chunk * draw(st.integers(1, 100))), dtype, swizzle)
    # The parts of a fold are powers of two, of elements and so perhaps not of words.
    fold = draw(st.booleans()) and dtype.itemsize % 3 > 0 and dtype.itemsize % 5 > 0
    steps = (*(draw(st.integers(1, 3)) for _ in outer), 1)
    copies = Copies(tile, steps, fold)
    assume(fold or not copies_violations(copies_of(tile, steps), None))
    shape = [draw(st.integers(1, 50)) for _ in range(rank)]
    shape[-1] *= copies.part if fold else 1
    strides, stride = [dtype.itemsize], dtype.itemsize * shape[-1]
    for extent in reversed(shape[1:] and shape[:-1]):
        stride = -(-stride // 16) * 16 + 16 * draw(st.integers(0, 2))
        strides.insert(0, stride)
        stride *= extent
    fill = draw(st.sampled_from(["zeros", "nan"]))
    return tile, tuple(shape), tuple(strides), {"fold": fold, "element_strides": steps} | {
        "oob_fill": fill
    }


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_the_driver_is_asked_for_the_map_of_the_words(case):
    tile, shape, strides, options = case
    words, numpy = tile.dtype.words, tile.dtype.numpy
    word = as_dtype(f"u{8 * tile.itemsize // words}") if tile.dtype.is_record else tile.dtype.word
    if tile.dtype.is_record:
        options["oob_fill"] = "zeros"
    of_words = Tile(in_words(tile.shape, words), word, tile.swizzle)
    try:
        made, asked = encoded(Array(shape, numpy.str, strides, numpy), tile, **options)
    except ValueError:
        with pytest.raises(ValueError):  # a fold of too many elements, or too many copies
            encoded(Array(in_words(shape, words), word.numpy.str), of_words, **options)
        return
    byte_strides = (*strides[:-1], word.itemsize)
    plain = Array(in_words(shape, words), np.dtype(word.numpy).str, byte_strides)
    twin, expected = encoded(plain, of_words, **options)
    assert asked == expected
    assert (made.shape, made.strides, made.dtype) == (shape, strides, tile.dtype)
    assert in_words(made.box, words) == twin.box and made.tile == tile
    coords = tuple(range(3, 2 + tile.ndim)) + (7 * made.copies.part,)
    each = list(made.copies.each(coords))
    assert each == list(twin.copies.each(in_words(coords, words)))
    assert sum(made.copies.box.nbytes for _ in each) == tile.nbytes


@pytest.mark.parametrize("kind", ["wrap", "shift"])
def test_sequences_of_complex_rows_are_those_of_their_words(kind):
    tile = Tile((8, 16), "c64", Swizzle.B128)
    given = {"make": tma.ragged_tensor_map, "encoding": kind}
    made, asked = encoded(Array((50, 64)), tile, **given)
    words = Tile((8, 32), "f32", Swizzle.B128)
    assert asked == encoded(Array((50, 128), "<f4"), words, **given)[1]
    assert made.box == (8, 16)


def refusals(array, tile, make=tma.tensor_map, **options):
    with pytest.raises((ValueError, TypeError)) as caught:
        encoded(array, tile, make, **options)
    return re.findall(r"\n  \d+\. (.*)", str(caught.value)) or [str(caught.value)]


def test_rules_are_said_in_elements():
    shape = (64, 64)
    assert refusals(Array(shape), (8, 136)) == [
        "box axis 1 is 136 c64 of 2 words; TMA copies 1 to 128 elements along that axis: split it "
        "into 2 boxes of 128 or fewer; a Tile is split by itself"
    ]
    assert refusals(Array(shape), (8, 7)) == [
        "box axis 1 is 7 c64 = 56 B; TMA needs a multiple of 16 B along the innermost axis: use 6 "
        "or 8"
    ]
    assert box_violations(Tile((8, 1), "c128")) == []
    (text,) = refusals(Array((64, 63), strides=(504, 8)), (8, 16))
    assert "axis 0 stride is 504 B; TMA needs a multiple of 16 B: pad axis 1 to 64 columns" == text
    (text,) = refusals(Array((1, (1 << 31) + 2)), (1, 16))
    assert text.startswith("axis 1 has 2147483650 c64 of 2 words; TMA takes 1 to 2**32 words: make")


def test_rows_by_number_are_those_of_their_words():
    tile, words = (Tile((8, n), name, Swizzle.B128) for n, name in ((32, "c64"), (64, "f32")))
    made, asked = encoded(Array((50, 64)), tile, make=tma.gather_map)
    twin, expected = encoded(Array((50, 128), "<f4"), words, make=tma.gather_map)
    assert asked == expected and made.copies.box == twin.copies.box
    assert [offset for offset, _ in made.copies.starts] == [o for o, _ in twin.copies.starts]
    (text,) = refusals(Array((50, 256)), Tile((8, 256), "c64"), tma.gather_map)
    assert "tile.shape[1] is 256 columns; a copy takes 1 to 128 next to each other" in text


@pytest.mark.parametrize("make", [tma.im2col_map, tma.im2col_wide_map])
def test_maps_of_pixels_take_the_words(make, monkeypatch):
    monkeypatch.setattr(im2col, "compute_capability", lambda device: (10, 0))
    found = refusals(Array((2, 8, 8, 64)), Tile((8, 16), "c64", Swizzle.B128), make)
    assert (
        f"{make.__name__} takes elements of one word, and c64 has 2: use tensor_map, or view the "
        "array as float32 and give a tile of f32, 2 times as wide"
    ) in found


def test_interleaved_maps_take_the_words():
    array = Array((2, 4, 64, 2))
    found = refusals(array, (1, 1, 8, 2), interleave=16)
    assert found[0].startswith("interleave=16 is not modelled for c64: leave interleave out, or")


def test_reductions_add_and_no_more():
    for name in complex_names:
        assert as_dtype(name).reductions == ("add",)


def test_an_edited_map_has_elements_of_one_word():
    from numba_tma.device.edit_map import wrong_template

    made, _ = encoded(Array((64, 64)), (8, 16))
    assert wrong_template(made, made).startswith("edit_map takes elements of one word, and c64 has")


def test_what_explain_says_of_words():
    made, _ = encoded(Array((64, 64)), Tile((8, 16), "c64"))
    text = made.explain()
    assert "1 of the box (8, 16), 1,024 B, encoded in words of f32" in text
    assert "contiguous (8 B), box 16 (1 to 128), 128 B" in text


# ---------------------------------------------------------------------------- records


def test_equal_structured_types_are_one_type():
    point = RECORDS[0]
    found = as_dtype(point)
    assert found is as_dtype(np.dtype(point.descr)) and found.is_record
    assert pickle.loads(pickle.dumps(Tile((4, 4), point))) == Tile((4, 4), point)
    assert repr(Tile((4, 4), point)) == "Tile((4, 4), {x: f4, y: f4, id: i4}, NONE)"
    moved = np.dtype({"names": ["x"], "formats": ["f4"], "offsets": [4], "itemsize": 16})
    assert str(as_dtype(moved)) == "{@4 x: f4, 16 B}"
    assert len({str(as_dtype(each)) for each in (*RECORDS, moved)}) == len(RECORDS) + 1


@pytest.mark.parametrize(("dtype", "word", "words", "chunk"), [
    (RECORDS[0], "u32", 3, 4), (RECORDS[1], "u64", 1, 2), (RECORDS[2], "u64", 3, 2),
    (RECORDS[3], "u8", 3, 16), (RECORDS[4], "u16", 5, 8),
])  # fmt: skip
def test_records_are_copied_in_the_widest_words(dtype, word, words, chunk):
    found = as_dtype(dtype)
    assert (found.tensor_map, found.words, found.chunk) == (f"UINT{word[1:]}", words, chunk)
    assert found.max_inner_box == 256 // words and found.reductions == ()


@pytest.mark.parametrize(("dtype", "text"), [
    (np.dtype([("x", "f4", 3)]), "the field 'x' is an array of shape (3,); fields of a tile's"),
    (np.dtype([("x", "M8[s]")]), "the field 'x' is datetime64[s]; kernels read fields of bool"),
    (np.dtype([("x", ">f4")]), "the field 'x' is >f4; kernels read fields of bool"),
    (np.dtype([("n", [("x", "S4")])]), "the field 'x' is |S4; kernels read fields of bool"),
    (np.dtype([("_x", "f4")]), "the field '_x' begins with an underscore: rename it"),
    (np.dtype([("x", "V21")]), "16 of its records, of 21 B each, fill whole chunks of 16 B, and"),
    (np.dtype([("x", "V4096")]), "1 of its records, of 4096 B each, fill whole chunks of 16 B"),
])  # fmt: skip
def test_structured_types_that_are_no_elements(dtype, text):
    with pytest.raises(TypeError, match=re.escape(text)):
        Tile((4, 16), dtype)


def test_rules_of_records():
    with pytest.raises(ValueError, match=r"B128\): elements of \{x: .*\} have 12 B, and a swizzle"):
        Tile((8, 16), RECORDS[0], Swizzle.B128)
    array = Array((64, 64), "|V12", dtype=RECORDS[0])
    assert refusals(array, (8, 10)) == [
        "box axis 1 is 10 {x: f4, y: f4, id: i4} = 120 B; TMA needs a multiple of 16 B along the "
        "innermost axis: use 8 or 12"
    ]
    assert "box axis 1 is 96 {x: f4, y: f4, id: i4} of 3 words; TMA copies 1 to 85" in refusals(
        array, (8, 96)
    )[0]
    assert "which has no NaN" in refusals(array, (8, 8), oob_fill="nan")[0]
    odd = Array((64, 62), "|V12", dtype=RECORDS[0])
    assert refusals(odd, (8, 8)) == [
        "axis 0 stride is 744 B; TMA needs a multiple of 16 B: pad axis 1 to 64 columns"
    ]
    loads, _ = encoded(Array((64, 63), "|V12", (768, 12), RECORDS[0]), (8, 8))
    assert "pad the rows to 64 columns" in loads.partial_rows
    text = refusals(Array((64, 80), "|V10", dtype=RECORDS[4]), Tile((8, 104), RECORDS[4]))[0]
    assert text.startswith("tile axis 1 is 104; TMA copies 1 to 51 elements along an axis, and no")


def test_new_arrays_of_records(monkeypatch):
    monkeypatch.setattr(cuda, "device_array", np.empty)
    made = tma.padded_empty((3, 5), RECORDS[0])
    assert (made.shape, made.strides, made.dtype) == ((3, 5), (96, 12), RECORDS[0])
