"""Sequences of any length, packed one after the other: which tiles there are, and their copies.

Tiles are numbered sequence by sequence, head by head, the last queries of a head first. A block of
threads takes every so many of them: all its warps find theirs by going through the sequences, whose
lengths lie in global memory, together and only forward.

Loads of Q and K may take rows of the next sequence along, whose scores are masked or not stored. V
is read through a ragged map: what lies past a sequence is 0 there, where a NaN of another's would
be times 0 a NaN. Stores go through one as well, and write no row of another sequence.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from numba_tma.backend.interface import device_class, device_function, i32, u32
from numba_tma.device.scheduler import quotient
from numba_tma.host.mma_rules import ROWS
from numba_tma.kernels.attention.plan import Plan, Problem
from numba_tma.ptx import ctaid_x, nctaid_x


class Place(NamedTuple):
    """Where a tile's sequence lies, and its lengths."""

    batch: Any  #: coordinate of the first axis
    part: Any  #: of the keys, where these are shared out to several tiles
    query: Any  #: its first one's row
    queries: Any
    key: Any
    keys: Any


class PackedTile(NamedTuple):
    """A block of queries of one head; where its sequence begins, and its lengths. All int32."""

    query_block: Any
    head: Any
    query: Any
    queries: Any
    key: Any
    keys: Any


@device_class(static=("block_q",))
@dataclass
class PackedSchedule:
    """The blocks of queries of all sequences and heads."""

    block_q: int
    starts_q: Any  #: int32: where each sequence begins, and the last one ends
    starts_k: Any
    heads: u32
    sequences: u32

    def num_blocks(self, sequence: Any) -> int:
        """Return how many blocks of queries a sequence has."""
        queries = self.starts_q[sequence + 1] - self.starts_q[sequence]
        return quotient(u32(queries + self.block_q - 1), u32(self.block_q))[0]

    def tiles(self) -> PackedTiles:
        """Iterate over the tiles of this block of threads."""
        return PackedTiles(self, ctaid_x(), u32(0), u32(0))


@device_class()
@dataclass
class PackedTiles:
    """The tiles of one block of threads, and how far it has gone through the sequences."""

    schedule: PackedSchedule
    number: u32  #: of the next tile
    sequence: u32
    first: u32  #: the number of the sequence's first tile

    def __iter__(self) -> Iterator[PackedTile]:
        return self

    def __next__(self) -> PackedTile:
        if not self.has_next():
            raise StopIteration
        return self.take()

    def has_next(self) -> bool:
        """Go on to the sequence of the next tile; return whether there is one."""
        schedule = self.schedule
        while self.sequence < schedule.sequences:
            after = u32(self.first + schedule.num_blocks(self.sequence) * schedule.heads)
            if self.number < after:
                return True
            self.first, self.sequence = after, u32(self.sequence + 1)
        return False

    def take(self) -> PackedTile:
        """Return the next tile."""
        schedule, sequence = self.schedule, self.sequence
        blocks = schedule.num_blocks(sequence)
        head, later = quotient(u32(self.number - self.first), blocks)
        self.number = u32(self.number + nctaid_x())
        query, key = i32(schedule.starts_q[sequence]), i32(schedule.starts_k[sequence])
        queries = i32(schedule.starts_q[sequence + 1] - query)
        keys = i32(schedule.starts_k[sequence + 1] - key)
        return PackedTile(i32(blocks - 1 - later), i32(head), query, queries, key, keys)


@functools.cache
def copying(problem: Problem, plan: Plan) -> tuple[Any, Any, Any]:
    """Return the device functions `place`, `load_values` and `store_result` of a problem."""
    PACKED, SPAN, SPANS = problem.packed, problem.span, problem.depth // problem.span
    BLOCK_K, TURNED, SPLITS = plan.block_k, problem.is_narrow, problem.splits
    NBYTES = (
        SPAN * problem.dtype.itemsize
    )  # of a row of a span of columns; each has its rows together

    @device_function
    def place(tile: Any, queries: Any, keys: Any, more: Any) -> Any:
        """Return where the sequence of a tile lies."""
        if PACKED:
            return Place(i32(0), i32(0), tile.query, tile.queries, tile.key, tile.keys)
        if SPLITS:
            batch, part = quotient(u32(tile.batch), u32(more.splits))
            return Place(i32(batch), i32(part), i32(0), queries, i32(0), keys)
        return Place(tile.batch, i32(0), i32(0), queries, i32(0), keys)

    @device_function
    def load_values(loads: Any, v: Any, here: Any, key: Any, head: Any) -> None:
        """Load a tile of V when its stage is empty."""
        loads.acquire()
        barrier, tile = loads.get_tile()
        if TURNED:
            v.load(tile, (here.batch, 0, head, key), barrier)
        elif PACKED:
            theirs = v.sequence(here.key, here.keys)
            for i in range(SPANS):
                to = u32(tile.address + i * (BLOCK_K * NBYTES))
                theirs.load(to, (key, head, i * SPAN), barrier)
        else:
            v.load(tile, (here.batch, key, head, 0), barrier)
        loads.commit_step()

    @device_function
    def store_result(store: Any, out: Any, stage: Any, here: Any, row: Any, head: Any) -> None:
        """Store what a warpgroup has written to its stage."""
        if PACKED:
            theirs = out.sequence(here.query, here.queries)
            for i in range(SPANS):
                address = u32(stage.o.address + i * (ROWS * NBYTES))
                store.store(theirs, address, (row, head, i * SPAN))
        else:
            store.store(out, stage.o, (here.batch, row, head, 0))

    return place, load_values, store_result
