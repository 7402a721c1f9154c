"""`TilePipeline`: tiles that a producer warp loads and consumer warps work on, stages apart.

Each stage has two mbarriers. *full* completes when the stage's bytes have arrived: one arrival,
by the producer, that also says how many bytes to expect. *empty* completes when every consumer warp
has released the stage. Both sides walk the stages with an index and a phase bit that flips at each
turn of the ring; in its first turn the producer's is 1, so that its waits for *empty* pass at once.
They step before they wait: in a loop, what was worked on and what comes next are then one register.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numba_tma import simulator
from numba_tma._device import constant_class, device_class, i64, u32
from numba_tma._environment import debugging, simulated
from numba_tma.barrier import Barrier
from numba_tma.debug import Site
from numba_tma.layout import Tile
from numba_tma.ptx import (
    atom_inc,
    bar_warp_sync,
    barrier_sync,
    cp_async_bulk_commit_group,
    cp_async_bulk_wait_group_read,
    elect_sync,
    fence_mbarrier_init,
    fence_proxy_async,
    ld_shared_u32,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    nctaid_x,
    nctaid_y,
    nctaid_z,
    ntid_x,
    st_shared_u32,
    st_shared_u64,
    tid_x,
)
from numba_tma.shared import SharedTile, Writes
from numba_tma.waiting import count_bytes, meet, wait_for

WARP = 32
CONSUMER_BARRIER = 1  # named barrier of the consumer warps; 0 is cuda.syncthreads
NO_TILE = 0xFFFFFFFF  # what a TileQueue's producer passes on when the queue is empty
RESERVED = frozenset({"barrier", "index", "base", "writes", "pipeline"})  # on a stage


@constant_class
@dataclass(frozen=True, init=False, repr=False)
class TilePipeline:
    """A ring of `num_stages` stages in shared memory, each holding the named `tiles`.

    Made on the host, used from a kernel's globals. Shared bytes, barriers, and the bytes that each
    stage expects follow from the tiles.

    Parameters
    ----------
    num_stages
        Stages of the ring, at least 1.
    **tiles
        The tiles that one stage receives, by the name they have in the kernel: ``stage.x``. The
        producer loads every one of them into every stage, which is full only when `tx_bytes` bytes
        have come. A tile that is only written, an output of another shape, say, is a
        `shared_tile`.
    debug
        Whether waits end with an exception when they take too long, and bytes are counted; by
        default as the environment's ``NUMBA_TMA_DEBUG`` says. The simulator does so by itself.

    Examples
    --------
    >>> PIPE = TilePipeline(4, x=Tile((64, 128), "f32"))
    >>> PIPE.tx_bytes
    32768
    """

    num_stages: int
    tiles: tuple[tuple[str, Tile], ...]
    debug: bool

    def __init__(self, num_stages: int, *, debug: bool | None = None, **tiles: Tile) -> None:
        try:
            stages = operator.index(num_stages)
        except TypeError:
            stages = 0
        if stages < 1:
            raise ValueError(
                f"TilePipeline(num_stages={num_stages!r}): a pipeline has at least 1 stage; "
                "2 to 8 are usual"
            )
        if not tiles:
            raise ValueError(
                "TilePipeline(): name at least one tile, as in TilePipeline(4, x=TILE)"
            )
        for name, tile in tiles.items():
            if not isinstance(tile, Tile):
                raise TypeError(f"TilePipeline({name}=...) takes a Tile, not {tile!r}")
            if name in RESERVED:
                raise ValueError(
                    f"TilePipeline({name}=...): the name means something else on a stage"
                )
        object.__setattr__(self, "num_stages", stages)
        object.__setattr__(self, "tiles", tuple(tiles.items()))
        if not isinstance(debug, bool | None):
            raise TypeError(f"TilePipeline(debug=...) takes True, False or None, not {debug!r}")
        bounded = debugging() if debug is None else debug
        object.__setattr__(self, "debug", bounded and not simulated())

    def __repr__(self) -> str:
        tiles = ", ".join(f"{n}={t}" for n, t in self.tiles)
        return f"TilePipeline({self.num_stages}, {tiles}{', debug=True' if self.debug else ''})"

    @property
    def tx_bytes(self) -> int:
        """Bytes that the copies of one stage bring."""
        return sum(tile.nbytes for _, tile in self.tiles)

    @property
    def alignment(self) -> int:
        """Alignment of the ring in shared memory, in bytes: that of its strictest tile."""
        return max(tile.alignment for _, tile in self.tiles)

    def tile_offset(self, name: str) -> int:
        """Return the offset of the first stage's tile `name` from the ring's base, in bytes."""
        offset = 0
        for other, tile in self.tiles:
            offset = _round_up(offset, tile.alignment)
            if other == name:
                return offset
            offset += self.num_stages * tile_stride(tile)
        raise AttributeError(f"{self} has no tile {name!r}")

    @property
    def full_offset(self) -> int:
        """Offset of the full barriers from the ring's base, in bytes."""
        name, tile = self.tiles[-1]
        return self.tile_offset(name) + self.num_stages * tile_stride(tile)

    @property
    def empty_offset(self) -> int:
        """Offset of the empty barriers from the ring's base, in bytes."""
        return self.full_offset + 8 * self.num_stages

    @property
    def ticket_offset(self) -> int:
        """Offset of the tile numbers that a `TileQueue`'s producer passes on, in bytes."""
        return self.empty_offset + 8 * self.num_stages

    @property
    def sync_offset(self) -> int:
        """Offset of the mbarrier that debug mode has for a named barrier, in bytes."""
        return _round_up(self.ticket_offset + 4 * self.num_stages, 8)

    @property
    def ledger_offset(self) -> int:
        """In debug mode, how far behind a stage's full barrier its ledger lies, 8 bytes; else 0."""
        return self.sync_offset + 8 - self.full_offset if self.debug else 0

    @property
    def nbytes(self) -> int:
        """Shared memory of the ring, its barriers included, in bytes."""
        if self.debug:
            return self.full_offset + self.ledger_offset + 8 * self.num_stages
        return self.ticket_offset + 4 * self.num_stages

    @property
    def full_site(self) -> Site:
        """What a wait for a full stage is called."""
        return Site(
            f"'{self._name}.full'", "consumer", self.tx_bytes, self.num_stages, debug=self.debug
        )

    @property
    def empty_site(self) -> Site:
        """What a wait for an empty stage is called."""
        return Site(f"'{self._name}.empty'", "producer", debug=self.debug)

    @property
    def sync_site(self) -> Site:
        """What the meeting of the consumers is called."""
        what = f"sync_consumers() or store() of '{self._name}'"
        return Site(what, "consumer", kind="sync", debug=self.debug)

    @property
    def _name(self) -> str:
        return "+".join(name for name, _ in self.tiles)

    def start(self) -> Pipeline:
        """Allocate the ring, initialise its barriers and return the block's `Pipeline`.

        Executed once by every thread of the block, so not inside a loop; it synchronises the
        block. Each call in the source is a ring of its own.
        """
        return start(self)


