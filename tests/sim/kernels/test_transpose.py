"""Transposes in the simulator: several matrices of several tiles, with edges and gaps."""

import numpy as np
import pytest

from numba_tma.kernels.transpose.api import transpose
from numba_tma.kernels.transpose.plan import TransposePlan


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
        (np.uint16, (2, 130, 65), None),  # and with one that begins before its sectors
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
