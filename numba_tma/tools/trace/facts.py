"""What follows from a launch's spans: the fills of stages, the shares of time, bytes in flight."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from numba_tma.tools.trace.spans import WAITS, Span, TracedLaunch

Block = tuple[int, int, int]
#: Times, and a value from each on.
Series = list[tuple[float, int]]


@dataclass
class StageFill:
    """One turn of a stage in a block: loaded, waited for, released."""

    block: Block
    stage: int
    issued: float  #: when its first load was
    nbytes: int = 0
    loads: int = 0
    full: float | None = None  #: when the first consumer's wait for it ended
    awaited: bool = False  #: that wait began before the loads had landed
    released: float | None = None  #: when the last consumer released it


def fills_of(launch: TracedLaunch, pipeline: str, block: Block | None = None) -> list[StageFill]:
    """Return the fills of a pipeline's stages, in the order of their first loads.

    Loads that a peer of the cluster multicasts into a block are not among the block's own. A stage
    is filled anew at a load after a consumer has seen it full, or after the warp that loads has
    waited until it was empty: the consumers' records of the turn before may be overwritten.
    """
    stages: defaultdict[tuple[Block, int], list[StageFill]] = defaultdict(list)
    loaded: dict[tuple[Block, int, int], bool] = {}  # whether the warp did so since it waited
    points = [
        (span.end, span)
        for span in launch.of("load", "full", "release", "empty", pipeline=pipeline)
        if block in (None, span.block)
    ]
    for time, span in sorted(points, key=lambda point: point[0]):
        turns, warp = stages[span.block, span.stage], (span.block, span.stage, span.warp)
        if span.kind == "empty":
            if loaded.get(warp):
                loaded[warp] = False
        elif span.kind == "load":
            again = loaded.get(warp) is False
            loaded[warp] = True
            if not turns or again or turns[-1].full is not None or turns[-1].released is not None:
                turns.append(StageFill(span.block, span.stage, time))
            turns[-1].nbytes += span.nbytes
            turns[-1].loads += 1
        elif turns and span.kind == "full":
            if turns[-1].full is None:
                turns[-1].full = time
                turns[-1].awaited = span.start < turns[-1].issued or span.duration > _SHORT
        elif turns:
            turns[-1].released = time
    return sorted((f for turns in stages.values() for f in turns), key=lambda f: f.issued)


_SHORT = 60  #: a wait of so many nanoseconds, or steps, may be for a stage that was full


def in_flight_over_time(launch: TracedLaunch, block: Block, pipeline: str) -> Series:
    """Return times, and the bytes that were issued and not yet seen to have landed, from then on.

    A consumer that comes late sees loads as in flight that have landed.
    """
    return _sums((f.issued, f.nbytes, f.full) for f in fills_of(launch, pipeline, block))


def stages_filled_over_time(launch: TracedLaunch, block: Block, pipeline: str) -> Series:
    """Return times, and the stages that were loaded and not yet released, from then on."""
    return _sums((f.issued, 1, f.released) for f in fills_of(launch, pipeline, block))


def _sums(amounts: Iterable[tuple[float, int, float | None]]) -> Series:
    """Return the sums over time of amounts, each from its begin to its end, if it has one."""
    changes = []
    for begin, amount, end in amounts:
        changes.append((begin, amount))
        if end is not None:
            changes.append((end, -amount))
    total, series = 0, []
    for time, change in sorted(changes):
        total += change
        series.append((time, total))
    return series


def mean_over_time(series: Series, end: float) -> float:
    """Return the mean of a series of steps from its first time until `end`."""
    if not series or end <= series[0][0]:
        return 0.0
    ends = [*(time for time, _ in series[1:]), end]
    area = sum(value * max(0.0, until - time) for (time, value), until in zip(series, ends))
    return area / (end - series[0][0])


@dataclass(frozen=True)
class RoleShares:
    """How the warps of a role spend their time: shares of the sum of their times."""

    role: str
    warps: int
    time: float  #: the sum
    shares: dict[str, float]  #: by kind of wait
    marks: dict[str, float]  #: by name of a mark

    @property
    def working(self) -> float:
        """The share that is not waiting."""
        return max(0.0, 1.0 - sum(self.shares.values()))

    def of(self, kind: str) -> float:
        """Return the share of a kind of wait."""
        return self.shares.get(kind, 0.0)


class PipelineFacts:
    """A pipeline of a launch, over all traced blocks."""

    def __init__(self, launch: TracedLaunch, name: str) -> None:
        self.launch, self.name = launch, name

    @cached_property
    def fills(self) -> list[StageFill]:
        """The fills of its stages."""
        return fills_of(self.launch, self.name)

    @cached_property
    def num_stages(self) -> int:
        """Its stages."""
        return 1 + max((fill.stage for fill in self.fills), default=0)

    @cached_property
    def stage_nbytes(self) -> float:
        """The bytes of a fill."""
        return statistics.fmean(fill.nbytes for fill in self.fills) if self.fills else 0.0

    @cached_property
    def load_nbytes(self) -> float:
        """The bytes of a load."""
        loads = sum(fill.loads for fill in self.fills)
        return sum(fill.nbytes for fill in self.fills) / loads if loads else 0.0

    @cached_property
    def latency(self) -> float | None:
        """The median time from a fill's first load until a consumer, which waited, saw it full."""
        times = [f.full - f.issued for f in self.fills if f.full is not None and f.awaited]
        return statistics.median(times) if times else None

    @cached_property
    def in_flight(self) -> float:
        """The mean bytes in flight in a block, from its first load to its last full stage."""
        return self._mean((fill, fill.nbytes, fill.full) for fill in self.fills)

    @cached_property
    def filled(self) -> float:
        """The mean of the stages that are loaded and not released, of a block."""
        return self._mean((fill, 1, fill.released) for fill in self.fills)

    def _mean(self, amounts: Iterable[tuple[StageFill, int, float | None]]) -> float:
        """Return the mean over blocks of the mean over time of amounts that end."""
        by_block: defaultdict[Block, list[tuple[float, int, float | None]]] = defaultdict(list)
        for fill, amount, end in amounts:
            by_block[fill.block].append((fill.issued, amount, end))
        means = []
        for held in by_block.values():
            if ends := [end for *_, end in held if end is not None]:
                means.append(mean_over_time(_sums(held), max(ends)))
        return statistics.fmean(means) if means else 0.0

    @cached_property
    def starved(self) -> float:
        """The share of the consumers' time in waits for full stages, but for a block's first."""
        consumer = self.consumer
        if consumer is None or not consumer.time:
            return 0.0
        first: dict[Block, float] = {}
        for fill in self.fills:
            if fill.full is not None:
                first[fill.block] = min(fill.full, first.get(fill.block, fill.full))
        waits = self.launch.of("full", pipeline=self.name)
        later = (s.duration for s in waits if s.end > first.get(s.block, 0.0) + _SHORT)
        return sum(later) / consumer.time

    @cached_property
    def first_full(self) -> float:
        """The share of a block's time until its first stage is full."""
        shares = []
        for span in _longest_runs(self.launch):
            times = [f.full for f in self.fills if f.block == span.block and f.full is not None]
            if times and span.duration:
                shares.append((min(times) - span.start) / span.duration)
        return statistics.fmean(shares) if shares else 0.0

    @property
    def producer(self) -> RoleShares | None:
        """The warps that load."""
        return self._side("load", "empty")

    @property
    def consumer(self) -> RoleShares | None:
        """The warps that wait for full stages."""
        return self._side("full", "full")

    def _side(self, kind: str, other: str) -> RoleShares | None:
        warps = {(s.block, s.warp) for s in self.launch.of(kind, other, pipeline=self.name)}
        if kind == "full":
            warps -= {(s.block, s.warp) for s in self.launch.of("load", pipeline=self.name)}
        return shares_of(self.launch, warps) if warps else None


