"""The tiles of packed sequences: a warp of each block draws them ahead of the loads.

Tiles are numbered sequence by sequence. How many there are is known only on the device. A block
takes the next number from a counter in global memory when it has nearly loaded its last tile, so
blocks finish at about the same time. The second warp of the producer warpgroup does that: it draws
a number, finds its sequence, and writes the tile to a ring of slots in shared memory::

    drawing warp                    loading thread                  each consumer warp
    wait for a request              wait for the slot               wait for the slot
    draw a number, find its tile    load K0, Q, and K and V         wait for Q
    write the slot, arrive on full  request the next tile           compute, release Q
                                    load the last V tile

The tile is found while the consumers compute the last K/V tiles of the one before. A slot is full
when the drawing warp has arrived. No consumer arrives when it has read a slot, since the ring has
one slot more than Q has stages: a slot is written again after a request that follows the load of Q
into the stage that the slot's tile had. The consumers released that stage after they read the slot.

Which number a tile has: the heads of a sequence follow each other, whose tiles see equally many
keys, so the blocks that run at a time read the same keys and values. Under a causal mask without a
window the heads whose keys and values stay in the L2 cache together form a group. Its tiles follow
each other from the last queries, which see the most keys, to the first.

Each block draws one number behind the last tile. The block that draws the largest of these sets
the counter back to 0 for the next launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from numba_tma.backend.interface import constant_class, device_class, device_function, i32, u32
from numba_tma.backend.primitives import quotient
from numba_tma.device.barrier import Barrier
from numba_tma.device.scheduler import grouped
from numba_tma.device.shared import shared_barriers, shared_tile
from numba_tma.device.tile_indices import Iteration
from numba_tma.device.waiting import wait_for
from numba_tma.host.annotations import Integer
from numba_tma.host.debug import Site
from numba_tma.host.layout import Tile
from numba_tma.pipeline.roles import WARP
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import (
    atom_add_u32,
    atom_exch_b32,
    bar_warp_sync,
    elect_sync,
    fence_mbarrier_init,
    laneid,
    ld_shared_u32,
    ld_shared_v2_u32,
    ld_shared_v4_u32,
    mbarrier_arrive,
    nctaid_x,
    shfl_sync_bfly_b32,
    shfl_sync_idx_b32,
    st_shared_u32,
    st_shared_v2_u32,
    st_shared_v4_u32,
    tid_x,
)

SLOT_WORDS = 8
NO_HEAD = 0xFFFFFFFF  #: a slot with this head has no tile: none is left
FULL, REQUEST = Site("'tiles.full'"), Site("'tiles.empty'", "draw")


class PackedTile(NamedTuple):
    """A tile of packed sequences, int32: queries of one head, and its sequence's rows."""

    query_block: Any
    head: Any
    query: Any
    queries: Any
    key: Any
    keys: Any


