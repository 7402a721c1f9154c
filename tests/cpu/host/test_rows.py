"""Rows at any address, and the units of 16 bytes that they touch."""

import itertools

import numpy as np
import pytest

from numba_tma.host import rows
from numba_tma.host.rows import (
    ALIKE,
    ANY,
    WHOLE,
    Divisor,
    PlacedRows,
    form_of,
    part_of,
    pieces,
    units_of,
)
from tests.cpu.host.test_arrays import ADDRESS, read


def matrix(shape, pitch, begin, dtype=np.float16):
    return read(shape, dtype, (pitch, np.dtype(dtype).itemsize), ADDRESS + begin)


def touched(array):
    """Return the units that each row touches."""
    (count, columns), (pitch, size) = array.shape, array.strides
    starts = [array.address + i * pitch for i in range(count)]
    return [(s + columns * size - 1) // 16 - s // 16 + 1 for s in starts]


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_no_row_touches_more_units_and_where_rows_are_many_one_touches_as_many(dtype):
    size = np.dtype(dtype).itemsize
    for columns, gap, begin in itertools.product((1, 2, 9, 16, 33), (0, 1, 8), (0, 1, 15)):
        for count in (1, 2, 16):
            array = matrix((count, columns), (columns + gap) * size, begin * size, dtype)
            most = max(touched(array))
            assert most <= units_of(array) and (count == 2 or units_of(array) == most)


def test_rows_end_behind_the_last_and_one_row_goes_with_all():
    assert PlacedRows.of(matrix((3, 5), 32, 6)) == (ADDRESS + 6, ADDRESS + 6 + 2 * 32 + 10, 32)
    assert PlacedRows.of(matrix((1, 5), 32, 6)) == (ADDRESS + 6, ADDRESS + 16, 0)
    with pytest.raises(ValueError, match=r"x has strides \(-32, 2\) B, and kernels walk forward"):
        PlacedRows.of(matrix((3, 5), -32, 96))


def test_a_launch_has_as_many_rows_as_its_kernel_can_number(monkeypatch):
    array = matrix((10, 20), 48, 2)  # three units
    assert list(pieces(array)) == [(0, 10)]
    monkeypatch.setattr(rows, "MOST_UNITS", 13)
    assert list(pieces(array)) == [(0, 4), (4, 4), (8, 2)]
    monkeypatch.setattr(rows, "MOST_UNITS", 3)  # then each is a launch of one row
    assert list(pieces(array)) == [(i, 1) for i in range(10)]
    part = part_of(array, 4, 3)
    assert (part.address, part.shape, part.strides) == (ADDRESS + 2 + 4 * 48, (3, 20), (48, 2))
    one = matrix((1, 20), 48, 2)
    assert part_of(one, 4, 3) is one


@pytest.mark.parametrize("columns", [8, 9])
def test_a_launch_numbers_its_units_below_2_to_31(columns):
    """Those of the threads of its last block, of up to 1024, among them."""
    array = matrix((3 << 30, columns), 32, 0)
    launches = list(pieces(array))
    assert len(launches) == 2 * units_of(array)
    assert [first for first, _ in launches] == [i * launches[0][1] for i in range(len(launches))]
    assert sum(rows for _, rows in launches) == 3 << 30
    assert all(rows * units_of(array) + 1024 <= 1 << 31 for _, rows in launches)


def test_numbers_below_2_to_31_are_divided():
    rng = np.random.default_rng(0)
    largest = (1 << 31) - 1
    few = [1, 2, 3, 5, 7, 17, 255, 256, 257, 65535, 65537, 1 << 30, (1 << 30) + 1, largest]
    for value in [*few, *(int(2 ** rng.uniform(0, 31)) for _ in range(200))]:
        divisor = Divisor.of(value)
        assert divisor.value == value and divisor.multiplier <= 1 << 32
        near = [k * value + d for k in (1, 2, largest // value) for d in (-1, 0, 1)]
        for n in (0, largest, *near, *rng.integers(0, 1 << 31, 20).tolist()):
            if 0 <= n <= largest:
                assert n * divisor.multiplier >> divisor.shift == n // value


def test_rows_are_alike_if_each_begins_as_far_behind_a_multiple_of_16():
    one, single, odd = matrix((3, 20), 48, 6), matrix((1, 20), 42, 6), matrix((3, 20), 42, 6)
    for inputs in ([one], [matrix((3, 20), 64, 22)], [single, one]):
        assert form_of(inputs, one) == ALIKE
    for inputs in ([matrix((3, 20), 64, 8)], [odd], [one, odd]):
        assert form_of(inputs, one) == ANY
    assert (form_of([one], single), form_of([single], odd)) == (ALIKE, ANY)


def test_rows_are_whole_units_if_they_begin_and_end_at_multiples_of_16():
    one = matrix((3, 24), 64, 32)
    assert form_of([one, matrix((1, 24), 50, 0)], one) == WHOLE
    for other in (matrix((3, 24), 72, 32), matrix((3, 24), 64, 8)):
        assert form_of([other], one) == ANY and form_of([one], other) == ANY
    short = matrix((3, 23), 64, 32)
    assert form_of([short], short) == ALIKE
