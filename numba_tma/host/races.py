"""Races mode on the host: the layout of the log, its events, and the exception made of a race.

A kernel in races mode writes one `EVENT` for each step that orders or accesses shared memory. A
slot of the log is taken with an atomic before an arrival or an access, and after a wait, so the
slots are one order of all steps that agrees with what the hardware did. The host replays that order
after the launch (`race_replay`), by the rules of the simulator. Arrivals, fences and the ends of
waits are logged by each lane, as it goes on without the others; of fences and waits the host keeps
one of equal events. What a whole warp does, such as a wgmma, is logged by lane 0 between two syncs.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_tma.host import source_lines
from numba_tma.host.debug import NO_GPU, NUM_WORDS, PipelineError, Record


class Kind(enum.IntEnum):
    """What an event is. A lane writes it before the step, or after where that is said."""

    READ = 1  #: a generic read of `size` bytes at `address`, or (`other`) of a part of them
    WRITE = 2  #: a generic write
    COPY = 3  #: a cp.async into `address`
    LOAD = 4  #: a bulk copy of `size` bytes into `address`, on the barrier `other`
    SOURCE = 5  #: a bulk copy out of `address`, of the open bulk group
    COMMIT = 6  #: the end of a bulk group
    DRAINED = 7  #: after a wait for all bulk groups but `size`
    PRODUCT = 8  #: a wgmma's read of an operand, of the open wgmma group
    PRODUCT_COMMIT = 9
    PRODUCT_DRAINED = 10  #: after a wait for all wgmma groups but `size`
    FENCE = 11  #: fence.proxy.async
    INIT = 12  #: mbarrier.init of `address` with the count `size`
    INVAL = 13
    ARRIVE = 14  #: `size` arrivals on `address`, which expect `other` bytes more
    EXPECT = 15  #: `other` bytes more are expected, without an arrival
    COMPLETE = 16  #: `other` bytes are completed by other means than a load
    UNCOUNTED = 17  #: a copy of an unknown number of bytes completes on `address`
    WAITED = 18  #: after a wait for the phase of parity `size`
    WAITED_OWN = 19  #: after a wait for the phase of the warp's own last arrival
    MEET = 20  #: lanes `other` arrive at the named barrier `address` of `size` threads; 0: of all
    MET = 21  #: after the named barrier
    CLUSTER_ARRIVE = 22  #: lanes `other` arrive
    CLUSTER_WAITED = 23
    LINE = 24  #: the source line of what follows
    SITE = 25  #: the wait before this was for stage `size` of the barrier `address`: site `other`
    LABEL = 26  #: a pipeline's tiles begin at `address`, its barriers at `size`: label `other`
    ARRIVE_COPIED = 27  #: as `ARRIVE`, once the cp.async copies so far are complete
    COPY_COMMIT = 28  #: the end of a cp.async group
    COPY_DRAINED = 29  #: after a wait for all cp.async groups but `size`; `other`: for all copies
    UNTRACKED = 30  #: a write to another block's shared memory
    ATOMIC = 31  #: an atomic operation on `size` bytes


#: What each lane logs. Another such event of the warp right after an equal one changes nothing.
BY_LANE = (
    Kind.WAITED, Kind.WAITED_OWN, Kind.MET, Kind.CLUSTER_WAITED, Kind.COPY_DRAINED, Kind.FENCE,
)  # fmt: skip

#: One event, in 32-bit words. `device.races.note` writes the fields in this order.
EVENT = np.dtype(
    [
        ("kind", "u1"),
        ("warp", "u1"),
        ("blocks", "u1"),  # of the cluster
        ("rank", "u1"),  # of the block that holds the event's barrier
        ("slot", "<u4"),  # of the block: blocks of one cluster are neighbours
        ("address", "<u4"),
        ("size", "<u4"),
        ("other", "<u4"),
        ("line", "<u4"),
        ("block", "<u4"),  # its linear index in the grid
        ("warps", "<u2"),  # of the block
        ("mask", "<u2"),  # of a multicast
    ]
)

#: Only these blocks of a grid are tracked, and so many events of a launch are kept.
BLOCKS, CAPACITY = 32, 1 << 21
#: Words beside the events: the number of events, and for each warp its epoch and the latest
#: accesses of the epoch, by hash.
SEEN = 256
HEADER = 64 + BLOCKS * 32 * SEEN
EVENT_WORDS = EVENT.itemsize // 4
LOG_WITHOUT_GPU = NO_GPU + 64 * NUM_WORDS

# --------------------------------------------------------------------- compile-time tables

_LINES: dict[tuple[str, int], int] = {}  # to the number: the first has 1
#: The functions that name a pipeline's tiles and barriers, with the pipeline.
LABELS: list[tuple[Any, Any]] = []


def line_number(place: tuple[str, int]) -> int:
    """Return the number of a source line in events, never 0."""
    return _LINES.setdefault(place, len(_LINES) + 1)


def line_in_words(number: int) -> str:
    """Return a source line by its number."""
    if not 0 < number <= len(_LINES):
        return "a line that is not known"
    return source_lines.line_in_words(*list(_LINES)[number - 1])


def label_number(function: object, owner: object) -> int:
    """Return the number of a pipeline's label in events, never 0."""
    if (function, owner) not in LABELS:
        LABELS.append((function, owner))
    return LABELS.index((function, owner)) + 1


