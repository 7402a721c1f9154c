"""A trace as a file of the Chrome trace event format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numba_tma.tools.trace.facts import in_flight_over_time, stages_filled_over_time
from numba_tma.tools.trace.spans import RANGES, Launch, Span

_GAP = 1.0  #: microseconds between two launches, whose true distance is unknown
_NAMES = {"full": "wait full", "empty": "wait empty", "products": "wait products"}


def events_of(launches: list[Launch]) -> dict[str, Any]:
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
    others = {launch.kernel: launch.dropped for launch in launches if launch.dropped}
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "launches": [
                {"kernel": x.kernel, "grid": x.grid, "block": x.block, "unit": x.unit}
                for x in launches
            ],
            "dropped": others,
        },
    }


def _names(launch: Launch, numbers: dict[tuple[int, int, int], int]) -> Iterator[dict[str, Any]]:
    for block, process in numbers.items():
        on = f" on SM {launch.processors[block]}" if block in launch.processors else ""
        name = f"{launch.kernel} block {block}{on}"
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    for block, warp in sorted({(span.block, span.warp) for span in launch.spans}):
        name = f"warp {warp} {launch.roles.get((block, warp), '')}".strip()
        where = {"pid": numbers[block], "tid": warp}
        yield {"ph": "M", "name": "thread_name", **where, "args": {"name": name}}


def _event(launch: Launch, span: Span, process: int, start: float) -> dict[str, Any]:
    name = span.name if span.kind == "mark" else _NAMES.get(span.kind, span.kind)
    if span.kind == "tile":
        name = f"tile {span.name}"
    if span.kind == "run":
        name = launch.role(span) or launch.kernel
    if span.stage >= 0:
        name += f" [{span.stage}]"
    told = {"pipeline": span.pipeline, "nbytes": span.nbytes, "line": span.line, "of": span.name}
    event: dict[str, Any] = {
        "name": name,
        "cat": span.kind,
        "pid": process,
        "tid": span.warp,
        "ts": start + span.start * 1e-3,
        "args": {key: value for key, value in told.items() if value},
    }
    if span.kind in RANGES:
        return event | {"ph": "X", "dur": span.duration * 1e-3}
    return event | {"ph": "i", "s": "t"}


def _counters(
    launch: Launch, numbers: dict[tuple[int, int, int], int], start: float
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
                        "ts": start + time * 1e-3,
                        "args": {what: value},
                    }
