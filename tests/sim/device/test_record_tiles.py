"""Tiles of records in simulated kernels: fields, copies, races, and what is refused."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import Tile, simulator
from tests.kernels.record_tiles import POINT, TILES, changing, check_records, records


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_fields_and_records_are_read_and_written(tile):
    check_records(tile)


TILE = TILES[0]


def run(change):
    x, y = records((8, 32), POINT), np.zeros((8, 16), POINT)
    maps = [tma.tensor_map(array, TILE) for array in (x, y)]
    changing(TILE, cuda.jit(device=True)(change))[1, 32](*maps, np.zeros(8, POINT), (0, 0))


REFUSED = {
    "held[i, 0].z = 1": (AttributeError, "a record {x: f4, y: f4, id: i4} has no field 'z': its"),
    "held[i, 0] = 1.5": (TypeError, "a tile of {x: f4, y: f4, id: i4} takes records of its own"),
    "held[i, 0].x = 1j": (TypeError, "the field 'x' is float32, and the value is complex"),
    "held.read_vector((i, 0))": (ValueError, "has elements of fields, and vectors have elements"),
    "cuda.atomic.add(held, (i, 0), 1)": (TypeError, "cuda.atomic.add takes elements of f32, f64,"),
}


@pytest.mark.parametrize("statement", REFUSED)
def test_what_is_no_access_to_a_record(statement):
    error, text = REFUSED[statement]
    names = {"cuda": cuda}
    exec(f"def change(held, row, i):\n    {statement}", names)
    with pytest.raises(error) as caught:
        run(names["change"])
    assert text in str(caught.value)


def test_a_field_is_an_access_of_its_bytes():
    def racing(held, row, i):
        if i == 0:
            held[0, 0].x = 1
        elif i == 1:
            held[0, 0].y = 2  # other bytes of the record
        elif i == 2:
            row[0].x = held[0, 0].x

    with pytest.raises(simulator.DataRace, match="bytes"):
        run(racing)


def test_a_field_is_fenced_as_an_element():
    x = np.zeros((8, 16), POINT)

    @cuda.jit
    def kernel(y):
        held = tma.shared_tile(TILE)
        held[cuda.threadIdx.x % 8, 1].x = 1
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            y.store(held, (0, 0))
            tma.ptx.cp_async_bulk_commit_group()
            tma.ptx.cp_async_bulk_wait_group(0)

    with pytest.raises(simulator.MissingFence):
        kernel[1, 8](tma.tensor_map(x, TILE))


def test_copies_of_records_are_those_of_the_model():
    tile = Tile((4, 8), POINT)
    x = records((10, 20), POINT)
    image = tma.reference_tile(x, tile, (7, 16))
    want = np.zeros((4, 8), POINT)
    want[:3, :4] = x[7:, 16:]
    assert image.tobytes() == want.tobytes()
    y = np.zeros_like(x)
    tma.reference_store(y, image, tile, (7, 16))
    assert y[7:, 16:].tobytes() == x[7:, 16:].tobytes()
