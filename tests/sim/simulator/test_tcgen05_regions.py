"""What a product is checked to access in tensor memory is what it reads and writes there."""

from types import SimpleNamespace

import numpy as np
import pytest

from numba_tma.host.sparse_metadata import metadata_cells
from numba_tma.host.tensor_memory_layout import (
    COLUMNS,
    LANES,
    WARP_LANES,
    halves_of_lanes,
    operand_lanes,
    scale_bytes,
)
from numba_tma.simulator.tcgen05_operands import BITS
from numba_tma.simulator.tcgen05_products import OPERAND_COLUMNS, MatrixProduct

#: (layout, M, blocks)
LAYOUTS = [
    ("A", 256, 2), ("B", 128, 2), ("C", 128, 2), ("D", 128, 1), ("E", 64, 1), ("F", 64, 1),
    ("G", 32, 1),
]  # fmt: skip
COLUMN = 64


def product(layout, m, blocks, lane=0, **says):
    address = lane << 16 | COLUMN
    says = {"m": m, "n": 32, "a": "e4m3", "selector": 0} | says
    return MatrixProduct(
        kind="f8f6f4", shape=SimpleNamespace(says=SimpleNamespace(**says), k=32, scales=4),
        layout=layout, blocks=(None,) * blocks, d=address, a=address, b=None, accumulate=True,
        scale_d=0, lane_mask=(), zero_columns=None, metadata=COLUMN, scale_a=COLUMN,
        scale_b=COLUMN + 8, collector=("a", "fill"),
    )  # fmt: skip


def covered(regions):
    cells = np.zeros((LANES, COLUMNS), np.int32)
    for region in regions:
        cells[region.lanes, region.columns] += 1
    assert cells.max() == 1, "each cell once"
    return cells == 1


def at(lanes, columns):
    cells = np.zeros((LANES, COLUMNS), np.bool_)
    cells[lanes, columns] = True
    return cells


PLACES = [(*each, lane) for each in LAYOUTS for lane in (0, 16)[: 1 + halves_of_lanes(each[0])]]


@pytest.mark.parametrize(("layout", "m", "blocks", "lane"), PLACES)
def test_regions_are_the_cells_of_matrices(layout, m, blocks, lane):
    made = product(layout, m, blocks, lane)
    for block in range(blocks):
        np.testing.assert_array_equal(covered(made.accumulator_regions), at(*made.cells(block)))
    lanes = operand_lanes(layout, m // blocks)[..., None] + lane
    columns = COLUMN + np.arange(OPERAND_COLUMNS)
    np.testing.assert_array_equal(covered(made.left_regions), at(lanes, columns))
    assert 4 * OPERAND_COLUMNS == 32, "bytes of a row that one product reads"
    in_shared = MatrixProduct(**{**vars(made), "a": None})
    assert in_shared.left_regions == []


@pytest.mark.parametrize(("layout", "m", "blocks"), LAYOUTS)
@pytest.mark.parametrize("n", [8, 128, 256])
def test_regions_of_scale_factors_have_all_of_them(layout, m, blocks, n):
    made = product(layout, m, blocks, n=n)
    regions = made.scale_regions
    for region, rows, first in zip(regions, (m // blocks, n), (COLUMN, COLUMN + 8), strict=True):
        cells, found = scale_bytes(rows, 4), covered([region])
        assert found.all(axis=1).sum() == 0 and found.any(axis=1).all()
        for lane in range(0, LANES, WARP_LANES):
            assert found[cells.lane + lane, cells.column + first].all()
        atoms = -(-rows // 128)  # of 4 columns
        assert np.flatnonzero(found.any(axis=0)).tolist() == [*range(first, first + 4 * atoms)]
    made.shape.scales = 0
    assert made.scale_regions == []


@pytest.mark.parametrize(
    ("a", "selector"), [("f16", 0), ("f16", 1), ("tf32", 0), ("tf32", 1), ("e4m3", 0), ("i8", 0)]
)
def test_the_region_of_metadata_has_all_of_it(a, selector):
    made = product("D", 128, 1, a=a, selector=selector)
    cells = metadata_cells(BITS[a], 128, selector)
    found = covered(made.metadata_regions)
    used = at(cells.lane, cells.column + COLUMN)
    assert found[used].all()
    assert (found.any(axis=0) == used.any(axis=0)).all()
    assert made.operand_regions == made.left_regions + made.metadata_regions + made.scale_regions
    assert MatrixProduct(**{**vars(made), "metadata": None}).metadata_regions == []
