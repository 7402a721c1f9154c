"""Windows: a consumer's loop over a stream in which the tiles around each tile are readable, too.

The loop holds one stage for each tile of the window. It waits for the newest and releases the
oldest. The stages lie one behind the other in the ring, so the newest one's index gives all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import Constant, Unknown, compile_time, device_class, i64, u32
from numba_tma.device.tile_indices import Iteration
from numba_tma.host.loop_rules import NOT_A_SEQUENCE
from numba_tma.pipeline.consumer import TileConsumer
from numba_tma.pipeline.ranges import goes_backwards, is_before, is_integer, shown
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
@dataclass(frozen=True)
class Window:
    """The stages of a tile and of those around it: ``window[-1].x`` is the tile before it.

    ``window[d]`` takes integers from -`before` to `after`. A literal is checked when the kernel is
    compiled. A variable costs as much as a literal; the simulator checks it.
    """

    backwards: bool
    before: int
    after: int
    consumer: TileConsumer
    newest: u32  # index of the stage that arrived last

    def __getitem__(self, distance: Constant[int]) -> WindowStage:
        check_distance(self.before, self.after, distance)
        age, index = u32(self.after - distance), self.newest
        if self.backwards:
            age = u32(self.before + distance)
        if age > index:
            index = u32(index + self.consumer.pipeline.num_stages)
        return WindowStage(self.consumer, index - age)

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
        """Release the oldest stage; return whether a tile is left. If not, release all."""
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
        while True:  # once for each stage of the first window, then once a turn
            consumer.wait()
            if consumer._holds_more_than(self.before + self.after):
                break
        # The number that it has already, as a literal: the compiler drops tests of it.
        consumer.older = u32(max(self.before + self.after - 1, 0))
        newest = consumer.state.index
        return self.tile, Window(self.backwards, self.before, self.after, consumer, newest)


# ------------------------------------------------------------------- when a kernel is compiled


@compile_time
def moves_backwards(called: str, first: object, stop: object, step: object) -> bool:
    """Return whether windows move to smaller numbers; raise unless they move tile by tile."""
    backwards = goes_backwards(called, first, stop, step)
    if isinstance(step, Unknown) or step not in (1, -1):
        raise BadOperand(
            f"{called}(step={step}): a window moves by one tile, since it keeps the others: the "
            "step is the literal 1 or -1; pass over tiles in the loop, as in `if z % 2 == 0:`"
        )
    return backwards


@compile_time
def tiles_beside(called: str, side: str, given: int | None, radius: int) -> int:
    """Return the number of a window's tiles on one side, "before" or "after" the middle one."""
    if given is None:
        side, given = "radius", radius
    if isinstance(given, Unknown) or not is_integer(given):
        raise BadOperand(
            f"{called}({side}=...) must be a compile-time constant, an integer, not {given}"
        )
    if given < 0:
        raise BadOperand(f"{called}({side}={given}): a window has 0 tiles or more on each side")
    return given


@compile_time
def check_window(pipeline: TilePipeline, before: int, after: int) -> None:
    """Raise unless the ring has a stage for each tile of a window."""
    tiles = before + 1 + after
    if pipeline.num_stages < tiles:
        raise BadOperand(
            f"windows: a window holds {before} + 1 + {after} = {tiles} tiles, and {pipeline} has "
            f"{pipeline.num_stages} stages: give it {tiles + 1}, so that the next tile is loaded "
            f"meanwhile, or at least {tiles}"
        )
    if pipeline.alternate:
        raise BadOperand(
            f"windows: the consumers of {pipeline} take turns, so that none has the tiles around "
            "another's: make the pipeline without alternate=True"
        )


@compile_time
def check_distance(before: int, after: int, distance: int) -> None:
    """Raise unless a window has a tile at `distance`."""
    if not is_integer(distance):
        raise BadOperand(
            f"window[d] takes an integer, the distance from the tile, not {shown(distance)}"
        )
    if isinstance(distance, Unknown) or -before <= distance <= after:
        return
    repair = f"radius={abs(distance)}"
    if before != after:
        repair = f"before={-distance}" if distance < 0 else f"after={distance}"
    raise BadOperand(
        f"window[{distance}]: this window has the tiles {-before} to {after}; give {repair} to "
        "pipe.windows and to pipe.produce_windows"
    )
