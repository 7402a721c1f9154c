"""The schedule of attention under a causal mask: longest tiles first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from numba_tma.backend.interface import constant_class, device_class, i64, u32
from numba_tma.backend.primitives import quotient
from numba_tma.device.scheduler import (
    TileWalk,
    at_least_1,
    check_if_given,
    check_integer,
    grouped,
    is_given,
)
from numba_tma.host.annotations import Integer
from numba_tma.ptx import ctaid_x, nctaid_x


class AttentionTile(NamedTuple):
    """A block of queries of one head, which sees the first `num_key_blocks` blocks of keys."""

    query_block: int
    head: int
    batch: int
    num_key_blocks: int


@constant_class
@dataclass(frozen=True)
class CausalLPTScheduler:
    """Blocks of queries under a causal mask, longest processing time first.

    The last queries see the most keys. A tile that starts late must be short, or the grid waits for
    it alone. The mask is aligned to the bottom right: the last query sees every key.

    Parameters
    ----------
    block_q, block_k
        Queries of one tile, and keys of one step of its loop.
    group
        Heads, counted through the batch, that are scheduled before the next ones: as many as fit
        into L2 with their keys and values. Tiles are sorted by length within a group. None: one
        group of all heads. Query heads that share keys and values are neighbours in either case.
    """

    block_q: int
    block_k: int
    group: int | None = None
    zigzag: ClassVar[bool] = True
    device_methods: ClassVar[tuple[str, ...]] = ("over",)

    def __post_init__(self) -> None:
        for name in ("block_q", "block_k") + ("group",) * (self.group is not None):
            object.__setattr__(self, name, at_least_1(self, name, getattr(self, name)))

    @property
    def heads_together(self) -> int:
        """The `group`, 0 for all heads."""
        return self.group or 0

    def over(
        self, queries: Integer, keys: Integer, heads: Integer, batch: Integer | None = None
    ) -> CausalSchedule:
        """Return the schedule of `heads` query heads, for each of `batch` sequences.

        `queries` and `keys` are the lengths of the sequences, in rows. The extents are known when
        the kernel runs; tiles and the blocks of the grid together stay below 2**31.
        """
        check_integer(self, "queries", queries)
        check_integer(self, "keys", keys)
        check_integer(self, "heads", heads)
        check_if_given(self, "batch", batch)
        queries_, keys_, heads_ = u32(queries), u32(keys), u32(heads)
        batch_ = u32(1) if batch is None else u32(batch)
        return CausalSchedule(self, is_given(batch), queries_, keys_, heads_, batch_)


@device_class(static=("scheduler", "batched"))
@dataclass
class CausalSchedule:
    """Query blocks of `heads` x `batch` heads, the longest first."""

    scheduler: CausalLPTScheduler
    batched: bool
    queries: u32
    keys: u32
    heads: u32
    batch: u32
    coordinates: ClassVar[type] = AttentionTile

    @property
    def num_query_blocks(self) -> int:
        """Query blocks of one head."""
        block = u32(self.scheduler.block_q)
        return quotient(u32(self.queries + block - 1), block)[0]

    @property
    def num_tiles(self) -> int:
        """Query blocks of all heads; their numbers are below it."""
        return i64(u32(self.num_query_blocks * self.heads * self.batch))

    def num_key_blocks(self, query_block: Integer) -> int:
        """Return how many blocks of keys the queries of a block see."""
        end = u32((query_block + 1) * self.scheduler.block_q)
        if end > self.queries:
            end = self.queries
        # The last query sees all keys, the one before it all but one, and so on down to none.
        reach = u32(end + self.keys)
        if reach < self.queries:
            reach = self.queries
        block = u32(self.scheduler.block_k)
        return i64(quotient(u32(reach - self.queries + block - 1), block)[0])

    def tile(self, number: Integer) -> AttentionTile:
        """Return query block, head, batch and number of key blocks of the tile `number`."""
        check_integer(self.scheduler, "number", number, self.num_tiles)
        inner = u32(number)
        blocks = self.num_query_blocks
        heads = u32(self.heads * self.batch)
        if self.scheduler.heads_together:
            head, later = grouped(heads, blocks, u32(self.scheduler.heads_together), inner)
        else:
            later, head = quotient(inner, heads)
        sequence = u32(0)
        if self.batched:
            sequence, head = quotient(head, self.heads)
        block = i64(u32(blocks - 1 - later))
        return AttentionTile(block, i64(head), i64(sequence), self.num_key_blocks(block))

    def tiles(self, first: Integer | None = None, step: Integer | None = None) -> TileWalk:
        """Iterate over this block's tiles, one of each wave.

        Waves go through the blocks forward and backward in turn. The block with the longest tile of
        one wave has the shortest of the next, which balances the blocks without a queue.
        `first` is the block's number, below `step`, the number of blocks, unless you give others.
        """
        check_if_given(self.scheduler, "step", step)
        blocks = nctaid_x() if step is None else u32(step)
        check_if_given(self.scheduler, "first", first, blocks)
        start = ctaid_x() if first is None else u32(first)
        return TileWalk(self, start, u32(2 * (blocks - start) - 1), u32(2 * blocks))
