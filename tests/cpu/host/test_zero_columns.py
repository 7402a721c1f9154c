"""The zero-column mask: columns to bits and back, and what has no mask."""

import numpy as np
import pytest

import numba_tma as tma
from numba_tma.host.zero_columns import zero_columns


@pytest.mark.parametrize("m", [32, 64, 128])
@pytest.mark.parametrize("n", [64, 128, 256])
def test_random_masks_are_read_back(m, n):
    rng = np.random.default_rng([m, n])
    for _ in range(50):
        used, skipped = (int(x) for x in rng.integers(1, 40, 2))
        period = np.array([False] * used + [True] * skipped)
        width = n * m // 128
        shifts = rng.integers(0, len(period), 128 // m)
        zero = np.concatenate([np.resize(np.roll(period, -s), width) for s in shifts])
        np.testing.assert_array_equal(zero_columns(tma.zero_column_mask(zero, m), m, n), zero)


def test_the_bits():
    mask = tma.zero_column_mask([True] + [False] * 3 + ([True] * 2 + [False] * 3) * 12, 128)
    assert mask == 1 << 39 | 1 << 40 | 2 << 48 | 1 << 32 | 1  # spans 2 and 3, one zero column left
    assert zero_columns(mask & ~(1 << 39), 128, 64) is None


@pytest.mark.parametrize(("zero", "span"), [(True, 40), (False, 48)])
def test_columns_of_one_kind_have_one_span(zero, span):
    mask = tma.zero_column_mask([zero] * 64, 128)
    assert mask == 1 << 39 | 63 << span | zero << 32
    assert zero_columns(mask, 128, 64).tolist() == [zero] * 64


@pytest.mark.parametrize(
    ("zero", "m", "text"),
    [
        ([False] * 32, 128, "32 columns and m 128; a product has 64, 128 or 256"),
        ([False] * 64, 16, "m 16; .* 32, 64 or 128 rows"),
        (([False] * 2 + [True] + [False] * 4 + [True]) * 8, 128, "used columns have lengths 2, 4"),
        ([True] * 8 + ([False] * 4 + [True] * 4) * 7, 128, "zero columns have lengths 4, 8"),
    ],
)
def test_columns_without_a_mask(zero, m, text):
    with pytest.raises(ValueError, match=text):
        tma.zero_column_mask(zero, m)


def test_a_first_run_without_columns():
    assert zero_columns(1 << 39 | 3 << 48 | 3, 128, 64)[:3].tolist() == [False, True, False]
    for skipped in (4, 5):
        with pytest.raises(ValueError, match=f"skips {skipped} columns of a first run of 4"):
            zero_columns(1 << 39 | 3 << 48 | skipped, 128, 64)
