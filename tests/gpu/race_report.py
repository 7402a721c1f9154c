"""Races mode over every mutant and every shipped kernel, in parallel processes.

``python -m tests.gpu.race_report`` prints the mutants that were caught, each with its error, the
names of those that were missed, false alarms in right programs and shipped kernels, and how much
slower three kernels are.
"""

import os
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
from numba import cuda

import numba_tma as tma
from tests.gpu import sanitized
from tests.gpu.worker import Worker, WorkerLost, on_gpu
from tests.mutants.mutants import MUTANTS, PROGRAMS
from tests.mutants.table import built, run

ENVIRONMENT = {"NUMBA_TMA_DEBUG": "races", "NUMBA_TMA_DEBUG_TIMEOUT": "1"}
LIMIT = 120
#: What no kernel survives: setmaxnreg waits for registers that nobody has, and not on a barrier.
HANGS = {"More registers are requested than a block has"}
RUN = [
    mutant
    for mutant in MUTANTS
    if mutant.program.on_hopper
    and not mutant.patched
    and not {"host", "compile", "launch"} & set(mutant.caught)
    and mutant.mistake.title not in HANGS
]
RIGHT = [program for program in PROGRAMS if program.on_hopper]
PARTS = (
    "shipped", "rows_and_columns", "matmuls", "attention", "attention_of_packed_sequences",
    "attention_of_8_bits", "attention_backward", "tma", "cp_async", "threads", "stores",
    "outputs", "clusters", "keys_and_values", "one_ring_of_keys_and_values",
)  # fmt: skip


class RacesWorker(Worker):
    """A process in races mode, or another mode of debugging."""

    def __init__(self, mode="races"):
        super().__init__()
        self.environment = ENVIRONMENT | {"NUMBA_TMA_DEBUG": mode}

    def _start(self):
        with _STARTING, mock.patch.dict(os.environ, self.environment):
            super()._start()


_STARTING = threading.Lock()


def launch(program, kernel):
    return run(program, kernel, cuda.to_device, lambda array: array.copy_to_host())


@on_gpu
def broken(name):
    """Return what a broken kernel raises; None if it raises nothing."""
    mutant = next(m for m in RUN if repr(m) == name)
    try:
        for _ in range(3):
            launch(mutant.program, mutant.build())
    except tma.PipelineError as error:
        return type(error).__name__, str(error)
    return None


@on_gpu
def right(name):
    """Run a program that is not broken."""
    program = next(program for program in RIGHT if program.pipeline == name)
    got, wanted = launch(program, built(program, program.source))
    assert (got == wanted).all()


@on_gpu
def part(name):
    """Run shipped kernels and rings."""
    sanitized.main(name)


@on_gpu
def times():
    """Return the seconds of a warm call of three kernels."""
    rng = np.random.default_rng(0)
    a, b = (cuda.to_device(rng.standard_normal((1024, 1024)).astype(np.float16)) for _ in range(2))
    x = cuda.to_device(rng.standard_normal((1024, 4096)).astype(np.float32))
    w = cuda.to_device(rng.standard_normal(4096).astype(np.float32))
    calls = {
        "matmul 1024": lambda: sanitized.matmul(a, b),
        "rmsnorm 1024 x 4096": lambda: sanitized.rmsnorm(x, w),
        "copy 16 MiB": lambda: sanitized.copy(x, cuda.device_array_like(x)),
    }
    found = {}
    for name, call in calls.items():
        call()
        cuda.synchronize()
        start = time.perf_counter()
        call()
        cuda.synchronize()
        found[name] = time.perf_counter() - start
    return found


# ------------------------------------------------------------------------------- the report

_OWN = threading.local()
_WORKERS = []


def call(function, *args, limit=LIMIT):
    """Run a case in the thread's own process; return (whether it returned, value or text)."""
    if not hasattr(_OWN, "worker"):
        _OWN.worker = RacesWorker()
        _WORKERS.append(_OWN.worker)
    try:
        case = (function.__module__, function.__qualname__)
        return True, _OWN.worker.run(case, args, {}, limit)
    except (AssertionError, WorkerLost) as error:
        return False, str(error)


def main(threads=12):
    """Print the report; return 0 if nothing is wrong."""
    with ThreadPoolExecutor(threads) as pool:
        parts = {name: pool.submit(call, part, name, limit=400) for name in PARTS}
        mutants = {repr(m): pool.submit(call, broken, repr(m)) for m in RUN}
        programs = {p.pipeline: pool.submit(call, right, p.pipeline) for p in RIGHT}
        missed, lost, kinds = [], [], Counter()
        for name, future in mutants.items():
            returned, value = future.result()
            if not returned:
                lost.append(name)
                print(f"LOST   {name}: {value[-600:]}")
            elif value is None:
                missed.append(name)
                print(f"MISSED {name}")
            else:
                kinds[value[0]] += 1
                print(f"caught {name}: {value[0]}: {value[1].splitlines()[0][:300]}")
        alarms = []
        for name, future in (programs | parts).items():
            returned, value = future.result()
            if not returned:
                alarms.append(name)
                print(f"ALARM  {name}: {value[-1500:]}")
    for worker in _WORKERS:
        worker.stop()
    print(f"caught {sum(kinds.values())} of {len(RUN)} ({dict(kinds)}); lost {lost}")
    print(f"missed: {missed}")
    print(f"false alarms in {len(alarms)} of {len(programs) + len(parts)}: {alarms}")
    for mode in ("0", "1", "races"):
        worker = RacesWorker(mode)
        try:
            print(mode, worker.run((times.__module__, times.__qualname__), (), {}, LIMIT))
        except (AssertionError, WorkerLost) as error:
            print(mode, str(error)[-800:])
        worker.stop()
    return int(bool(alarms))


if __name__ == "__main__":
    from tests.gpu import race_report  # the processes find their cases under this name

    sys.exit(race_report.main(*map(int, sys.argv[1:])))
