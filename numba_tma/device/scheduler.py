"""Persistent tile schedulers: the order in which the blocks of a grid take tiles.

A scheduler is made on the host and says how the numbers 0, 1, 2, ... map to tiles. Blocks take the
numbers in turn, so tiles with neighbouring numbers run at the same time. An order suits the L2
cache if such tiles share operands, and balances the blocks if long tiles come first. Every thread
computes the tile of a number in registers; producers pass nothing to consumers.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from numba_tma import simulator
from numba_tma.backend.interface import (
    Unknown,
    compile_time,
    constant_class,
    device_class,
    device_function,
    i32,
    i64,
    u32,
)
from numba_tma.backend.primitives import quotient
from numba_tma.device.marks import begin_tile
from numba_tma.device.tile_indices import Iteration
from numba_tma.host.annotations import Integer
from numba_tma.host.environment import simulated
from numba_tma.ptx import ctaid_x, nctaid_x


class TileCoord(NamedTuple):
    """Where a tile is, in tiles: which row and column of them, of which matrix."""

    row: int
    column: int
    batch: int


# -------------------------------------------------------------------------- schedulers


class TileScheduler:
    """Base of the schedulers whose tiles form a grid of rows and columns."""

    zigzag: ClassVar[bool] = False
    device_methods: ClassVar[tuple[str, ...]] = ("over", "locate")

    def over(self, rows: Integer, columns: Integer, batch: Integer | None = None) -> Schedule:
        """Return the schedule of `rows` x `columns` tiles, for each of `batch` matrices in turn.

        The extents are counted in tiles and known when the kernel runs. Tiles of all matrices
        and the blocks of the grid together stay below 2**31.
        """
        check_integer(self, "rows", rows)
        check_integer(self, "columns", columns)
        check_if_given(self, "batch", batch)
        rows_, columns_ = u32(rows), u32(columns)
        batch_ = u32(1) if batch is None else u32(batch)
        return Schedule(self, is_given(batch), rows_, columns_, batch_)


@constant_class
@dataclass(frozen=True)
class GridStridedScheduler(TileScheduler):
    """Tiles in the order of an array's elements.

    Parameters
    ----------
    order
        "C": the tiles of a row follow each other; "F": those of a column.
    """

    order: str = "C"

    def __post_init__(self) -> None:
        if self.order not in ("C", "F"):
            raise ValueError(
                f"GridStridedScheduler(order={self.order!r}): the order is 'C', row by row, or "
                "'F', column by column"
            )

    @property
    def column_major(self) -> bool:
        """Whether the tiles of a column follow each other."""
        return self.order == "F"

    def locate(self, rows: int, columns: int, number: int) -> tuple[int, int]:
        """Return row and column of a tile of one matrix."""
        if self.column_major:
            column, row = quotient(number, rows)
        else:
            row, column = quotient(number, columns)
        return row, column


@constant_class
@dataclass(frozen=True)
class GroupedScheduler(TileScheduler):
    """Groups of `group` rows, one after the other, each walked column by column.

    Blocks at work at the same time then share the operands of `group` rows and of few columns,
    which stay in the L2 cache. It is the order of Triton's GROUP_SIZE_M, and CUTLASS's swizzle of
    that size; the last group may have fewer rows.

    Parameters
    ----------
    group
        Rows in a group, at least 1. The fewest operands are needed when the tiles of all blocks
        make a square of elements: for 132 blocks, 11 with tiles of 128 x 128, 16 with 128 x 256.
    axis
        0 groups rows; 1 groups columns, and walks them row by row.
    """

    group: int
    axis: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", at_least_1(self, "group", self.group))
        if self.axis not in (0, 1):
            raise ValueError(
                f"GroupedScheduler(axis={self.axis!r}): the axis is 0, which groups rows, or 1, "
                "which groups columns"
            )

    def locate(self, rows: int, columns: int, number: int) -> tuple[int, int]:
        """Return row and column of a tile of one matrix."""
        if self.axis:
            column, row = grouped(columns, rows, u32(self.group), number)
        else:
            row, column = grouped(rows, columns, u32(self.group), number)
        return row, column


@constant_class
@dataclass(frozen=True)
class HilbertScheduler(TileScheduler):
    """Tiles along a Hilbert curve, generalised to any rectangle.

    Any stretch of the curve is about as wide as it is high, so that blocks at work at the same time
    share operands whatever their number. Tiles that follow each other are neighbours, but for one
    diagonal step where the longer side is odd and the shorter even.

    The tile of a number is found by going down the curve's levels: at most 11 of them for 64 x 64
    tiles, of 20 to 40 instructions each.
    """

    def locate(self, rows: int, columns: int, number: int) -> tuple[int, int]:
        """Return row and column of a tile of one matrix."""
        return quotient(hilbert(rows, columns, number), columns)


def at_least_1(scheduler: Any, name: str, value: Integer) -> int:
    """Return a parameter of a scheduler, checked."""
    try:
        checked = operator.index(value)
    except TypeError:
        checked = 0
    if checked < 1:
        kind = type(scheduler).__name__
        raise ValueError(f"{kind}({name}={value!r}): {name} is a number of at least 1")
    return checked


# ----------------------------------------------------------------------------- orders


@device_function
def grouped(rows: int, columns: int, group: int, number: int) -> tuple[int, int]:
    """Return row and column of a tile in groups of `group` rows, walked column by column."""
    whole = group if group < rows else rows  # so that a group's tiles are counted in 32 bits
    size, index, inner = u32(whole * columns), u32(0), number
    if number >= size:  # most calls have one group, and need no division
        index, inner = quotient(number, size)
    first = u32(index * whole)
    height = u32(rows - first)  # the last group may have fewer rows
    if height > whole:
        height = whole
    column, row = quotient(inner, height)
    return u32(first + row), column


@device_function
def hilbert(rows: int, columns: int, number: int) -> int:
    """Return the row-major number of the tile that is the curve's `number`-th.

    A part of the curve fills a rectangle: it starts in one corner, ends `length` steps `along` from
    it, and reaches `depth` steps `across`. It consists of two or three parts, of which one holds
    the number. Their sides are even where possible: the ends of parts with odd sides do not meet.
    """
    # Steps are signed differences of row-major numbers, so one number locates the start of a part.
    length, depth, along, across = columns, rows, i32(1), i32(columns)
    if rows > columns:
        length, depth, along, across = rows, columns, i32(columns), i32(1)
    start, rest = i32(0), number
    while length > 1 and depth > 1:
        half = u32(length >> 1)
        if u32(2 * length) > u32(3 * depth):  # long: one half along, then the other
            if half & 1 and length > 2:
                half = u32(half + 1)
            if rest < u32(half * depth):
                length = half
            else:
                rest = u32(rest - half * depth)
                start = i32(start + along * i32(half))
                length = u32(length - half)
            continue
        # Out across for half the length, along, and back across: each part turns by 90 degrees.
        reach = u32(depth >> 1)
        if reach & 1 and depth > 2:
            reach = u32(reach + 1)
        out = u32(half * reach)
        middle = u32(length * (depth - reach))
        if rest >= out and rest < u32(out + middle):
            rest = u32(rest - out)
            start = i32(start + across * i32(reach))
            depth = u32(depth - reach)
        else:
            if rest < out:
                depth = half
            else:
                rest = u32(rest - out - middle)
                start = i32(start + along * i32(length - 1) + across * i32(reach - 1))
                along, across = i32(-along), i32(-across)
                depth = u32(length - half)
            length = reach
            along, across = across, along
    step = across
    if depth == 1:
        step = along
    return u32(start + step * i32(rest))


# -------------------------------------------------------------------------- schedules


@device_class(static=("scheduler", "batched"))
@dataclass
class Schedule:
    """`rows` x `columns` tiles of `batch` matrices, in the order of a scheduler."""

    scheduler: Any
    batched: bool  # False: there is one matrix, by whose size `tile` does not divide
    rows: u32
    columns: u32
    batch: u32
    coordinates: ClassVar[type] = TileCoord

    @property
    def num_tiles(self) -> int:
        """Tiles of all matrices; their numbers are below it."""
        return i64(u32(self.rows * self.columns * self.batch))

    def tile(self, number: Integer) -> TileCoord:
        """Return the coordinates of the tile `number`: row, column and batch."""
        check_integer(self.scheduler, "number", number, self.num_tiles)
        matrix, inner = u32(0), u32(number)
        if self.batched and self.batch > 1:  # most calls have one matrix, and need no division
            matrix, inner = quotient(inner, u32(self.rows * self.columns))
        row, column = self.scheduler.locate(self.rows, self.columns, inner)
        return TileCoord(i64(row), i64(column), i64(matrix))

    def tiles(self, first: Integer | None = None, step: Integer | None = None) -> TileWalk:
        """Iterate over the tiles first, first + step, ...: this block's, in a 1-dimensional grid.

        `first` is the block's number, below `step`, the number of blocks, unless you give others.
        """
        check_if_given(self.scheduler, "step", step)
        stride = nctaid_x() if step is None else u32(step)
        check_if_given(self.scheduler, "first", first, stride)
        start = ctaid_x() if first is None else u32(first)
        return TileWalk(self, start, stride, stride)


@device_class()
@dataclass
class TileWalk(Iteration):
    """The tiles of one block. In a zigzag order two consecutive strides add up to `turn`."""

    schedule: Any
    number: u32
    stride: u32
    turn: u32

    def has_next(self) -> bool:
        """Return whether a tile is left."""
        return self.number < u32(self.schedule.num_tiles)

    def take(self) -> Any:
        """Return the next tile."""
        number = self.number
        begin_tile(number)
        self.number += self.stride
        if self.schedule.scheduler.zigzag:
            self.stride = self.turn - self.stride
        return self.schedule.tile(number)


# ------------------------------------------------------------------------------ checks

#: Repairs for what is not below its bound; an extent's is plain.
_BELOW = {
    "number": "end the loop at schedule.num_tiles",
    "first": "it is a block's number, and step how many blocks there are",
}


@compile_time
def check_integer(scheduler: Any, name: str, value: Any, stop: int = 2**31) -> None:
    """Raise unless a number is an integer from 0 to below `stop`; kernels check its type alone."""
    unknown = isinstance(value, Unknown)
    if not (value.is_integer if unknown else hasattr(value, "__index__")):
        error: type[Exception] = simulator.BadOperand if simulated() else TypeError
        raise error(f"{scheduler}: {name}={value!r} is no integer; divide with // to get one")
    if not unknown and not 0 <= value < stop:
        error = simulator.BadOperand if simulated() else ValueError
        repair = _BELOW.get(name, "it counts tiles, heads or rows")
        raise error(f"{scheduler}: {name}={value} is not from 0 to below {stop}; {repair}")


@compile_time
def check_if_given(scheduler: Any, name: str, value: Integer | None, stop: int = 2**31) -> None:
    """Check a number that may be left out."""
    if value is not None:
        check_integer(scheduler, name, value, stop)


@compile_time
def is_given(batch: Integer | None) -> bool:
    """Return whether there is a batch."""
    return batch is not None
