"""Traces: the events of simulated copies and barriers, and a timeline of them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_STAGE = re.compile(r"(full|empty)\[(\d+)\] of (.+)")

#: Columns of a timeline row after its name, and rows of panels before the rest is left out.
_WIDTH = 84
_PANELS = 6

#: The mark of a stage after an event, by (event kind, barrier role).
_STATES = {
    ("issue", "full"): ">",
    ("full", "full"): "=",
    ("wait", "full"): "#",
    ("empty", "empty"): ".",
}
_LEGEND = ". free   > loading   = full   # being read, until all readers have released it"


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a block's run; `time` is the scheduler's step.

    The kinds: issue, landed (of a load); full, empty, complete (a phase of a barrier with that
    role, or without a role); wait (a thread's first that finds the phase complete); release, arrive
    (on an empty barrier, or on another); store, store_read, store_done; exit.

    Ranges, which began at `begun`: awaited (an mbarrier), met (the block), cluster (its meeting),
    drained (stores), flag, mark, tile.
    """

    run: int
    time: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    warp: int
    kind: str
    label: str
    nbytes: int
    begun: int = -1


def role(label: str) -> str | None:
    """Return "full" or "empty" for a pipeline's barrier, None for any other."""
    match = _STAGE.fullmatch(label)
    return match[1] if match else None


@dataclass(frozen=True)
class SimulatedLaunch:
    """A launch of a kernel that was recorded."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]


@dataclass(repr=False)
class EventTrace:
    """The events of all blocks that ran while this was recorded."""

    events: list[Event] = field(default_factory=list)
    launches: list[SimulatedLaunch] = field(default_factory=list)
    #: Of each run: its launch, and the names of its warps' roles, which the kernel gives.
    runs: list[tuple[int, dict[int, str]]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"EventTrace({len(self.events)} events)"

    def begin_run(self, roles: dict[int, str]) -> int:
        """Return the number of a block's run that begins now."""
        self.runs.append((len(self.launches) - 1, roles))
        return len(self.runs) - 1

    def timeline(self, blocks: int = 1) -> str:
        """Return the states of each stage of each pipeline over time, in the first `blocks` runs.

        Time goes from left to right, one column for each change of a stage or store.
        """
        runs: dict[int, list[Event]] = {}
        for event in self.events:
            runs.setdefault(event.run, []).append(event)
        texts = []
        for events in runs.values():
            texts += _pipelines(events)
        shown = texts[:blocks]
        if not shown:
            return "no pipeline stage was used"
        if len(texts) > len(shown):
            shown.append(f"({len(texts) - len(shown)} more pipelines or blocks not shown)")
        return "\n\n".join(shown + [_LEGEND])


def _pipelines(events: list[Event]) -> list[str]:
    """Return one timeline per pipeline that the events of one run name."""
    names = {match[3]: None for e in events if (match := _STAGE.fullmatch(e.label))}
    return [_timeline(events, name) for name in names]


def _timeline(events: list[Event], pipeline: str) -> str:
    state: dict[str, str] = {}
    columns: list[tuple[int, dict[str, str]]] = []
    stores = fills = nbytes = 0
    for event in events:
        match = _STAGE.fullmatch(event.label)
        if match and match[3] == pipeline:
            row = f"stage {match[2]}"
            new = _STATES.get((event.kind, match[1]), state.get(row, "."))
            fills += event.kind == "full"
            nbytes += event.nbytes if event.kind == "issue" else 0
        elif event.kind in ("store", "store_done"):
            row = "stores"
            stores += 1 if event.kind == "store" else -1
            new = "." if stores == 0 else str(stores) if stores < 10 else "+"
        else:
            continue
        if state.get(row, ".") != new or row not in state:
            state[row] = new
            columns.append((event.time, dict(state)))
    rows = sorted(state, key=lambda row: (row == "stores", int(row.partition(" ")[2] or 0)))
    title = f"{pipeline} in block {events[0].block}: {fills} fills, {nbytes} bytes loaded"
    lines = [title[:100]]
    for start in range(0, min(len(columns), _WIDTH * _PANELS), _WIDTH):
        panel = columns[start : start + _WIDTH]
        lines.append(f"  steps {panel[0][0]} to {panel[-1][0]}")
        for row in rows:
            lines.append(f"  {row:<9} |{''.join(shown.get(row, '.') for _, shown in panel)}|")
    if len(columns) > _WIDTH * _PANELS:
        lines.append(f"  ... and {len(columns) - _WIDTH * _PANELS} later changes")
    return "\n".join(lines)


#: Of each host thread: the trace that is being recorded.
_recording = threading.local()


def active() -> EventTrace | None:
    """Return the trace that the calling host thread records."""
    return getattr(_recording, "trace", None)


@contextmanager
def record() -> Iterator[EventTrace]:
    """Record the events of kernels that this host thread launches inside the ``with`` block."""
    outer, _recording.trace = active(), EventTrace()
    try:
        yield _recording.trace
    finally:
        _recording.trace = outer
