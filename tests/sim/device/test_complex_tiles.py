"""Complex tiles in simulated kernels: elements, copies, sums, and what has no complex form."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import Tile
from tests.kernels.complex_tiles import (
    B128,
    STARTS,
    TILES,
    check_copies,
    check_model,
    copying,
    numbers,
)


@pytest.mark.parametrize("fold", [False, True], ids=["boxes", "folded"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_complex_tiles_are_loaded_changed_stored_and_added(tile, fold):
    check_copies(tile, fold)


@pytest.mark.parametrize("start", STARTS)
def test_complex_tiles_are_those_of_the_model(start):
    check_model(start)


#: 12 bytes, of which 8 are 96: a row of a tile begins at a multiple of 32 B.
RECORD = np.dtype([("x", "f4"), ("y", "f4"), ("z", "f4")])


def test_a_sequence_of_complex_rows_ends_where_it_ends():
    tile = Tile((8, 16), "c64", B128)
    x, y = numbers((40, 32), "c8"), np.zeros((40, 32), "c8")
    maps = [tma.ragged_tensor_map(a, tile) for a in (x, y)]

    @cuda.jit
    def kernel(x, y):
        held, full = tma.shared_tile(tile), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
            full.arrive_expect_tx(tile.nbytes)
            x.sequence(10, 5).load(held, (0, 16), full)
            full.wait(0)
            y.sequence(20, 3).store(held, (0, 16))
            tma.ptx.cp_async_bulk_commit_group()
            tma.ptx.cp_async_bulk_wait_group(0)

    kernel[1, 32](*maps)
    np.testing.assert_array_equal(y[20:23, 16:], x[10:13, 16:])
    assert np.count_nonzero(y) == np.count_nonzero(x[10:13, 16:])


@pytest.mark.parametrize("dtype", ["c64", "c128", RECORD], ids=str)
def test_rows_by_number(dtype):
    tile = Tile((8, 16), dtype, 0 if dtype is RECORD else B128)
    numpy = tile.dtype.numpy
    x = numbers((20, 32), "c8").real.astype(numpy)
    y = np.zeros_like(x)

    @cuda.jit
    def kernel(x, y, rows):
        held, full = tma.shared_tile(tile), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
            full.arrive_expect_tx(tile.nbytes)
            x.gather(held, rows, 4, full)
            full.wait(0)
            y.scatter(held, rows, 8)
            tma.ptx.cp_async_bulk_commit_group()
            tma.ptx.cp_async_bulk_wait_group(0)

    rows = np.array([3, 17, 0, 5, 9, 8, 19, 1], np.int32)
    kernel[1, 32](tma.gather_map(x, tile), tma.gather_map(y, tile), rows)
    want = np.zeros_like(x)
    want[rows, 8:24] = x[rows, 4:20]
    assert y.tobytes() == want.tobytes()
    image = tma.reference_gather(x, tile, rows, 4)
    back = np.zeros_like(x)
    tma.reference_scatter(back, image, tile, rows, 8)
    assert back.tobytes() == want.tobytes()


def test_a_cluster_shares_a_complex_tile():
    tile, part = Tile((16, 16), "c64", B128), Tile((8, 16), "c64", B128)
    x, y = numbers((32, 64), "c8"), np.zeros((2, 16), "c8")

    @cuda.jit
    @tma.cluster(2)
    def kernel(x, y):
        held, full = tma.shared_tile(tile), tma.shared_barrier()
        rank = tma.ptx.cluster_ctarank()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
            full.arrive_expect_tx(tile.nbytes)
        tma.cluster_sync()
        if cuda.threadIdx.x == 0:
            tma.load_partitioned(x, held, (7, 32), full, rank)
        full.wait(0)
        if cuda.threadIdx.x < 16:
            y[rank, cuda.threadIdx.x] = held[15, cuda.threadIdx.x]
        tma.cluster_sync()

    kernel[2, 32](tma.tensor_map(x, part), y)
    np.testing.assert_array_equal(y, np.stack([x[22, 32:48]] * 2))


@pytest.mark.parametrize("start", [(0, 1), (0, 7)])
def test_the_innermost_coordinate_counts_complex_numbers(start):
    tile = Tile((8, 16), "c64")
    x, y = numbers((8, 32), "c8"), np.zeros((8, 32), "c8")
    maps = [tma.tensor_map(a, tile) for a in (x, y, y)]
    with pytest.raises(tma.simulator.BadCoordinate, match=rf"\(axis 1\) is {2 * start[1]}, which"):
        copying(tile, lambda held, i: None)[1, 32](*maps, start, (0, 0))


@pytest.mark.parametrize("access", ["read", "write", "share"])
def test_complex_tiles_have_no_vectors(access):
    tile = Tile((8, 16), "c64")
    x, y = numbers((8, 32), "c8"), np.zeros((8, 32), "c8")
    maps = [tma.tensor_map(a, tile) for a in (x, y, y)]

    def body(held, i):
        if access == "read":
            held.read_vector((i, 0))
        elif access == "write":
            held.write_vector((i, 0), np.zeros(2, "c8"))
        else:
            held.vectors(i, 8)

    with pytest.raises(ValueError, match=r"or vectors of tile.view\(Tile\(\(8, 32\), f32"):
        copying(tile, body)[1, 32](*maps, (0, 0), (0, 0))


def test_a_view_shows_the_parts():
    tile = Tile((8, 16), "c64", B128)
    x, y = numbers((8, 16), "c8"), np.zeros((8, 16), "c8")
    parts = Tile((8, 32), "f32", B128)
    maps = [tma.tensor_map(a, tile) for a in (x, y, np.zeros_like(y))]

    def body(held, i):
        v = held.view(parts).read_vector((i, 4))
        held.view(parts).write_vector((i, 0), v)

    copying(tile, body)[1, 32](*maps, (0, 0), (0, 0))
    np.testing.assert_array_equal(y[:, :2], x[:, 2:4])
