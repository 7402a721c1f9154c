"""Which group of rows each tile of a grouped matmul belongs to, and what it is multiplied with."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from numba_tma.kernels.matmul.grouped_kernel import (
    RowGroup,
    group_search,
    same_terms,
    scaled_terms,
)

SIZES = {"mixed": [5, 0, 66, 128, 1], "empty": [0, 0, 0], "first": [0, 200], "none": []}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(("ends", "apart"), [(False, 0), (True, 0), (False, 300)])
@pytest.mark.parametrize(("height", "across", "step"), [(64, 1, 1), (64, 3, 2), (128, 2, 5)])
def test_tiles_count_through_the_groups(name, ends, apart, height, across, step):
    """A group's tiles cover its rows; groups of no rows have none. Blocks take each step-th."""
    sizes = np.array(SIZES[name], np.int32)
    rows = np.cumsum(sizes, dtype=np.int32) if ends else sizes
    groups = SimpleNamespace(
        rows=rows.view(np.uint8), total=len(sizes), tile_columns=across, apart=apart
    )
    expected, first = [], 0
    for i, size in enumerate(sizes):
        start = i * apart if apart else int(sizes[:i].sum())
        tiles = -(-int(size) // height) * across
        expected += [(i, first, start, int(size))] * tiles
        first += tiles
    search = group_search(height, ends, bool(apart))
    for begin in range(step):
        group = RowGroup(np.int32(-1), np.int32(0), np.int32(0), np.int32(0))
        for number in itertools.count(begin, step):
            group = search(group, np.int32(number), groups)
            if number >= len(expected):
                assert group.matrix == len(sizes)
                break
            assert tuple(group) == expected[number]


def test_factors_of_groups():
    scales = np.array([0.5, 3, -2], np.float32)
    groups = SimpleNamespace(scales=scales.view(np.uint8))
    for i, scale in enumerate(scales):
        group = RowGroup(i, 0, 0, 0)
        assert tuple(scaled_terms(group, groups, np.float32(4))) == (4 * scale, 0, 0, 0, 0)
        assert tuple(same_terms(group, groups, np.float32(4))) == (4, 0, 0, 0, 0)
