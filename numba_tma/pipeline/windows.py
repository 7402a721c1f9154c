"""Windows: a consumer's loop over a stream that reads the neighbours of each tile, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import Constant, Unknown, compile_time, device_class, i64, u32
from numba_tma.device.tile_indices import Iteration
from numba_tma.host.loop_rules import NOT_A_SEQUENCE
from numba_tma.pipeline.consumer import TileConsumer, check_carried
from numba_tma.pipeline.ranges import goes_backwards, is_before
from numba_tma.pipeline.stages import GroupedStage
from numba_tma.simulator import BadOperand

if TYPE_CHECKING:
    from numba_tma.pipeline.tile import TilePipeline


@device_class()
@dataclass
class WindowStage(GroupedStage):
    """A full stage of a window: its tiles by name. The loop releases it."""

    owner: Any
    index: u32


@device_class(static=("backwards", "before", "after"))
@dataclass
class Window:
    """A tile of a stream and its neighbours: ``window[-1].x`` is the tile x before it.

    The stages lie one behind the other in the ring, so that each is found from the newest.
    """

    backwards: bool
    before: int
    after: int
    consumer: TileConsumer
    newest: u32

    def __getitem__(self, distance: Constant[int]) -> WindowStage:
        check_distance(self.before, self.after, distance)
        check_carried()
        back, index = u32(self.after - distance), self.newest
        if self.backwards:
            back = u32(self.before + distance)
        if back > index:
            index = u32(index + self.consumer.pipeline.num_stages)
        return WindowStage(self.consumer, index - back)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(NOT_A_SEQUENCE)


@device_class(static=("backwards", "before", "after"))
@dataclass
class Windows(Iteration):
    """The tiles first, first + step, ... before stop, each with the window around it."""

    backwards: bool
    before: int
    after: int
    consumer: TileConsumer
    tile: i64
    stop: i64
    step: i64
    entered: bool = True  # this thread consumes; with released_by="tcgen05" one thread does

    def has_next(self) -> bool:
        """Release the oldest stage, and all of them after the last tile."""
        self.consumer._release_behind(self.before + self.after)
        self.tile += self.step
        if self.consumer.pipeline.by_commit:
            # A separate test: ptxas then sees that one thread executes the products.
            if not self.entered:
                return False
        if is_before(self.tile, self.stop, self.backwards):
            return True
        self.consumer._release_beyond(0)
        return False

    def take(self) -> tuple[int, Window]:
        """Wait until the window is full; return its tile and the window."""
        consumer = self.consumer
        while True:  # at first for every stage of the window, then for one
            consumer.wait()
            if consumer._holds_more_than(self.before + self.after):
                break
        consumer.older = u32(max(self.before + self.after - 1, 0))  # known: a test is dropped
        newest = consumer.state.index
        return self.tile, Window(self.backwards, self.before, self.after, consumer, newest)


# ------------------------------------------------------------------- when a kernel is compiled


@compile_time
def walks_backwards(what: str, first: object, stop: object, step: Any) -> bool:
    """Return whether a loop over windows goes backwards; raise unless it moves tile by tile."""
    backwards = goes_backwards(what, first, stop, step)
    if isinstance(step, Unknown) or step not in (1, -1):
        raise BadOperand(
            f"{what}(step={step}): a window moves by one tile, since it keeps the others: the step "
            "is the literal 1 or -1; pass over tiles inside the loop, as in `if z % 2 == 0:`"
        )
    return backwards


@compile_time
def tiles_aside(what: str, name: str, given: Any, radius: Any) -> int:
    """Return the number of tiles `name` ("before" or "after") that of the window."""
    if given is None:
        name, given = "radius", radius
    if isinstance(given, Unknown) or not isinstance(given, int) or isinstance(given, bool):
        raise BadOperand(
            f"{what}({name}=...) must be a compile-time constant, an integer, not {given}"
        )
    if given < 0:
        raise BadOperand(f"{what}({name}={given}): a window has 0 tiles or more on each side")
    return given


@compile_time
def check_window(pipeline: TilePipeline, before: int, after: int) -> None:
    """Raise unless the ring has a stage for each tile of a window."""
    tiles = before + 1 + after
    if pipeline.num_stages < tiles:
        raise BadOperand(
            f"windows: a window holds {before} + 1 + {after} = {tiles} tiles, and {pipeline} has "
            f"{pipeline.num_stages} stages: give it {tiles}, or {tiles + 1}, so that the next tile "
            "is loaded meanwhile"
        )
    if pipeline.alternate:
        raise BadOperand(
            f"windows: the consumers of {pipeline} take turns, so that none has the neighbours of "
            "a tile: give each consumer every tile, without alternate=True"
        )


@compile_time
def check_distance(before: int, after: int, distance: object) -> None:
    """Raise unless a window has a tile at `distance`."""
    if isinstance(distance, Unknown):
        if not distance.is_integer:
            raise BadOperand(f"window[...] takes an integer, not {distance}")
    elif not hasattr(distance, "__index__"):
        raise BadOperand(f"window[...] takes an integer, not {distance!r}")
    elif not -before <= distance <= after:
        repair = f"radius={abs(distance)}"
        if before != after:
            repair = f"before={-distance}" if distance < 0 else f"after={distance}"
        raise BadOperand(
            f"window[{distance}]: a window has the tiles {-before} to {after}; give {repair} to "
            "pipe.windows and to pipe.produce_windows"
        )
