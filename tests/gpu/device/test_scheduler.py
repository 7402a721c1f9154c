"""Tile schedulers on a GPU: every tile once, in the host's order."""

import functools

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from tests.gpu.worker import on_gpu
from tests.schedule_page import order

GROUPED = tma.GroupedScheduler(8)
ORDERS = {
    "C": tma.GridStridedScheduler(),
    "F": tma.GridStridedScheduler("F"),
    "grouped": GROUPED,
    "grouped columns": tma.GroupedScheduler(3, axis=1),
    "hilbert": tma.HilbertScheduler(),
}
TILE = tma.Tile((4, 64), "u8")
PIPE = tma.TilePipeline(3, x=TILE)
POISON = -1


def poisoned(shape):
    return cuda.to_device(np.full(shape, POISON, np.int64))


# -------------------------------------------------------------------------- grid orders


@functools.cache
def visit_kernel(scheduler):
    @cuda.jit
    def visit(visits, tiles, rows, columns, batch):
        if cuda.threadIdx.x == 0:
            schedule = scheduler.over(rows, columns, batch)
            for tile in schedule.tiles():
                cuda.atomic.add(visits, (tile.batch, tile.row, tile.column), 1)
            for number in range(cuda.blockIdx.x, schedule.num_tiles, cuda.gridDim.x):
                tiles[number, 0], tiles[number, 1], tiles[number, 2] = schedule.tile(number)

    return visit


@pytest.mark.parametrize("name", ORDERS)
@on_gpu
def test_every_tile_once(name):
    scheduler = ORDERS[name]
    for extents in ((1, 1, 1), (1, 37, 2), (37, 1, 1), (13, 17, 3), (16, 16, 1), (33, 70, 2)):
        rows, columns, batch = extents
        expected = order(scheduler.over(*extents))
        for blocks in (1, 7, 132):
            visits = cuda.to_device(np.zeros((batch, rows, columns), np.int64))
            tiles = poisoned((rows * columns * batch, 3))
            visit_kernel(scheduler)[blocks, 32](visits, tiles, *extents)
            assert (visits.copy_to_host() == 1).all(), (extents, blocks)
            np.testing.assert_array_equal(tiles.copy_to_host(), expected)


@functools.cache
def locate_kernel(scheduler):
    @cuda.jit
    def locate(numbers, tiles, rows, columns):
        i = cuda.grid(1)
        if i < numbers.size:
            tile = scheduler.over(rows, columns).tile(numbers[i])
            tiles[i, 0], tiles[i, 1] = tile.row, tile.column

    return locate


@pytest.mark.parametrize("name", ORDERS)
@on_gpu
def test_numbers_of_31_bits(name):
    scheduler = ORDERS[name]
    for rows, columns in ((46337, 46339), (3, 700_000_001), (700_000_001, 3)):
        numbers = np.random.default_rng(0).integers(0, rows * columns, 500)
        numbers[:2] = 0, rows * columns - 1
        tiles = poisoned((500, 2))
        locate_kernel(scheduler)[4, 128](cuda.to_device(numbers), tiles, rows, columns)
        schedule = scheduler.over(rows, columns)
        expected = [schedule.tile(number)[:2] for number in numbers.tolist()]
        np.testing.assert_array_equal(tiles.copy_to_host(), expected)


# ---------------------------------------------------------------------------- pipelines


@functools.cache
def copy_kernel(scheduler):
    @cuda.jit
    def copy(x, y, rows, columns):
        pipe = PIPE.start()
        schedule = scheduler.over(rows, columns)
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        if pipe.is_producer():
            for number, stage in pipe.produce(first, schedule.num_tiles, step):
                row, column, _ = schedule.tile(number)
                x.load(stage.x, (row * 4, column * 64), stage.barrier)
        else:
            for number, stage in pipe.consume(first, schedule.num_tiles, step):
                tile = schedule.tile(number)
                pipe.store(y, stage.x, (tile.row * 4, tile.column * 64), written=False)

    return copy


@functools.cache
def queue_kernel(scheduler):
    @cuda.jit
    def copy(x, y, rows, columns, counter):
        pipe = PIPE.start()
        schedule = scheduler.over(rows, columns)
        if pipe.is_producer():
            for number, stage in pipe.produce_from(tma.TileQueue(counter, schedule.num_tiles)):
                row, column, _ = schedule.tile(number)
                x.load(stage.x, (row * 4, column * 64), stage.barrier)
        else:
            for number, stage in pipe.consume_from():
                tile = schedule.tile(number)
                pipe.store(y, stage.x, (tile.row * 4, tile.column * 64), written=False)

    return copy