def tile_stride(tile: Tile) -> int:
    """Return the bytes from one stage's tile to the next stage's."""
    return _round_up(tile.shared_nbytes, tile.alignment)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@device_class(static=("num_stages",), mutable=True)
@dataclass
class PipelineState:
    """Where a walk round the stages is: `index`, `phase` bit and `count` of steps.

    At the first stage a consumer's phase is 0 and a producer's 1. A walk that steps before its
    first stage starts with `index` at `num_stages` and the other phase.
    """

    num_stages: int
    index: u32 = 0
    phase: u32 = 0
    count: u32 = 0

    def step(self) -> None:
        """Go to the next stage; the phase flips after the last one."""
        index = u32(self.index + 1)
        if index >= self.num_stages:
            self.phase ^= 1
            index = u32(0)
        self.index = index
        self.count += 1


# --------------------------------------------------------------------------- producer


@device_class(static=("pipeline",))
@dataclass
class ProducerStage:
    """A stage to be filled: its tiles by name, and the `barrier` that their copies complete on."""

    pipeline: TilePipeline
    base: u32
    index: u32
    writes: Writes

    @property
    def barrier(self) -> Barrier:
        """The barrier that completes when the stage's bytes have arrived."""
        return Barrier(
            self.base + self.pipeline.full_offset + 8 * self.index, self.pipeline.ledger_offset
        )

    def __getattr__(self, name: str) -> SharedTile:
        return _stage_tile(self, name)


