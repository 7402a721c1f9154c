"""Asynchronous copies in flight, and the bulk groups by which a thread waits for its stores."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.source_lines import line_in_words
from numba_tma.simulator.clocks import Clock
from numba_tma.simulator.errors import UnfinishedCopy

if TYPE_CHECKING:
    from numba_tma.host.layout import Swizzle
    from numba_tma.simulator.barriers import TrackedBarrier
    from numba_tma.simulator.block import Cta
    from numba_tma.simulator.thread import SimulatedThread

Bytes = NDArray[np.uint8]
#: Calls, each as its code and the instruction there, in one list: a comparison of two is quick.
Places = list[Any]

_LIBRARY = str(Path(__file__).resolve().parent.parent)
#: By file: whether it is the library's. A name is quickly found, a code object is not.
_inside: dict[str, bool] = {}


def in_library(filename: str) -> bool:
    """Return whether a file is the library's."""
    inside = _inside.get(filename)
    if inside is None:
        inside = _inside[filename] = filename.startswith(_LIBRARY)
    return inside


def call_site() -> str:
    """Return the line outside this library from which a copy is issued."""
    frame = sys._getframe(1)
    while in_library(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return line_in_words(frame.f_code.co_filename, frame.f_lineno)


def call_chain() -> tuple[tuple[CodeType, int], ...]:
    """Return the places of the calls that lead from the kernel to the caller's caller."""
    frame, places = sys._getframe(2), []
    while frame.f_back is not None and frame.f_code.co_name != "<lambda>":  # the block's call
        places.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(places)


def call_places() -> Places:
    """Return the calls by which the kernel's thread came to the caller's caller, last first."""
    frame: FrameType | None = sys._getframe(2)
    places: Places = []
    append = places.append
    while frame is not None:
        append(frame.f_code)
        append(frame.f_lasti)
        frame = frame.f_back
    return places


def call_lines(places: Places) -> list[tuple[CodeType, int]]:
    """Return the lines of those calls that are outside this library."""
    calls = zip(places[::2], places[1::2])
    return [
        (code, line_of(code, place)) for code, place in calls if not in_library(code.co_filename)
    ]


def line_of(code: CodeType, instruction: int) -> int:
    """Return the line of an instruction."""
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end)
    return next(lines, None) or code.co_firstlineno


class Copy(Protocol):
    """A copy that the scheduler advances, one step at a time."""

    thread: SimulatedThread

    def advance(self) -> bool:
        """Do the next step; return whether it was the last."""


class Load:
    """A copy into the shared memory of a block that completes on an mbarrier.

    The barrier is in the same block, or, with cta_group 2, in the other block of its pair.
    """

    def __init__(
        self,
        thread: SimulatedThread,
        address: int,
        nbytes: int,
        tx_bytes: int,
        read: Callable[[], Bytes],
        barrier: TrackedBarrier,
        clock: Clock,
        into: Cta | None = None,
    ) -> None:
        self.thread = thread
        #: The block that gets the bytes: that of the barrier if nothing else is given.
        self.into = into or barrier.cta
        self.address = address
        self.nbytes = nbytes
        #: The bytes that the barrier counts: less than `nbytes` if a swizzle pads rows.
        self.tx_bytes = tx_bytes
        self.barrier = barrier
        self.phase = barrier.model.phase
        #: The issuing thread's clock; the completion publishes it to the barrier's waiters.
        self.clock = clock
        self.site = call_site()
        #: The swizzle of the tensor map; None for other copies.
        self.swizzle: Swizzle | None = None
        #: The numbers of first and last bytes that get any value.
        self.ignored = (0, 0)
        #: The name of the bytes' content in a recorded protocol; not there without one.
        self.content: int
        self._read = read

    def advance(self) -> bool:
        """Write the source's current bytes, then complete them on the barrier."""
        image = self._read()
        assert image.nbytes == self.nbytes
        cta, memory = self.barrier.cta, self.into.memory
        memory.data[self.address : self.address + self.nbytes] = image
        memory.wrote(self.address, self.nbytes, self.swizzle)
        left, right = self.ignored
        memory.written[self.address : self.address + left] = False
        memory.written[self.address + self.nbytes - right : self.address + self.nbytes] = False
        if self.thread.log is not None:
            self.thread.log.landed(self.into.rank, self.address, self.nbytes, self.content)
        cta.emit(self.thread, "landed", self.barrier.name, self.nbytes)
        cta.barrier_changed(self.thread, self.barrier, self.barrier.land(self))
        return True


