"""Tile schedulers on the host: each order against a model, and its locality and balance."""

import functools
import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numba_tma as tma
from tests import schedule_page
from tests.schedule_page import BLOCKS, operands, order

SIZES = st.integers(1, 26)
ORDERS = (
    tma.GridStridedScheduler(),
    tma.GridStridedScheduler("F"),
    tma.GroupedScheduler(1),
    tma.GroupedScheduler(4),
    tma.GroupedScheduler(3, axis=1),
    tma.HilbertScheduler(),
)


# --------------------------------------------------------------------- grids of tiles


@pytest.mark.parametrize("scheduler", ORDERS, ids=str)
@settings(max_examples=15, deadline=None)
@given(rows=st.integers(0, 24), columns=st.integers(0, 24), batch=st.integers(0, 3))
def test_every_tile_has_one_number(scheduler, rows, columns, batch):
    schedule = scheduler.over(rows, columns, batch)
    assert schedule.num_tiles == rows * columns * batch
    found = order(schedule)
    assert len(found) == schedule.num_tiles
    numbers = (found[:, 2] * rows + found[:, 0]) * columns + found[:, 1]
    np.testing.assert_array_equal(np.sort(numbers), np.arange(rows * columns * batch))
    assert (np.diff(found[:, 2]) >= 0).all()  # one matrix after the other


@pytest.mark.parametrize("scheduler", ORDERS, ids=str)
def test_each_matrix_of_a_batch_has_the_order_of_one(scheduler):
    one, three = order(scheduler.over(7, 5)), order(scheduler.over(7, 5, 3))
    np.testing.assert_array_equal(three[:, :2], np.tile(one[:, :2], (3, 1)))
    np.testing.assert_array_equal(three[:, 2], np.repeat(np.arange(3), 35))


@given(rows=SIZES, columns=SIZES)
@settings(max_examples=20, deadline=None)
def test_grid_strided_is_the_order_of_an_array(rows, columns):
    for layout in "CF":
        expected = np.unravel_index(np.arange(rows * columns), (rows, columns), layout)
        found = order(tma.GridStridedScheduler(layout).over(rows, columns))
        np.testing.assert_array_equal(found[:, :2].T, expected)