@device_class(static=("pipeline",))
@dataclass
class Producer:
    """The side that loads. One thread: `produce` elects it; the explicit form leaves it to you."""

    pipeline: TilePipeline
    base: u32
    state: PipelineState
    writes: Writes

    def _full_barrier(self) -> Barrier:
        """Return the barrier that completes when the stage's bytes have arrived."""
        return Barrier(self.base + self.pipeline.full_offset + 8 * self.state.index)

    def _empty_barrier(self) -> Barrier:
        """Return the barrier that completes when the consumers have released the stage."""
        return Barrier(self.base + self.pipeline.empty_offset + 8 * self.state.index)

    def acquire(self) -> ProducerStage:
        """Wait until the next stage is empty and expect its bytes; return it to be loaded.

        Executed by one thread. Every tile of the stage must then be loaded exactly once, on
        ``stage.barrier``.
        """
        self._await_next()
        return self._expect()

    def _await_next(self) -> None:
        """Go on to the next stage and wait until the consumers have released it."""
        self.state.step()
        state = self.state
        site = self.pipeline.empty_site
        wait_for(self._empty_barrier(), state.phase, site, state.index, u32(state.count - 1))

    def _expect(self) -> ProducerStage:
        """Expect the bytes of the stage, which is empty; return it to be loaded."""
        mbarrier_arrive_expect_tx(self._full_barrier(), self.pipeline.tx_bytes)
        return ProducerStage(self.pipeline, self.base, self.state.index, self.writes)

    def commit(self) -> None:
        """Do nothing, at the place where other pipelines signal: here the arriving bytes do."""

    def tail(self) -> None:
        """Wait until the consumers have released every stage that was filled.

        Executed by the thread that acquired. Not needed before a block's end: a block's shared
        memory outlives its last thread. Needed before the ring is used for something else.
        """
        for _ in range(self.pipeline.num_stages):
            self._await_next()
        self.state.phase ^= 1  # a turn in which nothing was filled
        self.state.count -= self.pipeline.num_stages

    def _publish_tile(self, tile: Any) -> None:
        """Leave the number of the stage's tile to the consumers; the next arrival releases it."""
        st_shared_u32(self.base + self.pipeline.ticket_offset + 4 * self.state.index, tile)

    def _publish_end(self) -> None:
        """Tell the consumers that the queue has no more tiles, with a stage that holds none."""
        self._await_next()
        self._publish_tile(NO_TILE)
        if self.pipeline.debug:  # the stage becomes full without its copies
            full = self._full_barrier()
            count_bytes(full.address + self.pipeline.ledger_offset, self.pipeline.tx_bytes)
        mbarrier_arrive(self._full_barrier())


