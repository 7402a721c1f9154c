"""The layouts of tensor memory: each cell once, and points that the figures show."""

import numpy as np
import pytest

from numba_tma.host import tensor_memory_layout as layout

#: cta_group, ws, sparse, M, N: the layout.
CASES = [
    (1, False, False, 128, 256, "D"),
    (1, False, False, 64, 72, "F"),
    (2, False, False, 256, 256, "A"),
    (2, False, False, 128, 64, "B"),
    (2, False, True, 128, 64, "C"),
    (1, True, False, 128, 64, "D"),
    (1, True, False, 64, 128, "E"),
    (1, True, False, 32, 256, "G"),
]


@pytest.mark.parametrize(("group", "ws", "sparse", "m", "n", "name"), CASES)
def test_each_cell_once(group, ws, sparse, m, n, name):
    assert layout.accumulator_layout(m, group, ws=ws, sparse=sparse) == name
    cells = layout.accumulator_cells(name, m, n)
    assert len({*zip(*(part.flat for part in cells))}) == m * n
    assert 0 <= cells.lane.min() and cells.lane.max() < layout.LANES
    assert cells.column.max() == layout.accumulator_columns(name, n) - 1
    assert set(cells.block.flat) == set(range(group))
    # a rectangle of lanes and columns, except that C and F take 16 of every 32 lanes
    used = len({*zip(cells.block.flat, cells.lane.flat)})
    assert used == group * (64 if layout.halves_of_lanes(name) else 128)


@pytest.mark.parametrize(
    ("name", "m", "n", "element", "cell"),
    [
        ("A", 256, 256, (130, 200), (1, 2, 200)),
        ("B", 128, 256, (5, 127), (0, 5, 127)),
        ("B", 128, 256, (5, 128), (0, 69, 0)),
        ("B", 128, 256, (69, 128), (1, 69, 0)),
        ("C", 128, 64, (64 + 17, 3), (1, 33, 3)),
        ("D", 128, 256, (127, 255), (0, 127, 255)),
        ("E", 64, 128, (63, 64), (0, 127, 0)),
        ("F", 64, 256, (15, 9), (0, 15, 9)),
        ("F", 64, 256, (16, 9), (0, 32, 9)),
        ("F", 64, 256, (63, 9), (0, 111, 9)),
        ("G", 32, 64, (31, 16), (0, 63, 0)),
        ("G", 32, 64, (0, 63), (0, 96, 15)),
    ],
)
def test_known_points(name, m, n, element, cell):
    assert tuple(int(part[element]) for part in layout.accumulator_cells(name, m, n)) == cell


@pytest.mark.parametrize(("group", "ws", "m"), [(1, False, 256), (2, False, 64), (1, True, 16)])
def test_rows_that_no_product_has(group, ws, m):
    with pytest.raises(ValueError, match=f"of {m} rows: M is"):
        layout.accumulator_layout(m, group, ws=ws, sparse=False)


@pytest.mark.parametrize(("group", "ws", "sparse", "m", "n", "name"), CASES)
def test_a_row_of_a_lies_in_the_lanes_of_its_row_of_the_accumulator(group, ws, sparse, m, n, name):
    cells = layout.accumulator_cells(name, m, n)
    lanes = layout.operand_lanes(name, m // group)
    for row in range(m):
        expected = {*cells.lane[row].tolist()}
        assert {*lanes[:, row % (m // group)].tolist()} == expected


@pytest.mark.parametrize("rows", [8, 128, 192, 256])
def test_scale_factors(rows):
    place = layout.scale_bytes(rows, 4)
    assert len({*zip(*(part.flat for part in place))}) == 4 * rows
    assert place.column.max() < layout.scale_columns(rows) == (8 if rows > 128 else 4)
    assert (place.lane < 32).all()
    for row in range(rows):
        lane, column, byte = (int(part[row, 2]) for part in place)
        # an atom's byte 16 (row % 32) + 4 (row / 32) + k, copied 16 B a lane
        assert 16 * lane + 4 * (column % 4) + byte == 16 * (row % 32) + 4 * (row % 128 // 32) + 2
        assert column // 4 == row // 128
    assert (layout.scale_bytes(rows, 2, 2).byte == [2, 3]).all()


def test_rows_of_a_copy():
    for shape in layout.COPY_SHAPES:
        rows, nbytes = layout.copy_rows(shape)
        lanes = layout.copy_lanes(shape)
        assert lanes.shape[1] == rows and nbytes * 8 == int(shape.split("b")[0].split("x")[1])
        assert len({*lanes.flat}) == lanes.size <= 128 and int(shape.split("x")[0]) == rows
    assert layout.copy_lanes("4x256b").tolist() == [[0, 32, 64, 96]]
    first, second = layout.copy_lanes("64x128b.warpx2::01_23")
    assert (first[:32] == np.arange(32)).all() and (second[32:] == np.arange(96, 128)).all()
    first, second = layout.copy_lanes("64x128b.warpx2::02_13")
    assert (first == np.arange(64)).all() and (second == np.arange(64, 128)).all()
