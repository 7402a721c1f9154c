"""Simulator tests: a process of their own, since numba reads this variable when it is imported."""

import os

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import faulthandler
import threading
from collections.abc import Iterator

import pytest

from numba_tma import simulator
from numba_tma.simulator.thread import SimulatedThread

simulator.install()


@pytest.fixture(autouse=True)
def no_hang_and_no_leak() -> Iterator[None]:
    """End the process if a test hangs; no simulated thread may outlive its launch."""
    faulthandler.dump_traceback_later(120, exit=True)
    simulator.seed(0)
    yield
    faulthandler.cancel_dump_traceback_later()
    assert not [t for t in threading.enumerate() if isinstance(t, SimulatedThread)]
