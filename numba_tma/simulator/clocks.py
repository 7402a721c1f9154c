"""Vector clocks: for each thread, the accesses, loads and stores that are ordered before it.

A clock has one component per thread and kind, and one per mbarrier:

- epoch of thread t: t's own time, which advances whenever t publishes;
- fence of thread t: the newest epoch of t whose generic writes are visible to the copy engine;
- store of thread t: the number of t's stores known to have read their source;
- mbarrier b: the number of phases of b known to have completed;
- copy of thread t: the number of t's cp.async copies known to be complete;
- fenced copy of thread t: the number of these copies visible to the copy engine;
- release of thread t: the newest epoch of t that a release at cluster scope has published.

The copies exist once a kernel has used cp.async, the releases in clusters. Tensor memory has its
own components.

An event is ordered before the current step of thread u if and only if u's clock has reached it.
Clocks are joined only where the hardware orders memory: barriers, syncs, arrive -> wait.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Clock = NDArray[np.int32]


def join(one: Clock, other: Clock) -> Clock:
    """Return the maximum of both; the longer clock was copied after columns were added."""
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    result = long.copy()
    np.maximum(result[: len(short)], short, out=result[: len(short)])
    return result


class Clocks:
    """The clocks of all threads, one row each."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        # The last row belongs to no thread: `together` writes it.
        self.table = np.zeros((threads + 1, 3 * threads + 16), np.int32)
        np.fill_diagonal(self.table[:threads], 1)
        self._columns = 3 * threads
        self._copies: int | None = None
        self._releases: int | None = None

    def new_column(self) -> int:
        """Return the column of a new mbarrier."""
        return self.new_columns(1)

    def new_columns(self, count: int) -> int:
        """Return the first of `count` new columns, whose meaning the caller defines."""
        first = self._columns
        self._columns += count
        missing = self._columns - self.table.shape[1]
        if missing > 0:
            self.table = np.pad(self.table, ((0, 0), (0, max(missing, first))))
        return first

    @property
    def copies(self) -> int:
        """Return the column of the first thread's cp.async copies; the others' follow."""
        if self._copies is None:
            self._copies = self.new_columns(2 * self.threads)
        return self._copies

    @property
    def fenced_copies(self) -> int:
        """Return the column of the first thread's fenced copies; the others' follow."""
        return self.copies + self.threads

    def track_releases(self) -> None:
        """Tell releases at cluster scope from those at block scope."""
        self._releases = self.new_columns(self.threads)

    def release_to_cluster(self, row: int) -> None:
        """Let what is ordered before thread `row` be published to other blocks, too."""
        if self._releases is not None:
            known = self.table[row]
            released = known[self._releases : self._releases + self.threads]
            np.maximum(released, known[: self.threads], out=released)

    def released(self, row: int, other: int) -> int:
        """Return the newest epoch of thread `other` that was released to the block of `row`."""
        column = other if self._releases is None else self._releases + other
        return self.table.item(row, column)

    def epoch(self, row: int) -> int:
        """Return the own time of thread `row`."""
        return self.table.item(row, row)

    def epochs(self, row: int) -> Clock:
        """Return the epochs that are ordered before thread `row`, by thread."""
        return self.table[row, : self.threads]

    def fences(self, row: int) -> Clock:
        """Return the fenced epochs that are ordered before thread `row`, by thread."""
        return self.table[row, self.threads : 2 * self.threads]

    def stores(self, row: int) -> Clock:
        """Return the numbers of stores whose reads are ordered before thread `row`, by thread."""
        return self.table[row, 2 * self.threads : 3 * self.threads]

    def publish(self, row: int) -> Clock:
        """Return a copy of the clock of thread `row`, and begin a new epoch of the thread."""
        snapshot: Clock = self.table[row].copy()
        self.begin_epoch(row)
        return snapshot

    def begin_epoch(self, row: int) -> None:
        """Begin a new epoch of thread `row`, whose clock has been published."""
        self.table[row, row] += 1

    def waited_for(self, row: int) -> Clock:
        """Return a copy of the clock of thread `row` without the thread's own accesses."""
        clock: Clock = self.table[row].copy()
        clock[row] = clock[self.threads + row] = 0
        return clock

    def started(self, row: int) -> Clock:
        """Return a clock that has reached the start of thread `row`, and nothing else."""
        clock = self.nothing()
        clock[row] = 1
        return clock

    def learn(self, row: int, clock: Clock) -> None:
        """Order everything that `clock` has seen before thread `row`."""
        known = self.table[row, : len(clock)]
        np.maximum(known, clock, out=known)

    def meet(self, rows: list[int], clock: Clock | None) -> None:
        """Order what is ordered before any of these threads before all, and begin new epochs."""
        first, last = min(rows), max(rows)
        some = slice(first, last + 1) if last - first < len(rows) else np.array(rows)
        seen = self.table[some].max(axis=0)
        if clock is not None:
            np.maximum(seen[: len(clock)], clock, out=seen[: len(clock)])
        self.table[some] = seen
        self.table[rows, rows] += 1

    def together(self, rows: slice) -> int:
        """Return a row, valid until the next call, of what is ordered before all of `rows`."""
        np.min(self.table[rows], axis=0, out=self.table[self.threads])
        return self.threads

    def nothing(self) -> Clock:
        """Return a clock that no event is ordered before."""
        return np.zeros(self.table.shape[1], np.int32)

    def fence(self, row: int) -> None:
        """Order the writes of thread `row`, and copies before it, before the copy engine."""
        known = self.table[row]
        known[self.threads + row] = known[row]
        known[row] += 1
        if self._copies is not None:
            seen, fenced = (known[c : c + self.threads] for c in (self.copies, self.fenced_copies))
            np.maximum(fenced, seen, out=fenced)
