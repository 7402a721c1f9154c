"""``python -m numba_tma demo``: the pipelined RMSNorm, on the GPU or in the simulator, checked."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np

from numba_tma.host.annotations import DeviceArray
from numba_tma.host.environment import simulated

ROWS, COLUMNS = 16384, 8192
EPS = 1e-6
STAGES = 4
#: Two roundings to bf16 of values whose statistics are summed in float32.
BF16_TOLERANCE, F32_TOLERANCE = 2.0**-8, 2.0**-20


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 only if its result was right."""
    argparse.ArgumentParser(prog="python -m numba_tma demo", description=__doc__).parse_args(argv)
    if simulated():
        return _in_simulator()
    from numba_tma.tools.testing import gpu_available

    if gpu_available():
        return _on_gpu()
    return run_in_simulator("demo")


def run_in_simulator(*arguments: str) -> int:
    """Run a command of this package in a process that simulates; return its exit status."""
    print("No GPU with a Tensor Memory Accelerator here: running in the simulator.", flush=True)
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, "-m", "numba_tma", *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


def _on_gpu() -> int:
    from numba import cuda

    from numba_tma.kernels.rows.pipelined import rmsnorm_pipelined
    from numba_tma.tools.bench.timing import time_alternating

    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS, COLUMNS), np.float32).astype(ml_dtypes.bfloat16)
    weight = random.standard_normal(COLUMNS, np.float32).astype(ml_dtypes.bfloat16)
    # numba-cuda has no bf16 arrays on the host: the bits travel as uint16.
    x_gpu, weight_gpu = cuda.to_device(x.view(np.uint16)), cuda.to_device(weight.view(np.uint16))
    y_gpu, copy_gpu = cuda.device_array_like(x_gpu), cuda.device_array_like(x_gpu)

    def run() -> None:
        rmsnorm_pipelined(x_gpu, weight_gpu, eps=EPS, out=y_gpu, dtype="bf16", stages=STAGES)

    run()
    y = y_gpu.copy_to_host().view(ml_dtypes.bfloat16)
    error = _relative_error(x, weight, y)
    times = time_alternating({"rmsnorm": run, "copy": lambda: copy_gpu.copy_to_device(x_gpu)})
    rates = {name: 2 * x.nbytes / seconds / 1e9 for name, seconds in times.items()}
    device = cuda.get_current_device().name
    print(
        f"RMSNorm of bf16 {x.shape} on {device if isinstance(device, str) else device.decode()}, "
        f"a {STAGES}-stage TilePipeline"
    )
    print(f"  largest error against float64  {error:.2e} of the value (bf16 rounds to 3.9e-03)")
    print(f"  rate                           {rates['rmsnorm']:,.0f} GB/s")
    print(
        f"  share of a plain device copy   {rates['rmsnorm'] / rates['copy']:.1%} "
        f"({rates['copy']:,.0f} GB/s in the same run)"
    )
    return _verdict(error, BF16_TOLERANCE)


def _in_simulator() -> int:
    from numba_tma import simulator
    from numba_tma.kernels.rows.pipelined import rmsnorm_pipelined

    random = np.random.default_rng(0)
    x = random.standard_normal((24, 256)).astype(np.float32)
    weight = random.standard_normal(256).astype(np.float32)
    with simulator.record() as trace:
        y = rmsnorm_pipelined(x, weight, eps=EPS, threads=32, stages=STAGES, blocks=1)
    error = _relative_error(x, weight, y)
    print(
        f"RMSNorm of f32 {x.shape}, a {STAGES}-stage TilePipeline, SIMULATED on the CPU: "
        "same kernel source,\nno GPU, so no rate. What the simulator saw of the stages:\n"
    )
    print(trace.timeline())
    print(f"\n  largest error against float64  {error:.2e} of the value")
    return _verdict(error, F32_TOLERANCE)


def _relative_error(x: DeviceArray, weight: DeviceArray, y: DeviceArray) -> float:
    """Return the largest error of `y`, relative to the exact value, over all elements."""
    worst = 0.0
    for rows in _chunks(len(x), 1024):
        exact = x[rows].astype(np.float64)
        exact /= np.sqrt((exact**2).mean(axis=1, keepdims=True) + EPS)
        exact *= weight.astype(np.float64)
        difference = np.abs(y[rows].astype(np.float64) - exact)
        worst = max(worst, float((difference / np.maximum(np.abs(exact), 1e-30)).max()))
        if not np.isfinite(y[rows].astype(np.float32)).all():
            return float("inf")
    return worst


def _chunks(stop: int, step: int) -> Iterator[slice]:
    return (slice(i, i + step) for i in range(0, stop, step))


def _verdict(error: float, tolerance: float) -> int:
    good = error <= tolerance
    print(
        f"  check                          {'passed' if good else 'FAILED'} "
        f"(allowed: {tolerance:.2e})"
    )
    return 0 if good else 1
