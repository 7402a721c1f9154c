"""Rows by number in compiled kernels, executed: what each copy of a row, or of four, is given."""

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma import Swizzle, TensorMapType, Tile
from numba_tma.tools.testing import compile_ptx
from tests.ptx_machine import ARRAYS, Machine

TILE = Tile((8, 128), "f16", Swizzle.B128)  # two slabs
I32 = types.int32
MAP = bytes(128)
NUMBERS = np.array([5, 900, 17, 3, 3, 64, 0, 77], np.int32)
ALL_TARGETS = pytest.mark.parametrize("cc", [(9, 0, "a"), (10, 0, "a")], ids=["one", "four"])


def executed(kernel, kinds, *values, cc=(9, 0, "a"), thread=0):
    machine = Machine(compile_ptx(cuda.jit(kernel), kinds, cc=cc), *values)
    log = machine.run(thread)
    return [given for name, given in log if name.startswith("cp.")], machine.shared


def by_list(x, rows, column):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    x.gather(tile, rows, column, full)
    x.scatter(tile, rows, column)
    x.prefetch_rows(rows, column)


def by_tuple(x, rows, column):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    numbers = (rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7])
    x.gather(tile, numbers, column, full)
    x.scatter(tile, numbers, column)
    x.prefetch_rows(numbers, column)


@ALL_TARGETS
def test_columns_of_complex_numbers_are_two_words(cc):
    tile = Tile((8, 32), "c64", Swizzle.B128)

    def kernel(x, rows, column):
        x.gather(tma.shared_tile(tile), rows, column, tma.shared_barrier())

    kinds = (TensorMapType(2, tile, mode="gather"), types.int32[::1], I32)
    found, (held, _) = executed(kernel, kinds, MAP, NUMBERS, 6, cc=cc)
    together = 4 if cc[0] == 10 else 1
    columns = {(place - held, coords[0]) for place, (_, coords), _ in found}
    assert columns == {
        (slab * tile.slab_nbytes + row * tile.pitch, 2 * (6 + slab * tile.slab))
        for slab in range(2)
        for row in range(0, 8, together)
    }


@ALL_TARGETS
@pytest.mark.parametrize("kernel", [by_list, by_tuple])
def test_rows_go_where_the_layout_says(kernel, cc):
    kinds = (TensorMapType(2, TILE, mode="gather"), types.int32[::1], I32)
    found, (tile, full) = executed(kernel, kinds, MAP, NUMBERS, 64, cc=cc)
    together = 4 if cc[0] == 10 else 1
    # The copy engine swizzles by address: a row's destination is where its bytes begin unswizzled.
    group = [
        (
            tile + slab * TILE.slab_nbytes + first * TILE.pitch,
            (64 + slab * TILE.slab, *NUMBERS[first : first + together].tolist()),
        )
        for first in range(0, 8, together)
        for slab in range(TILE.num_slabs)
    ]
    (x, _) = found[0][1]
    gathered = {(place, (x, coords), full) for place, coords in group}
    scattered = {((x, coords), place) for place, coords in group}
    fetched = {((x, coords),) for _, coords in group}
    assert len(found) == 3 * len(group)
    count = len(group)
    assert set(found[:count]) == gathered
    assert set(found[count : 2 * count]) == scattered
    assert set(found[2 * count :]) == fetched


def by_array(matrix, rows, column, count):
    tile, full = tma.shared_tile(ROWS), tma.shared_barrier()
    tma.gather_rows(tile, matrix, rows, full, column)
    tma.scatter_rows(tile, matrix, rows, column, count)


ROWS = Tile((8, 24), "u16")


@pytest.mark.parametrize("rows", [NUMBERS[::-1].copy(), 13], ids=["listed", "in order"])
def test_rows_of_an_array_are_bulk_copies(rows):
    matrix = np.zeros((1000, 48), np.uint16)
    kind = types.int32[::1] if isinstance(rows, np.ndarray) else I32
    found, (tile, full) = executed(
        by_array, (types.uint16[:, ::1], kind, I32, I32), matrix, rows, 16, 5
    )
    numbers = rows.tolist() if isinstance(rows, np.ndarray) else range(rows, rows + 8)
    places = [
        (ARRAYS + number * matrix.strides[0] + 2 * 16, tile + i * ROWS.pitch)
        for i, number in enumerate(numbers)
    ]
    loads = [(shared, place, ROWS.pitch, full) for place, shared in places]
    assert found == loads + [(place, shared, ROWS.pitch) for place, shared in places[:5]]
