"""Records of a GPU as spans: their clocks on one time, their places as pipelines and stages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from numba_tma.host import races
from numba_tma.host.trace_buffer import Sampling
from numba_tma.host.trace_records import (
    SITES,
    UNIT,
    RecordKind,
    RecordSite,
    counters_of,
    labels_of,
    origin_of,
    records_beside,
    records_of,
)
from numba_tma.simulator.label_names import names_of
from numba_tma.tools.trace.spans import Span, roles_by_behaviour, with_ends_of_tiles

_KINDS = {
    RecordKind.ARRIVE: "arrive",
    RecordKind.LOAD: "load",
    RecordKind.STORE: "store",
    RecordKind.DRAIN: "drain",
    RecordKind.MEET: "meet",
    RecordKind.CLUSTER: "cluster",
    RecordKind.PRODUCT: "products",
    RecordKind.FLAG: "flag",
    RecordKind.TILE: "tile",
    RecordKind.MARK: "mark",
}
#: What has a place in shared memory.
_PLACED = {RecordKind.WAIT, RecordKind.ARRIVE, RecordKind.LOAD, RecordKind.STORE}
_NAMES = {RecordKind.TILE: "{value}", RecordKind.MEET: "barrier {place}"}
_RANGES = {
    *(RecordKind.WAIT, RecordKind.DRAIN, RecordKind.MEET, RecordKind.CLUSTER),
    *(RecordKind.PRODUCT, RecordKind.FLAG, RecordKind.MARK),
}


class SharedPlace(NamedTuple):
    """What lies at a shared address: of which pipeline, which stage, and "full", "empty", ..."""

    what: str
    stage: int
    pipeline: str


_NOWHERE = SharedPlace("", -1, "")


class Decoded(NamedTuple):
    """What `decode` returns."""

    spans: list[Span]
    roles: dict[tuple[tuple[int, int, int], int], str]
    processors: dict[tuple[int, int, int], int]
    dropped: int
    pipelines: dict[str, Any]


def place_of(text: str) -> SharedPlace | None:
    """Return the place that a label names: ``full[2] of TilePipeline(...)``.

    A sub-stage of a `KVPipeline` is filled and released by itself: each is a pipeline here.
    """
    match = re.match(r"(\w+)\[(\d+)\](?:\[\d+\])?(?: of | for )(.+)", text)
    if match is None:
        return None
    pipeline = match[3]
    if (found := re.search(r"\b(sub-stage \d+ of )?\w+\(.*", pipeline)) is not None:
        pipeline = found[0]  # of "x of CircularBuffer(..."
    return SharedPlace(match[1], int(match[2]), pipeline)


def decode(rings: np.ndarray[Any, Any], sampling: Sampling, grid: tuple[int, ...]) -> Decoded:
    """Return the spans of all rings, in nanoseconds from the first record."""
    parts = [
        (number, records, lost)
        for number, ring in enumerate(rings)
        for records, lost in (records_of(ring), _without_ends(*records_beside(ring)))
        if len(records)
    ]
    origins = [origin_of(ring) for ring in rings]
    counters = [counters_of(rings[number], records) for number, records, _ in parts]
    clocks = _Clocks(counters, [origins[number][0] for number, *_ in parts])
    spans: list[Span] = []
    roles: dict[tuple[tuple[int, int, int], int], str] = {}
    processors: dict[tuple[int, int, int], int] = {}
    pipelines: dict[str, Any] = {}
    for part, (number, records, _) in enumerate(parts):
        warp = number % sampling.warps
        processor, linear = origins[number]
        block = _index_of(linear, grid)
        places, processors[block] = _places(rings[number], pipelines), processor
        times = clocks.times(part)
        for span, role in _spans(records, times, clocks.period, block, warp, places):
            spans.append(span)
            if role:
                roles.setdefault((block, warp), role)
    first = min((span.start for span in spans), default=0.0)
    moved = [replace(span, start=span.start - first, end=span.end - first) for span in spans]
    moved.sort(key=lambda span: (span.start, span.end))
    for key, role in roles_by_behaviour(moved).items():
        roles.setdefault(key, role)
    dropped = sum(lost for *_, lost in parts)
    return Decoded(with_ends_of_tiles(moved), roles, processors, dropped, pipelines)


def _without_ends(records: np.ndarray[Any, Any], lost: int) -> tuple[np.ndarray[Any, Any], int]:
    """Return records of lanes other than 0 without their ends: a warp runs as long as lane 0."""
    ends = [SITES[site].kind is RecordKind.END for site in records["site"]]
    return records[~np.array(ends, bool)], lost


#: The clock and the timer at each record of a ring.
Counters = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


class _Clocks:
    """The time of each record: the clock of its multiprocessor, laid on the GPU's timer.

    The timer steps every 32 ns, the clock every cycle. The clocks of multiprocessors differ, and
    change their rate together. So each record's time is its clock over the rate, plus the offset of
    the timer that the median of its neighbours has.
    """

    def __init__(self, counters: list[Counters], processors: list[int]) -> None:
        self._times: dict[int, np.ndarray[Any, Any]] = {}
        self.period = _period(counters)
        members: dict[int, list[int]] = {}
        for number, processor in enumerate(processors):
            members.setdefault(processor, []).append(number)
        start = min((int(time[0]) for _, time in counters), default=0)
        for numbers in members.values():
            base = int(counters[numbers[0]][0][0])
            clock = np.concatenate([counters[n][0] - base for n in numbers]).astype(np.float64)
            time = np.concatenate([counters[n][1] - start for n in numbers]).astype(np.float64)
            order = np.argsort(clock, kind="stable")
            offset = np.empty(len(clock))
            offset[order] = _median((time - clock * self.period)[order])
            exact = clock * self.period + offset
            split = np.cumsum([len(counters[n][0]) for n in numbers])[:-1]
            self._times.update(zip(numbers, np.split(exact, split)))

    def times(self, number: int) -> np.ndarray[Any, Any]:
        """Return the times of the records with these counters, in nanoseconds."""
        return self._times[number]


def _period(rings: list[Counters]) -> float:
    """Return the nanoseconds of a cycle."""
    cycles = sum(int(clock[-1] - clock[0]) for clock, _ in rings)
    nanoseconds = sum(int(time[-1] - time[0]) for _, time in rings)
    return nanoseconds / cycles if cycles and nanoseconds else 1 / 1.98


def _median(values: np.ndarray[Any, Any], width: int = 65) -> np.ndarray[Any, Any]:
    """Return the running median of values."""
    width = min(width, len(values) | 1)
    padded = np.pad(values, width // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    medians: np.ndarray[Any, Any] = np.median(windows, axis=1)
    return medians[: len(values)]


def _index_of(linear: int, grid: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the index of a block from its linear one."""
    width, height, _ = (*grid, 1, 1)[:3]
    return linear % width, linear // width % height, linear // (width * height)


