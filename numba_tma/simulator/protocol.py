"""Records: each thread's operations on barriers and on shared bytes, in program order.

The instructions record them, in any library or kernel. A loop around a wait is recorded as one
wait. Fences and arithmetic are not recorded. From such a record, `explore` runs the threads in
every order.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from numba_tma.simulator.memory import END

if TYPE_CHECKING:
    from numba_tma.simulator.block import Cta
    from numba_tma.simulator.thread import SimulatedThread

#: A place in shared memory: the block's rank in its cluster, and the shared address there.
Place = tuple[int, int]


class ByteSpan(NamedTuple):
    """Bytes of a block's shared memory."""

    rank: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Init:
    """mbarrier.init."""

    barrier: Place
    count: int


@dataclass(frozen=True, slots=True)
class Inval:
    """mbarrier.inval."""

    barrier: Place


@dataclass(frozen=True, slots=True)
class Arrive:
    """An arrival, with the bytes that it expects."""

    barrier: Place
    count: int
    nbytes: int | None
    drop: bool
    no_complete: bool


@dataclass(frozen=True, slots=True)
class CountBytes:
    """expect_tx, or complete_tx where `nbytes` is negative."""

    barrier: Place
    nbytes: int


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait for a phase: of this parity, or of this number if the thread waits with a token."""

    barrier: Place
    wanted: int
    by_token: bool


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy into shared memory that completes `nbytes` on a barrier, perhaps from `source`."""

    content: int
    into: ByteSpan
    barrier: Place
    nbytes: int
    source: ByteSpan | None


@dataclass(frozen=True, slots=True)
class Issue:
    """A load: one transfer, or one for each block of a multicast."""

    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class IssueStore:
    """A store, the thread's `number`-th: the copy engine reads its source some time later."""

    number: int
    source: ByteSpan


@dataclass(frozen=True, slots=True)
class AwaitStores:
    """A wait until the thread's stores up to `number` have read their source."""

    number: int


@dataclass(frozen=True, slots=True)
class CopyAsync:
    """A cp.async, the thread's `number`-th."""

    number: int
    content: int
    into: ByteSpan


@dataclass(frozen=True, slots=True)
class AwaitCopies:
    """A wait for the thread's cp.async copies up to `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class ArriveAfterCopies:
    """An arrival that the hardware makes when the copies up to `number` are complete."""

    barrier: Place
    number: int
    hold: bool


@dataclass(frozen=True, slots=True)
class Multiply:
    """A tcgen05 product or copy: it may read `sources` until the thread's `commit`-th commit."""

    commit: int
    sources: tuple[ByteSpan, ...]


@dataclass(frozen=True, slots=True)
class CommitProducts:
    """The thread's `number`-th tcgen05.commit: the hardware arrives on the barriers later."""

    number: int
    barriers: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Meet:
    """The `turn`-th meeting of one kind: a syncthreads, a named barrier, a warp-wide operation."""

    place: tuple[int, Hashable]
    turn: int
    blocking: bool
    name: str
    #: The number of threads of the meeting; None for all live threads.
    threads: int | None


@dataclass(frozen=True, slots=True)
class AwaitMeeting:
    """A wait for the other threads of a meeting at which the thread has arrived."""

    place: tuple[int, Hashable]
    turn: int


@dataclass(frozen=True, slots=True)
class Unmodelled:
    """An instruction that the simulator executes and `explore` does not support."""

    name: str


Operation = (
    Init | Inval | Arrive | CountBytes | Wait | Issue | IssueStore | AwaitStores | CopyAsync
    | AwaitCopies | ArriveAfterCopies | Multiply | CommitProducts | Meet | AwaitMeeting | Unmodelled
)  # fmt: skip


def without_warp(place: tuple[int, Hashable]) -> tuple[int, Hashable]:
    """Return a meeting place, with the same name for the per-warp places of a block."""
    match place:
        case (rank, ("warp", int(), mask)):
            return rank, ("warp", mask)
    return place


class Touch(NamedTuple):
    """A generic access to bytes, with the copy that filled them and the last write in them."""

    span: ByteSpan
    writes: bool
    filled_by: int
    written_by: int


