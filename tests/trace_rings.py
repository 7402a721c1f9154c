"""Rings of traces and launches, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numba_tma.host.trace_records import (
    COUNTERS,
    RECORD,
    RECORD_NBYTES,
    RECORDS,
    SIDE_COUNT,
    SIDE_RECORDS,
    RecordSite,
    label_slot,
    number_of,
)
from numba_tma.tools.trace import Span, TracedLaunch

WORD = (1 << 32) - 1


def record(clock: int, time: int, site: RecordSite, place: int = 0, value: int = 0) -> Any:
    """Return a record as a kernel writes it, at 64 bits of the clock and of the timer."""
    mixed = clock >> 32 ^ time & WORD ^ time >> 32
    return np.array((clock & WORD, mixed & WORD, number_of(site), place >> 3, value), RECORD)


def ring(
    records: Sequence[Any],
    side: Sequence[Any] = (),
    *,
    begun: tuple[int, int],
    block: int = 0,
    processor: int = 0,
    capacity: int = 64,
    labels: Sequence[tuple[int, int, int]] = (),
) -> np.ndarray[Any, Any]:
    """Return the ring of a warp that wrote these records, some of lanes other than 0."""
    made = np.zeros(RECORDS + capacity * RECORD_NBYTES, np.uint8)
    words = made.view(np.uint32)
    words[:4] = len(records) * RECORD_NBYTES, (capacity - 1) * RECORD_NBYTES, processor, block
    made[COUNTERS:SIDE_COUNT].view(np.uint64)[:] = begun
    words[SIDE_COUNT // 4] = len(side)
    for number, base, barriers in labels:
        slot = label_slot(number) // 4
        words[slot : slot + 3] = number, base, barriers
    for given, places in (
        (records, made[RECORDS:].view(RECORD)),
        (side, made[SIDE_RECORDS:RECORDS].view(RECORD)),
    ):
        for count, one in enumerate(given):
            places[count % len(places)] = one
    return made


BLOCK = (0, 0, 0)


def launch(*spans: Span, roles: dict[int, str] | None = None, **given: Any) -> TracedLaunch:
    """Return a launch of these spans; roles are by warp, the same in each block."""
    blocks = dict.fromkeys(span.block for span in spans)
    named = {(b, warp): role for b in blocks for warp, role in (roles or {}).items()}
    fields = {"kernel": "kernel", "grid": (1, 1, 1), "block": (64, 1, 1), "unit": "ns"} | given
    ordered = tuple(sorted(spans, key=lambda span: (span.start, span.end)))
    return TracedLaunch(**fields, spans=ordered, roles=named)


PIPE = "TilePipeline(2, x=Tile((8, 32), f32, NONE))"


def turns(
    number: int,
    period: float,
    *,
    full: float = 0,
    empty: float = 0,
    latency: float = 100,
    stages: int = 2,
    nbytes: int = 8192,
    loads: int = 1,
    block: Any = BLOCK,
    tail: float = 0,
    pipeline: str = PIPE,
) -> list[Span]:
    """Return the spans of a ring: warp 0 consumes, warp 1 produces.

    In each period the consumer waits for `full` of it, and the producer for `empty` of it before
    its loads. A stage is full `latency` behind its loads.
    """
    made = []
    end = number * period + latency + period + tail
    for turn in range(number):
        start, of = turn * period, {"pipeline": pipeline, "stage": turn % stages}
        made.append(Span("empty", start - empty if turn else 0, start, block, 1, **of))
        for _ in range(loads):
            made.append(Span("load", start, start, block, 1, nbytes=nbytes // loads, **of))
        seen = start + latency
        made.append(Span("full", max(0, seen - full), seen, block, 0, **of))
        made.append(Span("release", seen + 5, seen + 5, block, 0, **of))
    return [*made, Span("run", 0, end, block, 0), Span("run", 0, end, block, 1)]