def _places(ring: np.ndarray[Any, Any], pipelines: dict[str, Any]) -> dict[int, SharedPlace]:
    """Return what lies at the addresses over 8 that the labels of a ring name."""
    places: dict[int, SharedPlace] = {}
    for number, base, barriers in labels_of(ring):
        owner = races.LABELS[number - 1][1]
        for address, text in names_of(number, base, barriers):
            place = place_of(text)
            if place is not None:
                places[(address & 0x3FFFF) >> 3] = place
                pipelines.setdefault(place.pipeline, owner)
    return places


def _kind(site: RecordSite, place: SharedPlace) -> str:
    """Return the kind of a span: of a wait or an arrival, by the barrier's use."""
    if site.kind is RecordKind.WAIT:
        purpose = place.what or site.what.rstrip("'").rpartition(".")[2]
        return purpose if purpose in ("full", "empty") else "wait"
    if site.kind is RecordKind.ARRIVE and place.what == "empty":
        return "release"
    return _KINDS[site.kind]


def _spans(
    records: np.ndarray[Any, Any],
    times: np.ndarray[Any, Any],
    period: float,
    block: tuple[int, int, int],
    warp: int,
    places: dict[int, SharedPlace],
) -> Iterator[tuple[Span, str]]:
    """Yield the spans of a warp, each with the role that its site names."""
    begun, last = float(times[0]), float(times[-1])
    whole = False
    for record, time in zip(records, times):
        site, value = SITES[record["site"]], int(record["value"])
        end = float(time)
        start = end - value * UNIT * period if site.kind in _RANGES else end
        if site.kind is RecordKind.BEGIN:
            begun, whole = start, True
            continue
        if site.kind is RecordKind.END:
            last, whole = end, True
            continue
        place = _NOWHERE
        if site.kind in _PLACED:
            place = places.get(int(record["place"]), _NOWHERE)
        span = Span(
            _kind(site, place),
            start,
            end,
            block,
            warp,
            name=_NAMES[site.kind].format(value=value, place=record["place"])
            if site.kind in _NAMES
            else site.what,
            pipeline=place.pipeline,
            stage=place.stage,
            nbytes=value if site.kind in (RecordKind.LOAD, RecordKind.STORE) else 0,
            line=site.line,
        )
        yield span, site.role
    if whole:
        yield Span("run", begun, last, block, warp), ""
