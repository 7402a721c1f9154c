"""`padded_empty`: what libraries are asked for, the rows that they give, and what is refused."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

import numba_tma as tma
from numba_tma.host.dtypes import as_dtype, names
from numba_tma.host.tensor_map_rules import tensor_violations


class Torch:
    """Looks like a torch tensor on a GPU, and makes arrays of the host."""

    __module__ = "torch.tensors"
    dtype, is_cuda, shape = np.dtype("f4"), True, (4,)

    def data_ptr(self):
        return 256

    def is_contiguous(self):
        return True

    def new_empty(self, shape, dtype):
        return np.empty(shape, dtype or "f4")


@pytest.fixture(autouse=True)
def numba(monkeypatch):
    monkeypatch.setattr(cuda, "device_array", np.empty)


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(names),
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=5).map(tuple),
)
def test_rows_begin_where_tma_reads_them(name, shape):
    dtype = as_dtype(name)
    if dtype.is_packed:
        shape = (*shape[:-1], (128 if dtype.is_unpacked else 4) * shape[-1])
    made = tma.padded_empty(shape, name)
    assert made.shape == dtype.storage_shape(shape)
    assert made.itemsize == dtype.storage.itemsize
    unit = 32 if dtype.is_unpacked else 16
    assert all(stride % unit == 0 for stride in made.strides[:-1])
    assert tensor_violations(256, made.shape, made.strides, made.itemsize, None, None) == []
    whole = made.base if made.base is not None else made
    assert whole.nbytes % unit == 0 and whole.nbytes - made.nbytes < unit * made.size


@pytest.mark.parametrize("name", ["bf16", "e4m3", "ue8m0"])
def test_numba_holds_what_it_lacks_as_bits(name):
    assert tma.padded_empty((2, 3), name).dtype == f"u{as_dtype(name).itemsize}"


def test_an_array_like_another_is_of_its_library_and_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(float16="f2"))
    assert tma.padded_empty((2, 3), like=Torch()).strides == (16, 4)
    made = tma.padded_empty((2, 3), "f16", like=Torch())
    assert made.dtype == np.float16 and made.strides == (16, 2)


def test_one_extent_is_a_row_whose_last_chunk_is_whole():
    made = tma.padded_empty(5, np.complex128)
    assert made.shape == (5,) and made.base is None or made.base.nbytes == 80
    assert tma.padded_empty(5, "f32").base.nbytes == 32


class Other:
    """An array of another library."""

    __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (256, False), "version": 3}


@pytest.mark.parametrize(
    ("error", "given", "options", "text"),
    [
        (TypeError, ((2, 3),), {}, "dtype is None; give an element type, or an array as like="),
        (TypeError, ((2, 3), "f128"), {}, "dtype 'f128' is no TMA element type: use one of u8"),
        (TypeError, ((2, 3.5), "f32"), {}, r"shape is \(2, 3.5\); give an integer, or a tuple of"),
        (TypeError, ("ab", "f32"), {}, "shape is 'ab'; give an integer, or a tuple"),
        (ValueError, ((2, -3), "f32"), {}, "axis 1 is -3; an extent is not negative: use 0"),
        (ValueError, ((), "f32"), {}, r"shape is \(\); an array that TMA takes has 1 to 5 axes"),
        (ValueError, ((1,) * 6, "f32"), {}, ".* an array that TMA takes has 1 to 5 axes"),
        (ValueError, ((2, 3), "e2m1"), {}, "axis 1 is 3 e2m1; .* use a multiple of 2"),
        (ValueError, ((2, 6), "e2m3"), {}, "axis 1 is 6 e2m3; .* use a multiple of 4"),
        (TypeError, ((2, 3),), {"like": np.zeros(3)}, "like is a numpy.ndarray in host memory"),
        (TypeError, ((2, 3),), {"like": Other()}, "like is a .*Other, and new arrays are of torch"),
    ],
)  # fmt: skip
def test_what_is_refused(error, given, options, text):
    with pytest.raises(error, match=f"^padded_empty: {text}"):
        tma.padded_empty(*given, **options)
