"""How runs are timed: on the GPU with a cold L2 cache, on the host by many calls."""

from __future__ import annotations

import functools
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Run = Callable[[], Any]

FLUSH_BYTES = 256 << 20  # several times the L2 cache
SLEEPS = 10  # of 100 us: the GPU waits until even a slow host has launched the run to be timed


@functools.cache
def _sleep() -> Any:
    """Return the launch of a kernel that keeps the GPU waiting."""
    from numba import cuda

    def sleep_on_gpu() -> None:
        for _ in range(SLEEPS):
            cuda.nanosleep(100_000)

    return cuda.jit(sleep_on_gpu)[512, 32]  # fewer blocks draw a performance warning


def time_alternating(runs: dict[str, Run], repeats: int = 30) -> dict[str, float]:
    """Return each run's median GPU time in seconds, measured with a cold L2 cache.

    Each repetition has all runs once, in an order of its own: a run of a few microseconds takes up
    to 10 % longer in some places of a fixed order, and a peer in others.
    """
    from numba import cuda

    sleep = _sleep()
    flush, zeros = (cuda.device_array(FLUSH_BYTES, np.uint8) for _ in range(2))
    spans: dict[str, list[tuple[Any, Any]]] = {name: [] for name in runs}
    for run in runs.values():
        run()
        run()
    orders = random.Random(0)
    for _ in range(repeats):
        for name, run in orders.sample(list(runs.items()), len(runs)):
            sleep()
            flush.copy_to_device(zeros)
            start, end = cuda.event(), cuda.event()
            start.record()
            run()
            end.record()
            spans[name].append((start, end))
    cuda.synchronize()
    return {
        name: statistics.median(start.elapsed_time(end) for start, end in pairs) / 1e3
        for name, pairs in spans.items()
    }


def worse_of_two(
    runs: dict[str, Run], ours: str = "numba_tma", repeats: int = 30
) -> dict[str, float]:
    """Time twice; return the measurement in which `ours` does worse against the best peer."""
    measured = [time_alternating(runs, repeats) for _ in range(2)]
    others = [name for name in runs if name != ours]
    peers = [name for name in others if name != "copy"] or others or [ours]
    return max(measured, key=lambda times: times[ours] / min(times[name] for name in peers))


def time_host(run: Run, calls: int = 2000, repeats: int = 5) -> float:
    """Return the host's time per call in microseconds: the best of several repeats."""
    from numba import cuda

    best = float("inf")
    for _ in range(repeats):
        cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        best = min(best, (time.perf_counter() - start) / calls * 1e6)
    cuda.synchronize()
    return best
