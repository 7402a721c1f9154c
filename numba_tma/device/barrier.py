"""`Barrier`: an mbarrier as an object, with the wait loop that PTX leaves to its users."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma import simulator
from numba_tma.backend.interface import device_class, device_function, u32
from numba_tma.device.waiting import wait_for
from numba_tma.host.debug import Site
from numba_tma.ptx import (
    cluster_ctarank,
    mapa,
    mbarrier_arrive,
    mbarrier_arrive_drop,
    mbarrier_arrive_expect_tx,
    mbarrier_complete_tx,
    mbarrier_complete_tx_remote,
    mbarrier_expect_tx,
    mbarrier_init,
    mbarrier_inval,
    mbarrier_pending_count,
    mbarrier_test_wait_parity,
    mbarrier_try_wait_parity,
)
from numba_tma.ptx._instruction import BarrierAddress, address

WAIT = Site("Barrier.wait")  # a barrier outside of a pipeline has no stage and no expected bytes


@device_class(static=("ledger",))
@dataclass(frozen=True)
class Barrier:
    """An mbarrier, known by its shared-memory address.

    A phase completes when all arrivals have been made and all expected bytes have arrived. The
    barrier then starts its next phase. Waits name the phase by its parity: 0 for the first, 1 for
    the second, 0 for the third. On a fresh barrier a wait for parity 1 passes at once.
    """

    address: u32
    #: In debug mode, how many bytes after the barrier its ledger lies: a 32-bit sum of the bytes
    #: that copies onto it have issued. 0: no ledger is kept.
    ledger: int = 0
    shared_kind = "barrier"

    def init(self, count: int) -> None:
        """Set the arrivals that a phase needs. By one thread, then `fence_mbarrier_init`."""
        mbarrier_init(self, count)

    def inval(self) -> None:
        """Invalidate the barrier, so that its memory can be reused. Executed by one thread."""
        mbarrier_inval(self)

    def arrive(self, count: int | None = None) -> int:
        """Arrive once, or `count` times; return the phase's state.

        Executed by each arriving thread, with release semantics at block scope (PTX
        mbarrier.arrive).
        """
        return mbarrier_arrive(self, count)

    def arrive_drop(self, count: int | None = None) -> int:
        """Arrive once, or `count` times, and lower the count of later phases by as many.

        Returns the phase's state. Executed by a thread that leaves, with release semantics at block
        scope (mbarrier.arrive_drop).
        """
        return mbarrier_arrive_drop(self, count)

    def arrive_expect_tx(self, tx_bytes: int) -> int:
        """Expect `tx_bytes` more bytes in this phase and arrive once; return the phase's state.

        Executed by one thread, with release semantics at block scope (mbarrier.arrive.expect_tx).
        """
        return mbarrier_arrive_expect_tx(self, tx_bytes)

    def expect_tx(self, tx_bytes: int) -> None:
        """Expect `tx_bytes` more bytes in this phase. It does not arrive and orders nothing."""
        mbarrier_expect_tx(self, tx_bytes)

    def complete_tx(self, tx_bytes: int) -> None:
        """Count `tx_bytes` of this phase as copied: those of a load that is skipped.

        It does not arrive and orders nothing (PTX mbarrier.complete_tx).
        """
        mbarrier_complete_tx(self, tx_bytes)

    def pending_count(self, state: int) -> int:
        """Return how many arrivals the phase lacked before the one that returned `state`."""
        return mbarrier_pending_count(state)

    def try_wait(self, parity: int) -> bool:
        """Return whether the phase of `parity` completed, after waiting a limited time.

        Executed by any thread; acquire semantics at block scope when True (mbarrier.try_wait).
        """
        return mbarrier_try_wait_parity(self, parity)

    def test_wait(self, parity: int) -> bool:
        """Return whether the phase of `parity` completed, without waiting.

        Executed by any thread; acquire semantics at block scope when True (mbarrier.test_wait).
        """
        return mbarrier_test_wait_parity(self, parity)

    def wait(self, parity: int) -> None:
        """Wait until the phase of `parity` has completed, with acquire semantics at block scope.

        Executed by any thread: a loop over mbarrier.try_wait, which ends in debug mode.
        """
        wait_for(self, parity, WAIT)


@device_class(static=("num_barriers",))
@dataclass(frozen=True)
class BarrierArray:
    """`num_barriers` mbarriers one after another: ``barriers[i]`` is a `Barrier`."""

    num_barriers: int
    address: u32

    def __getitem__(self, index: int) -> Barrier:
        if not 0 <= index < self.num_barriers:
            raise simulator.BadOperand(
                f"barriers[{index}]: the array has the barriers 0 to {self.num_barriers - 1}"
            )
        return Barrier(self.address + 8 * index)

    def init(self, count: int) -> None:
        """Set the arrivals that a phase of each of them needs; see `Barrier.init`."""
        for index in range(self.num_barriers):
            mbarrier_init(self.address + 8 * index, count)

    def inval(self) -> None:
        """Invalidate the barriers, so that their memory can be reused. Executed by one thread."""
        for index in range(self.num_barriers):
            mbarrier_inval(self.address + 8 * index)


@device_class(static=("ledger",))
@dataclass(frozen=True)
class PairBarrier(Barrier):
    """The full barrier of a CTA pair's stage, on which the loads of both blocks count.

    The barrier is in the even block. `address` is its offset, an address of this block. The methods
    ``load(..., cta_group=2)`` of maps and `complete_tx` find the even block's.
    """

    def complete_tx(self, nbytes: int) -> None:
        """Count `nbytes` on the even block's barrier, in place of a load that was left out."""
        mbarrier_complete_tx_remote(mapa(self, leader_rank()), nbytes)


@device_function
def leader_rank() -> int:
    """Return the rank of the even block of this block's CTA pair."""
    return u32(cluster_ctarank() & u32(0xFFFFFFFE))


def pair_barrier(barrier: BarrierAddress) -> int:
    """Return the address of a barrier in the even block of this block's CTA pair (simulator)."""
    return mapa(address(barrier), leader_rank())
