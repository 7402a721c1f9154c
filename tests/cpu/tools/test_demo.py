"""`python -m numba_tma demo` without a GPU: its output, and its failures."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from numba_tma.__main__ import main
from numba_tma.tools import demo

ROOT = Path(__file__).parents[3]
PIPELINED = importlib.import_module("numba_tma.kernels.rows.pipelined")


def without_gpu():
    """Return this process's variables with every GPU hidden, and the simulator not chosen."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    here = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    return kept | here


def test_without_a_gpu_it_simulates_says_so_and_passes():
    done = subprocess.run(
        [sys.executable, "-m", "numba_tma", "demo"],
        env=without_gpu(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout
    assert said.startswith("No GPU with a Tensor Memory Accelerator here: running in the simulator")
    assert "a 4-stage TilePipeline, SIMULATED on the CPU" in said
    assert "no rate" in said and "GB/s" not in said
    for stage in range(4):
        assert f"  stage {stage}   |" in said
    assert "> loading   = full   # being read" in said
    assert said.rstrip().endswith("check                          passed (allowed: 9.54e-07)")


def exact(x, weight, eps):
    """Return RMSNorm in float64, rounded once."""
    y = x.astype(np.float64)
    y = y / np.sqrt((y**2).mean(axis=1, keepdims=True) + eps) * weight
    return y.astype(x.dtype)


def spoil(y, value):
    y[7, 100] = value
    return y


RESULTS = {
    "right": (exact, 0),
    "one element is off by 1e-5 of it": (lambda *a: spoil(y := exact(*a), y[7, 100] * 1.00001), 1),
    "one element is NaN": (lambda *a: spoil(exact(*a), np.nan), 1),
    "one element is infinite": (lambda *a: spoil(exact(*a), np.inf), 1),
    "nothing was written": (lambda x, weight, eps: np.zeros_like(x), 1),
    "the weight was forgotten": (lambda x, weight, eps: exact(x, 1, eps), 1),
    "eps is missing a factor": (lambda x, weight, eps: exact(x, weight, 100 * eps), 1),
}


@pytest.mark.parametrize("case", RESULTS)
def test_the_status_is_that_of_the_check(monkeypatch, capsys, case):
    result, status = RESULTS[case]
    monkeypatch.setattr(demo, "simulated", lambda: True)
    monkeypatch.setattr(
        PIPELINED, "rmsnorm_pipelined", lambda x, weight, *, eps, **how: result(x, weight, eps)
    )
    assert main(["demo"]) == status
    verdict = "passed" if status == 0 else "FAILED"
    assert f"check                          {verdict}" in capsys.readouterr().out


def test_the_status_of_the_simulating_process_is_passed_on(monkeypatch, capsys):
    commands = []

    def run(command, env, check):
        commands.append((command, env["NUMBA_ENABLE_CUDASIM"], check))
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(demo.subprocess, "run", run)
    monkeypatch.setattr("numba_tma.tools.testing.gpu_available", lambda: False)
    assert main(["demo"]) == 3
    assert commands == [([sys.executable, "-m", "numba_tma", "demo"], "1", False)]
    assert "running in the simulator" in capsys.readouterr().out
    script = __file__
    assert main(["explain", "--blocks", "2", script, "--one"]) == 3
    explained = [sys.executable, "-m", "numba_tma", "explain", "--blocks", "2", script, "--one"]
    assert commands[1:] == [(explained, "1", False)]


def test_the_error_is_the_largest_of_all_rows_relative_to_the_value():
    # 1500 rows are two of the chunks in which it is computed.
    x = np.random.default_rng(0).standard_normal((1500, 64)).astype(np.float32)
    weight = np.full(64, 0.5, np.float32)
    y = exact(x, weight, demo.EPS)
    y[1400, 5] *= 1.25
    assert demo._relative_error(x, weight, y) == pytest.approx(0.25, rel=1e-5)


def test_bf16_may_be_off_by_its_rounding_and_no_more():
    x = np.random.default_rng(0).standard_normal((8, 256)).astype(ml_dtypes.bfloat16)
    y = exact(x.astype(np.float32), 1, demo.EPS).astype(ml_dtypes.bfloat16)
    weight = np.ones(256, ml_dtypes.bfloat16)
    assert demo._relative_error(x, weight, y) <= demo.BF16_TOLERANCE
    bits = y.view(np.uint16)
    bits[3, 4] += 2
    assert demo._relative_error(x, weight, y) > demo.BF16_TOLERANCE
