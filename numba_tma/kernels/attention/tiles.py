"""Which tiles a block works on: its queries, the rows of their sequence, the K/V tiles they see.

A query stands at a position among the keys, counted from the ends of both: the last query at the
last key. It sees the keys from `left` before its position to `right` after it. A causal mask is the
case right = 0. A side without a limit reaches to the first key, or to the last.

Packed sequences follow one another without padding in arrays (rows, heads, head dim). Their
lengths are in global memory (`packed_tiles`).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numba_tma.backend.interface import device_function, i32, u32
from numba_tma.backend.primitives import quotient
from numba_tma.device.causal_scheduler import CausalLPTScheduler
from numba_tma.host.annotations import DeviceFunction, Integer
from numba_tma.kernels._host.limits import CACHED_BYTES
from numba_tma.kernels.attention.packed_tiles import PackedScheduler
from numba_tma.kernels.attention.plan import AttentionForm
from numba_tma.ptx import shfl_sync_idx_b32

# -------------------------------------------------------------------------------- sequences


class SequenceExtent(NamedTuple):
    """The rows of the sequence that a tile belongs to."""

    batch: Any  #: coordinate of the batch axis; 0 for packed sequences
    split: Any  #: which split of the K/V tiles this tile has
    query: Any  #: row of the first query; 0 unless packed
    queries: Any  #: number of queries
    key: Any  #: row of the first key; 0 unless packed
    keys: Any  #: number of keys


@device_function
def locate_dense(tile: Any, queries: Integer, keys: Integer, options: Any) -> Any:
    """Return the extent of a tile's sequence: all sequences have the same lengths."""
    return SequenceExtent(tile.batch, i32(0), i32(0), queries, i32(0), keys)


@device_function
def locate_split(tile: Any, queries: Integer, keys: Integer, options: Any) -> Any:
    """Return the extent of a tile's sequence; the splits of a sequence are scheduled as a batch."""
    batch, split = quotient(u32(tile.batch), u32(options.splits))
    return SequenceExtent(i32(batch), i32(split), i32(0), queries, i32(0), keys)


@device_function
def locate_packed(tile: Any, queries: Integer, keys: Integer, options: Any) -> Any:
    """Return the extent of a tile's packed sequence."""
    return SequenceExtent(i32(0), i32(0), tile.query, tile.queries, tile.key, tile.keys)


# --------------------------------------------------------------------------------- schedule


@functools.cache
def schedule_function(form: AttentionForm) -> DeviceFunction:
    """Return the device function that makes the schedule: its ``tiles()`` are those of the block.

    Tiles under a mask have different numbers of K/V tiles, and the longest come first. Executed by
    every thread of the block, which synchronises afterwards.
    """
    if form.problem.packed:
        return packed_schedule_function(form)
    SCHEDULER = CausalLPTScheduler(
        form.tile_queries, form.block_k, form.plan.heads_together or None
    )

    @device_function
    def schedule(
        queries: Integer, keys: Integer, heads: Integer, batch: Integer, options: Any
    ) -> Any:
        return SCHEDULER.over(queries, keys, heads, batch)

    return schedule


def packed_schedule_function(form: AttentionForm) -> DeviceFunction:
    """Return what `schedule_function` does, of packed sequences."""
    problem, cached_keys = form.problem, 0
    if problem.causal and not problem.left:  # else tiles of a sequence are about equally long
        cached_keys = CACHED_BYTES // (2 * form.head_dim * form.dtype.itemsize)
    SCHEDULER = PackedScheduler(form.tile_queries, cached_keys, form.plan.q_stages + 1)

    @device_function
    def schedule(
        queries: Integer, keys: Integer, heads: Integer, batch: Integer, options: Any
    ) -> Any:
        return SCHEDULER.over(options.starts_q, options.starts_k, heads, batch)

    return schedule


# -------------------------------------------------------------------------------- K/V tiles


class KVRange(NamedTuple):
    """The K/V tiles that a tile of queries needs."""

    first_key: Any  #: first key of the first K/V tile, in its sequence
    tiles: Any  #: number of K/V tiles, at least 1


