"""Windows of a stream: each tile with its neighbours, for any radius, chunk and stages."""

import numpy as np
import pytest

import numba_tma as tma
from tests.kernels.window_kernels import COLUMNS, TILE, expected_sums, window_sums

RANGES = [[(0, 7)], [(0, 0), (3, 4), (5, 5)], [(4, 6), (0, 7), (6, 2), (2, 3), (0, 2)]]


@pytest.mark.parametrize("chunks", RANGES, ids=str)
@pytest.mark.parametrize(
    ("before", "after", "stages", "backwards"),
    [
        (0, 0, 1, False),
        (1, 1, 3, False),
        (1, 1, 4, True),
        (2, 2, 6, False),
        (2, 0, 4, True),
        (0, 1, 3, False),
    ],
)
def test_each_tile_has_its_neighbours(before, after, stages, backwards, chunks):
    ROLES, kernel = window_sums(before, after, stages, backwards)
    x = np.random.default_rng(0).integers(0, 9, (7, COLUMNS)).astype(np.float32)
    y, order, given = np.zeros_like(x), np.full(20, -1), np.array(chunks)
    kernel[1, ROLES.threads](tma.tensor_map(x, TILE), y, order, given)
    np.testing.assert_array_equal(y, expected_sums(x, before, after, chunks))
    turns = [z for f, s in chunks for z in (range(s - 1, f - 1, -1) if backwards else range(f, s))]
    assert order[order >= 0].tolist() == turns
