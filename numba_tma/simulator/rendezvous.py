"""Meetings of threads: syncthreads, named barriers, warp-wide operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from numba_tma.simulator.clocks import Clock, join
from numba_tma.simulator.copies import Places

if TYPE_CHECKING:
    from numba_tma.simulator.thread import SimulatedThread


@functools.cache
def title_in_warp(name: str, warp: int, mask: int) -> str:
    """Return the name of a meeting of lanes, which every lane asks for."""
    return f"{name} of warp {warp} with mask {mask:#010x}"


class Rendezvous:
    """Threads arrive, each with a value; once `needed` have arrived, all that wait go on."""

    def __init__(
        self, key: Hashable, name: str, needed: Callable[[], int], turn: int
    ) -> None:
        self.key: Any = key
        self.name = name
        #: The number of earlier meetings of this kind.
        self.turn = turn
        self._needed = needed
        #: How many threads have to arrive; fewer when some have ended.
        self.needed = needed()
        self.values: dict[SimulatedThread, object] = {}
        self.waiting: list[SimulatedThread] = []
        #: By warp: the calls that led the first of its lanes here.
        self.places: dict[int, Places] = {}
        #: Of the threads that wait, if the meeting orders memory: their rows in the clocks.
        self.rows: list[int] = []
        #: What is ordered before the arrivals of threads that have gone on.
        self.clock: Clock | None = None
        self._outcome: Any = None

    @property
    def range_kind(self) -> str:
        """Return the kind of the wait in a trace: of a block or a cluster, and of no warp."""
        if self.key == "cluster":
            return "cluster"
        return "met" if self.key[0] == "barrier" else ""

    @property
    def range_name(self) -> str:
        """Return the name of the meeting."""
        return self.name

    def learn_of(self, known: Clock | None) -> None:
        """Order what `known` has seen before the threads that wait."""
        if known is not None:
            self.clock = known if self.clock is None else join(self.clock, known)

    @property
    def complete(self) -> bool:
        """Return whether all members have arrived."""
        return len(self.values) >= self.needed

    def count_again(self) -> bool:
        """Count the threads that have to arrive, of which one has ended; return `complete`."""
        self.needed = self._needed()
        return self.complete

    def learn(self, thread: SimulatedThread) -> None:
        """Order everything before the arrivals before `thread`."""
        clocks = thread.cta.clocks
        if self.clock is not None and clocks is not None:
            clocks.learn(thread.row, self.clock)

    def once(self, compute: Callable[[], Any]) -> Any:
        """Return the value that the first member computed for all."""
        if self._outcome is None:
            self._outcome = compute()
        return self._outcome

    def headline(self) -> str:
        """Return the meeting's line of a deadlock report."""
        return f"{self.name}: {len(self.values)} of {self.needed} threads have arrived; waiting"
