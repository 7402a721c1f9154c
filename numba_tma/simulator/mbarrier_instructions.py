"""The mbarrier instructions, executed for the calling simulated thread."""

from __future__ import annotations

from collections.abc import Callable

from numba_tma.simulator import trace
from numba_tma.simulator.barriers import ADDRESS_BITS, PENDING_BITS, MbarrierWait, TrackedBarrier
from numba_tma.simulator.block import Cta
from numba_tma.simulator.cluster import resolve
from numba_tma.simulator.errors import BarrierMisuse
from numba_tma.simulator.protocol import Arrive, CountBytes, Init, Inval, Wait
from numba_tma.simulator.thread import SimulatedThread, current


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
        barrier = TrackedBarrier(address, int(count), thread, cta.tracked_clocks())
    except BarrierMisuse as error:
        raise BarrierMisuse(f"{name}: {error}") from None
    cta.barriers[address] = barrier
    thread.note(Init, barrier.place, barrier.model.count)
    cta.scheduler.event()
    cta.scheduler.point()


def mbarrier_inval(addr: int) -> None:
    """End the life of an mbarrier, so that its memory can be reused."""
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
    thread.note(Inval, barrier.place)
    cta.retired_barriers.append(cta.barriers.pop(address))
    cta.scheduler.event()
    cta.scheduler.point()


def mbarrier_arrive(addr: int, count: int | None = None, semantics: str | None = None) -> int:
    """Arrive; return the token of the phase. Orders this thread's accesses before its waiters."""
    return _arrive(current().cta, addr, count, semantics)


def mbarrier_arrive_no_complete(addr: int, count: int) -> int:
    """Arrive in a phase that this arrival does not complete; return its token."""
    return _arrive(current().cta, addr, count, no_complete=True)


def mbarrier_arrive_expect_tx(addr: int, nbytes: int, semantics: str | None = None) -> int:
    """Arm the current phase with `nbytes` more, then arrive once; return the token."""
    return _arrive(current().cta, addr, 1, semantics, nbytes=int(nbytes))


def mbarrier_arrive_drop(addr: int, count: int | None = None, semantics: str | None = None) -> int:
    """Arrive, and expect as many fewer arrivals in later phases; return the token."""
    return _arrive(current().cta, addr, count, semantics, drop=True)


def mbarrier_arrive_drop_no_complete(addr: int, count: int) -> int:
    """Arrive without completing this phase, expect fewer arrivals later; return the token."""
    return _arrive(current().cta, addr, count, drop=True, no_complete=True)


def mbarrier_arrive_drop_expect_tx(addr: int, nbytes: int, semantics: str | None = None) -> int:
    """Arm the current phase with `nbytes` more, arrive once and drop out; return the token."""
    return _arrive(current().cta, addr, 1, semantics, nbytes=int(nbytes), drop=True)


def mbarrier_arrive_remote(
    addr: int, count: int | None = None, semantics: str | None = None
) -> None:
    """Arrive at a barrier of a block of the cluster."""
    _arrive(*resolve(addr), count, semantics)


def mbarrier_arrive_expect_tx_remote(addr: int, nbytes: int, semantics: str | None = None) -> None:
    """Arm the current phase of a barrier of the cluster with `nbytes` more, and arrive once."""
    _arrive(*resolve(addr), 1, semantics, nbytes=int(nbytes))


def mbarrier_arrive_drop_remote(
    addr: int, count: int | None = None, semantics: str | None = None
) -> None:
    """Arrive at a barrier of the cluster, which expects fewer arrivals in later phases."""
    _arrive(*resolve(addr), count, semantics, drop=True)


def mbarrier_arrive_drop_expect_tx_remote(
    addr: int, nbytes: int, semantics: str | None = None
) -> None:
    """Arm a barrier of the cluster with `nbytes` more, arrive once and drop out."""
    _arrive(*resolve(addr), 1, semantics, nbytes=int(nbytes), drop=True)


