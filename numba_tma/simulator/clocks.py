"""Vector clocks: what each simulated thread knows of the others, of loads and of stores.

A clock has one component per thread and kind, and one per mbarrier:

- epoch of thread t: t's own time; it moves on whenever t publishes something;
- fence of thread t: the newest epoch of t whose generic writes the copy engine can see;
- store of thread t: how many of t's stores are known to have read their source;
- mbarrier b: how many phases of b are known to have completed.

An event is ordered before what thread u does now exactly if u's clock has reached it. Knowledge
moves only where the hardware orders memory: barriers, syncs, arrive -> wait.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Clock = NDArray[np.int32]


def join(one: Clock, other: Clock) -> Clock:
    """Return the knowledge of both; the longer one was taken after columns had been added."""
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    result = long.copy()
    np.maximum(result[: len(short)], short, out=result[: len(short)])
    return result


class Clocks:
    """The clocks of all threads, one row each."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.table = np.zeros((threads, 3 * threads + 16), np.int32)
        np.fill_diagonal(self.table, 1)
        self._columns = 3 * threads

    def new_column(self) -> int:
        """Return the column of a new mbarrier."""
        if self._columns == self.table.shape[1]:
            self.table = np.pad(self.table, ((0, 0), (0, self._columns)))
        self._columns += 1
        return self._columns - 1

    def epoch(self, row: int) -> int:
        """Return the own time of thread `row`."""
        return int(self.table[row, row])

    def epochs(self, row: int) -> Clock:
        """Return the epochs that thread `row` knows of, by thread."""
        return self.table[row, : self.threads]

    def fences(self, row: int) -> Clock:
        """Return the fenced epochs that thread `row` knows of, by thread."""
        return self.table[row, self.threads : 2 * self.threads]

    def stores(self, row: int) -> Clock:
        """Return the numbers of read-out stores that thread `row` knows of, by thread."""
        return self.table[row, 2 * self.threads : 3 * self.threads]

    def publish(self, row: int) -> Clock:
        """Return what thread `row` knows now; what it does next is not part of it."""
        snapshot: Clock = self.table[row].copy()
        self.table[row, row] += 1
        return snapshot

    def started(self, row: int) -> Clock:
        """Return that thread `row` has started, and nothing of what it has done."""
        clock = self.nothing()
        clock[row] = 1
        return clock

    def learn(self, row: int, clock: Clock) -> None:
        """Let thread `row` know what `clock` knows."""
        known = self.table[row, : len(clock)]
        np.maximum(known, clock, out=known)

    def nothing(self) -> Clock:
        """Return a clock that knows nothing."""
        return np.zeros(self.table.shape[1], np.int32)

    def fence(self, row: int) -> None:
        """Let the copy engine see what thread `row` has written so far."""
        self.table[row, self.threads + row] = self.table[row, row]
        self.table[row, row] += 1
