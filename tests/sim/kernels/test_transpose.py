"""Transposes in the simulator: several matrices of several tiles, with edges and gaps."""

from collections import defaultdict

import numpy as np
import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.transpose.api import transpose
from numba_tma.kernels.transpose.kernel import patch_kernel
from numba_tma.kernels.transpose.plan import TransposePlan
from numba_tma.simulator.thread import current


def numbered(shape, dtype):
    """Return an array all of whose elements differ, if its type allows it."""
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "shape", "plan"),
    [
        (np.uint32, (2, 72, 44), TransposePlan(1, 1, 64, 2, "tma")),
        (np.uint32, (2, 40, 44), TransposePlan(1, 1, 32, 1, "registers")),
        (np.uint16, (1, 136, 72), TransposePlan(2, 1, 128, 1, "registers")),
        (np.uint16, (1, 72, 136), TransposePlan(1, 2, 64, 1, "tma")),
        (np.uint32, (2, 35, 37), None),  # which TMA cannot address
        (np.uint32, (1, 72, 65), None),  # with a whole patch
        (np.uint32, (1, 64, 33), None),  # one patch has all rows of sectors that they fill
        (np.uint16, (1, 130, 64), None),  # and with one that begins before its sectors
    ],
    ids=str,
)
def test_matrices_of_several_tiles(dtype, shape, plan):
    """Tile rows are taken in groups of one or two, of which the last is smaller."""
    batch, rows, columns = shape
    x = numbered((batch, rows + 1, columns + 8), dtype)[:, 1:, 8:]
    memory = np.full((batch, columns + 1, rows + 8), 9, dtype)
    out = memory[:, :columns, :rows]
    assert transpose(x, out=out, plan=plan) is out
    np.testing.assert_array_equal(out, x.swapaxes(1, 2))
    out[:] = 9
    assert (memory == 9).all()


class Noting:
    """Notes which elements of an array each block writes: by matrix and row, their numbers."""

    def __init__(self):
        self.written = defaultdict(set)

    def __setitem__(self, index, value):
        self.written[(current().blockIdx.x, *map(int, index[:2]))].add(int(index[2]))


@pytest.mark.parametrize(("start", "each", "pitch"), [(0, 0, 0), (3, 5, 1), (0, 2, 4)])
def test_a_block_writes_whole_sectors(start, each, pitch):
    """Of 8 elements of 4 bytes: a row begins so many after a sector as its matrix and it say."""
    target = Noting()
    source = np.zeros((2, 130, 3), np.uint32)
    aligned = (start, each, pitch) == (0, 0, 0)
    blocks = 2 * -(-(130 + 8 * (not aligned)) // 64)
    kernel = patch_kernel(as_dtype("u32"), aligned)
    kernel[blocks, 256](source, target, blocks // 2, 1, start, each, pitch)
    rows = defaultdict(list)
    for (_, batch, row), elements in target.written.items():
        after = start + batch * each + row * pitch
        first, last = min(elements), max(elements)
        assert elements == set(range(first, last + 1))
        assert first == 0 or (after + first) % 8 == 0
        assert last == 129 or (after + last + 1) % 8 == 0
        rows[batch, row] += elements
    assert all(sorted(found) == [*range(130)] for found in rows.values()) and len(rows) == 6