class PendingStore:
    """A copy from shared to global memory: it reads its source first, and writes later."""

    def __init__(
        self,
        thread: SimulatedThread,
        number: int,
        address: int,
        nbytes: int,
        write: Callable[[Bytes], None],
    ) -> None:
        self.thread = thread
        self.number = number
        self.address = address
        self.nbytes = nbytes
        self.site = call_site()
        self.written = False
        self._image: Bytes | None = None
        self._write = write

    @property
    def has_read(self) -> bool:
        """Return whether the source may be written again."""
        return self._image is not None

    def advance(self) -> bool:
        """Read the source; the next time, write it to global memory."""
        cta = self.thread.cta
        where = cta.memory.describe(self.address, self.nbytes)
        if self._image is None:
            self._image = cta.memory.data[self.address : self.address + self.nbytes].copy()
            cta.emit(self.thread, "store_read", where, self.nbytes)
        else:
            self._write(self._image)
            self.written = True
            cta.emit(self.thread, "store_done", where, self.nbytes)
        self.thread.groups.wake(self.thread)
        return self.written


class GroupWait:
    """A thread waits until all but its newest `allowed` groups are done, or done reading."""

    range_kind = "drained"  #: in a trace

    def __init__(self, groups: BulkGroups, allowed: int, read: bool) -> None:
        self.groups = groups
        self.allowed = allowed
        self.read = read

    def headline(self) -> str:
        """Return the wait's line of a deadlock report."""
        suffix = "_read" if self.read else ""
        return f"cp_async_bulk_wait_group{suffix}({self.allowed}): waiting"

    def satisfied(self) -> bool:
        """Return whether the wait is over."""
        committed = self.groups.committed
        awaited = committed[: max(0, len(committed) - self.allowed)]
        return all(s.has_read if self.read else s.written for group in awaited for s in group)


class BulkGroups:
    """The stores of one thread: those not yet committed, then groups in order of their commit."""

    def __init__(self) -> None:
        self.stores = 0
        self.open: list[PendingStore] = []
        self.committed: list[list[PendingStore]] = []
        #: The newest stores known to the thread to have read their source, or to be complete.
        self.known_read = self.known_written = 0

    def add(self, store: PendingStore) -> None:
        """Put a store into the group that the next commit closes."""
        self.open.append(store)

    def commit(self) -> None:
        """Close the open group, which may be empty."""
        self.committed.append(self.open)
        self.open = []

    def finish_wait(self, wait: GroupWait) -> int:
        """Drop the written groups that `wait` covers; return the newest store read."""
        awaited = self.committed[: max(0, len(self.committed) - wait.allowed)]
        numbers = [store.number for group in awaited for store in group]
        self.known_read = max([self.known_read, *numbers])
        if not wait.read:
            self.known_written = max([self.known_written, *numbers])
        done = 0
        while done < len(awaited) and all(store.written for store in awaited[done]):
            done += 1
        del self.committed[:done]
        return self.known_read

    def wake(self, thread: SimulatedThread) -> None:
        """Wake `thread` if it waits for these groups and the wait is over."""
        if isinstance(thread.wait, GroupWait) and thread.wait.satisfied():
            thread.cta.scheduler.wake(thread)

    def check_done(self) -> None:
        """Raise if the thread ends while a store could still read shared memory."""
        if self.open:
            sites = ", ".join(sorted({store.site for store in self.open}))
            raise UnfinishedCopy(
                f"the thread ends with {len(self.open)} store(s) that were never committed "
                f"(issued at {sites}): call cp_async_bulk_commit_group() after the store and "
                "cp_async_bulk_wait_group_read(0) before the end, as a StorePipeline's tail()"
            )
        late = [s for group in self.committed for s in group if s.number > self.known_read]
        if late:
            sites = ", ".join(sorted({store.site for store in late}))
            raise UnfinishedCopy(
                f"the thread ends with {len(late)} committed store(s) that it has not waited for "
                f"(issued at {sites}): shared memory may be gone before they have read it. Call "
                "cp_async_bulk_wait_group_read(0) before the end; tail() of a StorePipeline "
                "does so, and release_pending() of a TilePipeline"
            )
