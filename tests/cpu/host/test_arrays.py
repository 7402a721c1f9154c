"""`Array`: read once under its names, and all views of its memory."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

from numba_tma.host.array_interface import byte_strides, read_array, reading_of
from numba_tma.host.arrays import Array, check_same
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Tile
from numba_tma.host.tensor_map import tensor_map

ADDRESS = 1 << 40
F32, BF16 = as_dtype("f32"), as_dtype("bf16")


class OnDevice:
    """Memory that does not exist, with the CUDA array interface."""

    def __init__(self, shape, dtype=np.float32, strides=None, address=ADDRESS):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": strides,
            "typestr": np.dtype(dtype).str,
            "data": (address, False),
            "version": 3,
        }


def read(shape, dtype=np.float32, strides=None, address=ADDRESS, meaning=None):
    return Array.read("halve", "x", OnDevice(shape, dtype, strides, address), meaning)


def test_an_argument_is_read_under_its_name():
    given = OnDevice((3, 8))
    array = Array.read("halve", "x", given)
    assert (array.address, array.shape, array.strides) == (ADDRESS, (3, 8), (32, 4))
    assert array.dtype is F32 and array.owner is given
    assert (array.itemsize, array.size, array.nbytes) == (4, 24, 96)
    with pytest.raises(AttributeError):
        array.address = 0
    assert str(array.error("is wrong")) == "halve(): x is wrong"


def test_strides_are_bytes_for_every_library():
    assert byte_strides((3, 8), None, False, 4) == (32, 4)
    assert byte_strides((3, 8), (8, 1), True, 4) == (32, 4)
    assert byte_strides((3, 8), (32, 4), False, 4) == (32, 4)
    assert read((0, 8), strides=(7, 3)).strides == (32, 4)  # an empty array has any strides


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (np.zeros(4), "halve(): x is a numpy.ndarray in host memory; TMA copies from GPU memory"),
        (None, "halve(): x is None; pass a GPU array"),
        ([1.0], "halve(): x is a list, which is no array; pass a GPU array"),
    ],
    ids=str,
)
def test_an_error_names_the_function_and_the_argument(given, text):
    with pytest.raises(TypeError) as caught:
        Array.read("halve", "x", given)
    assert str(caught.value).startswith(text)


def test_bits_have_another_meaning_of_their_size():
    array = read((4,), np.uint16, meaning="bf16")
    assert array.dtype is BF16 and array.stored == np.uint16
    with pytest.raises(ValueError, match=r"halve\(\): x holds u16, whose bits cannot be f32: give"):
        read((4,), np.uint16, meaning="f32")
    with pytest.raises(ValueError, match=r"x holds \|V2, whose bits cannot be f32"):
        read((4,), "V2", meaning="f32")
    with pytest.raises(TypeError, match=r"x has elements of an unknown type: dtype dtype\('V2'\)"):
        read((4,), "V2")
    with pytest.raises(TypeError, match=r"^halve\(\): x: dtype 'b16' is no TMA element type"):
        read((4,), np.uint16, meaning="b16")


def test_rows_have_one_stride():
    assert read((2, 3, 8)).as_rows().shape == (6, 8)
    padded = read((2, 3, 8), strides=(144, 48, 4)).as_rows()
    assert (padded.shape, padded.strides, padded.is_contiguous) == ((6, 8), (48, 4), False)
    assert read((8,)).as_rows().strides == (32, 4)
    assert read((3, 1), strides=(64, 12)).as_rows().strides == (64, 4)
    with pytest.raises(ValueError, match=r"x has shape \(8, 3\) and strides \(4, 32\) B: its last"):
        read((8, 3), strides=(4, 32)).as_rows()
    with pytest.raises(ValueError, match=r"x has leading shape \(2, 3\) and strides \(999, 48\) B"):
        read((2, 3, 8), strides=(999, 48, 4)).as_rows()
    with pytest.raises(ValueError, match=r"x has shape \(\) and strides \(\) B: its last axis"):
        read(()).as_rows()


def test_matrices_have_any_strides():
    batch = read((2, 5, 3, 8)).as_matrices()
    assert (batch.shape, batch.strides) == ((10, 3, 8), (96, 32, 4))
    turned = read((8, 3), strides=(4, 32)).as_matrices()
    assert (turned.shape, turned.strides) == ((1, 8, 3), (32, 4, 32))
    assert turned.transposed().strides == (32, 32, 4)
    assert read((7, 3, 8), strides=(0, 32, 4)).as_matrices().strides == (0, 32, 4)
    assert read((1, 1, 8), strides=(5, 9, 4)).as_matrices().strides == (32, 32, 4)
    with pytest.raises(ValueError, match=r"a matrix has two axes or more: use x\[None, :\] for a"):
        read((8,)).as_matrices()


def test_axes_change_places():
    array = read((2, 3, 8))
    assert array.transposed().shape == (2, 8, 3)
    moved = array.transposed(2, 0, 1)
    assert (moved.shape, moved.strides) == ((8, 2, 3), (4, 96, 32))


def test_a_view_is_elsewhere_in_the_memory():
    array = read((4, 8))
    part = array.view((2, 8), offset=64)
    assert (part.address, part.strides, part.owner) == (ADDRESS + 64, (32, 4), array.owner)
    assert (part.function, part.name) == ("halve", "x")
    assert array.view((128,), dtype=as_dtype("u8")).strides == (1,)
    assert array.as_bits().dtype is as_dtype("u32")
    assert array.as_dtype(as_dtype("tf32")).dtype.name == "tf32"


@pytest.mark.parametrize(
    ("array", "alignment", "loadable", "storable"),
    [
        (read((4, 8)), 16, True, True),
        (read((4, 6), strides=(32, 4)), 16, True, False),
        (read((4, 8), strides=(36, 4)), 4, False, False),
        (read((1, 8), strides=(36, 4)), 16, True, True),
        (read((4, 8), address=ADDRESS + 8), 8, False, False),
        (read((8, 4), strides=(4, 32)), 4, False, False),
    ],
)
def test_what_tma_takes(array, alignment, loadable, storable):
    assert (array.alignment, array.is_loadable, array.is_storable) == (
        *(alignment, loadable, storable),
    )


#: By extent of an axis, the strides that are tried; those of 1 element say nothing.
STEPS = {1: (0, -4, 12, 64), 2: (4, 8, 16, 64, -4, -16), 3: (0, 4, 8, 32, -8)}


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_what_is_said_of_strides_holds_for_the_addresses_of_elements(rank):
    axes = [(n, step) for n, steps in STEPS.items() for step in steps]
    for chosen in list(itertools.product(axes, repeat=rank))[:: (1, 1, 5, 97)[rank]]:
        shape, strides = tuple(n for n, _ in chosen), tuple(step for _, step in chosen)
        array = read(shape, strides=strides)
        at = ADDRESS + np.array([np.dot(place, strides) for place in np.ndindex(shape)], np.int64)
        rows = at.reshape(-1, shape[-1] if shape else 1)
        assert (array.size, array.nbytes) == (at.size, 4 * at.size)
        assert array.is_contiguous == bool((at == ADDRESS + 4 * np.arange(at.size)).all())
        assert array.has_contiguous_rows == bool((np.diff(rows) == 4).all())
        steps = [np.diff(at.reshape(shape), axis=axis) for axis in range(rank)]
        assert array.is_reversed == any((step < 0).any() for step in steps)
        assert array.extent == (at.min(), at.max() + 4)
        assert array.alignment == math.gcd(16, *map(int, rows[:, 0]))
        apart = bool((np.diff(np.sort(at.ravel())) >= 4).all())
        assert apart or array.repeats
        assert not (array.is_contiguous and array.repeats)
        other = array.as_dtype(as_dtype("i32"))
        assert (other.shape, other.strides, str(other.dtype)) == (shape, strides, "i32")


@pytest.mark.parametrize("strides", [(1,), (-1,), (2,)])
def test_an_array_of_two_bytes_shares_memory_with_each_of_them(strides):
    pair = read((2,), np.uint8, strides)
    held = {0, *strides}
    for place in range(-3, 4):
        byte = read((1,), np.uint8, address=ADDRESS + place)
        assert pair.shares_memory(byte) == byte.shares_memory(pair) == (place in held)


def test_other_libraries_take_it():
    array = read((4, 8), strides=(64, 4), meaning="tf32")
    assert array.__cuda_array_interface__ == {
        "shape": (4, 8),
        "strides": (64, 4),
        "typestr": "<f4",
        "data": (ADDRESS, False),
        "version": 3,
    }
    assert read((4, 8)).__cuda_array_interface__["strides"] is None
    bits = read((4, 8), ml_dtypes.bfloat16, meaning="bf16").as_bits()
    assert bits.__cuda_array_interface__["typestr"] == "<u2"


def test_a_map_needs_no_dtype_beside_it(monkeypatch):
    monkeypatch.setattr("numba_tma.host.encoding.encode_tiled", lambda *arguments: object())
    monkeypatch.setattr("numba_tma.host.encoding.compute_capability", lambda device: (9, 0))
    monkeypatch.setattr("numba_tma.host.tensor_map.current_device", lambda: 0)
    array = read((64, 64), np.uint16, meaning="bf16")
    assert read_array(array)[0][:5] == (ADDRESS, (64, 64), (128, 2), BF16, False)
    made = tensor_map(array, Tile((8, 64), "bf16"))
    assert made.dtype is BF16 and made.array is array


def test_arrays_of_one_shape_and_type():
    first = read((4, 8))
    check_same(first, None, read((4, 8)))
    other = Array.read("halve", "out", OnDevice((4, 9)))
    with pytest.raises(ValueError) as caught:
        check_same(first, other)
    assert str(caught.value) == (
        "halve(): out has shape (4, 9) of f32, but x has shape (4, 8) of f32; they must agree"
    )
    with pytest.raises(ValueError, match="of f64, but x has shape"):
        check_same(first, read((4, 8), np.float64))


def test_a_subject_begins_the_error():
    with pytest.raises(TypeError, match="^tensor_map: array is None"):
        reading_of(None, "tensor_map: array")
