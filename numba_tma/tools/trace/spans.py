"""What a trace consists of, the same for a GPU and for the simulator: launches and their spans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

#: The kinds of spans. A range has a duration; the others are points in time.
RANGES = {
    "run": "a warp, from its first instruction to its last",
    "full": "a wait until a stage is full",
    "empty": "a wait until a stage is empty",
    "wait": "a wait for another mbarrier",
    "drain": "a wait for stores",
    "meet": "a wait at a named barrier or syncthreads",
    "cluster": "a wait at the cluster's barrier",
    "products": "a wait for the tensor cores",
    "flag": "a wait for a flag in global memory",
    "mark": "a range of `tma.mark`",
    "tile": "a scheduler's tile, until the warp takes the next one or ends",
}
POINTS = {
    "load": "a load was issued",
    "store": "a store was issued",
    "release": "an arrival on the barrier of an empty stage",
    "arrive": "an arrival on another barrier",
    "landed": "a load has landed (simulator)",
}
WAITS = ("full", "empty", "wait", "drain", "meet", "cluster", "products", "flag")


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a warp did, from `start` to `end`, in the unit of its launch."""

    kind: str  #: of `RANGES` or `POINTS`
    start: float
    end: float
    block: tuple[int, int, int]
    warp: int
    name: str = ""  #: of a mark; a tile's number; what a wait is for
    pipeline: str = ""
    stage: int = -1
    nbytes: int = 0
    line: str = ""

    @property
    def duration(self) -> float:
        """The time between start and end."""
        return self.end - self.start


@dataclass(frozen=True)
class TracedLaunch:
    """A traced launch: the spans of the blocks that were traced, in the order of their starts."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    unit: str  #: of times: "ns", or "steps" of the simulator
    spans: tuple[Span, ...]
    roles: dict[tuple[tuple[int, int, int], int], str]  #: by block and warp
    processors: dict[tuple[int, int, int], int] = field(default_factory=dict)  #: SM of each block
    dropped: int = 0  #: older records that newer ones have overwritten
    #: The pipelines by name; what the simulator traced is known by its names alone.
    pipelines: dict[str, Any] = field(default_factory=dict)
    shared_nbytes: int = 0  #: of a block
    bandwidth: float = 0.0  #: of the GPU's memory, in bytes per ns; 0: unknown
    num_processors: int = 0

    @property
    def blocks(self) -> list[tuple[int, int, int]]:
        """The traced blocks, in the order of their indices in the grid."""
        return sorted({span.block for span in self.spans}, key=lambda block: block[::-1])

    @property
    def duration(self) -> float:
        """The time from the first span's start to the last one's end."""
        if not self.spans:
            return 0.0
        return max(s.end for s in self.spans) - min(s.start for s in self.spans)

    def __repr__(self) -> str:
        place = f"{self.kernel}, grid {self.grid}, block {self.block}"
        return f"<launch of {place}: {len(self.spans):,} spans>"

    def of(self, *kinds: str, pipeline: str | None = None) -> Iterator[Span]:
        """Yield the spans of some kinds, of all pipelines or of one."""
        for span in self.spans:
            if span.kind in kinds and pipeline in (None, span.pipeline):
                yield span

    def role(self, span: Span) -> str:
        """Return the role of a span's warp."""
        return self.roles.get((span.block, span.warp), "")


def with_ends_of_tiles(spans: list[Span]) -> list[Span]:
    """Return spans, which are in the order of their starts, with tiles that last."""
    until = {(span.block, span.warp): span.end for span in spans if span.kind == "run"}
    found = []
    for span in reversed(spans):
        if span.kind == "tile":
            key = span.block, span.warp
            end = max(span.start, until.get(key, span.end))
            until[key], span = span.start, replace(span, end=end)
        found.append(span)
    return found[::-1]


def roles_by_behaviour(spans: list[Span]) -> dict[tuple[tuple[int, int, int], int], str]:
    """Return the roles of warps that no pipeline has named, by what they do."""
    found: dict[tuple[tuple[int, int, int], int], str] = {}
    for span in spans:
        key = span.block, span.warp
        if span.kind == "load":
            found[key] = "producer"
        elif span.kind in ("full", "release"):
            found.setdefault(key, "consumer")
        elif span.kind == "store":
            found.setdefault(key, "consumer")
    return found
