"""testing.check and NUMBA_TMA_SIM_COMPILES in a simulating process: the compiler has its own."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator
from numba_tma.simulator import compiling
from numba_tma.tools.testing import CheckError
from tests.kernels import checked


def test_a_right_kernel_is_compiled_assembled_and_simulated():
    done = tma.testing.check(checked.copies(3), checked.arguments)
    x, y, n = done.arguments
    assert np.array_equal(y, 6 * x) and n == 4
    assert "cp.async.bulk.tensor" in done.ptx and done.report.arch == "sm_90a"


def test_the_half_that_refuses_is_named():
    with pytest.raises(CheckError) as caught:
        tma.testing.check(checked.does_not_compile, checked.arguments(), block=1)
    assert "does_not_compile: the compiler refuses it" in str(caught.value)


def test_what_does_not_compile_is_not_launched(monkeypatch):
    monkeypatch.setenv("NUMBA_TMA_SIM_COMPILES", "1")
    x, y, n = checked.arguments()
    checked.copies(1)[1, 64](x, y, n)
    assert np.array_equal(y, 2 * x.array)
    kernel, before = checked.does_not_compile, y.copy()
    for _ in range(2):
        with pytest.raises(simulator.NotCompiled, match="does_not_compile does not compile for"):
            kernel[1, 64](x, y, n)
    assert np.array_equal(y, before)


def test_types_are_those_of_the_launch(monkeypatch):
    monkeypatch.setenv("NUMBA_TMA_SIM_COMPILES", "sm_90a")

    @cuda.jit
    def indexes(y, n):
        y[n, 0] = 1

    y = np.zeros((4, 4), np.float16)
    indexes[1, 1](y, np.uint8(3))
    with pytest.raises(simulator.NotCompiled, match="(?s)for sm_90a with these .*setitem"):
        indexes[1, 1](y, 3.0)
    with pytest.raises(simulator.NotCompiled, match="has no type for an array of float8_e4m3fn"):
        indexes[1, 1](y.astype(ml_dtypes.float8_e4m3fn), 3)


def test_what_does_not_pickle_is_said(monkeypatch):
    monkeypatch.setenv("NUMBA_TMA_SIM_COMPILES", "1")
    kernel = checked.copies(checked.Unpicklable())
    with pytest.raises(simulator.NotCompiled, match="what it uses does not pickle"):
        kernel[1, 64](*checked.arguments())


def test_a_compiler_that_ends_is_named_and_replaced(monkeypatch):
    monkeypatch.setenv("NUMBA_TMA_SIM_COMPILES", "1")
    monkeypatch.setattr(compiling, "_helper", None)
    monkeypatch.setattr(compiling, "_start", lambda: subprocess.Popen(
        [sys.executable, "-c", "raise SystemExit(3)"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
    ))  # fmt: skip
    kernel = checked.copies(5)
    with pytest.raises(simulator.NotCompiled, match="the compiler's process ended with exit sta"):
        kernel[1, 64](*checked.arguments())
    monkeypatch.undo()
    monkeypatch.setenv("NUMBA_TMA_SIM_COMPILES", "1")
    kernel[1, 64](*checked.arguments())


def test_an_interrupt_of_the_process_group_leaves_the_compiler_alive(monkeypatch):
    script = """if True:
        import os, signal
        from tests.kernels import checked
        launch = lambda factor: checked.copies(factor)[1, 64](*checked.arguments())
        launch(3)
        try:
            os.killpg(0, signal.SIGINT)
        except KeyboardInterrupt:
            launch(7)
        """
    monkeypatch.setenv("NUMBA_TMA_SIM_COMPILES", "1")
    done = subprocess.run(
        [sys.executable, "-c", script], start_new_session=True, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_kernel_of_a_notebook():
    subprocess.run([sys.executable, "-"], input=checked.NOTEBOOK, text=True, check=True)