# ----------------------------------------------------------------------------------- log


@functools.cache
def _header() -> Any:
    """Return the words of the header on the current GPU, whose atomics are fast there."""
    from numba import cuda

    return cuda.to_device(np.zeros(HEADER, np.uint32))


@functools.cache
def _events() -> np.ndarray[Any, Any]:
    """Return the slots of events, in mapped memory: it outlives a launch that fails."""
    from numba import cuda

    words = np.asarray(memoryview(cuda.mapped_array(CAPACITY * EVENT_WORDS, np.uint32)))
    words[:] = 0
    return words.view(EVENT)


@functools.cache
def header_address() -> int:
    """Return the address of the header, which is compiled into kernels."""
    from numba import cuda

    if not cuda.is_available():
        return LOG_WITHOUT_GPU
    return int(_header().__cuda_array_interface__["data"][0])


@functools.cache
def events_address() -> int:
    """Return the address of the events, which is compiled into kernels."""
    from numba import cuda

    # Under unified addressing the host and every GPU reach pinned memory at one address.
    return int(_events().ctypes.data) if cuda.is_available() else LOG_WITHOUT_GPU + 4 * HEADER


def _number() -> int:
    """Return how many slots of events have been taken."""
    return int(_header()[:1].copy_to_host()[0])


def clear_log() -> None:
    """Forget all events. No kernel in races mode may be running."""
    from numba import cuda

    _events()[: _number()] = 0
    _header().copy_to_device(np.zeros(HEADER, np.uint32))
    cuda.synchronize()


def read_log() -> tuple[np.ndarray[Any, Any], int]:
    """Return the events in their order, and the number of those that are not in the log.

    They did not fit, or their slots were taken and not written: a slot that is clear has no event.
    """
    number = _number()
    written = _written(number)
    return written, number - len(written)


def read_log_after_failure() -> np.ndarray[Any, Any]:
    """Return the events of a launch that failed and took the header along with its context."""
    return _written(CAPACITY)


def _written(number: int) -> np.ndarray[Any, Any]:
    events = _events()[:number]
    written: np.ndarray[Any, Any] = events[events["kind"] != 0]
    return written


# --------------------------------------------------------------------------- exceptions


@dataclass(frozen=True)
class RaceSide:
    """One side of a race."""

    what: str  #: "a load into"
    role: str  #: of the warp, if it has waited in a pipeline
    warp: int
    block: tuple[int, int, int]
    line: str

    def __str__(self) -> str:
        role = f"{self.role} " if self.role else ""
        return f"{role}warp {self.warp} of block {self.block} at {self.line}"


@dataclass(frozen=True)
class Race:
    """Two steps of a kernel that nothing orders, or one that lacks what must come before."""

    kind: str  #: the simulator's name of the hazard: "EarlyRead"
    where: str  #: the tile and its stage, or the barrier
    step: RaceSide
    other: RaceSide | None
    rule: str  #: what is missing
    number: int = 0  #: of the step in the log

    def __str__(self) -> str:
        text = f"{self.kind}: {self.where}: {self.step.what} by {self.step}"
        if self.other is not None:
            text += f", and {self.other.what} by {self.other}"
        return f"{text}: {self.rule}"


class PipelineRace(PipelineError):
    """Accesses to a stage or a tile that no barrier, fence or wait orders (races mode).

    `races` has those that were found, each with both sides.
    """

    def __init__(
        self, message: str, records: Sequence[Record] = (), races: Sequence[Race] = ()
    ) -> None:
        super().__init__(message, records)
        self.races = tuple(races)

    def __reduce__(self) -> Any:
        """Pickle the races too."""
        return type(self), (str(self), self.records, self.races)


def error_of_races(races: Sequence[Race], records: Sequence[Record], lost: int) -> PipelineRace:
    """Return the exception for the races of a launch."""
    lines = [str(races[0])]
    if races[1:]:
        lines.append(f"{len(races) - 1} more:")
        lines += [f"  {race}" for race in races[1:6]]
    if lost:
        lines.append(f"{lost:,} steps are not in the log and were not checked")
    return PipelineRace("\n".join(lines), records, races)
