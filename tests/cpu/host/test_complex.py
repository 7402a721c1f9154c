"""Maps of complex arrays: the driver is asked for the map of their words."""

import importlib
import re
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import numba_tma as tma
from numba_tma import Swizzle, Tile
from numba_tma.host import encoding
from numba_tma.host.boxes import Copies, copies_of, copies_violations
from numba_tma.host.dtypes import as_dtype, complex_names
from numba_tma.host.layout import box_violations

ADDRESS = 1 << 40


class Array:
    """Looks like a GPU array."""

    def __init__(self, shape, typestr="<c8", strides=None):
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
    ragged = make is tma.ragged_tensor_map
    name = "ragged" if ragged else "encoding"
    with (
        mock.patch.object(
            importlib.import_module(f"numba_tma.host.{'ragged' if ragged else 'tensor_map'}"),
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
    return made, tuple(part[:-1] if n == 3 else part for n, part in enumerate(call))


def in_words(shape):
    return (*shape[:-1], 2 * shape[-1])


@st.composite
def cases(draw):
    """A complex array with padded rows, and a tile that it is copied in."""
    dtype = as_dtype(draw(st.sampled_from(complex_names)))
    swizzle = draw(st.sampled_from(list(Swizzle)))
    rank = draw(st.integers(1, 4))
    outer = tuple(draw(st.integers(1, 20)) for _ in range(rank - 1))
    tile = Tile((*outer, dtype.chunk * draw(st.integers(1, 100))), dtype, swizzle)
    fold = draw(st.booleans())
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


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_the_driver_is_asked_for_the_map_of_the_words(case):
    tile, shape, strides, options = case
    word = tile.dtype.word
    of_words = Tile(in_words(tile.shape), word, tile.swizzle)
    typestr = np.dtype(tile.dtype.numpy).str
    try:
        made, asked = encoded(Array(shape, typestr, strides), tile, **options)
    except ValueError as error:  # a fold of too many elements
        assert "fold=True" in str(error)
        return
    byte_strides = (*strides[:-1], word.itemsize)
    words = Array(in_words(shape), np.dtype(word.numpy).str, byte_strides)
    twin, expected = encoded(words, of_words, **options)
    assert asked == expected
    assert (made.shape, made.strides, made.dtype) == (shape, strides, tile.dtype)
    assert in_words(made.box) == twin.box and made.tile == tile
    coords = tuple(range(3, 2 + tile.ndim)) + (7 * made.copies.part,)
    each = list(made.copies.each(coords))
    assert each == list(twin.copies.each(in_words(coords)))
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


@pytest.mark.parametrize("make", [tma.gather_map, tma.im2col_map, tma.im2col_wide_map])
def test_other_maps_take_the_words(make):
    array = Array((64, 64) if make is tma.gather_map else (2, 8, 8, 64))
    found = refusals(array, Tile((8, 16), "c64", Swizzle.B128), make)
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