def mbarrier_expect_tx(addr: int, nbytes: int) -> None:
    """Arm the current phase with `nbytes` more, without arriving."""
    _count_bytes(current().cta, addr, nbytes, _expect)


def mbarrier_expect_tx_remote(addr: int, nbytes: int) -> None:
    """Arm the current phase of a barrier of the cluster with `nbytes` more."""
    _count_bytes(*resolve(addr), nbytes, _expect)


def mbarrier_complete_tx(addr: int, nbytes: int) -> None:
    """Complete `nbytes` of the current phase without a copy."""
    _count_bytes(current().cta, addr, nbytes, _complete)


def mbarrier_complete_tx_remote(addr: int, nbytes: int) -> None:
    """Complete `nbytes` of the current phase of a barrier of the cluster without a copy."""
    _count_bytes(*resolve(addr), nbytes, _complete)


def mbarrier_try_wait(addr: int, token: int, semantics: str | None = None) -> bool:
    """Wait for the phase of `token` for a while; return whether it has completed."""
    return _wait_token(addr, token, semantics, poll=False)


def mbarrier_test_wait(addr: int, token: int, semantics: str | None = None) -> bool:
    """Return whether the phase of `token` has completed."""
    return _wait_token(addr, token, semantics, poll=True)


def mbarrier_try_wait_parity(addr: int, parity: int, semantics: str | None = None) -> bool:
    """Wait for the phase of this parity for a while; return whether it has completed."""
    return _wait_parity(addr, parity, semantics, poll=False)


def mbarrier_test_wait_parity(addr: int, parity: int, semantics: str | None = None) -> bool:
    """Return whether the phase of this parity has completed."""
    return _wait_parity(addr, parity, semantics, poll=True)


def mbarrier_pending_count(token: int) -> int:
    """Return the pending arrivals that a token holds."""
    current()
    return int(token) >> ADDRESS_BITS & (1 << PENDING_BITS) - 1


def fence_acq_rel() -> None:
    """Acquire for the relaxed waits before, and release for the relaxed arrivals after."""
    thread = current()
    clocks = thread.cta.tracked_clocks()
    if thread.seen is not None:
        clocks.learn(thread.row, thread.seen)
        thread.seen = None
    clocks.release_to_cluster(thread.row)
    thread.fenced = clocks.publish(thread.row)
    thread.cta.scheduler.point()


def change(
    thread: SimulatedThread, cta: Cta, barrier: TrackedBarrier, step: Callable[[], object]
) -> None:
    """Apply `step` to the model of a barrier in `cta`; name the barrier in its errors."""
    before = barrier.model.phase
    try:
        step()
    except BarrierMisuse as error:
        raise BarrierMisuse(f"{barrier.name}: {error}{_by_one_thread(barrier, error)}") from None
    cta.barrier_changed(thread, barrier, barrier.settle(before))


def _expect(barrier: TrackedBarrier, nbytes: int) -> None:
    barrier.armed += nbytes
    barrier.model.expect_tx(nbytes)


def _complete(barrier: TrackedBarrier, nbytes: int) -> None:
    barrier.issued += nbytes
    barrier.model.complete_tx(nbytes)


def _count_bytes(
    cta: Cta, addr: int, nbytes: int, count: Callable[[TrackedBarrier, int], None]
) -> None:
    thread = current()
    barrier = cta.barrier_at(thread, int(addr))
    sign = -1 if count is _complete else 1
    thread.note(CountBytes, barrier.place, sign * int(nbytes))
    change(thread, cta, barrier, lambda: count(barrier, int(nbytes)))
    thread.cta.scheduler.point()


