"""cp.async: a thread's copies in flight, its groups, and which threads have waited for them.

A thread's copies are numbered. Knowledge of them is a number: all copies up to it are complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from numba_tma.simulator.clocks import Clocks
from numba_tma.simulator.copies import Bytes, call_site
from numba_tma.simulator.errors import EarlyOverwrite, EarlyRead, MissingFence, SimulatorError
from numba_tma.simulator.memory import END, SharedMemory

if TYPE_CHECKING:
    from numba_tma.simulator.thread import SimulatedThread

WORD = 4


class AsyncCopy:
    """One cp.async: it reads and writes at one moment, some time later."""

    def __init__(
        self, thread: SimulatedThread, number: int, address: int, source: Bytes, nbytes: int
    ) -> None:
        self.thread = thread
        self.number = number
        self.address = address
        self.nbytes = nbytes
        self._source = source
        #: The name of the bytes' content in a recorded protocol; not there without one.
        self.content: int

    def advance(self) -> bool:
        """Write the current bytes of global memory, and zeros behind them."""
        memory = self.thread.cta.memory
        image = np.zeros(self.nbytes, np.uint8)
        image[: self._source.nbytes] = self._source
        memory.data[self.address : self.address + self.nbytes] = image
        memory.wrote(self.address, self.nbytes)
        if self.thread.log is not None:
            rank = self.thread.cta.rank
            self.thread.log.landed(rank, self.address, self.nbytes, self.content)
        self.thread.async_copies.land(self.thread, self.number)
        return True


class AsyncArrival:
    """An arrival that the hardware makes when the copies up to `number` are complete."""

    def __init__(self, thread: SimulatedThread, number: int, arrive: Callable[[], None]) -> None:
        self.thread = thread
        self._number = number
        self._arrive = arrive

    def advance(self) -> bool:
        """Arrive if all copies have landed; return whether they had."""
        if not self.thread.async_copies.complete(self._number):
            return False
        self._arrive()
        return True


class AsyncWait:
    """A thread waits for its cp.async copies up to `number`."""

    def __init__(self, copies: AsyncCopies, what: str, number: int) -> None:
        self.copies = copies
        self.what = what
        self.number = number

    def headline(self) -> str:
        """Return the wait's line of a deadlock report."""
        return f"{self.what}: waiting"


class AsyncCopies:
    """One thread's cp.async copies in flight, by number."""

    def __init__(self) -> None:
        self.issued = 0
        self.under_way: set[int] = set()
        #: Number of the last copy of each committed group, and where the newest copy was issued.
        self.groups: list[int] = []
        self.site = ""

    def issue(self) -> int:
        """Return the number of a new copy."""
        self.issued += 1
        self.under_way.add(self.issued)
        self.site = call_site()
        return self.issued

    def commit(self) -> None:
        """Close the open group, which may be empty."""
        self.groups.append(self.issued)

    def complete(self, number: int) -> bool:
        """Return whether all copies up to `number` have landed."""
        return all(other > number for other in self.under_way)

    def land(self, thread: SimulatedThread, number: int) -> None:
        """Complete a copy; wake `thread` if it waits for these copies and the wait is over."""
        self.under_way.remove(number)
        wait = thread.wait
        if isinstance(wait, AsyncWait) and wait.copies is self and self.complete(wait.number):
            thread.cta.scheduler.wake(thread)


class AsyncRecords:
    """For each word of shared memory, the thread whose cp.async filled it last."""

    def __init__(
        self, memory: SharedMemory, clocks: Clocks, thread_of: Callable[[int], SimulatedThread]
    ) -> None:
        self._memory = memory
        self._clocks = clocks
        self._thread_of = thread_of
        # By word of 4 bytes, the smallest copy: the thread's row, and the number of its copy.
        self._rows = np.zeros(END // WORD + 1, np.int32)
        self._numbers = np.zeros(END // WORD + 1, np.int32)

    def record(self, row: int, number: int, address: int, nbytes: int) -> None:
        """Record that the copy `number` of the thread fills these bytes."""
        words = self._words(address, nbytes)
        self._rows[words], self._numbers[words] = row, number

    def check_read(self, row: int, address: int, nbytes: int, done: str = "read") -> None:
        """Raise if the copies into these bytes are not ordered before the thread's read."""
        self._check(EarlyRead, done, row, address, nbytes)

    def check_write(self, row: int, address: int, nbytes: int, done: str = "overwritten") -> None:
        """Raise if the copies into these bytes are not ordered before the thread's write."""
        self._check(EarlyOverwrite, done, row, address, nbytes)

    def check_fence(self, row: int, address: int, nbytes: int, done: str) -> None:
        """Raise if copies into these bytes may not be visible to the copy engine."""
        late = self._late(self._clocks.fenced_copies, row, address, nbytes)
        if late is not None:
            raise MissingFence(
                f"{self._memory.describe(address, nbytes)}: {done} what a cp.async of "
                f"{late.description} has brought, without a fence_proxy_async() after its "
                "completion: a thread that has waited for the cp.async must execute the fence, "
                "before it synchronises with the thread that issues this copy"
            )

    def _check(
        self, kind: type[SimulatorError], done: str, row: int, address: int, nbytes: int
    ) -> None:
        late = self._late(self._clocks.copies, row, address, nbytes)
        if late is None:
            return
        repair = (
            "wait with cp_async_wait_group() or cp_async_wait_all() first"
            if late.row == row
            else "that thread must pass cp_async_wait_group() or cp_async_wait_all() and then "
            "synchronise with this one, or tell it through an mbarrier "
            "(cp_async_mbarrier_arrive_noinc)"
        )
        raise kind(
            f"{self._memory.describe(address, nbytes)}: {done} before the cp.async of "
            f"{late.description} that fills them is known to be complete: {repair}"
        )

    def _late(self, column: int, row: int, address: int, nbytes: int) -> SimulatedThread | None:
        """Return the thread of a copy that is not ordered before the component at `column`."""
        words = self._words(address, nbytes)
        rows = self._rows[words]
        late = self._numbers[words] > self._clocks.table[row, column + rows]
        return self._thread_of(int(rows[np.argmax(late)])) if late.any() else None

    @staticmethod
    def _words(address: int, nbytes: int) -> slice:
        return slice(address // WORD, -(-(address + nbytes) // WORD))
