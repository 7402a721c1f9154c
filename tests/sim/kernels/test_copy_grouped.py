"""Copies of many matrices at a time in the simulator: their tiles, and what lies between rows."""

import numpy as np
import pytest

from numba_tma.kernels.copy import grouped
from numba_tma.kernels.copy.grouped import grouped_copy


@pytest.mark.parametrize(
    ("shapes", "dtype", "tile", "blocks"),
    [
        ([(5, 36), (1, 40), (70, 4)], np.float32, (51, 40), 4),
        ([(3, 300), (2, 8)], np.float32, (8, 256), 3),
        ([(3, 16)], np.uint8, (256, 16), 1),
    ],
)
def test_tiles_have_8_kib_for_the_widest(monkeypatch, shapes, dtype, tile, blocks):
    """Unless a box has no more rows; there are no more blocks than tiles."""
    launches, tiles, make, launch = [], [], grouped.grouped_copy_kernel, grouped.launch
    monkeypatch.setattr(
        grouped, "grouped_copy_kernel", lambda tile: tiles.append(tile) or make(tile)
    )
    monkeypatch.setattr(
        grouped, "launch", lambda *given: launches.append(given[1:3]) or launch(*given)
    )
    size = np.dtype(dtype).itemsize
    sources, outs = [], []
    for i, (rows, columns) in enumerate(shapes):
        memory = np.arange(rows * (columns + 32)).reshape(rows, -1).astype(dtype) + dtype(i)
        sources.append(memory[:, 16 : 16 + columns])
        outs.append(np.zeros((rows, columns + 16 // size), dtype))
    grouped_copy(sources, [out[:, : x.shape[1]] for x, out in zip(sources, outs)])
    for x, out in zip(sources, outs):
        np.testing.assert_array_equal(out[:, : x.shape[1]], x)
        assert (out[:, x.shape[1] :] == 0).all()
    assert [found.shape for found in tiles] == [tile] and launches == [(blocks, 32)]


@pytest.mark.parametrize("columns", [252, 256, 260, 508, 512, 516])
def test_rows_end_anywhere_in_a_tile(columns):
    """A tile is at most 256 columns wide, as wide as a box."""
    x = [np.arange(rows * 520, dtype=np.float32).reshape(rows, 520) for rows in (9, 3)]
    outs = [np.full((len(one), 524), -1, np.float32) for one in x]
    grouped_copy([one[:, :columns] for one in x], [out[:, :columns] for out in outs])
    for one, out in zip(x, outs):
        np.testing.assert_array_equal(out[:, :columns], one[:, :columns])
        assert (out[:, columns:] == -1).all()
