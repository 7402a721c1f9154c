"""Events of the simulator as spans. Their time is the scheduler's steps, of each block from 0."""

from __future__ import annotations

from collections.abc import Iterator

from numba_tma.simulator.trace import Event, EventTrace
from numba_tma.tools.trace.decode import SharedPlace, place_of
from numba_tma.tools.trace.spans import Span, TracedLaunch, roles_by_behaviour, with_ends_of_tiles

#: The kinds of spans, by the kinds of events.
_KINDS = {
    **{"issue": "load", "store": "store", "landed": "landed", "awaited": "wait"},
    **{"release": "arrive", "arrive": "arrive", "drained": "drain", "met": "meet"},
    **{"cluster": "cluster", "flag": "flag", "mark": "mark", "tile": "tile"},
}
_COPIES = ("load", "store", "landed")


def launches_of(trace: EventTrace) -> list[TracedLaunch]:
    """Return the launches that the simulator recorded."""
    events: list[list[Event]] = [[] for _ in trace.launches]
    for event in trace.events:
        events[trace.runs[event.run][0]].append(event)
    return [_launch(trace, number, found) for number, found in enumerate(events)]


def _launch(trace: EventTrace, number: int, events: list[Event]) -> TracedLaunch:
    of = trace.launches[number]
    spans = sorted(_spans(events), key=lambda span: (span.start, span.end))
    roles = roles_by_behaviour(spans)
    for event in events:
        if role := trace.runs[event.run][1].get(event.warp):
            roles[event.block, event.warp] = role
    lasting = tuple(with_ends_of_tiles(spans))
    return TracedLaunch(of.kernel, of.grid, of.block, "steps", lasting, roles)


def _spans(events: list[Event]) -> Iterator[Span]:
    """Yield the spans of events: of ranges that several threads of a warp have, the first one's."""
    begun: dict[tuple[int, int], int] = {}
    first: dict[tuple[int, int, str, str], tuple[int, int, int]] = {}
    for event in events:
        same = event.run, event.warp, event.kind, event.label
        first[same] = min(first.get(same, event.thread), event.thread)
    for event in events:
        key = event.run, event.warp
        start = event.time if event.begun < 0 else event.begun
        begun.setdefault(key, start)
        kind, place = _KINDS.get(event.kind, ""), place_of(event.label) or SharedPlace("", -1, "")
        if event.kind == "awaited" and place.what in ("full", "empty"):
            kind = place.what
        elif event.kind in ("release", "arrive") and place.what == "empty":
            kind = "release"
        # What several threads of a warp do is the first one's; each starts its own copies.
        ours = event.thread == first[*key, event.kind, event.label] or kind in _COPIES
        if kind and ours:
            yield Span(
                kind,
                start,
                event.time,
                event.block,
                event.warp,
                name="" if kind in (*_COPIES, "release", "arrive") else event.label,
                pipeline=place.pipeline,
                stage=place.stage,
                nbytes=event.nbytes if kind in _COPIES else 0,
            )
    last = {(event.run, event.warp): event for event in events}
    for key, event in last.items():
        yield Span("run", begun[key], event.time, event.block, event.warp)
