"""Traces on the host: what a traced kernel writes, and the tables that say what it means.

Each warp of the traced blocks has a ring of records in global memory, which it alone writes to. A
record has the clock of the multiprocessor, the GPU's global timer, and a number under which the
compiler has entered what happens there (`RecordSite`). A wait, and every other range, is one
record, made at its end.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np


class RecordKind(enum.IntEnum):
    """What a record is. A range's `value` is its duration, in units of `UNIT` cycles."""

    BEGIN = 1  #: of a warp
    END = 2
    WAIT = 3  #: range: for a phase of the mbarrier at `place`
    ARRIVE = 4  #: on the mbarrier at `place`
    LOAD = 5  #: of `value` bytes in all blocks, issued; completes on the mbarrier at `place`
    STORE = 6  #: from shared memory at `place`, issued
    DRAIN = 7  #: range: for stores, until they have read shared memory or are complete
    MEET = 8  #: range: at the named barrier `place`
    CLUSTER = 9  #: range: at the cluster's barrier
    PRODUCT = 10  #: range: for products of the tensor cores
    FLAG = 11  #: range: for a flag in global memory
    TILE = 12  #: a tile begins; `value` is its number
    MARK = 13  #: range of the user


UNIT = 2

#: A record, in 32-bit words, in the order in which kernels write it.
RECORD = np.dtype(
    [
        ("clock", "<u4"),  # the low half of the multiprocessor's clock, in cycles
        ("mixed", "<u4"),  # its high half, xor both halves of the GPU's timer, in nanoseconds
        ("site", "<u2"),
        ("place", "<u2"),  # a shared address over 8, or another small number
        ("value", "<u4"),
    ]
)
RECORD_NBYTES = RECORD.itemsize

#: A ring begins with the bytes of records so far, the mask of their places, the multiprocessor and
#: the block's linear index. Then, in places of a record's size: the clock and the timer at the
#: warp's begin; the count of the small ring for lanes other than 0; labels, each of which says
#: where a pipeline's memory is (the label's number, the address of the tiles, and that of the
#: barriers); the small ring; and the records.
COUNTERS, SIDE_COUNT, _FIRST_LABEL = (RECORD_NBYTES * slot for slot in (1, 2, 3))
LABELS, SIDE_CAPACITY = 125, 256
SIDE_RECORDS = _FIRST_LABEL + LABELS * RECORD_NBYTES
RECORDS = SIDE_RECORDS + SIDE_CAPACITY * RECORD_NBYTES

#: What a launch tells the kernel: the address of the rings (8 B; 0: none), the bytes of a ring, and
#: which clusters are traced: the first, every how many, and how many. Padded to 32 B.
LAUNCH = np.dtype(
    [("rings", "<u8"), ("unused", "<u8")]
    + [(name, "<u4") for name in ("nbytes", "first", "step", "clusters")]
)


class RecordSite(NamedTuple):
    """What a record's number stands for, as it was known when the kernel was compiled."""

    kind: RecordKind
    what: str = ""  #: of a wait: its purpose; of a mark: its name
    role: str = ""
    line: str = ""  #: "kernel.py:12"; of the user, or of a shipped kernel


SITES: list[RecordSite] = [RecordSite(RecordKind.MARK, "more places than a trace has numbers for")]
_NUMBERS: dict[RecordSite, int] = {}


def number_of(site: RecordSite) -> int:
    """Return the number of a site in records."""
    number = _NUMBERS.get(site)
    if number is None:
        if len(SITES) == 1 << 16:
            return 0
        number = _NUMBERS[site] = len(SITES)
        SITES.append(site)
    return number


def label_slot(number: int) -> int:
    """Return the offset of a label's slot in a ring; later labels have the slots behind it."""
    return _FIRST_LABEL + number % LABELS * RECORD_NBYTES


def records_of(ring: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], int]:
    """Return the records of a ring in their order, and how many older ones are overwritten."""
    return _newest(ring[RECORDS:].view(RECORD), _word(ring, 0) // RECORD_NBYTES)


def records_beside(ring: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], int]:
    """Return the same of the small ring, of lanes other than 0."""
    return _newest(ring[SIDE_RECORDS:RECORDS].view(RECORD), _word(ring, SIDE_COUNT))


def _word(ring: np.ndarray[Any, Any], at: int) -> int:
    return int(ring[at : at + 4].view("<u4")[0])


def _newest(places: np.ndarray[Any, Any], count: int) -> tuple[np.ndarray[Any, Any], int]:
    if count <= len(places):
        return places[:count], 0
    return np.roll(places, -(count % len(places))), count - len(places)


def origin_of(ring: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the multiprocessor of a ring's warp, and the linear index of its block."""
    processor, block = ring[8:16].view("<u4")
    return int(processor), int(block)


def counters_of(
    ring: np.ndarray[Any, Any], records: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the clock in cycles and the timer in nanoseconds, 64 bits of each, of records."""
    begun, started = (int(n) for n in ring[COUNTERS:SIDE_COUNT].view("<u8"))
    words = records["clock"].astype(np.int64)
    first = begun + (int(words[0]) - begun) % _TURN
    clock = first + np.concatenate(([0], np.cumsum(np.diff(words) % _TURN)))
    halves = records["mixed"].astype(np.int64) ^ clock >> 32  # of the timer, one on the other
    turns = started >> 32, (started >> 32) + 1
    times = np.stack([turn << 32 | halves ^ turn for turn in turns])
    expected = started + (clock - begun) // 2  # of some 2 cycles in a nanosecond
    nearest = np.abs(times - expected).argmin(axis=0)
    return clock, times[nearest, np.arange(len(words))]


_TURN = 1 << 32


def labels_of(ring: np.ndarray[Any, Any]) -> list[tuple[int, int, int]]:
    """Return the labels of a ring: number, address of the tiles, address of the barriers."""
    words = ring[_FIRST_LABEL:SIDE_RECORDS].view("<u4").reshape(-1, 4)
    return [(int(n), int(base), int(first)) for n, base, first, _ in words if n]
