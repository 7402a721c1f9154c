"""Simulator tests run in their own process, since numba reads the variable when imported."""

import os

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import threading
from collections.abc import Iterator

import pytest

from numba_tma import simulator
from numba_tma.simulator.thread import SimulatedThread

simulator.install()

# One thread of a launch runs at a time. Waking the next one is cheap if both share a core, and if
# the woken thread does not preempt the one that wakes it (SCHED_BATCH).
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Start from one seed; no simulated thread may outlive its launch.

    What hangs all the same is ended by pytest's faulthandler_timeout.
    """
    simulator.seed(0)
    yield
    assert not [t for t in threading.enumerate() if isinstance(t, SimulatedThread)]
