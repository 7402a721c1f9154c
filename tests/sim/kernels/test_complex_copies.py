"""Shipped kernels that only move elements take complex ones; the others refuse them."""

import numpy as np
import pytest

from numba_tma.kernels.copy import copy, grouped_copy
from numba_tma.kernels.pointwise import add
from numba_tma.kernels.transpose import transpose


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("shape", [(8, 8), (5, 7), (3, 200)])
def test_copies(dtype, shape):
    x = (np.arange(np.prod(shape)) + 1j).reshape(shape).astype(dtype)
    np.testing.assert_array_equal(copy(x, np.zeros_like(x)), x)
    if x.shape[1] * x.itemsize % 16 == 0:
        outs = [np.zeros_like(x), np.zeros_like(x[:2])]
        grouped_copy([x, x[:2]], outs)
        np.testing.assert_array_equal(outs[0], x)
        np.testing.assert_array_equal(outs[1], x[:2])


def test_transposes_take_elements_of_8_bytes():
    x = (np.arange(35) + 1j).reshape(5, 7).astype("c8")
    np.testing.assert_array_equal(transpose(x), x.T)
    with pytest.raises(ValueError, match=r"^transpose\(\): x is c128, whose elements have 16 B;"):
        transpose(x.astype("c16"))


def test_arithmetic_is_of_real_numbers():
    x = np.zeros((4, 8), "c8")
    with pytest.raises(ValueError, match=r"^add\(\): x is c64; it works on f32, f16 and bf16"):
        add(x, x)