def _longest_runs(launch: TracedLaunch) -> list[Span]:
    """Return for each block the run of its longest warp."""
    longest: dict[Block, Span] = {}
    for span in launch.of("run"):
        if span.block not in longest or span.duration > longest[span.block].duration:
            longest[span.block] = span
    return list(longest.values())


def block_times(launch: TracedLaunch) -> dict[Block, float]:
    """Return how long each traced block ran."""
    return {span.block: span.duration for span in _longest_runs(launch)}


def shares_of(launch: TracedLaunch, warps: Iterable[tuple[Block, int]]) -> RoleShares:
    """Return how these warps spend their time."""
    chosen = set(warps)
    time, shares, marks = 0.0, dict.fromkeys(WAITS, 0.0), defaultdict[str, float](float)
    for span in launch.spans:
        if (span.block, span.warp) not in chosen:
            continue
        if span.kind == "run":
            time += span.duration
        elif span.kind in shares:
            shares[span.kind] += span.duration
        elif span.kind == "mark":
            marks[span.name] += span.duration
    roles = {launch.roles.get(key, "") for key in chosen}
    name = "/".join(sorted(role for role in roles if role))
    over = time or 1.0
    return RoleShares(
        name,
        len(chosen),
        time,
        {kind: spent / over for kind, spent in shares.items() if spent},
        {kind: spent / over for kind, spent in marks.items()},
    )


def roles_of(launch: TracedLaunch) -> list[RoleShares]:
    """Return how the warps of each role spend their time."""
    warps: defaultdict[str, set[tuple[Block, int]]] = defaultdict(set)
    for span in launch.of("run"):
        warps[launch.role(span)].add((span.block, span.warp))
    return [shares_of(launch, members) for _, members in sorted(warps.items())]


def pipelines_of(launch: TracedLaunch) -> list[PipelineFacts]:
    """Return the pipelines whose stages were loaded or waited for."""
    names = dict.fromkeys(s.pipeline for s in launch.of("load", "full") if s.pipeline)
    return [PipelineFacts(launch, name) for name in names]
