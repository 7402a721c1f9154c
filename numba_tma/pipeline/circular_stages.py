"""The stages of a `CircularBuffer`, the loops that yield them, and the errors of their use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import (
    Constant,
    Unknown,
    compile_time,
    device_class,
    u32,
)
from numba_tma.device.barrier import Barrier
from numba_tma.device.shared import SharedTile, TileAccesses
from numba_tma.pipeline.loops import Iteration
from numba_tma.pipeline.stages import slot_tile
from numba_tma.ptx import bar_warp_sync
from numba_tma.simulator import BadOperand

if TYPE_CHECKING:
    from numba_tma.pipeline.circular import CircularBuffer
    from numba_tma.pipeline.circular_handle import CircularBufferHandle


@device_class()
@dataclass
class Stage:
    """The stage of the current iteration. `wait` returns its tiles."""

    owner: Any
    index: u32

    def wait(self, name: Constant[str | None] = None) -> Any:
        """Wait until the stage is full; return its tiles by name: ``stage.wait().x``.

        With ``barriers="each"``, ``stage.wait("x")`` waits for the tile x alone and returns it.
        Executed by every thread that reads the tile. Other threads wait when the loop goes on.
        """
        owner = self.owner
        if name is None:
            owner._await_stage()
            return FullStage(owner.pipeline, owner.base, self.index, owner.accesses)
        owner._await_full(barrier_number(owner.pipeline, "stage.wait", name))
        return slot_tile(owner, self.index, name)


@device_class(static=("pipeline",))
@dataclass
class FullStage:
    """A full stage: its tiles by name."""

    pipeline: CircularBuffer
    base: u32
    index: u32
    accesses: TileAccesses

    def __getattr__(self, name: Constant[str]) -> SharedTile:
        return slot_tile(self, self.index, name)


@device_class()
@dataclass
class LoadStage:
    """An empty stage to load: its tiles by name, and the barriers on which copies complete."""

    owner: Any
    index: u32

    def __getattr__(self, name: Constant[str]) -> SharedTile:
        return slot_tile(self.owner, self.index, name)

    @property
    def barrier(self) -> Barrier:
        """The barrier that completes when all tiles of the stage have arrived."""
        check_one_barrier(self.owner.pipeline)
        return Barrier(self.owner.barriers + 8 * self.index, self.owner.pipeline.ledger_offset)

    def barrier_of(self, name: Constant[str]) -> Barrier:
        """Return the barrier that completes when the tile `name` has arrived."""
        pipeline = self.owner.pipeline
        address = self.owner.barriers + full_offset(pipeline, name) + 8 * self.index
        return Barrier(address, pipeline.ledger_offset)


@device_class(static=("in_flight",))
@dataclass
class Tiles(Iteration):
    """The tiles first, first + step, ... below stop, each with its stage."""

    in_flight: int
    ring: CircularBufferHandle

    def __post_init__(self) -> None:
        check_in_flight(self.ring.pipeline, self.in_flight)

    def has_next(self) -> bool:
        """Release the stage that leaves flight; return whether a tile is left."""
        return self.ring._next_tile(self.in_flight)

    def take(self) -> tuple[int, Stage]:
        """Return the next tile and its stage, which may not be full yet."""
        self.ring._take()
        return self.ring.tile, Stage(self.ring, self.ring.state.index)


@device_class()
@dataclass
class Loads(Iteration):
    """The tiles to load in the current iteration, each with its empty stage."""

    ring: CircularBufferHandle
    left: u32
    elected: bool

    def has_next(self) -> bool:
        """Return whether this thread has another tile to load."""
        left = self.elected & (self.left != 0) & (self.ring.ahead < self.ring.stop)
        if self.ring.pipeline.by_mbarrier and not left:
            bar_warp_sync()  # reconverge: the elected thread, which has waited, is far behind
        return left

    def take(self) -> tuple[int, LoadStage]:
        """Wait until the next stage is empty; return its tile and the stage."""
        tile = self.ring.ahead
        self.ring.ahead = tile + self.ring.step
        self.left -= 1
        return tile, self.ring._acquire()


# ------------------------------------------------------------------- when a kernel is compiled


def check_in_flight(pipeline: CircularBuffer, in_flight: int) -> None:
    """Raise unless `in_flight` stages can be in flight."""
    if not 0 <= in_flight <= pipeline.in_flight:
        raise BadOperand(
            f"tiles(in_flight={in_flight}): of {pipeline.num_stages} stages {pipeline.prefetch} "
            f"are loaded ahead and 1 is worked on, so that {pipeline.num_stages} - "
            f"{pipeline.prefetch} - 1 = {pipeline.in_flight} can be in flight; lower in_flight or "
            "prefetch, or add stages"
        )


@compile_time
def barrier_number(pipeline: CircularBuffer, what: str, name: str) -> int:
    """Return the number of a tile's full barrier; raise if the tiles share one barrier."""
    check_name(pipeline, what, name)
    if pipeline.barriers == "one":
        raise BadOperand(
            f"{what}({name!r}): all tiles of a stage complete on one barrier; wait for the stage, "
            f'as in {what}().{name}, or make the buffer with barriers="each"'
        )
    return list(dict(pipeline.tiles)).index(name)


@compile_time
def full_offset(pipeline: CircularBuffer, name: str) -> int:
    """Return the offset of a tile's full barrier in stage 0 from the barriers' base."""
    check_name(pipeline, "slot.barrier_of", name)
    return pipeline.full_offset(name)


def check_name(pipeline: CircularBuffer, what: str, name: str) -> None:
    """Raise unless stages have a tile `name`."""
    if isinstance(name, Unknown):
        raise BadOperand(
            f"{what}(name=...) must be a compile-time constant, but its type is {name}"
        )
    if name not in dict(pipeline.tiles):
        names = ", ".join(map(repr, dict(pipeline.tiles)))
        raise BadOperand(f"{what}({name!r}): the tiles of {pipeline} are {names}")


@compile_time
def check_one_barrier(pipeline: CircularBuffer) -> None:
    """Raise unless the tiles of a stage share one barrier."""
    if pipeline.barriers != "one":
        name = pipeline.tiles[0][0]
        raise BadOperand(
            f'slot.barrier: each tile of {pipeline} has its own: slot.barrier_of("{name}")'
        )