@pytest.mark.parametrize("scheduler", ORDERS, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(46337, 46339), (3, 700_000_001), (700_000_001, 3)])
def test_numbers_of_31_bits_overflow_nowhere(scheduler, rows, columns):
    schedule = scheduler.over(
        rows, columns
    )  # NumPy warns of an overflow, and a warning is an error
    last = rows * columns - 1
    for number in (0, last // 3, last // 2, last):
        row, column, batch = schedule.tile(number)
        assert 0 <= row < rows and 0 <= column < columns and batch == 0
    assert len({schedule.tile(number) for number in range(last - 20, last + 1)}) == 21


def triton(pid, num_pid_m, num_pid_n, group_size_m):
    """Return the tile of a program as Triton's matmul tutorial computes it."""
    num_pid_in_group = group_size_m * num_pid_n
    first_pid_m = pid // num_pid_in_group * group_size_m
    group_size = np.minimum(num_pid_m - first_pid_m, group_size_m)
    pid_m = first_pid_m + (pid % num_pid_in_group) % group_size
    return pid_m, (pid % num_pid_in_group) // group_size


@given(rows=SIZES, columns=SIZES, group=st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_grouped_is_the_order_of_triton(rows, columns, group):
    numbers = np.arange(rows * columns)
    found = order(tma.GroupedScheduler(group).over(rows, columns))
    np.testing.assert_array_equal(found[:, :2].T, triton(numbers, rows, columns, group))
    found = order(tma.GroupedScheduler(group, axis=1).over(rows, columns))
    np.testing.assert_array_equal(found[:, 1::-1].T, triton(numbers, columns, rows, group))


def test_groups_of_one_row_and_of_all_rows_are_the_plain_orders():
    for group, layout in ((1, "C"), (6, "F"), (100, "F")):
        grouped = order(tma.GroupedScheduler(group).over(6, 5))
        np.testing.assert_array_equal(grouped, order(tma.GridStridedScheduler(layout).over(6, 5)))


def curve(start, length, depth, along, across):
    """List the cells of the curve that fills a rectangle, part by part."""
    if depth == 1:
        return [start + i * along for i in range(length)]
    if length == 1:
        return [start + i * across for i in range(depth)]
    half = length // 2
    if 2 * length > 3 * depth:
        half += half % 2 if length > 2 else 0
        rest = curve(start + half * along, length - half, depth, along, across)
        return curve(start, half, depth, along, across) + rest
    reach = depth // 2
    reach += reach % 2 if depth > 2 else 0
    out = curve(start, reach, half, across, along)
    middle = curve(start + reach * across, length, depth - reach, along, across)
    end = start + (length - 1) * along + (reach - 1) * across
    return out + middle + curve(end, reach, length - half, -across, -along)


@functools.cache
def levels(length, depth):
    """Return how many levels the curve has, as `curve` goes down them."""
    if min(length, depth) <= 1:
        return 0
    half, reach = length // 2, depth // 2
    if 2 * length > 3 * depth:
        half += half % 2 if length > 2 else 0
        return 1 + max(levels(half, depth), levels(length - half, depth))
    reach += reach % 2 if depth > 2 else 0
    parts = ((reach, half), (length, depth - reach), (reach, length - half))
    return 1 + max(levels(*part) for part in parts)


def test_the_curve_has_at_most_two_levels_for_each_doubling():
    assert levels(64, 64) == 11
    for longer in range(2, 70):
        assert max(levels(longer, n) for n in range(1, longer + 1)) <= 2 * np.log2(longer)


@given(rows=SIZES, columns=SIZES)
@settings(max_examples=25, deadline=None)
def test_hilbert_is_the_recursive_curve(rows, columns):
    down, right = np.array([1, 0]), np.array([0, 1])
    sides = (rows, columns, down, right) if rows > columns else (columns, rows, right, down)
    found = order(tma.HilbertScheduler().over(rows, columns))
    np.testing.assert_array_equal(found[:, :2], curve(np.array([0, 0]), *sides))


@given(rows=SIZES, columns=SIZES)
@settings(max_examples=25, deadline=None)
def test_neighbours_on_the_curve_are_neighbours_in_the_grid(rows, columns):
    steps = np.abs(np.diff(order(tma.HilbertScheduler().over(rows, columns))[:, :2], axis=0))
    diagonal = (steps == 1).all(1)
    assert ((steps.sum(1) == 1) | diagonal).all()
    longer_is_odd = max(rows, columns) % 2 == 1 and min(rows, columns) % 2 == 0
    assert diagonal.sum() <= longer_is_odd


def test_hilbert_is_the_classical_curve_on_a_power_of_two():
    found = order(tma.HilbertScheduler().over(4, 4))[:, :2]
    numbers = np.zeros((4, 4), int)
    numbers[tuple(found.T)] = np.arange(16)
    expected = [[0, 1, 14, 15], [3, 2, 13, 12], [4, 7, 8, 11], [5, 6, 9, 10]]
    assert numbers.tolist() in (expected, np.transpose(expected).tolist())


# ------------------------------------------------------------- traffic: a wave's operands


@pytest.mark.parametrize(
    ("rows", "columns", "tile", "group"),
    [
        (64, 32, (128, 256), 16),  # 8192 x 8192
        (32, 112, (128, 256), 16),  # 4096 x 28672
        (32, 32, (128, 128), 11),  # 4096 x 4096
    ],
)
def test_a_wave_of_grouped_or_hilbert_tiles_needs_fewer_operands(rows, columns, tile, group):
    strided = operands(tma.GridStridedScheduler(), rows, columns, tile)
    grouped = operands(tma.GroupedScheduler(group), rows, columns, tile)
    hilbert = operands(tma.HilbertScheduler(), rows, columns, tile)
    assert grouped < 0.75 * strided
    assert hilbert < 0.80 * strided


def test_on_a_narrow_matrix_grouping_gains_little():
    strided = operands(tma.GridStridedScheduler(), 32, 16, (128, 256))  # 4096 x 4096
    grouped = operands(tma.GroupedScheduler(16), 32, 16, (128, 256))
    assert 0.85 * strided < grouped < strided


# ------------------------------------------------------------------ causal attention


def visible_blocks(queries, keys, block_q, block_k):
    """Count each query block's key blocks that hold a key which one of its queries sees."""
    q, k = np.arange(queries)[:, None], np.arange(keys)
    mask = k <= q + keys - queries
    blocks = range(-(-queries // block_q))
    rows = [mask[m * block_q : (m + 1) * block_q].any(0) for m in blocks]
    return [int((np.flatnonzero(row) // block_k).max(initial=-1)) + 1 for row in rows]


@settings(max_examples=40, deadline=None)
@given(
    queries=st.integers(0, 300),
    keys=st.integers(0, 300),
    blocks=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    heads=st.integers(0, 5),
    batch=st.one_of(st.none(), st.integers(0, 3)),
    group=st.one_of(st.none(), st.integers(1, 7)),
)
def test_causal_tiles(queries, keys, blocks, heads, batch, group):
    scheduler = tma.CausalLPTScheduler(*blocks, group)
    given_batch = () if batch is None else (batch,)
    schedule = scheduler.over(queries, keys, heads, *given_batch)
    batch = 1 if batch is None else batch
    lengths = visible_blocks(queries, keys, *blocks)
    found = order(schedule)
    assert len(found) == len(lengths) * heads * batch
    block, head, sequence, length = found.T
    numbers = (sequence * heads + head) * len(lengths) + block
    np.testing.assert_array_equal(np.sort(numbers), np.arange(len(found)))
    np.testing.assert_array_equal(length, np.array(lengths, int)[block])
    # the longest first, within each group of heads and in all if there is none
    together = sequence * heads + head
    groups = together // (group or heads * batch or 1)
    assert (np.diff(groups) >= 0).all()
    assert (np.diff(length)[np.diff(groups) == 0] <= 0).all()
    # heads that share keys and values are neighbours: they run through their group side by side
    assert (np.diff(together)[(np.diff(block) == 0) & (np.diff(groups) == 0)] == 1).all()


def greedy(lengths, blocks):
    """Return when the last block is done if each takes the next tile once it is free."""
    free = [0] * blocks
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    return max(free)


def strided(lengths, blocks):
    return max(sum(lengths[b::blocks]) for b in range(blocks))


def dealt(schedule, blocks):
    per_block = [[t.num_key_blocks for t in schedule.tiles(b, blocks)] for b in range(blocks)]
    assert sum(map(len, per_block)) == schedule.num_tiles
    return max(sum(lengths) for lengths in per_block)


@settings(max_examples=60, deadline=None)
@given(query_blocks=st.integers(1, 12), heads=st.integers(1, 12), blocks=st.integers(1, 14))
def test_longest_first_is_done_no_later_than_the_natural_order(query_blocks, heads, blocks):
    schedule = tma.CausalLPTScheduler(1, 1).over(query_blocks, query_blocks, heads)
    natural = list(range(1, query_blocks + 1)) * heads  # head by head, from the first query on
    longest_first = [int(length) for length in order(schedule)[:, 3]]
    assert greedy(longest_first, blocks) <= greedy(natural, blocks)
    assert strided(longest_first, blocks) <= strided(natural, blocks)
    assert dealt(schedule, blocks) <= strided(longest_first, blocks)


# 4096 and 16384 rows; 16 heads, batch of 4 and of 1; tiles of 128 x 128
@pytest.mark.parametrize(("query_blocks", "heads"), [(32, 64), (32, 16), (128, 16)])
def test_on_132_blocks_the_balance_is_within_2_percent(query_blocks, heads):
    rows = 128 * query_blocks
    schedule = tma.CausalLPTScheduler(128, 128).over(rows, rows, heads)
    longest_first = [int(length) for length in order(schedule)[:, 3]]
    even = sum(longest_first) / BLOCKS
    assert greedy(longest_first, BLOCKS) < 1.02 * even
    assert dealt(schedule, BLOCKS) < 1.02 * even
    natural = list(range(1, query_blocks + 1)) * heads
    assert min(greedy(natural, BLOCKS), strided(natural, BLOCKS)) > 1.03 * even


# -------------------------------------------------------------------------- iteration


@pytest.mark.parametrize("scheduler", [*ORDERS, tma.CausalLPTScheduler(2, 3)], ids=str)
@settings(max_examples=15, deadline=None)
@given(extents=st.tuples(*[st.integers(0, 9)] * 3), blocks=st.integers(1, 11))
def test_blocks_divide_the_tiles_among_them(scheduler, extents, blocks):
    schedule = scheduler.over(*extents)
    taken = [list(schedule.tiles(block, blocks)) for block in range(blocks)]
    assert sorted(sum(taken, [])) == sorted(map(schedule.tile, range(int(schedule.num_tiles))))
    assert max(map(len, taken)) - min(map(len, taken)) <= 1


def test_a_block_goes_by_strides_or_there_and_back():
    def numbers(schedule, block, blocks):
        all_tiles = [schedule.tile(n) for n in range(int(schedule.num_tiles))]
        return [all_tiles.index(tile) for tile in schedule.tiles(block, blocks)]

    grid = tma.GroupedScheduler(2).over(3, 4)
    assert numbers(grid, 1, 5) == [1, 6, 11]
    causal = tma.CausalLPTScheduler(1, 1).over(4, 4, 3)
    assert [numbers(causal, b, 5) for b in range(5)] == [
        [0, 9, 10],
        [1, 8, 11],
        [2, 7],
        [3, 6],
        [4, 5],
    ]


# ------------------------------------------------------------------------ wrong input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tma.GridStridedScheduler("rows"),
            r"GridStridedScheduler\(order='rows'\): the order is 'C', row by row, or 'F'",
        ),
        (lambda: tma.GroupedScheduler(0), r"GroupedScheduler\(group=0\): group is a number of at"),
        (lambda: tma.GroupedScheduler(2.0), r"GroupedScheduler\(group=2.0\): group is a number"),
        (lambda: tma.GroupedScheduler(2, 2), r"axis=2\): the axis is 0, which groups rows, or 1"),
        (lambda: tma.CausalLPTScheduler(0, 128), r"CausalLPTScheduler\(block_q=0\): block_q is"),
        (lambda: tma.CausalLPTScheduler(64, 64, 0), r"CausalLPTScheduler\(group=0\): group is a"),
        (
            lambda: tma.HilbertScheduler().over(-1, 2),
            r"HilbertScheduler\(\): rows=-1 is not from 0 to below 2147483648; it counts tiles",
        ),
        (
            lambda: tma.HilbertScheduler().over(2, 2).tile(4),
            r"number=4 is not from 0 to below 4; end the loop at schedule.num_tiles",
        ),
        (
            lambda: tma.HilbertScheduler().over(2, 2).tiles(3, 3),
            r"first=3 is not from 0 to below 3; it is a block's number, and step how many",
        ),
    ],
)
def test_wrong_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.over(2, 3.5), r"HilbertScheduler\(\): columns=3.5 is no integer; divide with"),
        (lambda s: s.over(2, 3).tile(0.5), r"number=0.5 is no integer"),
        (lambda s: s.over(2, 3).tiles("0", 1), r"first='0' is no integer"),
    ],
)
def test_wrong_types(make, message):
    with pytest.raises(TypeError, match=message):
        make(tma.HilbertScheduler())


def test_schedulers_are_values():
    assert tma.GroupedScheduler(np.int64(8)) == tma.GroupedScheduler(8)
    assert len({tma.GroupedScheduler(8), tma.GroupedScheduler(8), tma.GroupedScheduler(4)}) == 2
    assert tma.CausalLPTScheduler(128, 64) != tma.CausalLPTScheduler(128, 64, 8)


# --------------------------------------------------------------------------- the page


def test_the_page_shows_the_orders_of_the_code():
    text = schedule_page.FILE.read_text()
    assert len(schedule_page.DRAWN.findall(text)) >= 8
    assert schedule_page.page(text) == text, (
        "docs/guide/schedulers.md is out of date: `make goldens`"
    )


def test_a_drawing_that_is_wrong_is_drawn_anew():
    wrong = "```text\ntma.GridStridedScheduler().over(2, 2)\n0 2\n1 3\n```\n"
    assert schedule_page.page(wrong) == wrong.replace("0 2\n1 3", "0 1\n2 3")
