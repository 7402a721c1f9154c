"""The mbarrier instructions, executed for the calling simulated thread."""

from __future__ import annotations

from collections.abc import Callable

from . import trace
from .barriers import Barrier, MbarrierWait
from .block import Cta
from .errors import BarrierMisuse
from .thread import SimulatedThread, current


def mbarrier_init(addr: int, count: int) -> None:
    """Make an mbarrier that waits for `count` arrivals per phase."""
    thread, address = current(), int(addr)
    cta = thread.cta
    name = cta.memory.label(address) or f"mbarrier at {address}"
    if address % 8:
        raise BarrierMisuse(f"{name}: an mbarrier address must be a multiple of 8")
    cta.memory.check_range(name, address, 8)
    if address in cta.barriers:
        raise BarrierMisuse(
            f"{name}: mbarrier_init of a live mbarrier; mbarrier_inval it first (and let one "
            "thread alone initialise it)"
        )
    try:
        barrier = Barrier(address, int(count), thread, cta.tracked_clocks())
    except BarrierMisuse as error:
        raise BarrierMisuse(f"{name}: {error}") from None
    cta.barriers[address] = barrier
    cta.scheduler.event()
    cta.scheduler.point()


def mbarrier_inval(addr: int) -> None:
    """End the life of an mbarrier, so that its memory can serve again."""
    thread, address = current(), int(addr)
    cta = thread.cta
    barrier = cta.barrier_at(thread, address)
    if barrier.under_way:
        raise BarrierMisuse(f"{barrier.name}: mbarrier_inval while loads that complete on it run")
    for other in cta.threads:
        if isinstance(other.wait, MbarrierWait) and other.wait.barrier is barrier:
            raise BarrierMisuse(
                f"{barrier.name}: mbarrier_inval while {other.description} waits for it"
            )
    cta.retired_barriers.append(cta.barriers.pop(address))
    cta.scheduler.event()
    cta.scheduler.point()


def mbarrier_arrive(addr: int, count: int = 1) -> int:
    """Arrive; return the token of the phase. Orders what this thread did before its waiters."""
    return _arrive(addr, count, None)


def mbarrier_arrive_expect_tx(addr: int, nbytes: int) -> int:
    """Arm the current phase with `nbytes` more, then arrive once; return the token."""
    return _arrive(addr, 1, int(nbytes))


def mbarrier_expect_tx(addr: int, nbytes: int) -> None:
    """Arm the current phase with `nbytes` more, without arriving."""
    thread = current()
    barrier = thread.cta.barrier_at(thread, int(addr))
    _change(thread, barrier, lambda: _expect(barrier, int(nbytes)))
    thread.cta.scheduler.point()


def mbarrier_try_wait(addr: int, token: int) -> bool:
    """Wait for the phase of `token` for a while; return whether it has completed."""
    return _wait_token(addr, token, poll=False)


def mbarrier_test_wait(addr: int, token: int) -> bool:
    """Return whether the phase of `token` has completed."""
    return _wait_token(addr, token, poll=True)


def mbarrier_try_wait_parity(addr: int, parity: int) -> bool:
    """Wait for the phase of this parity for a while; return whether it has completed."""
    return _wait_parity(addr, parity, poll=False)


def mbarrier_test_wait_parity(addr: int, parity: int) -> bool:
    """Return whether the phase of this parity has completed."""
    return _wait_parity(addr, parity, poll=True)


def _change(thread: SimulatedThread, barrier: Barrier, change: Callable[[], None]) -> None:
    """Apply `change` to the barrier's model; name the barrier in its errors."""
    before = barrier.model.phase
    try:
        change()
    except BarrierMisuse as error:
        raise BarrierMisuse(f"{barrier.name}: {error}") from None
    thread.cta.barrier_changed(thread, barrier, barrier.settle(before))


def _expect(barrier: Barrier, nbytes: int) -> None:
    barrier.armed += nbytes
    barrier.model.expect_tx(nbytes)


def _arrive(addr: int, count: int, nbytes: int | None) -> int:
    thread = current()
    cta = thread.cta
    barrier = cta.barrier_at(thread, int(addr))
    token = barrier.token(barrier.model.phase)
    barrier.publish(thread)

    def change() -> None:
        if nbytes is not None:
            _expect(barrier, nbytes)
        barrier.model.arrive(int(count))

    kind = "release" if trace.role(barrier.name) == "empty" else "arrive"
    cta.emit(thread, kind, barrier.name, nbytes or 0)
    _change(thread, barrier, change)
    cta.scheduler.point()
    return token


def _wait_token(addr: int, token: int, *, poll: bool) -> bool:
    thread = current()
    barrier = thread.cta.barrier_at(thread, int(addr))
    phase = barrier.phase_of(int(token))
    return _wait(
        thread, barrier, lambda: barrier.model.has_completed(phase), f"phase {phase}", poll
    )


def _wait_parity(addr: int, parity: int, *, poll: bool) -> bool:
    thread = current()
    barrier = thread.cta.barrier_at(thread, int(addr))
    wanted = int(parity)
    return _wait(
        thread,
        barrier,
        lambda: barrier.model.has_completed_parity(wanted),
        f"a phase of parity {wanted}",
        poll,
    )


def _wait(
    thread: SimulatedThread, barrier: Barrier, done: Callable[[], bool], wanted: str, poll: bool
) -> bool:
    cta: Cta = thread.cta
    scheduler = cta.scheduler
    failed = thread.failed_polls
    since = failed.get(barrier.address, barrier.model.phase)
    # A poll that has failed before has nothing new to see until the phase completes; going round
    # at once would only spin.
    if _checked(barrier, done) or (poll and barrier.address not in failed):
        scheduler.point()
    else:
        scheduler.park(MbarrierWait(barrier, wanted, since))
    # What holds now counts: a waiter that is slow to look again can miss a phase, as on a GPU.
    if not _checked(barrier, done):
        failed[barrier.address] = since
        return False
    failed.pop(barrier.address, None)
    if barrier.observe(thread):
        scheduler.event()
        cta.emit(thread, "wait", barrier.name)
    return True


def _checked(barrier: Barrier, done: Callable[[], bool]) -> bool:
    try:
        return done()
    except BarrierMisuse as error:
        raise BarrierMisuse(f"{barrier.name}: {error}") from None
