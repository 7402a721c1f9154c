"""Tile schedulers in simulated kernels: every tile once, in every form of loop."""

import re
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx, simulator
from numba_tma.simulator import BadOperand
from tests.tiers import quick, seeds

ORDERS = (
    tma.GridStridedScheduler(),
    tma.GridStridedScheduler("F"),
    tma.GroupedScheduler(4),
    tma.GroupedScheduler(3, axis=1),
    tma.HilbertScheduler(),
)
TILE = tma.Tile((2, 16), "u8")
PIPE = tma.TilePipeline(3, x=TILE)
QUEUED = tma.TilePipeline(2, x=TILE)


@pytest.mark.parametrize("scheduler", ORDERS, ids=str)
@pytest.mark.parametrize("extents", [(1, 1, 1), (7, 5, 2), (3, 16, 1), (4, 0, 3)])
def test_a_persistent_loop_visits_every_tile_once(scheduler, extents):
    @cuda.jit
    def visit(visits, order, rows, columns, batch):
        if cuda.threadIdx.x == 0:
            schedule = scheduler.over(rows, columns, batch)
            for tile in schedule.tiles():
                visits[tile.batch, tile.row, tile.column] += 1
            for number in range(cuda.blockIdx.x, schedule.num_tiles, cuda.gridDim.x):
                row, column, matrix = schedule.tile(number)
                order[number, 0], order[number, 1], order[number, 2] = row, column, matrix

    rows, columns, batch = extents
    for blocks in (1, 3, 8):
        visits = np.zeros((batch, rows, columns), np.int64)
        order = np.full((max(1, visits.size), 3), -1)
        visit[blocks, 32](visits, order, *extents)
        assert (visits == 1).all()
        expected = list(scheduler.over(*extents).tiles(0, 1))
        np.testing.assert_array_equal(order[: visits.size], np.reshape(expected, (-1, 3)))


def matrix(rows, columns):
    return np.random.default_rng(rows).integers(0, 255, (rows, columns), np.uint8)


@seeds(1, 3)
@pytest.mark.parametrize("scheduler", ORDERS, ids=str)
def test_producer_and_consumers_take_tiles_by_their_numbers(scheduler, seeds):
    @cuda.jit
    def copy(x, y, rows, columns):
        pipe = PIPE.start()
        schedule = scheduler.over(rows, columns)
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        if pipe.is_producer():
            for number, stage in pipe.produce(first, schedule.num_tiles, step):
                row, column, _ = schedule.tile(number)
                x.load(stage.x, (row * 2, column * 16), stage.barrier)
        else:
            for number, stage in pipe.consume(first, schedule.num_tiles, step):
                tile = schedule.tile(number)
                pipe.store(y, stage.x, (tile.row * 2, tile.column * 16), written=False)

    x = matrix(9, 48)
    for seed in seeds:
        simulator.seed(seed)
        y = np.zeros_like(x)
        copy[4, 64](tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), 5, 3)
        np.testing.assert_array_equal(x, y)


def test_a_queue_hands_out_the_numbers_of_a_schedule():
    scheduler = tma.HilbertScheduler()

    @cuda.jit
    def copy(x, y, counter, rows, columns):
        pipe = QUEUED.start()
        schedule = scheduler.over(rows, columns)
        if pipe.is_producer():
            for number, stage in pipe.produce_from(tma.TileQueue(counter, schedule.num_tiles)):
                row, column, _ = schedule.tile(number)
                x.load(stage.x, (row * 2, column * 16), stage.barrier)
        else:
            for number, stage in pipe.consume_from():
                row, column, _ = schedule.tile(number)
                pipe.store(y, stage.x, (row * 2, column * 16), written=False)

    x = matrix(8, 48)
    y, counter = np.zeros_like(x), np.zeros(1, np.uint32)
    copy[3, 64](tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), counter, 4, 3)
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("group", [None, 2])
@pytest.mark.parametrize(("queries", "keys"), quick([(11, 17)], [(17, 11), (11, 17), (8, 8)]))
def test_attention_tiles_with_a_loop_over_their_key_blocks(group, queries, keys):
    scheduler = tma.CausalLPTScheduler(4, 2, group)

    @cuda.jit
    def sum_keys(k, out, queries, keys, heads, batch):
        pipe = PIPE.start()
        schedule = scheduler.over(queries, keys, heads, batch)
        if pipe.is_producer():
            for tile in schedule.tiles():
                for j, stage in pipe.produce(0, tile.num_key_blocks):
                    k.load(stage.x, (j * 2, 0), stage.barrier)
        else:
            for tile in schedule.tiles():
                total = 0
                for _, stage in pipe.consume(0, tile.num_key_blocks):
                    total += int(stage.x[0, cuda.threadIdx.x % 16])
                if cuda.threadIdx.x == 0:
                    out[tile.batch, tile.head, tile.query_block] += total

    k = matrix(keys, 16)
    blocks = -(-queries // 4)
    ends = [min(4 * (m + 1), queries) + keys - queries for m in range(blocks)]
    sums = [int(k[0 : max(end, 0) : 2, 0].sum()) for end in ends]
    out = np.zeros((2, 3, blocks), np.int64)
    sum_keys[4, 64](tma.tensor_map(k, TILE), out, queries, keys, 3, 2)
    np.testing.assert_array_equal(out, np.broadcast_to(sums, out.shape))


def test_a_cluster_takes_its_tiles_together():
    scheduler = tma.GroupedScheduler(2)

    @cuda.jit
    @tma.cluster(2)
    def visit(visits, rows, columns):
        if cuda.threadIdx.x == 0:
            rank, pairs = ptx.cluster_ctarank(), scheduler.over(rows // 2, columns)
            for tile in pairs.tiles(ptx.clusterid_x(), ptx.nclusterid_x()):
                visits[2 * tile.row + rank, tile.column] += 1 + rank

    visits = np.zeros((6, 5), np.int64)
    visit[6, 32](visits, 6, 5)
    np.testing.assert_array_equal(visits, np.tile([[1], [2]], (3, 5)))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda s: s.tile(6), r"number=6 is not from 0 to below 6; end the loop at schedule.num"),
        (lambda s: s.tile(-1), "number=-1 is not from 0 to below 6"),
        (lambda s: s.tile(2 / 1), "number=2.0 is no integer; divide with // to get one"),
        (lambda s: s.tiles(5, 5), "first=5 is not from 0 to below 5; it is a block's number"),
    ],
)
def test_misuse_in_a_kernel_is_reported(use, message):
    SCHEDULER = tma.GroupedScheduler(2)

    @cuda.jit
    def kernel():
        use(SCHEDULER.over(2, 3))

    with pytest.raises(BadOperand, match=message):
        kernel[1, 32]()


@pytest.mark.parametrize("first", [5, 6, -1])
def test_the_first_tile_of_a_causal_walk_is_a_block_s(first):
    scheduler = tma.CausalLPTScheduler(4, 2)

    @cuda.jit
    def kernel(first):
        scheduler.over(8, 8, 1).tiles(first, 5)

    kernel[1, 32](4)
    with pytest.raises(BadOperand, match=f"first={first} is not from 0 to below 5; it is a block"):
        kernel[1, 32](first)


PAGE = (Path(__file__).parents[3] / "docs" / "guide" / "schedulers.md").read_text()


def test_the_code_of_the_page_runs():
    names = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M):
        exec(compile(block, "schedulers.md", "exec"), names)
    np.testing.assert_array_equal(names["x"].copy_to_host(), names["y"].copy_to_host())
