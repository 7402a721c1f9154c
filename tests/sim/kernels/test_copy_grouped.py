"""Copies of many matrices at a time in the simulator: their tiles, and what lies between rows."""

import numpy as np
import pytest

from numba_tma.kernels.copy import grouped
from numba_tma.kernels.copy.grouped import grouped_copy


class Kernel:
    """The kernel of a tile, and the tile, blocks and threads that it is launched with."""

    launches: list = []

    def __init__(self, tile):
        self.tile = tile

    def __getitem__(self, launch):
        self.launches.append((self.tile, *launch[:2]))
        return _kernel(self.tile)[launch]


_kernel = grouped.grouped_copy_kernel


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
    monkeypatch.setattr(grouped, "grouped_copy_kernel", Kernel)
    monkeypatch.setattr(Kernel, "launches", [])
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
    ((found, number, threads),) = Kernel.launches
    assert (found.shape, threads) == (tile, 32)
    assert number == blocks
