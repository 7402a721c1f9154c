"""The tile of keys of a block, and a consumer warpgroup's walk over the queries that see it."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i32
from numba_tma.host.annotations import Integer
from numba_tma.host.warpgroup import ROWS
from numba_tma.kernels.attention.backward.plan import BLOCK_K, WARPGROUPS


class KeyTile(NamedTuple):
    """The tile of keys of a block, int32."""

    block: Any  #: number of the tile in its head
    sequence: Any
    kv_head: Any  #: in its sequence
    q_head: Any  #: first head of Q that the block has of those that share it, in its sequence
    head: Any  #: the same, counted through the batch
    split: Any  #: which split of which K/V head, counted through the batch
    key: Any  #: first key
    first_q_tile: Any  #: first tile of queries that sees any of its keys
    q_tiles: Any  #: number of tiles of queries
    steps: Any  #: tiles of queries from the first on, of all heads of Q that the block has


class Walk(NamedTuple):
    """A consumer warpgroup's place on the walk over tiles of queries, int32."""

    tile: Any  #: tile of queries in its head
    part: Any  #: number of the warpgroup's part of dQ
    limit: Any  #: keys of the warpgroup that query 0 of the tile sees; under a causal mask each
    #: further query sees one more
    buffer: Any  #: which of the two buffers of dS comes next
    added: Any  #: the part of dQ that was added last


@device_function
def key_tile(
    form: Any,
    queries: Integer,
    keys: Integer,
    kv_heads: Integer,
    batch: Integer,
    group: Integer,
    splits: Integer,
) -> Any:
    """Return the tile of keys of this block, which has `group` heads of Q.

    K/V heads, each as often as it has splits, come in groups, in each the first keys first: under a
    causal mask most queries see them.
    """
    # In 32 bits: registers are scarce.
    q_tiles = i32((queries + form.block_q - 1) // form.block_q)
    blocks = i32((keys + BLOCK_K - 1) // BLOCK_K)
    here = i32(ptx.ctaid_x())
    number = i32(here // (form.heads_together * blocks))
    inside = i32(here - number * form.heads_together * blocks)
    split_heads = i32(kv_heads * splits)
    width = i32(min(form.heads_together, batch * split_heads - number * form.heads_together))
    block = i32(inside // width)
    split = i32(number * form.heads_together + inside - block * width)
    sequence = i32(split // split_heads)
    split_head = i32(split - sequence * split_heads)
    kv_head, q_head = i32(split_head // splits), i32(split_head * group)
    key, first_tile = i32(block * BLOCK_K), i32(0)
    if form.causal:
        first_tile = i32(max(i32(0), i32(key - keys + queries)) // form.block_q)
    head, steps = i32(split * group), i32((q_tiles - first_tile) * group)
    return KeyTile(
        block, sequence, kv_head, q_head, head, split, key, first_tile, q_tiles, steps
    )


@device_function
def first_walk(form: Any, mine: KeyTile, warpgroup: Any, queries: Integer, keys: Integer) -> Any:
    """Return the place of a warpgroup at the first tile of queries of the first head."""
    limit = i32(keys - mine.key - warpgroup * ROWS)
    if form.causal:
        limit = i32(limit - queries + mine.first_q_tile * form.block_q + 1)
    part = i32((mine.head * mine.q_tiles + mine.first_q_tile) * WARPGROUPS + warpgroup)
    return Walk(mine.first_q_tile, part, limit, i32(0), part)


@device_function
def next_q_tile(form: Any, mine: KeyTile, walk: Any) -> Any:
    """Return the place one tile of queries further. The heads of Q follow each other."""
    tile, part, limit = i32(walk.tile + 1), i32(walk.part + WARPGROUPS), walk.limit
    if form.causal:
        limit = i32(limit + form.block_q)
        if tile == mine.q_tiles:  # the next head, whose walk begins at the same tile
            limit = i32(limit - (mine.q_tiles - mine.first_q_tile) * form.block_q)
            part, tile = i32(part + mine.first_q_tile * WARPGROUPS), mine.first_q_tile
    return Walk(tile, part, limit, i32(1 - walk.buffer), walk.part)
