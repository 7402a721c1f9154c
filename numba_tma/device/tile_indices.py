"""The elements of a tile as its threads share them: a loop over their indices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numba_tma import simulator
from numba_tma.backend.interface import (
    Constant,
    Unknown,
    compile_time,
    device_class,
    device_function,
    i32,
    u32,
)
from numba_tma.backend.primitives import add32, quotient
from numba_tma.host.layout import Tile


class Iteration:
    """Python's iterator protocol over `has_next` and `take`, for the simulator."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.has_next():  # type: ignore[attr-defined]
            raise StopIteration
        return self.take()  # type: ignore[attr-defined]


@device_class(static=("tile", "width"))
@dataclass
class TileIndices(Iteration):
    """The indices of every `step`-th group of `width` neighbouring elements of a tile.

    Neighbouring threads have neighbouring groups, so that their accesses share no bank. All
    arithmetic is unsigned and of 32 bits: divisions by powers of 2 are shifts and masks.
    """

    tile: Tile
    width: int
    number: u32  # of the group before the next one; it wraps round before the first
    step: u32

    def has_next(self) -> bool:
        """Return whether a group is left."""
        self.number = add32(self.number, self.step)
        return self.number < u32(groups_of(self.tile, self.width))

    def take(self) -> tuple[int, ...]:
        """Return the index of the group's first element, a coordinate for each axis."""
        return unravelled(self.tile, self.width, self.number, last_axis(self.tile))


@device_function
def unravelled(
    tile: Tile, width: Constant[int], number: int, axis: Constant[int]
) -> tuple[int, ...]:
    """Return the coordinates, up to `axis`, of a group of `width` elements."""
    if axis == 0:
        return (i32(number * u32(width_along(tile, width, axis))),)
    outer, inner = quotient(number, u32(groups_along(tile, width, axis)))
    coordinate = i32(inner * u32(width_along(tile, width, axis)))
    return unravelled(tile, width, outer, axis_before(axis)) + (coordinate,)  # noqa: RUF005


@compile_time
def groups_of(tile: Tile, width: int) -> int:
    """Return the groups of a tile."""
    return tile.size // width


@compile_time
def last_axis(tile: Tile) -> int:
    """Return the innermost axis."""
    return tile.ndim - 1


@compile_time
def axis_before(axis: int) -> int:
    """Return the next outer axis. Raise before the first one: typing reaches it too."""
    if axis == 0:
        raise ValueError("the first axis has none before it")
    return axis - 1


@compile_time
def width_along(tile: Tile, width: int, axis: int) -> int:
    """Return the elements of a group along an axis: groups lie along the innermost."""
    return width if axis == tile.ndim - 1 else 1


@compile_time
def groups_along(tile: Tile, width: int, axis: int) -> int:
    """Return the groups along an axis."""
    return tile.shape[axis] // (width if axis == tile.ndim - 1 else 1)


@compile_time
def vector_width(tile: Tile) -> int:
    """Return the elements of a vector; raise unless vectors divide the rows of a tile."""
    chunk = tile.dtype.chunk
    if tile.shape[-1] % chunk:
        raise ValueError(
            f"vectors of {tile}: its rows of {tile.shape[-1]} elements are no multiple of the "
            f"{chunk} in 16 B: use indices, one element at a time"
        )
    return chunk


@compile_time
def check_share(called: str, thread: object, threads: object) -> None:
    """Raise unless `thread` is the number of one of `threads` threads; kernels check the types."""
    for name, given in (("thread", thread), ("threads", threads)):
        integer = given.is_integer if isinstance(given, Unknown) else hasattr(given, "__index__")
        if not integer:
            shown = str(given) if isinstance(given, Unknown) else repr(given)
            raise simulator.BadOperand(f"{called}({name}=...) takes an integer, not {shown}")
    if isinstance(threads, int) and threads < 1:
        raise simulator.BadOperand(
            f"{called}(threads={threads}): at least 1 thread shares the elements"
        )
    stop = threads if isinstance(threads, int) else 2**31
    if isinstance(thread, int) and not 0 <= thread < stop:
        raise simulator.BadOperand(
            f"{called}(thread={thread}, threads={threads}): threads that share a tile have the "
            "numbers 0 to threads - 1: subtract the first one's"
        )