class WarpgroupRows(NamedTuple):
    """The 64 rows of a consumer warpgroup, and the columns of a K/V tile that they see; int32.

    Columns are relative to the K/V tile. Where heads are packed, a row is a query here.
    """

    row: Any  #: first row, in its sequence
    partial: Any  #: number of this split's partial result of the head's row 0; 0 without split-K/V
    start: Any  #: first column that `row` sees; one more for each further row
    stop: Any  #: first column after those that `row` sees; one more for each further row
    end: Any  #: number of columns up to the last key


@device_function
def next_kv_tile(form: Any, rows: Any) -> Any:
    """Return the rows with columns relative to the next K/V tile."""
    start, stop = i32(rows.start - form.block_k), i32(rows.stop - form.block_k)
    return WarpgroupRows(rows.row, rows.partial, start, stop, i32(rows.end - form.block_k))


@functools.cache
def tile_functions(form: AttentionForm) -> tuple[DeviceFunction, DeviceFunction, DeviceFunction]:
    """Return the device functions `locate`, `kv_range` and `rows_of` of a problem."""
    BLOCK_Q, BLOCK_K, problem = form.tile_queries, form.block_k, form.problem
    QUERIES = form.warpgroup_queries
    LEFT, RIGHT, SPLITS, STOPS = problem.left, problem.right, problem.splits, form.masks_right
    BY_SCHEDULE = problem.causal and not LEFT and not problem.packed

    @device_function
    def kv_range(tile: Any, sequence: Any, options: Any) -> Any:
        """Return the K/V tiles of a tile of queries; of split keys, those of its split."""
        queries, keys = sequence.queries, sequence.keys
        first, tiles = i32(0), i32((keys + BLOCK_K - 1) // BLOCK_K)
        if BY_SCHEDULE:
            tiles = i32(tile.num_key_blocks)
        else:
            position = i32(tile.query_block * BLOCK_Q + keys - queries)
            if STOPS:
                stop = i32(position + BLOCK_Q)
                if RIGHT:
                    stop = i32(stop + options.right)
                tiles = i32((min(stop, i32(keys)) + BLOCK_K - 1) // BLOCK_K)
            if LEFT:
                first = i32(max(i32(position - options.left), i32(0)) // BLOCK_K)
                tiles = i32(tiles - first)
        if SPLITS:
            count, splits, split = u32(max(i32(0), tiles)), u32(options.splits), u32(sequence.split)
            begin = i32(quotient(u32(count * split), splits)[0])
            end = i32(quotient(u32(count * u32(split + u32(1))), splits)[0])
            first, tiles = i32(first + begin), i32(end - begin)
            if tiles <= 0:  # more splits than tiles: a tile after the last key, all masked
                first = i32((keys + BLOCK_K - 1) // BLOCK_K)
        # Queries that see no key get one K/V tile, all masked.
        return KVRange(i32(first * BLOCK_K), max(i32(1), tiles))

    @device_function
    def rows_of(
        tile: Any,
        warpgroup: Any,
        sequence: Any,
        first_key: Any,
        queries: Integer,
        heads: Integer,
        options: Any,
    ) -> Any:
        """Return the rows of a consumer warpgroup, and what they see of the first K/V tile."""
        row = i32(tile.query_block * BLOCK_Q + warpgroup * QUERIES)
        position = i32(row + sequence.keys - sequence.queries - first_key)
        start, stop, end = position, i32(position + 1), i32(sequence.keys - first_key)
        if LEFT:
            start = i32(position - options.left)
        if RIGHT:
            stop = i32(stop + options.right)
        partial = i32(0)
        if SPLITS:  # one register for the whole warp
            head = sequence.batch * heads + tile.head
            number = i32(queries * head * options.splits + sequence.split)
            partial = i32(shfl_sync_idx_b32(number, 0))
        return WarpgroupRows(row, partial, start, stop, end)

    dense = locate_split if SPLITS else locate_dense
    return locate_packed if problem.packed else dense, kv_range, rows_of
