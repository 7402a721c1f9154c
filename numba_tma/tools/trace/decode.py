"""Records of a GPU as spans: their clocks on one time, their places as pipelines and stages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from numba_tma.simulator.label_names import names_of
from numba_tma.host import races
from numba_tma.host.trace_buffer import Sampling
from numba_tma.host.trace_records import SITES, Kind, labels_of, origin_of, records_of
from numba_tma.tools.trace.spans import Span, roles_by_behaviour

_KINDS = {
    Kind.ARRIVE: "arrive",
    Kind.LOAD: "load",
    Kind.STORE: "store",
    Kind.DRAIN: "drain",
    Kind.MEET: "meet",
    Kind.CLUSTER: "cluster",
    Kind.PRODUCT: "products",
    Kind.FLAG: "flag",
    Kind.TILE: "tile",
    Kind.MARK: "mark",
}
_RANGES = {
    Kind.WAIT, Kind.DRAIN, Kind.MEET, Kind.CLUSTER, Kind.PRODUCT, Kind.FLAG, Kind.MARK,
}  # fmt: skip
_TURN = 1 << 32


class Place(NamedTuple):
    """What lies at a shared address: of which pipeline, which stage, and "full", "empty", ..."""

    what: str
    stage: int
    pipeline: str


class Decoded(NamedTuple):
    """What `decode` returns."""

    spans: list[Span]
    roles: dict[tuple[tuple[int, int, int], int], str]
    processors: dict[tuple[int, int, int], int]
    dropped: int
    pipelines: dict[str, Any]


def place_of(text: str) -> Place | None:
    """Return the place that a label names: ``full[2] of TilePipeline(...)``."""
    match = re.match(r"(\w+)\[(\d+)\](?:\[\d+\])?(?: of | for )(.+)", text)
    if match is None:
        return None
    pipeline = match[3]
    if (found := re.search(r"\b\w+\(.*", pipeline)) is not None:  # "sub-stage 1 of KVPipeline(..."
        pipeline = found[0]
    return Place(match[1], int(match[2]), pipeline)


def decode(
    rings: np.ndarray[Any, Any], capacity: int, sampling: Sampling, grid: tuple[int, ...]
) -> Decoded:
    """Return the spans of all rings, in nanoseconds from the first record."""
    found = [records_of(ring, capacity) for ring in rings]
    dropped = sum(lost for _, lost in found)
    origins = [origin_of(ring) for ring in rings]
    clocks = _Clocks([records for records, _ in found], [sm for sm, _ in origins])
    spans: list[Span] = []
    roles: dict[tuple[tuple[int, int, int], int], str] = {}
    processors: dict[tuple[int, int, int], int] = {}
    pipelines: dict[str, Any] = {}
    for number, ((records, _), ring) in enumerate(zip(found, rings)):
        if not len(records):
            continue
        warp = number % sampling.warps
        processor, linear = origins[number]
        block = _index_of(linear, grid)
        places, processors[block] = _places(ring, pipelines), processor
        times = clocks.times(number)
        for span, role in _spans(records, times, clocks.period, block, warp, places):
            spans.append(span)
            if role:
                roles.setdefault((block, warp), role)
    first = min((span.start for span in spans), default=0.0)
    moved = [_moved(span, -first) for span in spans]
    moved.sort(key=lambda span: (span.start, span.end))
    for key, role in roles_by_behaviour(moved).items():
        roles.setdefault(key, role)
    return Decoded(moved, roles, processors, dropped, pipelines)


def _moved(span: Span, by: float) -> Span:
    fields = {name: getattr(span, name) for name in Span.__slots__}
    return Span(**fields | {"start": span.start + by, "end": span.end + by})


class _Clocks:
    """The time of each record: the clock of its multiprocessor, laid on the GPU's timer.

    The timer steps every 32 ns, the clock every cycle. The clocks of multiprocessors differ, and
    change their rate together. So each record's time is its clock over the rate, plus the offset of
    the timer that the median of its neighbours has.
    """

    def __init__(self, rings: list[np.ndarray[Any, Any]], processors: list[int]) -> None:
        self._times: dict[int, np.ndarray[Any, Any]] = {}
        members: dict[int, list[int]] = {}
        for number, records in enumerate(rings):
            if len(records):
                members.setdefault(processors[number], []).append(number)
        counted = {
            number: (_unwrapped(rings[number]["clock"]), _unwrapped(rings[number]["time"]))
            for numbers in members.values()
            for number in numbers
        }
        self.period = _period(list(counted.values()))
        start = min((int(time[0]) for _, time in counted.values()), default=0)
        for numbers in members.values():
            base = int(counted[numbers[0]][0][0])
            clock = np.concatenate([_near(counted[n][0], base) for n in numbers])
            time = np.concatenate([_near(counted[n][1], start) for n in numbers])
            order = np.argsort(clock, kind="stable")
            offset = np.empty(len(clock))
            offset[order] = _median((time - clock * self.period)[order])
            exact = clock * self.period + offset
            split = np.cumsum([len(rings[n]) for n in numbers])[:-1]
            self._times.update(zip(numbers, np.split(exact, split)))

    def times(self, ring: int) -> np.ndarray[Any, Any]:
        """Return the times of a ring's records, in nanoseconds."""
        return self._times[ring]


