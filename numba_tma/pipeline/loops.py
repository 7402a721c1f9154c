"""The loops over tiles of producer and consumer, and the queue that hands out tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba_tma import simulator
from numba_tma.backend.interface import device_class, i64, simulator_only, u32
from numba_tma.device.tile_indices import Iteration
from numba_tma.host.loop_rules import role_refusal
from numba_tma.pipeline.consumer import TileConsumer
from numba_tma.pipeline.producer import NO_TILE, TileProducer
from numba_tma.pipeline.ranges import is_before
from numba_tma.pipeline.stages import ConsumerStage, ProducerStage
from numba_tma.ptx import atom_inc, nctaid_x, nctaid_y, nctaid_z


@simulator_only
def enter_body(loop: Any) -> None:
    """Let the simulator refuse calls that need a whole warp, where one thread fills a stage."""
    if loop.elected and loop.producer.pipeline.by_tma:
        simulator.enter_elected(loop, "produce")


@simulator_only
def check_loop(called: str, handle: Any, role: str) -> None:
    """Raise where a thread of another role begins a loop, or one thread in its own loop's body."""
    simulator.check_whole_warp(called)
    if not (handle.is_producer() if role == "producer" else handle.is_consumer()):
        raise simulator.BarrierMisuse(role_refusal(called, handle._producer.pipeline, role))


@simulator_only
def check_consumes(called: str, pipeline: object, consumes: bool) -> None:
    """Raise in a thread that is no consumer."""
    if not consumes:
        raise simulator.BarrierMisuse(role_refusal(called, pipeline, "consumer"))


@device_class(static=("backwards",))
@dataclass
class Produce(Iteration):
    """The tiles first, first + step, ... before stop, each with the stage to fill."""

    backwards: bool
    producer: TileProducer
    tile: i64
    stop: i64
    step: i64
    elected: bool

    def has_next(self) -> bool:
        """Commit the previous stage; return whether a tile is left."""
        self.producer._commit_open()
        self.tile += self.step
        # A separate test: ptxas then sees that one thread executes the copies.
        if not self.elected:
            return False
        return is_before(self.tile, self.stop, self.backwards)

    def take(self) -> tuple[int, ProducerStage]:
        """Return the next tile and its acquired stage."""
        enter_body(self)
        return self.tile, self.producer.acquire()


@device_class()
@dataclass
class TileQueue:
    """Tiles 0 to num_tiles - 1, handed out to the grid's blocks in the order of their draws.

    The blocks then access memory in a narrow moving window, for which DRAM bandwidth is higher.
    CUTLASS calls the queue a dynamic persistent tile scheduler.

    `counter` is an array of one uint32 in global memory. It is 0 before the launch. It wraps round
    to 0 when every block of the grid has drawn once past the last tile. Four rules follow:

    - Each block walks the queue once and to its end. A kernel that failed leaves any number there:
      set the counter to 0 before the next launch.
    - Launches that share a counter run one after another, those of graphs too.
    - A kernel that is launched by programmatic dependent launch draws after `griddepcontrol_wait`.
    - `num_tiles` plus the number of blocks in the grid is below 2**32.
    """

    counter: Any
    num_tiles: u32

    def draw(self) -> int:
        """Return the next tile, or a number of at least `num_tiles` if no tile is left."""
        blocks = nctaid_x() * nctaid_y() * nctaid_z()
        return atom_inc(self.counter, self.num_tiles + blocks - 1)


@device_class()
@dataclass
class ProduceFrom(Iteration):
    """The tiles that a `TileQueue` hands out, each with an acquired stage."""

    producer: TileProducer
    queue: TileQueue
    tile: u32
    elected: bool

    def has_next(self) -> bool:
        """Return whether the queue had a tile left; if not, publish its end to the consumers."""
        if not self.elected:
            return False
        if self.tile < self.queue.num_tiles:
            return True
        self.producer.publish_end()
        return False

    def take(self) -> tuple[int, ProducerStage]:
        """Return the tile drawn last and its acquired stage, and draw the next tile."""
        enter_body(self)
        tile = self.tile
        stage = self.producer.acquire_for(tile)
        self.tile = self.queue.draw()  # in flight while the caller issues this tile's copies
        return i64(tile), stage


@device_class(static=("backwards", "in_flight"))
@dataclass
class Consume(Iteration):
    """The tiles first, first + step, ... before stop, each with its full stage."""

    backwards: bool
    in_flight: int
    consumer: TileConsumer
    tile: i64
    stop: i64
    step: i64
    entered: bool = True  # this thread consumes; with released_by="tcgen05" one thread does

    def has_next(self) -> bool:
        """Release the stage that leaves flight; return whether a tile is left."""
        self.consumer._release_beyond_flight()
        self.tile += self.step
        if self.consumer.pipeline.by_commit:
            # A separate test: ptxas then sees that one thread executes the products.
            if not self.entered:
                return False
        return is_before(self.tile, self.stop, self.backwards)

    def take(self) -> tuple[int, ConsumerStage]:
        """Wait until the next stage is full; return its tile and the stage."""
        return self.tile, self.consumer.wait()


@device_class(static=("in_flight",))
@dataclass
class ConsumeFrom(Iteration):
    """The tiles that a `TileQueue`'s producer publishes, each with its full stage."""

    in_flight: int
    consumer: TileConsumer
    tile: i64 = 0
    index: u32 = 0

    def has_next(self) -> bool:
        """Release the stage that leaves flight; return whether the next full stage has a tile."""
        consumer = self.consumer
        consumer._release_beyond_flight()
        ticket, stage = consumer.wait_for_tile()
        self.tile, self.index = i64(ticket), stage.index
        if ticket == NO_TILE and self.in_flight == 0:
            consumer.release()  # the stage holds no tile; stages in flight stay held
        return ticket != NO_TILE

    def take(self) -> tuple[int, ConsumerStage]:
        """Return the tile and the stage that `has_next` waited for."""
        consumer = self.consumer
        return self.tile, ConsumerStage(consumer, self.index)