@functools.cache
def persistent_kernel(size):
    work_of = tma.PersistentGrid(cluster=size)

    @cuda.jit
    @tma.cluster(size)
    def visit(visits, rows, columns):
        work = work_of.start()
        for tile in work.tiles(GROUPED.over(rows, columns)):
            if cuda.threadIdx.x == 0:
                cuda.atomic.add(visits, (tile.row, tile.column, cuda.blockIdx.x % size), 1)

    return visit


@pytest.mark.parametrize("size", [1, 2])
@on_gpu
def test_a_persistent_grid_has_every_tile_once(size):
    for blocks in (1, 7, 132):
        visits = cuda.to_device(np.zeros((33, 17, size), np.int64))
        persistent_kernel(size)[blocks * size, 32](visits, 33, 17)
        assert (visits.copy_to_host() == 1).all(), blocks


def random_bytes(rows, columns):
    return np.random.default_rng(rows).integers(0, 256, (rows, columns), np.uint8)


@pytest.mark.parametrize("name", ORDERS)
@on_gpu
def test_producer_and_consumers_agree_on_the_tiles(name):
    x = random_bytes(131, 1040)
    source = tma.tensor_map(cuda.to_device(x), TILE)
    for blocks in (1, 5, 132):
        y = cuda.to_device(np.zeros_like(x))
        copy_kernel(ORDERS[name])[blocks, 96](source, tma.tensor_map(y, TILE), 33, 17)
        np.testing.assert_array_equal(y.copy_to_host(), x)
        y, counter = cuda.to_device(np.zeros_like(x)), cuda.to_device(np.zeros(1, np.uint32))
        queue_kernel(ORDERS[name])[blocks, 96](source, tma.tensor_map(y, TILE), 33, 17, counter)
        np.testing.assert_array_equal(y.copy_to_host(), x)
        assert counter.copy_to_host()[0] == 0


# --------------------------------------------------------------------- causal attention


@functools.cache
def sum_kernel(scheduler):
    @cuda.jit
    def sum_keys(k, out, queries, keys, heads, batch):
        pipe = PIPE.start()
        schedule = scheduler.over(queries, keys, heads, batch)
        if pipe.is_producer():
            for tile in schedule.tiles():
                for j, stage in pipe.produce(0, tile.num_key_blocks):
                    k.load(stage.x, (j * 4, 0), stage.barrier)
        else:
            for tile in schedule.tiles():
                total = 0
                for _, stage in pipe.consume(0, tile.num_key_blocks):
                    for row in range(4):
                        total += stage.x[row, 0]
                if cuda.threadIdx.x == 0:
                    cuda.atomic.add(out, (tile.batch, tile.head, tile.query_block), total + 1)

    return sum_keys


@pytest.mark.parametrize("group", [None, 1, 3])
@on_gpu
def test_causal_tiles_with_a_loop_over_their_key_blocks(group):
    kernel = sum_kernel(tma.CausalLPTScheduler(8, 4, group))
    for queries, keys in ((1, 1), (61, 61), (64, 128), (128, 37), (100, 333)):
        k = random_bytes(keys, 64)
        column = np.pad(k[:, 0].astype(np.int64), (0, 4))  # past the end there are zeros
        blocks = -(-queries // 8)
        ends = [max(0, min(8 * (m + 1), queries) + keys - queries) for m in range(blocks)]
        sums = [1 + column[: -(-end // 4) * 4].sum() for end in ends]
        source = tma.tensor_map(cuda.to_device(k), TILE)
        for grid in (1, 6, 132):
            out = cuda.to_device(np.zeros((2, 5, blocks), np.int64))
            kernel[grid, 64](source, out, queries, keys, 5, 2)
            np.testing.assert_array_equal(
                out.copy_to_host(),
                np.broadcast_to(sums, (2, 5, blocks)),
                f"{queries} {keys} {grid}",
            )


# ----------------------------------------------------------------------------- clusters


@cuda.jit
@tma.cluster(2)
def visit_pairs(visits, rows, columns):
    if cuda.threadIdx.x == 0:
        rank, pairs = ptx.cluster_ctarank(), GROUPED.over(rows // 2, columns)
        for tile in pairs.tiles(ptx.clusterid_x(), ptx.nclusterid_x()):
            cuda.atomic.add(visits, (2 * tile.row + rank, tile.column), 1 + rank)


@on_gpu
def test_a_cluster_takes_its_tiles_together():
    for blocks in (2, 6, 64):
        visits = cuda.to_device(np.zeros((34, 11), np.int64))
        visit_pairs[blocks, 32](visits, 34, 11)
        np.testing.assert_array_equal(visits.copy_to_host(), np.tile([[1], [2]], (17, 11)))