def _arrive(
    cta: Cta,
    addr: int,
    count: int | None,
    semantics: str | None = None,
    *,
    nbytes: int | None = None,
    drop: bool = False,
    no_complete: bool = False,
) -> int:
    thread = current()
    barrier = cta.barrier_at(thread, int(addr))
    arrivals = 1 if count is None else int(count)
    token = barrier.token()
    if not _is_relaxed(semantics):
        if semantics is not None and semantics.endswith("cluster"):
            barrier.clocks.release_to_cluster(thread.row)
        barrier.publish(barrier.clocks.table[thread.row])
        barrier.clocks.begin_epoch(thread.row)
    elif thread.fenced is not None:
        barrier.publish(thread.fenced)

    def step() -> None:
        if nbytes is not None:
            _expect(barrier, nbytes)
        if drop:
            barrier.model.drop(arrivals)
        if no_complete:
            barrier.model.arrive_no_complete(arrivals)
        else:
            barrier.model.arrive(arrivals)

    barrier.arrived[thread] += 1
    if thread.cta.traced:
        kind = "release" if trace.role(barrier.name) == "empty" else "arrive"
        thread.cta.emit(thread, kind, barrier.name, nbytes or 0)
    if thread.log is not None:
        thread.note(Arrive, barrier.place, arrivals, nbytes, drop, no_complete)
    change(thread, cta, barrier, step)
    thread.cta.scheduler.point()
    return token


def _is_relaxed(semantics: str | None) -> bool:
    return semantics is not None and semantics.startswith("relaxed")


def _wait_token(addr: int, token: int, semantics: str | None, *, poll: bool) -> bool:
    thread = current()
    barrier = thread.cta.barrier_at(thread, int(addr))
    phase = barrier.phase_of(int(token))
    return _wait(thread, barrier, phase, semantics, by_token=True, poll=poll)


def _wait_parity(addr: int, parity: int, semantics: str | None, *, poll: bool) -> bool:
    thread = current()
    barrier = thread.cta.barrier_at(thread, int(addr))
    return _wait(thread, barrier, int(parity), semantics, by_token=False, poll=poll)


def _wait(
    thread: SimulatedThread,
    barrier: TrackedBarrier,
    wanted: int,
    semantics: str | None,
    *,
    by_token: bool,
    poll: bool,
) -> bool:
    cta: Cta = thread.cta
    scheduler = cta.scheduler
    model, failed = barrier.model, thread.failed_polls
    done = model.has_completed if by_token else model.has_completed_parity
    since = failed.get(barrier.address, model.phase)
    # A thread whose poll has failed is parked until the phase completes: polling again would spin.
    if _checked(barrier, done, wanted) or (poll and barrier.address not in failed):
        begun = scheduler.step
        scheduler.point()
        cta.emit(thread, "awaited", barrier.name, begun=begun)
    else:
        phase = f"phase {wanted}" if by_token else f"a phase of parity {wanted}"
        scheduler.park(MbarrierWait(barrier, phase, since))
    # The barrier's current state counts: a slow waiter can miss a phase, as on a GPU.
    if not _checked(barrier, done, wanted):
        failed[barrier.address] = since
        return False
    failed.pop(barrier.address, None)
    barrier.waited[thread] += 1
    if thread.log is not None:
        thread.note(Wait, barrier.place, wanted, by_token)
    if barrier.observe(thread, relaxed=_is_relaxed(semantics)):
        scheduler.event()
        cta.emit(thread, "wait", barrier.name)
    return True


def _checked(barrier: TrackedBarrier, done: Callable[[int], bool], wanted: int) -> bool:
    try:
        return done(wanted)
    except BarrierMisuse as error:
        raise BarrierMisuse(f"{barrier.name}: {error}{_by_one_thread(barrier, error)}") from None


def _by_one_thread(barrier: TrackedBarrier, error: BarrierMisuse) -> str:
    """Return the usual cause of an arrival too many on the full barrier of a pipeline's stage."""
    if "more threads arrive" not in str(error) or not barrier.name.startswith("full["):
        return ""
    return (
        ". A stage that the copy engine fills is acquired by one thread: call acquire() under "
        "`if tma.elect_sync():`, or iterate over pipe.produce(...), which elects it"
    )
