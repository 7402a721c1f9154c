"""Loops whose body one elected thread executes: no call in it may need the thread's whole warp."""

from __future__ import annotations

import weakref

from numba_tma.host.loop_rules import nested_refusal, restart_refusal, starts_again
from numba_tma.simulator.copies import call_chain
from numba_tma.simulator.errors import BarrierMisuse
from numba_tma.simulator.thread import SimulatedThread, current


def enter_elected(loop: object, name: str) -> None:
    """Begin the body of a loop that the calling thread alone executes.

    The loop ends when Python drops its iterator, at its end or after a ``break``.
    """
    entered = current().elected
    if not any(reference() is loop for reference, _ in entered):
        entered.append((weakref.ref(loop), name))


def check_whole_warp(called: str, thread: SimulatedThread | None = None) -> None:
    """Raise if the calling thread is in the body of a loop that it alone executes."""
    thread = current() if thread is None else thread
    if thread.elected:
        thread.elected = [entry for entry in thread.elected if entry[0]() is not None]
        if thread.elected:
            raise BarrierMisuse(nested_refusal(called, thread.elected[-1][1]))


def check_started_once(pipeline: object) -> None:
    """Raise if the calling thread starts a pipeline again, at the same place of the kernel."""
    if starts_again(pipeline):
        return
    started, place = current().started, (id(pipeline), call_chain())
    if place in started:
        raise BarrierMisuse(restart_refusal(pipeline))
    started.append(place)
