"""Which GPU is current: without a driver, without a context, and after one is made current."""

import pytest
from cuda.bindings import driver as bindings

from numba_tma.host import driver
from tests.recording_driver import SUCCESS, RecordingDriver

NO_CONTEXT = bindings.CUresult.CUDA_ERROR_INVALID_CONTEXT


@pytest.fixture
def gpu():
    with RecordingDriver().installed() as recording:
        yield recording


def test_without_a_driver_nothing_is_current(monkeypatch):
    def missing(*given):
        raise RuntimeError("no libcuda.so")

    monkeypatch.setattr(bindings, "cuCtxGetDevice", missing)
    monkeypatch.setattr(bindings, "cuCtxGetId", missing)
    assert driver.current_device() == driver.current_context() == -1


def test_without_a_context_the_first_gpu_launches(gpu, monkeypatch):
    monkeypatch.setattr(bindings, "cuCtxGetDevice", lambda: (NO_CONTEXT, None))
    gpu.context = 0
    assert driver.current_device() == driver.current_context() == -1
    assert driver.launching_device() == 0 and gpu.contexts == 1


@pytest.mark.parametrize("ordinal", [0, 1, 7])
def test_with_a_context_its_gpu_launches(gpu, monkeypatch, ordinal):
    current = SUCCESS, bindings.CUdevice(ordinal)
    monkeypatch.setattr(bindings, "cuCtxGetDevice", lambda: current)
    gpu.context = 5
    assert driver.current_device() == driver.launching_device() == ordinal
    assert driver.current_context() == 5 and not gpu.contexts
