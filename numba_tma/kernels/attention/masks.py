"""What becomes of scores: which keys a query sees, and so which are loaded, and a soft cap.

A query stands at a place among the keys, counted from the ends of both: the last query at the last
key. It sees the keys from `left` before its place to `right` behind it, of which a causal mask is
the case right = 0; a side without a limit goes to the first key, or the last.

A soft cap makes cap tanh(score / cap) of a score. Here it is the tangent alone: the cap is in the
scale that scores are multiplied with later.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i32, u32
from numba_tma.device.scheduler import quotient
from numba_tma.host.mma_rules import ROWS
from numba_tma.kernels.attention.plan import Plan, Problem

MINUS_INFINITY = np.float32(-np.inf)


class Edges(NamedTuple):
    """What a warpgroup's queries see of a tile of keys, in its columns; int32."""

    start: Any  #: the first column that row 0 sees; it goes up by one from row to row
    stop: Any  #: the first that row 0 sees no more; it goes up in the same way
    end: Any  #: the first that is no key


@device_function
def capped(score: Any, scale: Any) -> Any:
    """Return the score over the cap, bent to between -1 and 1; `scale` is over the cap too."""
    return ptx.tanh_approx_f32(score * scale)


@device_function
def before_end(score: Any, row: Any, column: Any, end: Any) -> Any:
    """Return the score of a key; -inf behind the last."""
    return score if column < end else MINUS_INFINITY


@device_function
def before_stop(score: Any, row: Any, column: Any, stop: Any) -> Any:
    """Return the score of a key that the row sees; -inf from `stop` on, which goes up by rows."""
    return score if np.int32(column - row) < stop else MINUS_INFINITY


@device_function
def from_start(score: Any, row: Any, column: Any, start: Any) -> Any:
    """Return the score of a key that the row sees; -inf before `start`, which goes up by rows."""
    return score if np.int32(column - row) >= start else MINUS_INFINITY


@functools.cache
def masking(problem: Problem, plan: Plan) -> tuple[Any, Any, Any]:
    """Return the device functions `span`, `edges` and `seen` of a problem."""
    BLOCK_Q, BLOCK_K = plan.block_q, plan.block_k
    CAUSAL, LEFT, RIGHT = problem.causal, problem.left, problem.right
    SOFTCAP, SPLITS = problem.softcap, problem.splits
    STOPS, ENDS = CAUSAL or RIGHT, not CAUSAL
    COUNTED = CAUSAL and not LEFT and not problem.packed  # by the scheduler

    @device_function
    def span(tile: Any, here: Any, more: Any) -> Any:
        """Return the first key that is loaded for a block of queries, and how many tiles.

        Of keys that are shared out these are those of the tile's part.
        """
        queries, keys = here.queries, here.keys
        first, tiles = i32(0), i32((keys + BLOCK_K - 1) // BLOCK_K)
        if COUNTED:
            tiles = i32(tile.num_key_blocks)
        else:
            place = i32(tile.query_block * BLOCK_Q + keys - queries)
            if STOPS:
                stop = i32(place + BLOCK_Q)
                if RIGHT:
                    stop = i32(stop + more.right)
                tiles = i32((min(stop, i32(keys)) + BLOCK_K - 1) // BLOCK_K)
            if LEFT:
                first = i32(max(i32(place - more.left), i32(0)) // BLOCK_K)
                tiles = i32(tiles - first)
        if SPLITS:
            count, splits, part = u32(max(i32(0), tiles)), u32(more.splits), u32(here.part)
            begin = i32(quotient(u32(count * part), splits)[0])
            end = i32(quotient(u32(count * u32(part + u32(1))), splits)[0])
            first, tiles = i32(first + begin), i32(end - begin)
            if tiles <= 0:  # of few tiles: one behind the last key
                first = i32((keys + BLOCK_K - 1) // BLOCK_K)
        # Queries that see no key see a tile of masked ones.
        return i32(first * BLOCK_K), max(i32(1), tiles)

    @device_function
    def edges(row: Any, key: Any, queries: Any, keys: Any, more: Any) -> Any:
        """Return what the queries from `row` on see of the keys from `key` on."""
        place = i32(row + keys - queries - key)
        start, stop, end = place, i32(place + 1), i32(keys - key)
        if LEFT:
            start = i32(place - more.left)
        if RIGHT:
            stop = i32(stop + more.right)
        return Edges(start, stop, end)

    @device_function
    def seen(scores: Any, edges: Any, softcap: Any) -> Any:
        """Return the scores of a tile, -inf where a key is not seen; most tiles need no mask."""
        if SOFTCAP:
            scores = scores.map(capped, softcap)
        if STOPS:
            if edges.stop < BLOCK_K:
                scores = scores.map_coords(before_stop, edges.stop)
        if ENDS:
            if edges.end < BLOCK_K:
                scores = scores.map_coords(before_end, edges.end)
        if LEFT:
            if edges.start > 1 - ROWS:
                scores = scores.map_coords(from_start, edges.start)
        return scores

    return span, edges, seen


@device_function
def next_tile(edges: Any, block_k: Any) -> Any:
    """Return the same edges, in columns of the next tile."""
    return Edges(i32(edges.start - block_k), i32(edges.stop - block_k), i32(edges.end - block_k))
