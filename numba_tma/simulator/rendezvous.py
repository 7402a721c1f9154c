"""Meetings of threads: syncthreads, named barriers, warp-wide operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from numba_tma.simulator.clocks import Clock, join

if TYPE_CHECKING:
    from numba_tma.simulator.thread import SimulatedThread


class Rendezvous:
    """Threads arrive, each with a value; once `needed()` have arrived, all that wait go on."""

    def __init__(self, name: str, needed: Callable[[], int], turn: int) -> None:
        self.name = name
        #: The number of earlier meetings of this kind.
        self.turn = turn
        self.needed = needed
        self.values: dict[SimulatedThread, object] = {}
        self.waiting: list[SimulatedThread] = []
        self._clock: Clock | None = None
        self._outcome: Any = None

    def arrive(self, thread: SimulatedThread, value: object, known: Clock | None) -> None:
        """Add `thread`, and if the meeting orders memory a copy of its clock, which this keeps."""
        self.values[thread] = value
        if known is not None:
            mine = self._clock
            if mine is None or len(mine) != len(known):
                self._clock = known if mine is None else join(mine, known)
            else:
                np.maximum(mine, known, out=mine)

    @property
    def complete(self) -> bool:
        """Return whether all members have arrived."""
        return len(self.values) >= self.needed()

    def learn(self, thread: SimulatedThread) -> None:
        """Order everything before the arrivals before `thread`."""
        clocks = thread.cta.clocks
        if self._clock is not None and clocks is not None:
            clocks.learn(thread.row, self._clock)

    def once(self, compute: Callable[[], Any]) -> Any:
        """Return the value that the first member computed for all."""
        if self._outcome is None:
            self._outcome = compute()
        return self._outcome

    def headline(self) -> str:
        """Return the meeting's line of a deadlock report."""
        return f"{self.name}: {len(self.values)} of {self.needed()} threads have arrived; waiting"