class _Iteration:
    """Python's iterator protocol over `has_next` and `take`, for the simulator."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.has_next():  # type: ignore[attr-defined]
            raise StopIteration
        return self.take()  # type: ignore[attr-defined]


@device_class()
@dataclass
class Produce(_Iteration):
    """The tiles first, first + step, ... below stop, each with the stage to load it into."""

    producer: Producer
    tile: i64
    stop: i64
    step: i64
    elected: bool

    def has_next(self) -> bool:
        """Return whether a tile is left."""
        self.tile += self.step
        # A test of its own, from which ptxas sees that one thread is left to copy.
        if not self.elected:
            return False
        return self.tile < self.stop

    def take(self) -> tuple[int, ProducerStage]:
        """Return the next tile and its acquired stage."""
        return self.tile, self.producer.acquire()


@device_class()
@dataclass
class ProduceFrom(_Iteration):
    """The tiles that a `TileQueue` hands out, each with the stage to load it into."""

    producer: Producer
    queue: TileQueue
    tile: u32
    elected: bool

    def has_next(self) -> bool:
        """Return whether the queue had a tile left; if not, tell the consumers."""
        if not self.elected:
            return False
        if self.tile < self.queue.num_tiles:
            return True
        self.producer._publish_end()
        return False

    def take(self) -> tuple[int, ProducerStage]:
        """Return the tile drawn last and its acquired stage, and draw the next."""
        producer, tile = self.producer, self.tile
        producer._await_next()
        producer._publish_tile(tile)
        stage = producer._expect()
        self.tile = self.queue.draw()  # in flight while the caller issues this tile's copies
        return i64(tile), stage


# --------------------------------------------------------------------------- consumer


@device_class(static=("pipeline",))
@dataclass
class ConsumerStage:
    """A full stage: its tiles by name."""

    pipeline: TilePipeline
    base: u32
    index: u32
    writes: Writes

    def __getattr__(self, name: str) -> SharedTile:
        return _stage_tile(self, name)


@device_class(static=("pipeline",), mutable=True)
@dataclass
class Consumer:
    """The side that works on full stages: every warp of the block but the producer's.

    Stages are released in the order in which they were waited for. A release is one arrival per
    warp.
    """

    pipeline: TilePipeline
    base: u32
    thread: u32  # threadIdx.x
    num_threads: u32  # of all consumers
    state: PipelineState
    writes: Writes
    current: u32  # the newest stage that is held, num_stages if there is none
    previous: u32  # the one before it, if that is held too
    older: u32 = 0  # how many are held that come before these two
    in_flight: u32 = 0
    storing: bool = False  # tiles of this pipeline have been stored
    owes_group: bool = False  # ... but none of the newest stage

    def wait(self) -> ConsumerStage:
        """Wait until the next stage is full and return it. Executed by whole warps."""
        self.state.step()
        state, pipeline = self.state, self.pipeline
        full = Barrier(self.base + pipeline.full_offset + 8 * state.index, pipeline.ledger_offset)
        wait_for(full, state.phase, pipeline.full_site, state.index, u32(state.count - 1))
        stage = ConsumerStage(self.pipeline, self.base, self.state.index, self.writes)
        if self.previous < self.pipeline.num_stages:
            self.older += 1
        self.previous = self.current
        self.current = self.state.index
        self.owes_group = self.storing
        return stage

    def release(self) -> None:
        """Hand the oldest stage that is held back to the producer. Executed by whole warps.

        What the warp wrote to its tiles is fenced before; a store that reads from the stage has
        read it.
        """
        self._close_stage()
        if self.in_flight > 0 and self.thread == 0:
            cp_async_bulk_wait_group_read(0)  # the stage may be one that a loop left in flight
        self._release(self._pop_oldest())

    def _release(self, stage: Any) -> None:
        """Arrive on the empty barrier of `stage`, once per warp."""
        if self.writes.unfenced:
            fence_proxy_async()
            self.writes.unfenced = False
        bar_warp_sync()
        if elect_sync():
            mbarrier_arrive(Barrier(self.base + self.pipeline.empty_offset + 8 * stage))

    def _pop_oldest(self) -> int:
        """Return the oldest stage that is held and hold it no longer."""
        stage, none = self.current, u32(self.pipeline.num_stages)
        if self.older > 0:
            stage = u32(self.previous + none - self.older)
            if stage >= none:
                stage = u32(stage - none)
            self.older -= 1
        elif self.previous < none:
            stage = self.previous
            self.previous = none
        else:
            self.current = none
        return stage

    def _holds_more_than(self, number: Any) -> bool:
        """Return whether more than `number` stages, a literal, are held."""
        if number == 0:
            return self.current < self.pipeline.num_stages
        if number == 1:
            return self.previous < self.pipeline.num_stages
        return self.older > 0 and self.older + 2 > number

    def _release_beyond(self, number: Any) -> None:
        """Hand back the oldest stages until at most `number`, a literal, are held."""
        none = u32(self.pipeline.num_stages)
        while self.older > 0 and self.older + 2 > number:
            self._release(self._pop_oldest())
        # Set where it is none already, too: the compiler then knows, and drops later tests.
        if number <= 1:
            if self.previous < none:
                self._release(self.previous)
            self.previous = none
        if number == 0:
            if self.current < none:
                self._release(self.current)
            self.current = none

    def _release_beyond_flight(self) -> None:
        """Hand back the oldest stage if more than `in_flight` are held."""
        self._close_stage()
        self._release_beyond(self.in_flight)

    def _release_until(self, in_flight: Any) -> None:
        """Hand back the oldest stages until at most `in_flight` are held, and keep to that."""
        self._close_stage()
        self.in_flight = in_flight
        if self._holds_more_than(in_flight) and self.thread == 0:
            self._await_stores()  # returns at once if nothing was stored
        self._release_beyond(in_flight)

    def _close_stage(self) -> None:
        """End the work on the newest stage as a store does, if others stored and it did not.

        With one bulk group for each stage, waiting for all but the `in_flight` newest makes sure
        that the stage which is handed back next has been read.
        """
        if self.owes_group:
            if self.thread == 0:
                cp_async_bulk_commit_group()
                self._await_stores()
            self.owes_group = False

    def _await_stores(self) -> None:
        """Wait until all bulk groups but the `in_flight` newest have read shared memory."""
        # The instruction wants a literal; `in_flight` is known once this has been inlined.
        if self.in_flight == 0:
            cp_async_bulk_wait_group_read(0)
        elif self.in_flight == 1:
            cp_async_bulk_wait_group_read(1)
        elif self.in_flight == 2:
            cp_async_bulk_wait_group_read(2)
        else:
            cp_async_bulk_wait_group_read(3)  # waits for more than it must beyond 3

    def sync(self) -> None:
        """Do what `Pipeline.sync_consumers` says."""
        barrier = Barrier(self.base + self.pipeline.sync_offset)
        meet(CONSUMER_BARRIER, self.num_threads, barrier, self.pipeline.sync_site)

    def store(self, tensor_map: Any, tile: SharedTile, coords: Any, written: bool = True) -> None:
        """Do what `Pipeline.store` says."""
        if written:
            fence_proxy_async()
            self.writes.unfenced = False
            self.sync()
        if self.thread == 0:
            tensor_map.store(tile, coords)
            cp_async_bulk_commit_group()
            self._await_stores()
        self.storing = True
        self.owes_group = False


@device_class(static=("in_flight",))
@dataclass
class Consume(_Iteration):
    """The tiles first, first + step, ... below stop, each with its full stage."""

    in_flight: int
    consumer: Consumer
    tile: i64
    stop: i64
    step: i64

    def has_next(self) -> bool:
        """Hand back the stage that leaves flight; return whether a tile is left."""
        self.consumer._release_beyond_flight()
        self.tile += self.step
        return self.tile < self.stop

    def take(self) -> tuple[int, ConsumerStage]:
        """Return the next tile and its stage, once that is full."""
        return self.tile, self.consumer.wait()


@device_class(static=("in_flight",))
@dataclass
class ConsumeFrom(_Iteration):
    """The tiles that a `TileQueue`'s producer passes on, each with its full stage."""

    in_flight: int
    consumer: Consumer
    tile: i64 = 0
    index: u32 = 0

    def has_next(self) -> bool:
        """Hand back the stage that leaves flight and wait for the next; return if it has a tile."""
        consumer = self.consumer
        consumer._release_beyond_flight()
        stage = consumer.wait()
        ticket = ld_shared_u32(consumer.base + consumer.pipeline.ticket_offset + 4 * stage.index)
        self.tile, self.index = i64(ticket), stage.index
        if ticket == NO_TILE and self.in_flight == 0:
            consumer.release()  # what is in flight stays so; else the stage holds no tile
        return ticket != NO_TILE

    def take(self) -> tuple[int, ConsumerStage]:
        """Return the tile and the stage that `has_next` waited for."""
        consumer = self.consumer
        stage = ConsumerStage(consumer.pipeline, consumer.base, self.index, consumer.writes)
        return self.tile, stage


