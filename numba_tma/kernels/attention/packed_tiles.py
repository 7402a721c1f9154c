"""The tiles of packed sequences: which ones a block takes, and where they lie.

Tiles are numbered sequence by sequence. The numbers that a block takes go up: each of its threads
walks forward through the sequences. How many tiles there are shows only at the end of the walk.

- *Dealt tiles*: heads follow each other, and a block takes every gridDim-th tile. The tiles of a
  head see about equally many keys, so the blocks that run at a time read the same keys and values.
- *Drawn tiles*, under a causal mask without a window: a block draws the next number from a counter
  whenever it is ready to load a tile, so blocks finish at about the same time. The heads of a
  sequence whose keys and values stay in the L2 cache together form a group; its tiles follow each
  other from the last queries, which see the most keys, to the first. Each block draws one number
  behind the last tile. The block that draws the largest of these sets the counter back to 0 for the
  next launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from numba_tma.backend.interface import device_class, i32, u32
from numba_tma.backend.primitives import quotient
from numba_tma.device.scheduler import grouped
from numba_tma.device.tile_indices import Iteration
from numba_tma.host.annotations import Integer
from numba_tma.pipeline.consumer import TileConsumer
from numba_tma.pipeline.producer import NO_TILE, TileProducer
from numba_tma.pipeline.stages import ConsumerStage
from numba_tma.ptx import atom_add_u32, atom_exch_b32, ctaid_x, nctaid_x


class PackedTile(NamedTuple):
    """A tile of packed sequences, int32: queries of one head, and its sequence's rows."""

    query_block: Any
    head: Any
    query: Any
    queries: Any
    key: Any
    keys: Any


@device_class(static=("block_q", "cached_keys"))
@dataclass
class PackedSchedule:
    """The tiles of all packed sequences and heads."""

    block_q: int
    cached_keys: int  #: keys of a group of heads; 0: heads follow each other
    starts_q: Any  #: int32 (sequences + 1): row of each sequence's first query, and the end
    starts_k: Any  #: the same for keys
    heads: u32
    sequences: u32

    def num_blocks(self, sequence: Integer) -> int:
        """Return the number of tiles of one head of a sequence."""
        queries = self.starts_q[sequence + 1] - self.starts_q[sequence]
        return quotient(u32(queries + self.block_q - 1), u32(self.block_q))[0]

    def tile(self, sequence: Integer, inner: int) -> PackedTile:
        """Return the tile of a sequence whose number within it is `inner`."""
        blocks = self.num_blocks(sequence)
        query, key = i32(self.starts_q[sequence]), i32(self.starts_k[sequence])
        queries = i32(self.starts_q[sequence + 1] - query)
        keys = i32(self.starts_k[sequence + 1] - key)
        if self.cached_keys:
            together = max(u32(1), quotient(u32(self.cached_keys), max(u32(1), u32(keys)))[0])
            head, later = grouped(self.heads, blocks, together, inner)
        else:
            head, later = quotient(inner, blocks)
        return PackedTile(i32(blocks - 1 - later), i32(head), query, queries, key, keys)

    def tiles(self) -> DealtTiles:
        """Iterate over the tiles that are dealt to this block."""
        return DealtTiles(self, ctaid_x(), u32(0), u32(0))

    def drawn(self, counter: Any, producer: TileProducer) -> DrawnTiles:
        """Iterate over the tiles that this block draws. Executed by the producer's warps."""
        return DrawnTiles(self, counter, producer, producer.enters(), u32(0), u32(0), u32(0))

    def received(self, consumer: TileConsumer) -> ReceivedTiles:
        """Iterate over the tiles that the producer has drawn. Executed by the consumers."""
        return ReceivedTiles(self, consumer, u32(0), u32(0), u32(0), u32(0))


@device_class()
@dataclass
class DealtTiles(Iteration):
    """Every gridDim-th tile."""

    schedule: PackedSchedule
    number: u32  #: number of the next tile
    sequence: u32  #: sequence that the walk has reached
    first: u32  #: number of that sequence's first tile

    def has_next(self) -> bool:
        """Walk to the sequence of the next tile; return whether there is one."""
        return self._walk()

    def take(self) -> PackedTile:
        """Return the next tile."""
        tile = self.schedule.tile(self.sequence, u32(self.number - self.first))
        self.number = u32(self.number + nctaid_x())
        return tile

    def _walk(self: Any) -> bool:
        """Walk to the sequence of a tile; return whether there is one."""
        schedule = self.schedule
        while self.sequence < schedule.sequences:
            after = u32(self.first + schedule.num_blocks(self.sequence) * schedule.heads)
            if self.number < after:
                return True
            self.first, self.sequence = after, u32(self.sequence + 1)
        return False


@device_class()
@dataclass
class DrawnTiles(Iteration):
    """The tiles that a block draws, each with its number, for which the body acquires Q's stage."""

    schedule: PackedSchedule
    counter: Any  #: uint32 array (1), 0 before the launch
    producer: TileProducer
    entered: bool
    number: u32
    sequence: u32
    first: u32

    _walk = DealtTiles._walk

    def has_next(self) -> bool:
        """Draw a number; return whether it is a tile's. If not, tell the consumers."""
        # A separate test: ptxas then sees that one thread executes the copies.
        if not self.entered:
            return False
        self.number = atom_add_u32(self.counter, 1)
        if self._walk():
            return True
        if self.number == u32(self.first + nctaid_x() - 1):  # every block has drawn its last number
            atom_exch_b32(self.counter, 0)
        self.producer.publish_end()
        return False

    def take(self) -> tuple[PackedTile, Any]:
        """Return the tile and its number."""
        return self.schedule.tile(self.sequence, u32(self.number - self.first)), self.number


@device_class()
@dataclass
class ReceivedTiles(Iteration):
    """The tiles that the producer has drawn, each with its stage of Q, which the body releases."""

    schedule: PackedSchedule
    consumer: TileConsumer
    number: u32
    index: u32  # of the stage
    sequence: u32
    first: u32

    _walk = DealtTiles._walk

    def has_next(self) -> bool:
        """Wait for Q; return whether it is a tile's, or the end."""
        number, stage = self.consumer.wait_for_tile()
        self.number, self.index = number, stage.index
        if number == NO_TILE:
            self.consumer.release()
        return number != NO_TILE

    def take(self) -> tuple[PackedTile, ConsumerStage]:
        """Walk to the tile's sequence; return the tile and the stage that `has_next` waited for."""
        self._walk()
        tile = self.schedule.tile(self.sequence, u32(self.number - self.first))
        return tile, ConsumerStage(self.consumer, self.index)
