"""tcgen05 products, copies and shifts in flight, and what each thread knows of them.

The operations of one thread execute in the order of issue, each some time later. They are numbered:
knowledge of them is a number, up to which all are complete. A tcgen05.commit publishes that number
on its mbarrier. A thread that has waited for the barrier may overwrite the shared memory that they
have read. Before it uses the tensor memory that they have written, it also executes
tcgen05.fence::after_thread_sync.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.tensor_memory_layout import COLUMNS, LANES
from numba_tma.simulator.column_accesses import HALF_WARP, Region, halves
from numba_tma.simulator.copies import call_site
from numba_tma.simulator.errors import (
    EarlyRead,
    MissingFence,
    SimulatorError,
    TensorMemoryMisuse,
    UnfinishedProduct,
)

if TYPE_CHECKING:
    from numba_tma.simulator.block import Cta
    from numba_tma.simulator.clocks import Clock, Clocks
    from numba_tma.simulator.thread import SimulatedThread

Numbers = NDArray[np.int32]


class Issued(NamedTuple):
    """An operation in the words of messages."""

    name: str
    site: str


class MatrixQueue:
    """The operations of one thread. Columns `known` and `told` of the clocks hold numbers of them.

    `known`: complete, as a thread that has waited for a commit knows. `told`: the same, and fenced
    before the synchronisation; a commit includes that fence.
    """

    def __init__(self, thread: SimulatedThread) -> None:
        self.thread = thread
        self.clocks: Clocks = thread.cta.tracked_clocks()
        self.known = self.clocks.new_columns(2)
        self.told = self.known + 1
        self.done = self.committed = self.commits = 0
        self.operations: list[Issued] = []
        self.pending: deque[MatrixOperation] = deque()
        #: By thread: the operations whose effects on tensor memory its instructions may rely on.
        self.relied: Counter[SimulatedThread] = Counter()

    @property
    def issued(self) -> int:
        """Return the number of the newest operation."""
        return len(self.operations)

    def issue(self, name: str, execute: Callable[[], None]) -> MatrixOperation:
        """Add an operation."""
        operation = MatrixOperation(self, execute)
        self.operations.append(Issued(name, call_site()))
        self.pending.append(operation)
        return operation

    def fence_before(self, thread: SimulatedThread) -> None:
        """Publish with the thread's later arrivals the operations that it relies on."""
        self.tell(thread, self.clocks.table[thread.row])

    def fence_after(self, thread: SimulatedThread) -> None:
        """Order the operations that the thread has synchronised with before its later ones."""
        told = int(self.clocks.table[thread.row, self.told])
        self.relied[thread] = max(self.relied[thread], told)

    def tell(self, thread: SimulatedThread, clock: Clock) -> None:
        """Put the operations that the thread relies on into a clock."""
        clock[self.told] = max(clock[self.told], self.relied[thread])

    def commit(self, clock: Clock) -> int:
        """Publish all operations so far by a clock; return the number of the newest."""
        self.commits += 1
        self.committed = clock[self.known] = clock[self.told] = self.issued
        return self.issued

    def in_words(self, number: int) -> str:
        """Return an operation for messages."""
        name, site = self.operations[number - 1]
        return f"the {name} of {self.thread.description} (at {site})"

    def missing(self, number: int) -> str:
        """Return the step that is missing before a thread knows that an operation is complete."""
        if number > self.committed:
            return (
                f"no tcgen05_commit of {self.thread.description} covers it yet: execute it after "
                "the last product, and wait for its barrier"
            )
        return (
            "its tcgen05_commit has been issued: wait for the barrier on which that arrives first, "
            "in this thread or in one that synchronises with this thread afterwards"
        )


class MatrixOperation:
    """A product, copy or shift in flight: it reads and writes at one moment, in its turn."""

    def __init__(self, queue: MatrixQueue, execute: Callable[[], None]) -> None:
        self.thread = queue.thread
        self._queue = queue
        self._execute = execute

    def advance(self) -> bool:
        """Execute, if all operations before it have been; return whether it has."""
        if self._queue.pending[0] is not self:
            return False
        self._execute()
        self._queue.pending.popleft()
        self._queue.done += 1
        return True