class Log:
    """The operations of one thread, and its generic accesses before each and after the last."""

    def __init__(self, thread: SimulatedThread, run: Run) -> None:
        self.rank = thread.cta.rank
        self.block, self.warp, self.lane = thread.block, thread.warp, thread.lane
        self.row = thread.row
        self.operations: list[Operation] = []
        self.touches: list[set[Touch]] = [set()]
        self._run = run
        self._fills = 0

    def note(self, operation: Operation) -> None:
        """Add an operation."""
        self.operations.append(operation)
        self.touches.append(set())

    def new_fill(self) -> int:
        """Return the number of the content that a new copy of this thread brings."""
        self._fills += 1
        return self._run.content(self.row, 2 * self._fills)

    def landed(self, rank: int, address: int, nbytes: int, content: int) -> None:
        """Record that a copy of this thread has landed."""
        self._run.fills[rank][address : address + nbytes] = content

    def read(self, cta: Cta, address: int, nbytes: int) -> None:
        """Add a read."""
        self._touch(cta, address, nbytes, writes=False)

    def wrote(self, cta: Cta, address: int, nbytes: int) -> None:
        """Add a write."""
        content = self._run.content(self.row, 2 * len(self.operations) + 1)
        self._run.writers[cta.rank][address : address + nbytes] = content
        self._touch(cta, address, nbytes, writes=True)

    def _touch(self, cta: Cta, address: int, nbytes: int, *, writes: bool) -> None:
        fills = self._run.fills[cta.rank][address : address + nbytes]
        writers = self._run.writers[cta.rank][address : address + nbytes]
        cuts = [0]
        if nbytes > 4:
            cuts += (np.flatnonzero(np.diff(fills) | np.diff(writers)) + 1).tolist()
        for first, last in zip(cuts, [*cuts[1:], nbytes]):
            span = ByteSpan(cta.rank, address + first, address + last)
            self.touches[-1].add(Touch(span, writes, int(fills[first]), int(writers[first])))


@dataclass
class Run:
    """The operations of the threads of one block or cluster."""

    logs: list[Log] = field(default_factory=list)
    #: By rank and byte: the content of the last copy, and of the last generic write.
    fills: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = field(default_factory=list)
    writers: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = field(default_factory=list)
    #: By content: its place in the order of first occurrence.
    order: dict[int, int] = field(default_factory=dict)
    blocks: list[Cta] = field(default_factory=list)

    def content(self, row: int, number: int) -> int:
        """Return the number of a content that a thread writes or copies."""
        content = (row + 1) << 32 | number
        self.order.setdefault(content, len(self.order) + 1)
        return content

    def begin(self, blocks: list[Cta]) -> None:
        """Give each thread of `blocks` a log."""
        self.blocks = blocks
        for block in blocks:
            self.fills.append(np.zeros(END, np.int64))
            self.writers.append(np.zeros(END, np.int64))
            for thread in block.threads:
                thread.log = Log(thread, self)
                self.logs.append(thread.log)

    def barrier_name(self, place: Place) -> str:
        """Return the label of a barrier, or its address."""
        rank, address = place
        memory = self.blocks[rank].memory
        name = memory.label(address) or f"mbarrier at {address}"
        return name + self._of_block(rank)

    def span_name(self, span: ByteSpan) -> str:
        """Return the text of the object that contains these bytes."""
        rank, start, stop = span
        return self.blocks[rank].memory.describe(start, stop - start) + self._of_block(rank)

    def _of_block(self, rank: int) -> str:
        return f" of block {self.blocks[rank].index}" if len(self.blocks) > 1 else ""

    def differs(self, other: Run) -> Log | None:
        """Return a thread whose operations differ from another run of the same blocks."""
        for mine, its in zip(self.logs, other.logs):
            if (mine.operations, mine.touches) != (its.operations, its.touches):
                return mine
        return None


#: Of each host thread: the runs that are being recorded.
_recording = threading.local()


def _active() -> list[Run] | None:
    return getattr(_recording, "runs", None)


def begin_run(blocks: list[Cta]) -> None:
    """Add a run of a block or cluster, whose threads are about to start."""
    if (runs := _active()) is not None:
        run = Run()
        run.begin(blocks)
        runs.append(run)


@contextmanager
def recorded_protocol() -> Iterator[list[Run]]:
    """Record the operations of kernels that this host thread launches in the ``with`` block.

    Yields the runs, one for each block or cluster, to be passed to `explore`.
    """
    outer, _recording.runs = _active(), []
    try:
        yield _recording.runs
    finally:
        _recording.runs = outer