# --------------------------------------------------------------------------- the whole


@device_class()
@dataclass
class TileQueue:
    """Tiles 0 to num_tiles - 1, handed out to the grid's blocks in the order they ask.

    Blocks that take turns this way touch memory in a narrow moving window, which DRAM rewards.
    (CUTLASS calls this a dynamic persistent tile scheduler.)

    `counter` is an array of one uint32 in global memory. It is 0 before the launch and after it: it
    wraps round once every block of the grid has been told that no tile is left. So each block walks
    the queue once and to its end, launches that share a counter follow each other, and `num_tiles`
    plus the blocks of the grid stay below 2**32.
    """

    counter: Any
    num_tiles: u32

    def draw(self) -> int:
        """Return the next tile, or `num_tiles` or more if none is left."""
        blocks = nctaid_x() * nctaid_y() * nctaid_z()
        return atom_inc(self.counter, self.num_tiles + blocks - 1)


@device_class(local=True)
@dataclass
class Pipeline:
    """A started `TilePipeline`: the last warp of the block produces, all others consume.

    The block is one-dimensional, of at least two whole warps.
    """

    producer: Producer
    consumer: Consumer

    def is_producer(self) -> bool:
        """Return True in every thread of the producer warp."""
        return self.consumer.thread >= self.consumer.num_threads

    def is_consumer(self) -> bool:
        """Return True in every thread of the consumer warps, which are 0 to blockDim.x - 33."""
        return self.consumer.thread < self.consumer.num_threads

    def num_consumers(self) -> int:
        """Return the number of consumer threads; their threadIdx.x counts from 0."""
        return self.consumer.num_threads

    def produce(self, first: Any, stop: Any, step: Any = 1) -> Produce:
        """Iterate over range(first, stop, step), each tile with an acquired stage to load it into.

        Yields (tile, stage): ``stage.x`` is the stage's tile x, ``stage.barrier`` the barrier to
        pass to its load. Entered by the whole producer warp; the loop's body is executed by one
        elected thread, and loads every tile of the stage once. `step` is positive. The consumers
        wait for a stage whose loads are not issued: leave the loop early only after them. Loops of
        two pipelines are not nested; load both from the body of one.
        """
        return Produce(self.producer, i64(first) - i64(step), stop, step, elect_sync())

    def produce_from(self, queue: TileQueue) -> ProduceFrom:
        """Iterate over the tiles that `queue` hands to this block, as `produce` does.

        The consumers of the block use `consume_from`.
        """
        elected = elect_sync()
        tile = u32(NO_TILE)
        if elected:
            tile = queue.draw()
        return ProduceFrom(self.producer, queue, tile, elected)

    def consume(self, first: Any, stop: Any, step: Any = 1, in_flight: int = 0) -> Consume:
        """Iterate over range(first, stop, step), each tile with its full stage.

        Yields (tile, stage), with ``stage.x`` to read and to write. Entered by every consumer warp.
        A stage is handed back when the loop goes on to the next
        tile, or `in_flight` tiles later, for work that reads it asynchronously; what is in flight
        at the end is handed back by `release_pending`. After a ``break`` the next loop,
        `release_pending` or `close` hands back what is held; a producer that goes on without that
        waits for ever. A kernel that stores with `in_flight` above 0 ends with `release_pending`,
        which waits for the stores to read shared memory. `in_flight` is a literal below the number
        of stages.
        """
        tiles = Consume(in_flight, self.consumer, i64(first) - i64(step), stop, step)
        self.consumer._release_until(in_flight)
        return tiles

    def consume_from(self, in_flight: int = 0) -> ConsumeFrom:
        """Iterate over the tiles that this block's `produce_from` drew, as `consume` does."""
        tiles = ConsumeFrom(in_flight, self.consumer)
        self.consumer._release_until(in_flight)
        return tiles

    def store(self, tensor_map: Any, tile: SharedTile, coords: Any, written: bool = True) -> None:
        """Store a tile of a stage through `tensor_map`. Executed by every consumer thread.

        `tile` belongs to the stage that was waited for last. Fences the threads' writes,
        synchronises the consumers and has one thread start the store. The stage is handed back
        only when the store has read it. With ``written=False`` the tile goes out as it came in:
        nobody wrote to it, so nothing is fenced or synchronised. A `shared_tile` can be stored as
        well; it belongs to no stage, so that with ``in_flight=0`` it may be written again after
        another `sync_consumers`.
        """
        self.consumer.store(tensor_map, tile, coords, written)

    def sync_consumers(self) -> None:
        """Synchronise the consumer warps (named barrier 1), as cuda.syncthreads does a block."""
        self.consumer.sync()

    def release_pending(self) -> None:
        """Hand back every stage that is still held. Executed by every consumer warp."""
        self.consumer._release_until(0)

    def close(self) -> None:
        """End the pipeline's use: hand back what is held. Executed by every consumer warp."""
        self.release_pending()