def _unwrapped(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the values of a counter of 32 bits, whose neighbours are less than a turn apart."""
    steps = np.diff(words.astype(np.int64)) % _TURN
    return int(words[0]) + np.concatenate(([0], np.cumsum(steps)))


def _near(counted: np.ndarray[Any, Any], base: int) -> np.ndarray[Any, Any]:
    """Return a ring's values relative to a base: its first lies within half a turn of it."""
    first = (int(counted[0]) - base + (_TURN >> 1)) % _TURN - (_TURN >> 1)
    relative: np.ndarray[Any, Any] = (counted - counted[0] + first).astype(np.float64)
    return relative


def _period(rings: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> float:
    """Return the nanoseconds of a cycle."""
    cycles = sum(int(clock[-1] - clock[0]) for clock, _ in rings)
    nanoseconds = sum(int(time[-1] - time[0]) for _, time in rings)
    return nanoseconds / cycles if cycles and nanoseconds else 1 / 1.98


def _median(values: np.ndarray[Any, Any], width: int = 65) -> np.ndarray[Any, Any]:
    """Return the running median of values."""
    width = min(width, len(values) | 1)
    padded = np.pad(values, width // 2, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    medians: np.ndarray[Any, Any] = np.median(windows, axis=1)
    return medians[: len(values)]


def _index_of(linear: int, grid: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the index of a block from its linear one."""
    width, height, _ = (*grid, 1, 1)[:3]
    return linear % width, linear // width % height, linear // (width * height)


def _places(ring: np.ndarray[Any, Any], pipelines: dict[str, Any]) -> dict[int, Place]:
    """Return what lies at the addresses over 8 that the labels of a ring name."""
    places: dict[int, Place] = {}
    for number, base, barriers in labels_of(ring):
        owner = races.LABELS[number - 1][1]
        for address, text in names_of(number, base, barriers):
            place = place_of(text)
            if place is not None:
                places[(address & 0x3FFFF) >> 3] = place
                pipelines.setdefault(place.pipeline, owner)
    return places


def _spans(
    records: np.ndarray[Any, Any],
    times: np.ndarray[Any, Any],
    period: float,
    block: tuple[int, int, int],
    warp: int,
    places: dict[int, Place],
) -> Iterator[tuple[Span, str]]:
    """Yield the spans of a warp, each with the role that its site names."""
    begun, last = float(times[0]), float(times[-1])
    for record, time in zip(records, times):
        site, value = SITES[record["site"]], int(record["value"])
        end = float(time)
        start = end - value * period if site.kind in _RANGES else end
        place = places.get(int(record["place"]), Place("", -1, ""))
        common = {"block": block, "warp": warp, "line": site.line}
        if site.kind is Kind.BEGIN:
            begun = start
        elif site.kind is Kind.END:
            last = end
        elif site.kind is Kind.WAIT:
            kind = place.what if place.what in ("full", "empty") else "wait"
            if not place.what and site.what.endswith((".full'", ".empty'")):
                kind = site.what.rstrip("'").rpartition(".")[2]
            yield (
                Span(kind, start, end, name=site.what, pipeline=place.pipeline,
                     stage=place.stage, **common), site.role,
            )  # fmt: skip
        else:
            kind, nbytes, name = _KINDS[site.kind], 0, site.what
            if site.kind in (Kind.LOAD, Kind.STORE):
                nbytes = value
            elif site.kind is Kind.TILE:
                name = str(value)
            elif site.kind is Kind.MEET:
                name, place = f"barrier {int(record['place'])}", Place("", -1, "")
            elif site.kind is Kind.ARRIVE and place.what == "empty":
                kind = "release"
            if site.kind in (Kind.DRAIN, Kind.PRODUCT, Kind.CLUSTER, Kind.FLAG, Kind.MARK):
                place = Place("", -1, "")
            yield (
                Span(kind, start, end, name=name, pipeline=place.pipeline, stage=place.stage,
                     nbytes=nbytes, **common), site.role,
            )  # fmt: skip
    yield Span("run", begun, last, block, warp), ""
