"""An mbarrier in a block's shared memory: the protocol, its waiters, and the order it creates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from numba_tma.simulator.clocks import Clock, Clocks, join
from numba_tma.simulator.errors import BarrierMisuse, WrongByteCount
from numba_tma.simulator.mbarrier import Mbarrier
from numba_tma.simulator.trace import role

if TYPE_CHECKING:
    from numba_tma.simulator.copies import Load
    from numba_tma.simulator.thread import SimulatedThread

#: A token's bits: the barrier's address, the pending arrivals above it, the phase above both.
ADDRESS_BITS = 18
PENDING_BITS = 20


class TrackedBarrier:
    """One live mbarrier. `column` is its component in the vector clocks."""

    def __init__(self, address: int, count: int, thread: SimulatedThread, clocks: Clocks) -> None:
        self.address = address
        self.cta = thread.cta
        self.model = Mbarrier(count)
        self.clocks = clocks
        self.column = clocks.new_column()
        self.initialised_by = thread
        self.initialised_at = clocks.epoch(thread.row)
        self.fenced_at: int | None = None
        #: Bytes armed and bytes of loads issued in the current phase.
        self.armed = 0
        self.issued = 0
        self.under_way: list[Load] = []
        #: Loads whose completion no thread has observed.
        self.unobserved: list[Load] = []
        #: By thread: its arrivals, and its waits that have ended.
        self.arrived: Counter[SimulatedThread] = Counter()
        self.waited: Counter[SimulatedThread] = Counter()
        #: The clocks of this phase's arrivals and loads; those of all completed phases.
        self._arriving = clocks.nothing()
        self._released = clocks.nothing()

    @property
    def place(self) -> tuple[int, int]:
        """Return the block's rank and the address there."""
        return self.cta.rank, self.address

    @property
    def name(self) -> str:
        """Return the barrier's label, or its address."""
        return self.cta.memory.label(self.address) or f"mbarrier at {self.address}"

    def check_visible(self, thread: SimulatedThread) -> None:
        """Raise unless the initialisation is ordered before the current step of `thread`."""
        known = self.clocks.table[thread.row, self.initialised_by.row]
        if known < self.initialised_at:
            raise BarrierMisuse(
                f"{self.name} is used by a thread that has not synchronised with its "
                f"mbarrier_init by {self.initialised_by.description}: put a "
                f"{'syncthreads' if thread.cta is self.cta else 'cluster_sync()'} between"
            )

    def publish(self, clock: Clock) -> None:
        """Order everything that `clock` has seen before the waiters of the current phase."""
        if len(self._arriving) == len(clock):
            np.maximum(self._arriving, clock, out=self._arriving)
        else:
            self._arriving = join(self._arriving, clock)

    def issue(self, load: Load) -> None:
        """Count a load that completes on the current phase."""
        self.issued += load.tx_bytes
        self.under_way.append(load)
        self.unobserved.append(load)

    def land(self, load: Load) -> bool:
        """Complete the bytes of `load`; return whether that completed the phase."""
        self.under_way.remove(load)
        self.publish(load.clock)
        before = self.model.phase
        self.model.complete_tx(load.tx_bytes)
        return self.settle(before)

    def settle(self, before: int) -> bool:
        """Return whether the phase has moved on from `before`, after waking the waiters."""
        model = self.model
        if model.phase == before:
            if model.pending == 0 and model.tx < 0:
                raise WrongByteCount(
                    f"{self.name}, phase {before}: the loads bring {-model.tx} bytes more than "
                    f"the phase expects ({self.armed} expected, {self.issued} issued): expect "
                    "the bytes of every tile that completes on it"
                )
            return False
        if self.under_way:
            missing = sum(load.tx_bytes for load in self.under_way)
            raise WrongByteCount(
                f"{self.name}: phase {before} completed while {missing} bytes of its loads are "
                f"still under way ({self.armed} expected, {self.issued} issued): expect the "
                "bytes of every tile that completes on it, before or with the last arrival"
            )
        self._released = join(self._released, self._arriving)
        self._released[self.column] = self.model.phase
        self._arriving = self.clocks.nothing()
        self.armed = self.issued = 0
        return True

    def token(self) -> int:
        """Return the opaque state that an arrive returns now."""
        model = self.model
        return (model.phase << PENDING_BITS | model.pending) << ADDRESS_BITS | self.address

    def phase_of(self, token: int) -> int:
        """Return the phase of a token of this barrier."""
        if token & ((1 << ADDRESS_BITS) - 1) != self.address:
            raise BarrierMisuse(f"{self.name}: the token {token} was not returned by this barrier")
        return token >> ADDRESS_BITS + PENDING_BITS

    def observe(self, thread: SimulatedThread, *, relaxed: bool) -> bool:
        """Order the completed phases before `thread`; return whether that orders anything new.

        After a relaxed wait, only a fence orders them.
        """
        phase = self.model.phase
        new = int(self.clocks.table[thread.row, self.column]) < phase
        if new:
            self.unobserved = [load for load in self.unobserved if load.phase >= phase]
            if relaxed:
                thread.seen = (
                    self._released if thread.seen is None else join(thread.seen, self._released)
                )
            else:
                self.clocks.learn(thread.row, self._released)
        return new

    def status(self) -> str:
        """Return the barrier's pending arrivals and bytes as text."""
        model = self.model
        where = f" of block {self.cta.index}" if len(self.cta.cluster) > 1 else ""
        text = (
            f"{self.name}{where} is in phase {model.phase} (parity {model.phase & 1}): "
            f"{model.pending} of {model.count} arrivals pending, "
        )
        if model.tx >= 0:
            text += f"{model.tx} bytes missing"
        else:
            text += f"{-model.tx} bytes too many"
        if self.armed or self.issued:
            text += f" ({self.armed} expected, {self.issued} issued)"
            if role(self.name) == "full" and 0 < self.issued < self.armed:
                text += ": the producer loads every tile of the pipeline into every stage"
        return text


def check_over_none(
    barriers: Mapping[int, TrackedBarrier], what: str, address: int, nbytes: int
) -> None:
    """Raise if a write to these bytes of a block would overwrite one of its live mbarriers."""
    places = range(address & ~7, address + nbytes, 8)
    few = len(places) < len(barriers)  # either may be the smaller: an element, or a tile
    for start in (
        filter(barriers.__contains__, places) if few else filter(places.__contains__, barriers)
    ):
        raise BarrierMisuse(
            f"{what}: bytes {address} to {address + nbytes - 1} lie over {barriers[start].name}, a "
            f"live mbarrier at {start}: its arrivals would be lost, and its waiters hang or go on "
            "early. Give it memory of its own, or mbarrier_inval it before its memory is reused"
        )


class MbarrierWait:
    """A thread waits for a phase of an mbarrier; the hardware's wait has a time limit."""

    range_kind = "awaited"  #: in a trace

    def __init__(self, barrier: TrackedBarrier, wanted: str, since: int) -> None:
        self.barrier = barrier
        self.wanted = wanted
        #: The phase in which the thread's first failed poll was.
        self.since = since

    @property
    def range_name(self) -> str:
        """Return the barrier's name."""
        return self.barrier.name

    def headline(self) -> str:
        """Return the wait's line of a deadlock report."""
        text = f"{self.barrier.status()}; {self.wanted} wanted"
        passed = self.barrier.model.phase - self.since
        if passed > 1:
            text += f" since phase {self.since}, but {passed} phases went by before it looked again"
        return text
