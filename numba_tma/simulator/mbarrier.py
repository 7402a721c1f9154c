"""The mbarrier protocol as a plain value: no threads, no memory, no time.

The simulator wraps this value; an exploration of interleavings copies and compares it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from numba_tma.simulator.errors import BarrierMisuse

#: Largest arrival count, and largest transaction count in either direction.
LIMIT = 2**20 - 1


@dataclass(slots=True)
class Mbarrier:
    """An mbarrier: it completes a phase when no arrival is pending and the tx-count is zero."""

    count: int
    pending: int = field(init=False)
    tx: int = field(default=0, init=False)
    phase: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.count <= LIMIT:
            raise BarrierMisuse(f"arrival count is {self.count}; it must be 1 to {LIMIT}")
        self.pending = self.count

    def arrive(self, count: int = 1) -> int:
        """Subtract `count` from the pending arrivals; return the token of their phase."""
        token = self.phase
        if not 1 <= count <= LIMIT:
            raise BarrierMisuse(f"arrive with count {count}; it must be 1 to {LIMIT}")
        if count > self.pending:
            raise BarrierMisuse(
                f"arrive with count {count} in phase {self.phase}, where {self.pending} of "
                f"{self.count} arrivals are pending: more threads arrive than the barrier was "
                "initialised for, or one arrived twice in a phase"
            )
        self.pending -= count
        self._complete_if_done()
        return token

    def arrive_no_complete(self, count: int) -> None:
        """Arrive in a phase that these arrivals do not complete."""
        if count == self.pending and self.tx == 0:
            raise BarrierMisuse(
                f"arrive with noComplete and count {count} in phase {self.phase}, which that "
                "completes: on a GPU the behaviour is undefined. Use the form without noComplete"
            )
        self.arrive(count)

    def drop(self, count: int) -> None:
        """Expect `count` fewer arrivals in later phases; the caller then arrives."""
        if not 1 <= count <= self.count:
            raise BarrierMisuse(
                f"arrive_drop with count {count}; it must be 1 to {self.count}, the arrivals that "
                "the barrier still expects per phase"
            )
        self.count -= count

    def hold(self) -> None:
        """Expect one more arrival in this phase."""
        if self.pending == LIMIT:
            raise BarrierMisuse(f"more than {LIMIT} arrivals would be pending")
        self.pending += 1

    def expect_tx(self, nbytes: int) -> None:
        """Add `nbytes` to the phase's tx-count, without arriving."""
        if nbytes < 0:
            raise BarrierMisuse(f"expect_tx of {nbytes} bytes; it must not be negative")
        self._add_tx(nbytes)

    def complete_tx(self, nbytes: int) -> None:
        """Subtract `nbytes`, which have landed, from the phase's tx-count."""
        if nbytes < 0:
            raise BarrierMisuse(f"complete_tx of {nbytes} bytes; it must not be negative")
        self._add_tx(-nbytes)

    def has_completed(self, token: int) -> bool:
        """Return whether the phase of `token` has completed."""
        if token not in (self.phase, self.phase - 1):
            raise BarrierMisuse(
                f"the token is of phase {token}, the barrier is in phase {self.phase}: only the "
                "current phase and the one before it can be waited for"
            )
        return token < self.phase

    def has_completed_parity(self, parity: int) -> bool:
        """Return whether the latest phase of this parity has completed; initially parity 1 has."""
        if parity not in (0, 1):
            raise BarrierMisuse(f"parity is {parity}; it must be 0 or 1")
        return self.phase & 1 != parity

    def _add_tx(self, nbytes: int) -> None:
        if abs(self.tx + nbytes) > LIMIT:
            raise BarrierMisuse(
                f"the tx-count would become {self.tx + nbytes} bytes; it holds at most {LIMIT} "
                "either way: use more phases or smaller tiles"
            )
        self.tx += nbytes
        self._complete_if_done()

    def _complete_if_done(self) -> None:
        if self.pending == 0 and self.tx == 0:
            self.pending = self.count
            self.phase += 1
