"""Fences between a thread's generic accesses and the copy engine, for the calling thread."""

from __future__ import annotations

from numba_tma.simulator.barriers import TrackedBarrier
from numba_tma.simulator.errors import MissingFence
from numba_tma.simulator.thread import SimulatedThread, current


def fence_proxy_async(space: str = "shared::cta") -> None:
    """Make this thread's writes to `space` visible to the copy engine.

    The simulator does not check accesses to global memory, so a fence of those has no effect.
    """
    thread = current()
    if space != "global":
        thread.cta.hazards.fence(thread)
        _fence_barriers(thread)
    thread.cta.scheduler.point()


def fence_mbarrier_init() -> None:
    """Make the mbarriers that this thread has initialised visible to the copy engine."""
    thread = current()
    _fence_barriers(thread)
    # This releases more than the inits, so that a write ordered by another fence is not reported.
    thread.fenced = thread.cta.tracked_clocks().publish(thread.row)
    thread.cta.scheduler.point()


def _fence_barriers(thread: SimulatedThread) -> None:
    epoch = thread.cta.tracked_clocks().epoch(thread.row)
    for barrier in thread.cta.barriers.values():
        if barrier.initialised_by is thread and barrier.fenced_at is None:
            barrier.fenced_at = epoch


def check_fenced(thread: SimulatedThread, barrier: TrackedBarrier) -> None:
    """Raise unless the copy engine sees the initialisation of a barrier."""
    known = barrier.clocks.epochs(thread.row)[barrier.initialised_by.row]
    if barrier.fenced_at is None or barrier.fenced_at > known:
        raise MissingFence(
            f"{barrier.name}: a load completes on it, but the copy engine may not see its "
            f"mbarrier_init by {barrier.initialised_by.description}: that thread must execute "
            "fence_mbarrier_init() (or fence_proxy_async()) after it, before the syncthreads"
        )