def queues_of(cta: Cta) -> Iterable[MatrixQueue]:
    """Return the queues of all threads of a cluster that have used one."""
    return cta.cluster[0].matrix_queues.values()


def queue_of(thread: SimulatedThread) -> MatrixQueue:
    """Return the thread's queue, made at its first use."""
    queues = thread.cta.cluster[0].matrix_queues
    if thread not in queues:
        queues[thread] = MatrixQueue(thread)
    return queues[thread]


class MatrixAccesses:
    """The newest operation of each queue that reads, or writes, each part of tensor memory."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._reads: dict[MatrixQueue, Numbers] = {}
        self._writes: dict[MatrixQueue, Numbers] = {}

    def record(
        self, queue: MatrixQueue, number: int, reads: list[Region], writes: list[Region]
    ) -> None:
        """Record the regions of the operation `number` of a queue."""
        for records, regions in ((self._reads, reads), (self._writes, writes)):
            newest = records.setdefault(queue, np.zeros((LANES // HALF_WARP, COLUMNS), np.int32))
            for region in regions:
                newest[halves(region), region.columns] = number

    def check(
        self,
        thread: SimulatedThread,
        region: Region,
        kind: type[SimulatorError],
        done: str,
        but: MatrixQueue | None = None,
    ) -> None:
        """Raise unless the thread may rely on the end of the operations on a region.

        An EarlyRead is checked against writes alone. Operations of the queue `but` are in order.
        """
        for queue, number in self._newest(region, reads=kind is not EarlyRead):
            if queue is not but and number > queue.relied[thread]:
                raise self._error(thread, region, queue, number, kind, done)

    def check_told(self, threads: list[SimulatedThread], region: Region, done: str) -> None:
        """Raise unless `threads` together know that all operations on a region are over."""
        for queue, number in self._newest(region, reads=True):
            table = self._clocks.table
            if all(number > max(queue.relied[t], table[t.row, queue.told]) for t in threads):
                raise self._error(threads[0], region, queue, number, TensorMemoryMisuse, done)

    def forget(self, region: Region) -> None:
        """Drop the records of columns that are free now."""
        for records in (*self._reads.values(), *self._writes.values()):
            records[halves(region), region.columns] = 0

    def check_end(self, cta: Cta, rows: slice) -> None:
        """Raise if the block ended with operations on its memory that none of its threads knows."""
        for queue in {*self._reads, *self._writes}:
            number = max(int(r[queue].max()) for r in (self._reads, self._writes) if queue in r)
            if number > self._clocks.table[rows, queue.known].max():
                raise UnfinishedProduct(
                    f"block {cta.index} ended before {queue.in_words(number)} was known to be "
                    f"complete: {queue.missing(number)}"
                )

    def _newest(self, region: Region, *, reads: bool) -> list[tuple[MatrixQueue, int]]:
        newest: Counter[MatrixQueue] = Counter()
        for records in (self._reads, self._writes) if reads else (self._writes,):
            for queue, numbers in records.items():
                number = int(numbers[halves(region), region.columns].max())
                newest[queue] = max(newest[queue], number)
        return list(newest.items())

    def _error(
        self,
        thread: SimulatedThread,
        region: Region,
        queue: MatrixQueue,
        number: int,
        kind: type[SimulatorError],
        done: str,
    ) -> SimulatorError:
        """Return the error that names the missing step between an operation and a use."""
        known, told = self._clocks.table[thread.row, [queue.known, queue.told]]
        repair = queue.missing(number)
        if min(known, told) >= number:
            kind = MissingFence
            repair = (
                "this thread has waited for it, and must execute "
                "tcgen05_fence_after_thread_sync() after the wait"
            )
        return kind(
            f"{region.describe()}: {done} before {queue.in_words(number)} there is known to be "
            f"over: {repair}"
        )
