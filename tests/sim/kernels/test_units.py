"""Copies and pointwise functions of arrays at any alignment: every element, and nothing beside."""

import ml_dtypes
import numpy as np
import pytest

from numba_tma.kernels.copy.api import copy
from numba_tma.kernels.pointwise.activations import gelu
from numba_tma.kernels.pointwise.api import Plan, add, pointwise
from tests.sim.kernels.test_unaligned_rows import GUARD, outside, placed

BF16 = ml_dtypes.bfloat16
PHASES = {1: (0, 1, 7, 15), 2: (0, 1, 4, 7), 4: (0, 1, 2, 3), 8: (0, 1)}  # in elements
COLUMNS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 40)


def numbers(shape, dtype, seed=0):
    """Return small integers, whose sums and products are exact in every type."""
    return np.random.default_rng(seed).integers(-5, 6, shape).astype(dtype)


@pytest.mark.parametrize("gaps", [(0, 0), (3, 0), (0, 1), (2, 5)], ids=str)
@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.float64])
def test_rows_are_copied_from_and_to_any_place(dtype, gaps):
    phases = PHASES[np.dtype(dtype).itemsize]
    for i, columns in enumerate(COLUMNS):
        begin, to = phases[i % len(phases)], phases[i // len(phases) % len(phases)]
        x, around = placed(numbers((3, columns), dtype), begin, gaps[0])
        y, memory = placed(np.zeros((3, columns), dtype), to, gaps[1])
        copy(x, y)
        np.testing.assert_array_equal(y, x)
        assert (outside(y, memory) == GUARD).all() and (outside(x, around) == GUARD).all()


@pytest.mark.parametrize("dtype", [np.int8, np.float16])
def test_rows_that_begin_at_words_end_anywhere(dtype):
    x, _ = placed(numbers((3, 33), dtype), 4, 3)
    y, memory = placed(np.zeros((3, 33), dtype), 8, 7)
    copy(x, y)
    np.testing.assert_array_equal(y, x)
    assert (outside(y, memory) == GUARD).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16], ids=["f32", "f16", "bf16"])
def test_each_operand_has_its_own_place(dtype):
    phases = PHASES[np.dtype(dtype).itemsize]
    for i, columns in enumerate(COLUMNS):
        begins = [phases[(i + k * (i // 4 + 1)) % len(phases)] for k in range(3)]
        x, y = (placed(numbers((2, columns), dtype, k), begins[k], k)[0] for k in range(2))
        out, memory = placed(np.zeros((2, columns), dtype), begins[2], i % 3)
        add(x, y, out=out)
        np.testing.assert_array_equal(out, x + y)
        assert (outside(out, memory) == GUARD).all()


@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_broadcast_begins_anywhere(rows):
    function = pointwise(lambda x, row, column, one: x * row + column * one)
    for columns, begin in ((1, 3), (8, 1), (21, 5)):
        shapes = (rows, columns), (1, columns), (rows, 1), (1, 1)
        given = [
            placed(numbers(shape, BF16, k), (begin + k) % 8, k % 3)[0]
            for k, shape in enumerate(shapes)
        ]
        out, memory = placed(np.zeros((rows, columns), BF16), 8 - begin, 1)
        function(*given, out=out)
        x, row, column, one = (array.astype(np.float32) for array in given)
        np.testing.assert_array_equal(out.astype(np.float32), x * row + column * one)
        assert (outside(out, memory) == GUARD).all()


@pytest.mark.parametrize("begin", [0, 3])
def test_a_row_that_is_broadcast_is_alike_only_where_it_begins_alike(begin):
    x, row = placed(numbers((3, 16), BF16), 3)[0], placed(numbers((1, 16), BF16, 1), begin)[0]
    for gap in (0, 1):  # then each row of the output begins elsewhere
        out, _ = placed(np.zeros((3, 16), BF16), 3, gap)
        np.testing.assert_array_equal(add(x, row, out=out), x + row)


def test_an_output_in_place_of_an_input_that_begins_anywhere():
    for columns, gap in ((5, 0), (33, 0), (33, 3)):
        x, memory = placed(numbers((3, columns), np.float32), 1, gap)
        y, _ = placed(numbers((3, columns), np.float32, 1), 2, gap)
        want = x + y
        add(x, y, out=x)
        np.testing.assert_array_equal(x, want)
        assert (outside(x, memory) == GUARD).all()


def test_contiguous_arrays_are_one_row():
    x, _ = placed(numbers((9, 31), np.float16), 3)
    out, memory = placed(np.zeros((9, 31), np.float16), 6)
    gelu(x, out=out, plan=Plan("vector"))
    exact = gelu(x.copy(), out=np.zeros_like(x, shape=x.shape))
    np.testing.assert_array_equal(out, exact)
    assert (outside(out, memory) == GUARD).all()


def test_a_launch_has_fewer_units_than_its_kernel_divides(monkeypatch):
    from numba_tma.host import rows as host_rows

    monkeypatch.setattr(host_rows, "MOST_UNITS", 13)  # four rows of three units
    x, _ = placed(numbers((11, 20), np.float16), 3, 1)
    column, _ = placed(numbers((11, 1), np.float16, 1), 1, 4)
    out, memory = placed(np.zeros((11, 20), np.float16), 0, 4)
    copy(x, out)
    np.testing.assert_array_equal(out, x)
    add(x, column, out=out)
    np.testing.assert_array_equal(out, x + column)
    assert (outside(out, memory) == GUARD).all()