@device_function
def draws(thread: int) -> bool:
    """Return whether a thread of the producer warpgroup draws tiles: those of the second warp.

    The result comes from one lane, so that ptxas sees that a warp does not diverge.
    """
    return shfl_sync_idx_b32(u32(thread // u32(WARP)), 0) == 1


@constant_class
@dataclass(frozen=True)
class PackedScheduler:
    """The order of the tiles of packed sequences, and how many of a block are known at a time.

    Parameters
    ----------
    block_q
        Queries of a tile.
    cached_keys
        Keys of a group of heads, longest tiles first; 0: heads follow each other.
    slots
        Slots for tiles: one more than Q has stages.
    """

    block_q: int
    cached_keys: int
    slots: int
    device_methods: ClassVar[tuple[str, ...]] = ("over",)

    @property
    def memory(self) -> Tile:
        """The slots."""
        return Tile((self.slots, SLOT_WORDS), "u32")

    @property
    def num_barriers(self) -> int:
        """A full barrier for each slot, and one for requests."""
        return self.slots + 1

    def over(self, starts_q: Any, starts_k: Any, heads: Integer, sequences: Integer) -> PackedTiles:
        """Return the tiles of packed sequences, and initialise the block's slots.

        `starts_q` and `starts_k` are int32 arrays (sequences + 1): the row of each sequence's first
        query or key, and the end. Executed once by every thread of the block, which synchronises
        afterwards.
        """
        slots, barriers = shared_tile(self.memory), shared_barriers(self.num_barriers)
        if tid_x() == 0:
            barriers.init(1)
            fence_mbarrier_init()
        return PackedTiles(
            self,
            address=slots.address,
            barriers=barriers.address,
            starts_q=starts_q,
            starts_k=starts_k,
            heads=u32(heads),
            sequences=u32(sequences),
        )


@device_class(static=("scheduler",))
@dataclass
class PackedTiles:
    """The tiles of all packed sequences and heads, and the slots of those that this block draws."""

    scheduler: PackedScheduler
    address: u32  #: of the slots
    barriers: u32  #: address of the full barriers, which the barrier of requests follows
    starts_q: Any
    starts_k: Any
    heads: u32
    sequences: u32

    def num_blocks(self, sequence: Integer) -> int:
        """Return the number of tiles of one head of a sequence."""
        queries = self.starts_q[sequence + 1] - self.starts_q[sequence]
        return quotient(u32(queries + self.scheduler.block_q - 1), u32(self.scheduler.block_q))[0]

    def tile(self, sequence: Integer, inner: int) -> PackedTile:
        """Return the tile of a sequence whose number within it is `inner`."""
        blocks = self.num_blocks(sequence)
        query, key = i32(self.starts_q[sequence]), i32(self.starts_k[sequence])
        queries = i32(self.starts_q[sequence + 1] - query)
        keys = i32(self.starts_k[sequence + 1] - key)
        if self.scheduler.cached_keys:
            heads = quotient(u32(self.scheduler.cached_keys), max(u32(1), u32(keys)))[0]
            head, later = grouped(self.heads, blocks, max(u32(1), heads), inner)
        else:
            head, later = quotient(inner, blocks)
        return PackedTile(i32(blocks - 1 - later), i32(head), query, queries, key, keys)

    # ------------------------------------------------------------------------- the drawing warp

    def draw(self, counter: Any) -> None:
        """Draw tiles for this block until none is left. Executed by one warp.

        `counter` is a uint32 array (1), 0 before the launch.
        """
        state = PipelineState(self.scheduler.slots, self.scheduler.slots)
        walk, number, found = SequenceWalk(self), u32(0), True
        while found:
            state.step()
            turn = u32(state.count - 1)
            wait_for(self.request_barrier(), state.count & 1, REQUEST, state.index, turn)
            if laneid() == 0:
                number = atom_add_u32(counter, 1)
            number = shfl_sync_idx_b32(number, 0)
            found, slot = walk.reaches(number), self.slot(state.index)
            if not found:
                if laneid() == 0:
                    st_shared_u32(slot + 4, NO_HEAD)
            elif walk.before <= number and number < walk.after:  # in one lane
                tile = self.tile(walk.sequence(), u32(number - walk.before))
                words = u32(tile.query_block), u32(tile.head), u32(tile.query), u32(tile.queries)
                st_shared_v4_u32(slot, words)
                st_shared_v2_u32(slot + 16, (u32(tile.key), u32(tile.keys)))
            bar_warp_sync()
            if elect_sync():
                mbarrier_arrive(self.full_barrier(state.index))
        if laneid() == 0 and number == u32(walk.end + nctaid_x() - 1):
            atom_exch_b32(counter, 0)  # each block has drawn its last number

    # ------------------------------------------------------------------------- the other threads

    def tiles(self) -> DrawnTiles:
        """Iterate over this block's tiles. Executed by the loading thread and by the consumers."""
        slots = self.scheduler.slots
        return DrawnTiles(self, PipelineState(slots, slots, 1))

    def request(self) -> None:
        """Request the next tile. Executed by the loading thread after it has loaded Q."""
        mbarrier_arrive(self.request_barrier())

    def slot(self, index: Integer) -> int:
        """Return the address of a slot."""
        return u32(self.address + 4 * SLOT_WORDS * index)

    def full_barrier(self, index: Integer) -> Barrier:
        """Return the full barrier of a slot."""
        return Barrier(u32(self.barriers + 8 * index))

    def request_barrier(self) -> Barrier:
        """Return the barrier on which the loading thread arrives for each tile."""
        return Barrier(u32(self.barriers + 8 * self.scheduler.slots))


@device_class(mutable=True)
@dataclass
class SequenceWalk:
    """A warp's walk through the sequences: each lane has one of 32. Numbers only go up."""

    schedule: PackedTiles
    before: u32 = 0  #: number of its first tile
    after: u32 = 0  #: number after its last tile
    end: u32 = 0  #: number after the last tile of the 32 sequences
    first: u32 = 0  #: of the next 32 sequences

    def sequence(self) -> int:
        """Return the sequence of the lane."""
        return u32(self.first - WARP + laneid())

    def reaches(self, number: Any) -> bool:
        """Walk on to the sequence of a number; return whether there is one."""
        while number >= self.end and self.first < self.schedule.sequences:
            self._step()
        return number < self.end

    def _step(self) -> None:
        """Walk on to the next 32 sequences."""
        count = u32(0)
        self.first += WARP
        if self.sequence() < self.schedule.sequences:
            count = u32(self.schedule.num_blocks(self.sequence()) * self.schedule.heads)
        total, distance = count, u32(1)
        self.before = self.end
        while distance < WARP:  # `total` is that of the lanes that differ in lower bits alone
            other = shfl_sync_bfly_b32(total, distance)
            if laneid() & distance != 0:
                self.before += other
            total = u32(total + other)
            distance = u32(2 * distance)
        self.after = u32(self.before + count)
        self.end += total


@device_class()
@dataclass
class DrawnTiles(Iteration):
    """The tiles that the drawing warp has found for this block."""

    schedule: PackedTiles
    state: PipelineState

    def has_next(self) -> bool:
        """Wait for the next slot; return whether it has a tile."""
        state = self.state
        state.step()
        full = self.schedule.full_barrier(state.index)
        wait_for(full, state.phase, FULL, state.index, u32(state.count - 1))
        return ld_shared_u32(u32(self.schedule.slot(state.index) + 4)) != NO_HEAD

    def take(self) -> PackedTile:
        """Return the tile of the slot."""
        slot = self.schedule.slot(self.state.index)
        block, head, query, queries = ld_shared_v4_u32(slot)
        key, keys = ld_shared_v2_u32(slot + 16)
        return PackedTile(i32(block), i32(head), i32(query), i32(queries), i32(key), i32(keys))
