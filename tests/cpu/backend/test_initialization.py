"""Threads that use the driver first of all in a process wait for its initialisation."""

import threading
import time

import pytest
from numba.cuda.cudadrv.driver import Driver
from numba.cuda.cudadrv.error import CudaSupportError

import numba_tma as tma
from numba_tma.backend.numba_cuda import initialization

tma.Tile((4, 32), "f32")


class SlowDriver(Driver):
    """A driver whose cuInit takes a while; any other function returns whether it has ended."""

    ready = False

    def __new__(cls):
        return object.__new__(cls)

    def __init__(self):
        self.is_initialized, self.initialization_error, self.pid = False, None, None
        self.initialisations = 0

    def _cuda_python_wrap_fn(self, name):
        return self._slow if name == "cuInit" else lambda: self.ready

    def _slow(self, flags):
        self.initialisations += 1
        time.sleep(0.1)
        self.ready = True


def from_threads(driver):
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(driver.cuCtxGetCurrent())) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return answers


def test_16_threads_wait_for_the_first_one_to_initialise_the_driver():
    driver = SlowDriver()
    assert from_threads(driver) == [True] * 16 and driver.initialisations == 1


def test_the_fake_driver_shows_what_numba_cuda_does_alone(monkeypatch):
    monkeypatch.setattr(Driver, "ensure_initialized", initialization._ensure_initialized)
    answers = from_threads(SlowDriver())
    if all(answers):
        pytest.skip("this numba-cuda waits by itself: initialization.py can go")
    assert len(answers) == 16


def test_a_driver_that_cannot_be_initialised_says_so_each_time():
    driver = SlowDriver()
    driver.is_initialized, driver.initialization_error = True, "no driver"
    for _ in range(2):
        with pytest.raises(CudaSupportError, match="no driver"):
            driver.cuCtxGetCurrent()
