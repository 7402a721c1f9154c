"""Simulator tests run in their own process, since numba reads the variable when imported."""

import os

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

from collections.abc import Iterator, Sequence

import pytest

from numba_tma import simulator
from numba_tma.simulator.scheduler import Scheduler
from numba_tma.simulator.thread import SimulatedThread

simulator.install()


@pytest.fixture(autouse=True)
def no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start from one seed; no simulated thread may outlive its launch.

    What hangs all the same is ended by pytest's faulthandler_timeout.
    """
    simulator.seed(0)
    run, left = Scheduler.run, list[SimulatedThread]()

    def checked(self: Scheduler, threads: Sequence[SimulatedThread]) -> None:
        try:
            run(self, threads)
        finally:
            left.extend(thread for thread in threads if thread)  # it has begun and not ended

    monkeypatch.setattr(Scheduler, "run", checked)
    yield
    assert not left
