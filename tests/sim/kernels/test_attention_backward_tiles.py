"""The walks of attention's gradients: each query that sees a key of a block, once, head by head."""

import itertools
from types import SimpleNamespace

import pytest

from numba_tma.kernels.attention.backward import tiles
from numba_tma.kernels.attention.backward.plan import BLOCK_K, WARPGROUPS
from numba_tma.kernels.attention.backward.tiles import first_walk, key_tile, next_q_tile

HALF = BLOCK_K // WARPGROUPS  # keys of a warpgroup


@pytest.fixture(params=[(1, False), (2, False), (1, True), (2, True), (3, True)], ids=str)
def form(request):
    together, causal = request.param
    return SimpleNamespace(block_q=64, heads_together=together, causal=causal)


def tile_of_block(monkeypatch, number, form, *sizes):
    monkeypatch.setattr(tiles.ptx, "ctaid_x", lambda: number)
    return key_tile(form, *sizes)


SIZES = [(1, 1), (64, 128), (130, 300), (300, 130), (200, 500), (500, 129)]


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize(
    ("batch", "kv_heads", "group", "splits"),
    [(1, 1, 1, 1), (2, 3, 2, 1), (1, 2, 3, 1), (2, 3, 1, 2), (1, 2, 2, 3)],
)
def test_a_block_walks_over_the_queries_that_see_its_keys(
    monkeypatch, form, batch, kv_heads, group, splits, queries, keys
):
    """Where splits share a K/V head, `group` of the heads of Q are those of one of them."""
    sizes = queries, keys, kv_heads, batch, group, splits
    q_tiles, blocks = -(-queries // form.block_q), -(-keys // BLOCK_K)
    met = set()
    for number in range(blocks * batch * kv_heads * splits):
        mine = tile_of_block(monkeypatch, number, form, *sizes)
        assert mine.key == mine.block * BLOCK_K and mine.q_tiles == q_tiles
        sequence, split_head = divmod(int(mine.split), kv_heads * splits)
        assert (mine.sequence, mine.kv_head) == (sequence, split_head // splits)
        assert mine.q_head == split_head * group
        assert mine.head == sequence * kv_heads * splits * group + mine.q_head
        met.add((int(mine.split), int(mine.block)))
        # Query i stands at key i + keys - queries.
        sees = [
            tile
            for tile in range(q_tiles)
            if not form.causal or (tile + 1) * form.block_q - 1 + keys - queries >= mine.key
        ]
        wanted = list(itertools.product(range(mine.head, mine.head + group), sees))
        assert mine.steps == len(wanted)
        for warpgroup in range(WARPGROUPS):
            walk, added = first_walk(form, mine, warpgroup, queries, keys), None
            for step, (head, tile) in enumerate(wanted):
                part = (head * q_tiles + tile) * WARPGROUPS + warpgroup
                limit = keys - mine.key - warpgroup * HALF
                if form.causal:
                    limit += 1 - queries + tile * form.block_q
                assert (walk.part, walk.limit) == (part, limit)
                assert walk.buffer == step % 2
                assert added is None or walk.added == added
                walk, added = next_q_tile(form, mine, walk), part
    shares = range(batch * kv_heads * splits), range(blocks)
    assert met == set(itertools.product(*shares))  # each tile of keys has a block of each split
