"""A trace as a file of the Chrome trace event format, which Perfetto and chrome://tracing open.

The events' arguments, and what the format has no place for under "otherData", are all of a span: a
file can be read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numba_tma.tools.trace.facts import Block, in_flight_over_time, stages_filled_over_time
from numba_tma.tools.trace.spans import RANGES, Span, TracedLaunch

_GAP = 1.0  #: microseconds between two launches, whose true distance is unknown
#: What is kept of a launch as it is.
_FIELDS = (
    *("kernel", "grid", "block", "unit", "dropped", "shared_nbytes", "bandwidth"),
    *("num_processors", "duration"),
)
_NAMES = {"full": "wait full", "empty": "wait empty", "products": "wait products"}


def events_of(launches: list[TracedLaunch]) -> dict[str, Any]:
    """Return the file's content. A process is a block, a thread is a warp, a time is in us.

    A step of the simulator counts as a nanosecond.
    """
    events: list[dict[str, Any]] = []
    start, process = 0.0, 0
    for launch in launches:
        numbers = {block: process + i for i, block in enumerate(launch.blocks)}
        events += _names(launch, numbers)
        events += (_event(launch, span, numbers[span.block], start) for span in launch.spans)
        events += _counters(launch, numbers, start)
        process += len(numbers)
        start += launch.duration * 1e-3 + _GAP
    told = {"traceEvents": events, "displayTimeUnit": "ns"}
    return told | {"otherData": {"launches": [_described(launch) for launch in launches]}}


def _described(launch: TracedLaunch) -> dict[str, Any]:
    """Return what a launch is beside its spans."""
    return {name: getattr(launch, name) for name in _FIELDS} | {
        "blocks": [[*block, launch.processors.get(block, -1)] for block in launch.blocks],
        "roles": [[*block, warp, role] for (block, warp), role in launch.roles.items()],
    }


def launches_of(content: dict[str, Any]) -> list[TracedLaunch]:
    """Return the launches of a file's content, which `events_of` has made."""
    try:
        described = content["otherData"]["launches"]
        spans: dict[int, list[Span]] = {}
        places: list[tuple[int, Block, float]] = []  # of a process: launch, block, start
        start = 0.0
        for number, launch in enumerate(described):
            places += [(number, (x, y, z), start) for x, y, z, _ in launch["blocks"]]
            start += launch["duration"] * 1e-3 + _GAP
        for event in content["traceEvents"]:
            if event["ph"] in "Xi":
                number, block, at = places[event["pid"]]
                spans.setdefault(number, []).append(_span(event, block, at))
        return [_launch(told, spans.get(i, [])) for i, told in enumerate(described)]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"it is no trace that Trace.save has written: {error!r}") from None


def _launch(told: dict[str, Any], spans: list[Span]) -> TracedLaunch:
    fields = {name: told[name] for name in _FIELDS if name != "duration"}
    fields |= {name: tuple(told[name]) for name in ("grid", "block")}
    return TracedLaunch(
        **fields,
        spans=tuple(spans),
        roles={((x, y, z), warp): role for x, y, z, warp, role in told["roles"]},
        processors={(x, y, z): on for x, y, z, on in told["blocks"] if on >= 0},
    )


def _span(event: dict[str, Any], block: Block, start: float) -> Span:
    told, begun = event["args"], round((event["ts"] - start) * 1e3, 1)
    return Span(
        kind=event["cat"],
        start=begun,
        end=round(begun + event.get("dur", 0.0) * 1e3, 1),
        block=block,
        warp=event["tid"],
        name=told.get("of", ""),
        pipeline=told.get("pipeline", ""),
        stage=told.get("stage", -1),
        nbytes=told.get("nbytes", 0),
        line=told.get("line", ""),
    )


def _names(
    launch: TracedLaunch, numbers: dict[tuple[int, int, int], int]
) -> Iterator[dict[str, Any]]:
    for block, process in numbers.items():
        on = f" on SM {launch.processors[block]}" if block in launch.processors else ""
        name = f"{launch.kernel} block {block}{on}"
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    for block, warp in sorted({(span.block, span.warp) for span in launch.spans}):
        name = f"warp {warp} {launch.roles.get((block, warp), '')}".strip()
        where = {"pid": numbers[block], "tid": warp}
        yield {"ph": "M", "name": "thread_name", **where, "args": {"name": name}}


def _event(launch: TracedLaunch, span: Span, process: int, start: float) -> dict[str, Any]:
    name = span.name if span.kind == "mark" else _NAMES.get(span.kind, span.kind)
    if span.kind == "tile":
        name = f"tile {span.name}"
    if span.kind == "run":
        name = launch.role(span) or launch.kernel
    if span.stage >= 0:
        name += f" [{span.stage}]"
    told: dict[str, Any] = {"pipeline": span.pipeline, "of": span.name}
    told |= {"nbytes": span.nbytes, "line": span.line}
    told |= {"stage": span.stage} if span.stage >= 0 else {}
    event: dict[str, Any] = {
        "name": name,
        "cat": span.kind,
        "pid": process,
        "tid": span.warp,
        "ts": round(start + span.start * 1e-3, 4),
        "args": {key: value for key, value in told.items() if value or key == "stage"},
    }
    if span.kind in RANGES:
        return event | {"ph": "X", "dur": round(span.duration * 1e-3, 4)}
    return event | {"ph": "i", "s": "t"}


def _counters(
    launch: TracedLaunch, numbers: dict[tuple[int, int, int], int], start: float
) -> Iterator[dict[str, Any]]:
    for block, process in numbers.items():
        for pipeline in dict.fromkeys(s.pipeline for s in launch.of("load") if s.block == block):
            if not pipeline:
                continue
            name = pipeline.partition("(")[0]
            filled = stages_filled_over_time(launch, block, pipeline)
            flight = in_flight_over_time(launch, block, pipeline)
            for what, series in (("stages", filled), ("bytes in flight", flight)):
                for time, value in series:
                    yield {
                        "ph": "C",
                        "name": f"{name}: {what}",
                        "pid": process,
                        "ts": round(start + time * 1e-3, 4),
                        "args": {what: value},
                    }