def start(pipeline: TilePipeline) -> Pipeline:
    """Do what `TilePipeline.start` says."""
    base = allocate_pipeline(pipeline)
    thread, num_consumers = tid_x(), ntid_x() - WARP
    stages = pipeline.num_stages
    producer = Producer(pipeline, base, PipelineState(stages, stages, 0), Writes())
    state = PipelineState(stages, stages, 1)
    consumer = Consumer(pipeline, base, thread, num_consumers, state, Writes(), stages, stages)
    initialise(pipeline, base, thread, num_consumers)
    return Pipeline(producer, consumer)


def initialise(pipeline: TilePipeline, base: int, thread: int, num_consumers: int) -> None:
    """Initialise the barriers of a ring and make them visible to the block and its copies."""
    if thread == 0:
        consumer_warps = u32(num_consumers) // u32(WARP)
        for stage in range(pipeline.num_stages):
            mbarrier_init(base + pipeline.full_offset + 8 * stage, 1)
            mbarrier_init(base + pipeline.empty_offset + 8 * stage, consumer_warps)
            if pipeline.debug:
                ledger = base + pipeline.full_offset + pipeline.ledger_offset + 8 * stage
                st_shared_u64(ledger, 0)
        if pipeline.debug:
            mbarrier_init(base + pipeline.sync_offset, num_consumers)
        fence_mbarrier_init()
    barrier_sync(0, num_consumers + WARP)


def allocate_pipeline(pipeline: TilePipeline) -> int:
    """Return the address of a new ring in shared memory; its parts get names in the simulator."""
    simulator.check_block("TilePipeline", minimum=2 * WARP)
    base = simulator.allocate_shared(pipeline, pipeline.nbytes, pipeline.alignment)
    for stage in range(pipeline.num_stages):
        simulator.label(base + pipeline.full_offset + 8 * stage, f"full[{stage}] of {pipeline}")
        simulator.label(base + pipeline.empty_offset + 8 * stage, f"empty[{stage}] of {pipeline}")
        for name, tile in pipeline.tiles:
            address = base + pipeline.tile_offset(name) + stage * tile_stride(tile)
            simulator.label(address, f"{name}[{stage}] of {pipeline}")
    return base


def _stage_tile(stage: Any, name: str) -> SharedTile:
    for other, tile in stage.pipeline.tiles:
        if other == name:
            offset = stage.pipeline.tile_offset(name) + stage.index * tile_stride(tile)
            return SharedTile(tile, stage.base + offset, stage.writes)
    raise AttributeError(f"{stage.pipeline} has no tile {name!r}")


if not simulated():
    from numba_tma import _pipeline_lowering  # noqa: F401
