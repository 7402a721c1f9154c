"""Which tiles attention's blocks work on: all that is seen, and no tile of which nothing is."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.device import causal_scheduler
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.warpgroup import ROWS
from numba_tma.kernels.attention import packed_tiles, tiles
from numba_tma.kernels.attention.packed_tiles import (
    FULL,
    REQUEST,
    PackedScheduler,
    PackedTiles,
    draws,
)
from numba_tma.kernels.attention.plan import AttentionForm, AttentionPlan, AttentionProblem
from numba_tma.kernels.attention.tiles import next_kv_tile, schedule_function, tile_functions
from numba_tma.ptx import tid_x
from numba_tma.simulator.numba_hooks import seeded

BLOCKS = 3
PLAN = AttentionPlan(2, 32, heads_together=2)
BLOCK_Q, BLOCK_K = PLAN.block_q, PLAN.block_k
#: By mask: the fields of a problem, and the keys that a query sees before and after its own.
MASKS = {
    "full": ({}, None, None),
    "causal": ({"causal": True}, None, 0),
    "left": ({"left": True}, 37, None),
    "right": ({"right": True}, None, 5),
    "window": ({"left": True, "right": True}, 37, 5),
    "causal window": ({"left": True, "causal": True}, 64, 0),
}
LENGTHS = [(1, 1), (128, 32), (130, 200), (300, 70), (260, 129)]


def seen_by(queries, keys, left, right):
    """Return which key each query sees."""
    beside = np.arange(keys) - (np.arange(queries)[:, None] + keys - queries)
    after = keys + queries if right is None else right
    return (beside >= -(keys + queries if left is None else left)) & (beside <= after)


def check_tile(form, tile, functions, sizes, options, seen):
    """Hold the K/V tiles of a tile of queries to what its rows see."""
    (queries, keys, heads), (locate, kv_range, rows_of) = sizes, functions
    sequence = locate(tile, queries, keys, options)
    if not form.problem.packed:
        assert sequence == (tile.batch, 0, 0, queries, 0, keys)
    kv = kv_range(tile, sequence, options)
    first_query = int(tile.query_block) * BLOCK_Q
    rows = seen[first_query : first_query + BLOCK_Q]
    columns = np.flatnonzero(rows.any(axis=0))
    if len(columns):
        assert kv.first_key == columns[0] // BLOCK_K * BLOCK_K
        assert kv.tiles == columns[-1] // BLOCK_K + 1 - columns[0] // BLOCK_K
    else:
        assert kv.tiles == 1  # all masked
    for warpgroup in range(PLAN.warpgroups):
        mine = rows_of(tile, warpgroup, sequence, kv.first_key, queries, heads, options)
        assert mine.row == first_query + warpgroup * ROWS
        for step in range(int(kv.tiles)):
            key = int(kv.first_key) + step * BLOCK_K
            here = seen[int(mine.row) :][:ROWS, key : key + BLOCK_K]
            i, inside = np.arange(len(here))[:, None], np.arange(BLOCK_K)
            by_numbers = (inside < mine.end) & (i >= 0)
            if form.masks_left:
                by_numbers &= inside >= mine.start + i
            if form.masks_right:
                by_numbers &= inside < mine.stop + i
            wanted = np.zeros((len(here), BLOCK_K), bool)
            wanted[:, : here.shape[1]] = here
            np.testing.assert_array_equal(by_numbers, wanted)
            mine = next_kv_tile(form, mine)


def numbered(monkeypatch, block):
    """Let this be a block of `BLOCKS`."""
    monkeypatch.setattr(causal_scheduler, "ctaid_x", lambda: np.uint32(block))
    monkeypatch.setattr(causal_scheduler, "nctaid_x", lambda: np.uint32(BLOCKS))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_the_keys_of_a_tile_are_those_that_its_queries_see(monkeypatch, queries, keys, mask):
    fields, left, right = MASKS[mask]
    form = AttentionForm(AttentionProblem(64, as_dtype("bf16"), **fields), PLAN)
    options = SimpleNamespace(left=left, right=right)
    seen, heads, batch = seen_by(queries, keys, left, right), 3, 2
    functions, met = tile_functions(form), []
    for block in range(BLOCKS):
        numbered(monkeypatch, block)
        for tile in schedule_function(form)(queries, keys, heads, batch, options).tiles():
            check_tile(form, tile, functions, (queries, keys, heads), options, seen)
            met.append((int(tile.batch), int(tile.head), int(tile.query_block)))
    every = itertools.product(range(batch), range(heads), range(-(-queries // BLOCK_Q)))
    assert sorted(met) == sorted(every)


#: Lengths of queries and keys of packed sequences, some of them empty.
PACKED = [(0, 9), (129, 65), (3, 0), (128, 200), (300, 40), (0, 0)]
#: More than the lanes of two warps, and so many empty ones that a warp steps over 32 at once.
MANY = [*34 * [(0, 3)], *6 * [(1, 2)], *24 * [(0, 3)], *6 * [(1, 2)]]


def starts_of(lengths):
    """Return where sequences begin that follow two rows which belong to none."""
    return [np.cumsum([2, *n], dtype=np.int32) for n in zip(*lengths)]


def in_order(lengths, heads, cached):
    """Return the tiles: by groups of heads, the last queries of all of them first."""
    tiles = []
    for (queries, keys), query, key in zip(lengths, *starts_of(lengths)):
        together = max(1, cached // max(1, keys)) if cached else 1
        for first in range(0, heads, together):
            group = range(heads)[first : first + together]
            for block in reversed(range(-(-queries // BLOCK_Q))):
                tiles += [(block, head, query, queries, key, keys) for head in group]
    return tiles


def drawing_kernel(cached, blocks):
    """Return a kernel of `blocks` blocks at a time that notes the tiles that each has drawn."""
    SCHEDULER = PackedScheduler(BLOCK_Q, cached, 2)

    @cuda.jit
    @tma.cluster(blocks)
    def draw(starts_q, starts_k, heads, counter, drawn):
        tiles = SCHEDULER.over(starts_q, starts_k, heads, len(starts_q) - 1)
        cuda.syncthreads()
        if draws(cuda.threadIdx.x):
            tiles.draw(counter)
        elif cuda.threadIdx.x == 0:
            count = 0
            for tile in tiles.tiles():
                for i in range(6):
                    drawn[cuda.blockIdx.x, count, i] = tile[i]
                count += 1
                tiles.request()

    return draw


@pytest.mark.parametrize("lengths", [PACKED, MANY], ids=["few", "many"])
@pytest.mark.parametrize("cached", [0, 1, 128, 300, 10**6])
def test_blocks_draw_each_tile_once_and_leave_the_counter_at_0(cached, lengths):
    """One block draws all tiles in their order; several share them, at times that the seed says."""
    heads, starts, counter = 3, starts_of(lengths), np.zeros(1, np.uint32)
    wanted = in_order(lengths, heads, cached)
    for blocks in (1, BLOCKS):
        kernel = drawing_kernel(cached, blocks)
        for seed in range(2):  # two launches
            drawn = np.full((blocks, len(wanted) + 1, 6), -1)
            with seeded(seed):
                kernel[blocks, 64](*starts, heads, counter, drawn)
            assert counter[0] == 0
            mine = [[wanted.index(tuple(t)) for t in some if t[0] >= 0] for some in drawn]
            assert all(numbers == sorted(numbers) for numbers in mine)
            assert sorted(itertools.chain(*mine)) == list(range(len(wanted)))


def test_waits_for_drawn_tiles_count_from_0_and_walk_round_the_slots(monkeypatch):
    """A slot's barrier changes its phase each time round, and that of requests with each."""
    waits, original = {FULL: [], REQUEST: []}, packed_tiles.wait_for

    def wait_for(barrier, parity, site, slot, iteration):
        if tid_x() % 32 == 0:
            waits[site].append((int(iteration), int(slot), int(parity)))
        original(barrier, parity, site, slot, iteration)

    monkeypatch.setattr(packed_tiles, "wait_for", wait_for)
    kernel, heads, starts = drawing_kernel(0, 1), 2, starts_of(PACKED)
    turns = range(len(in_order(PACKED, heads, 0)) + 1)  # the last one finds none
    kernel[1, 64](*starts, heads, np.zeros(1, np.uint32), np.zeros((1, len(turns), 6)))
    assert waits[FULL] == [(i, i % 2, i // 2 % 2) for i in turns]
    assert waits[REQUEST] == [(i, i % 2, 1 - i % 2) for i in turns]


@pytest.mark.parametrize("mask", MASKS)
def test_packed_sequences_are_each_as_if_alone(mask):
    fields, left, right = MASKS[mask]
    form = AttentionForm(AttentionProblem(64, as_dtype("bf16"), packed=True, **fields), PLAN)
    heads, starts = 3, starts_of(PACKED)
    options, functions = SimpleNamespace(left=left, right=right), tile_functions(form)
    tiles = PackedTiles(PackedScheduler(BLOCK_Q, 0, 2), 0, 0, *starts, heads, len(PACKED))
    for number, (queries, keys) in enumerate(PACKED):
        found = [tiles.tile(number, i) for i in range(tiles.num_blocks(number) * heads)]
        query, key = (start[number] for start in starts)
        assert {tile[2:] for tile in found} <= {(query, queries, key, keys)}
        blocks = range(-(-queries // BLOCK_Q))
        every = sorted(itertools.product(blocks, range(heads)))
        assert sorted((tile.query_block, tile.head) for tile in found) == every
        seen = seen_by(queries, keys, left, right)
        for tile in found:
            check_tile(form, tile, functions, (900, 900, heads), options, seen)


@pytest.mark.parametrize("mask", ["full", "causal", "window"])
@pytest.mark.parametrize("splits", [2, 3, 7])
def test_splits_share_the_tiles_of_keys(monkeypatch, splits, mask):
    """One after the other and evenly; a split without a tile gets one behind the last key."""
    fields, left, right = MASKS[mask]
    problem = AttentionProblem(64, as_dtype("bf16"), splits=True, **fields)
    whole, parts = (AttentionForm(p, PLAN) for p in (replace(problem, splits=False), problem))
    options = SimpleNamespace(left=left, right=right, splits=splits)
    queries, keys, heads, batch, found = 260, 170, 2, 3, {}
    _, all_tiles, _ = tile_functions(whole)
    locate, kv_range, rows_of = tile_functions(parts)
    numbered(monkeypatch, 0)
    monkeypatch.setattr(causal_scheduler, "nctaid_x", lambda: np.uint32(1))
    monkeypatch.setattr(tiles, "shfl_sync_idx_b32", lambda value, lane: value)
    for tile in schedule_function(parts)(queries, keys, heads, batch * splits, options).tiles():
        sequence = locate(tile, queries, keys, options)
        assert sequence == (*divmod(tile.batch, splits), 0, queries, 0, keys)
        mine = kv_range(tile, sequence, options)
        all_ = all_tiles(tile, sequence, options)
        key = int(sequence.batch), int(tile.head), int(tile.query_block)
        found.setdefault(key, [all_, {}])[1][int(sequence.split)] = mine
        rows = rows_of(tile, 0, sequence, mine.first_key, queries, heads, options)
        number = (key[0] * heads + key[1]) * queries * splits + sequence.split
        assert rows.partial == number  # of row 0: (batch, heads, queries, splits)
    assert len(found) == batch * heads * -(-queries // BLOCK_Q)
    for all_, of_splits in found.values():
        assert sorted(of_splits) == list(range(splits))
        some = [of_splits[i] for i in range(splits) if of_splits[i].first_key < keys]
        counts = [int(kv.tiles) for kv in some]
        firsts = [int(all_.first_key) + BLOCK_K * sum(counts[:i]) for i in range(len(counts))]
        assert [int(kv.first_key) for kv in some] == firsts
        assert sum(counts) == all_.tiles and max(counts) - min(counts) <= 1
        assert len(some) == min(splits, all_.tiles)
