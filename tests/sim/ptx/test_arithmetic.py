"""Arithmetic in the simulator: which numbers are flushed to zero, and bytes that are permuted."""

import numpy as np
import pytest
from numba import cuda

from numba_tma import ptx

NORMAL, INF = np.float32(2.0**-126), np.float32(np.inf)
BELOW = np.nextafter(NORMAL, np.float32(0))
TINY = np.float32(2.0**-149)


def result_of(function, *operands):
    found = []

    def kernel():
        found.append(function(*operands))

    cuda.jit(kernel)[1, 1]()
    return found[0]


#: By function: operands and results. PTX: .ftz takes a subnormal operand for 0 of its sign, and
#: makes 0 of a subnormal result.
VALUES = {
    ptx.ex2_approx_ftz_f32: [
        (0, 1), (10, 1024), (-126, NORMAL), (np.nextafter(np.float32(-126), -INF), 0), (-127, 0),
        (-150, 0), (-INF, 0), (128, INF), (128.5, INF), (INF, INF), (TINY, 1),
        (np.nan, np.nan),
    ],
    ptx.ex2_approx_f32: [
        (0, 1), (-126, NORMAL), (-127, NORMAL / 2), (-149, TINY), (-151, 0), (-INF, 0), (128, INF),
        (TINY, 1), (np.nan, np.nan),
    ],
    ptx.rcp_approx_ftz_f32: [
        (4, 0.25), (NORMAL, 2.0**126), (-NORMAL, -(2.0**126)), (BELOW, INF), (-BELOW, -INF),
        (0, INF), (-0.0, -INF), (2.0**126, NORMAL), (2.0**127, 0), (-(2.0**127), -0.0), (INF, 0),
    ],
    ptx.rcp_approx_f32: [(4, 0.25), (2.0**127, 2.0**-127), (0, INF), (2.0**-127, 2.0**127)],
    ptx.rsqrt_approx_f32: [(4, 0.5), (2.0**-148, 2.0**74), (0, INF), (-1, np.nan), (INF, 0)],
    ptx.lg2_approx_f32: [(8, 3), (TINY, -149), (0, -INF), (-1, np.nan)],
    ptx.tanh_approx_f32: [(0, 0), (100, 1), (-INF, -1)],
}  # fmt: skip
CASES = [(f, *each) for f, values in VALUES.items() for each in values]


@pytest.mark.parametrize(("function", "value", "result"), CASES)
def test_the_values_of_a_fast_function(function, value, result):
    """Of a float32, of a number of Python, and of each element of an array, without a warning."""
    expected = np.float32(result)
    for given in (np.float32(value), float(value)):
        found = result_of(function, given)
        np.testing.assert_array_equal(found, expected)
        assert np.isnan(expected) or np.signbit(found) == np.signbit(expected)
    several = np.array([value, 1, value], np.float32)
    found = result_of(function, several)
    np.testing.assert_array_equal(found[[0, 2]], [expected] * 2)
    assert found[1] == result_of(function, np.float32(1))


@pytest.mark.parametrize(
    ("selector", "result"),
    [
        (0x3210, 0x83420180), (0x7654, 0xF0E1D2C3), (0x0123, 0x80014283), (0x4040, 0xC380C380),
        (0xBA98, 0xFF0000FF), (0xFEDC, 0xFFFFFFFF), (0x1_0000, 0x80808080), (0x7, 0x808080F0),
    ],
)  # fmt: skip
def test_bytes_are_permuted_by_their_numbers(selector, result):
    assert result_of(ptx.prmt_b32, 0x83420180, 0xF0E1D2C3, selector) == result


@pytest.mark.parametrize("c", [0.0, -1.0])
def test_a_fused_product_is_rounded_once(c):
    a = np.float32(1 + 2.0**-12)
    assert result_of(ptx.fma_rn_f32, a, a, c) == np.float32(1 + 2.0**-11 + 2.0**-24 + c)


def test_extrema_of_nan():
    nan = np.float32(np.nan)
    for function in (ptx.min_f32, ptx.max_f32):
        assert result_of(function, nan, 1) == result_of(function, 1, nan) == 1
    assert np.isnan(result_of(ptx.max_nan_f32, nan, 1))
    assert [result_of(f, 1, 2) for f in (ptx.min_f32, ptx.max_f32, ptx.max_nan_f32)] == [1, 2, 2]
