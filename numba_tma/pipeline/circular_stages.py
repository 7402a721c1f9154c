"""The stages of a `CircularBuffer`, the loops that yield them, and what is wrong with their use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma import simulator
from numba_tma.backend.interface import device_class, u32
from numba_tma.device.barrier import Barrier
from numba_tma.device.shared import SharedTile
from numba_tma.pipeline.circular import CircularBuffer
from numba_tma.pipeline.loops import Iteration
from numba_tma.pipeline.stages import slot_tile

if TYPE_CHECKING:
    from numba_tma.pipeline.circular_started import Ring


@device_class()
@dataclass
class Stage:
    """The stage of the current iteration, of which `wait` returns the tiles."""

    owner: Any
    index: u32

    def wait(self, name: str | None = None) -> Any:
        """Wait until the stage is full; return its tiles by name: ``stage.wait().x``.

        With ``barriers="each"``, ``stage.wait("x")`` waits for the tile x alone and returns it.
        Executed by every thread that reads the tile; the others wait when the loop goes on.
        """
        pipeline = self.owner.pipeline
        if name is None:
            self.owner._await_stage()
            return FullStage(pipeline, self.owner.base, self.index, self.owner)
        if rule := name_rule(pipeline, "stage.wait", name):
            raise simulator.BadOperand(rule)
        self.owner._await_full(list(dict(pipeline.tiles)).index(name))
        tiles = FullStage(pipeline, self.owner.base, self.index, self.owner)
        return getattr(tiles, name)


@device_class(static=("pipeline",))
@dataclass
class FullStage:
    """A full stage: its tiles by name."""

    pipeline: CircularBuffer
    base: u32
    index: u32
    accesses: Any

    def __getattr__(self, name: str) -> SharedTile:
        return slot_tile(self, self.index, name)


@device_class()
@dataclass
class LoadStage:
    """An empty stage to load: its tiles by name, and the barriers that their copies complete on."""

    owner: Any
    index: u32

    def __getattr__(self, name: str) -> SharedTile:
        ring = self.owner
        return slot_tile(FullStage(ring.pipeline, ring.base, self.index, ring), self.index, name)

    @property
    def barrier(self) -> Barrier:
        """The barrier that completes when all tiles of the stage have come."""
        if rule := barrier_rule(self.owner.pipeline):
            raise simulator.BadOperand(rule)
        return Barrier(self.owner.barriers + 8 * self.index, self.owner.pipeline.ledger_offset)

    def barrier_of(self, name: str) -> Barrier:
        """Return the barrier that completes when the tile `name` has come."""
        pipeline = self.owner.pipeline
        if name not in dict(pipeline.tiles):
            raise simulator.BadOperand(unknown_rule(pipeline, "slot.barrier_of", name))
        address = self.owner.barriers + pipeline.full_offset(name) + 8 * self.index
        return Barrier(address, pipeline.ledger_offset)


@device_class(static=("in_flight",))
@dataclass
class Tiles(Iteration):
    """The tiles first, first + step, ... below stop, each with the stage that it comes in."""

    in_flight: int
    ring: Ring

    def __post_init__(self) -> None:
        if rule := in_flight_rule(self.ring.pipeline, self.in_flight):
            raise simulator.BadOperand(rule)

    def has_next(self) -> bool:
        """Hand back the stage that leaves flight; return whether a tile is left."""
        return self.ring._next_tile(self.in_flight)

    def take(self) -> tuple[int, Stage]:
        """Return the next tile and its stage, which may not be full yet."""
        self.ring._take()
        return self.ring.tile, Stage(self.ring, self.ring.state.index)


@device_class()
@dataclass
class Loads(Iteration):
    """The tiles that are to be loaded in the current iteration, each with its empty stage."""

    ring: Ring
    left: u32
    elected: bool

    def has_next(self) -> bool:
        """Return whether another tile is to be loaded, by this thread."""
        if not self.elected or self.left == 0:
            return False
        return self.ring.ahead < self.ring.stop

    def take(self) -> tuple[int, LoadStage]:
        """Return the tile and its stage, once that is empty."""
        tile = self.ring.ahead
        self.ring.ahead = tile + self.ring.step
        self.left -= 1
        return tile, self.ring._acquire()


# ------------------------------------------------------------------------------ what is wrong


def in_flight_rule(pipeline: CircularBuffer, in_flight: int) -> str:
    """Return what is wrong with so many stages in flight; empty if nothing is."""
    if 0 <= in_flight <= pipeline.in_flight:
        return ""
    return (
        f"tiles(in_flight={in_flight}): of {pipeline.num_stages} stages {pipeline.prefetch} are "
        f"loaded ahead and 1 is worked on, so that {pipeline.num_stages} - {pipeline.prefetch} - 1 "
        f"= {pipeline.in_flight} can be in flight; lower in_flight or prefetch, or add stages"
    )


def unknown_rule(pipeline: CircularBuffer, what: str, name: Any) -> str:
    """Return what is wrong with a tile that a stage has not."""
    names = ", ".join(map(repr, dict(pipeline.tiles)))
    return f"{what}({name!r}): the tiles of {pipeline} are {names}"


def name_rule(pipeline: CircularBuffer, what: str, name: Any) -> str:
    """Return what is wrong with waiting for one tile; empty if nothing is."""
    if name not in dict(pipeline.tiles):
        return unknown_rule(pipeline, what, name)
    if pipeline.barriers == "one":
        return (
            f"{what}({name!r}): one barrier tells that all tiles of a stage have come; wait for "
            f'the stage, as in {what}().{name}, or make the buffer with barriers="each"'
        )
    return ""


def barrier_rule(pipeline: CircularBuffer) -> str:
    """Return what is wrong with the one barrier of a stage; empty if there is one."""
    if pipeline.barriers == "one":
        return ""
    name = pipeline.tiles[0][0]
    return f'slot.barrier: each tile of {pipeline} has its own: slot.barrier_of("{name}")'
