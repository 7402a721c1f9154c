"""Races mode over every mutant and every shipped kernel, in parallel processes.

``python -m tests.gpu.race_report`` prints for each mutant the hazards that were named, false alarms
in right programs and shipped kernels, and how much slower three kernels are. A mutant is caught if
one of its hazards is none that its right program has. It has crashed if the device ended its launch
with an error, and the log shows nothing before that.
"""

import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma.host import races
from numba_tma.host.race_judgement import clusters_of
from numba_tma.host.races import Kind
from numba_tma.tools.pytest_plugin.serving import LastWord
from numba_tma.tools.pytest_plugin.worker import Worker, WorkerLost
from tests.gpu import sanitized
from tests.gpu.worker import on_gpu
from tests.mutants.mutants import MUTANTS, PROGRAMS
from tests.mutants.table import built, run

LIMIT = 60
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

    def __init__(self, mode="races", seconds=1):
        limit = {"NUMBA_TMA_DEBUG_TIMEOUT": str(seconds)}
        super().__init__(environment={"NUMBA_TMA_DEBUG": mode} | limit)


def launch(program, kernel):
    return run(program, kernel, cuda.to_device, lambda array: array.copy_to_host())


def hazards(error):
    """Return the hazards of an error, each with its place, and its message."""
    named = {(r.kind, r.where.partition("[")[0]) for r in getattr(error, "races", ())}
    return sorted(named) or [(type(error).__name__, "")], str(error)


@on_gpu
def broken(name):
    """Return what a broken kernel raises; None if it raises nothing."""
    mutant = next(m for m in RUN if repr(m) == name)
    try:
        for _ in range(3):
            launch(mutant.program, mutant.build())
    except tma.PipelineError as error:
        if error.__cause__:  # the device ended the launch
            raise LastWord(hazards(error)) from error
        return hazards(error)
    return None


@on_gpu
def right(name):
    """Return what a program that is not broken raises; None if it raises nothing."""
    program = next(program for program in RIGHT if program.pipeline == name)
    kernel = built(program, program.source)
    try:
        for _ in range(10):
            got, wanted = launch(program, kernel)
            assert (got == wanted).all()
    except tma.PipelineError as error:
        explain(name, error)
        return hazards(error)
    return None


@on_gpu
def part(name):
    """Run shipped kernels and rings; return what they raise."""
    try:
        sanitized.main(name)
    except tma.PipelineError as error:
        explain(name, error)
        return hazards(error)
    return None


def explain(name, error):
    """Print what a right program raised, before a lost device hides it, and the steps before."""
    print(f"{name}: {error}", flush=True)
    for race in getattr(error, "races", ())[:2]:
        print(*trail(*races.read_log(), race), sep="\n", flush=True)


def trail(events, lost, race, steps=40):
    """Return lines: a race, and the steps before it of the two warps, from a log.

    Steps of one kind in a row are one line, with their number. Source lines are left out.
    """
    numbers = next(n for n in clusters_of(events) if race.number in n)
    numbers = numbers[numbers <= race.number]
    warps = [side.warp for side in (race.step, race.other) if side]
    of_both = np.isin(events["warp"][numbers], warps) & (events["kind"][numbers] != Kind.LINE)
    found = []
    for number in numbers[of_both]:
        event = events[number]
        key = event[["kind", "warp", "slot"]].tolist()
        if not found or found[-1][0] != key:
            found.append([key, 0, event, number])
        found[-1][1] += 1
    lines = [f"{race.where}: {race.rule}; {lost} steps are not in the log"]
    for (kind, warp, slot), count, event, number in found[-steps:]:
        at, size, other = (int(event[name]) for name in ("address", "size", "other"))
        step = f"{Kind(kind).name} {at & 0xFFFFFF:#x} size {size} other {other:#x}"
        lines.append(f"  {number}: block {slot} warp {warp}: {count} x {step}")
    return lines


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


def call(function, *args, limit=LIMIT, seconds=1):
    """Run a case in the thread's own process; return (whether it returned, value or text).

    `seconds` are a wait's limit: right kernels wait for longer than 1 s on a GPU that others share.
    """
    workers = vars(_OWN).setdefault("workers", {})
    if seconds not in workers:
        workers[seconds] = RacesWorker(seconds=seconds)
        _WORKERS.append(workers[seconds])
    try:
        return True, workers[seconds].call(function, *args, limit=limit)
    except (Exception, WorkerLost) as error:
        return False, str(error)


def verdict(mutant, alarms, returned, value):
    """Return the result of a mutant in a word, its hazards, and a part of the message."""
    if not returned:
        return "crashed" if "LAUNCH_FAILED" in value else "lost", [], value[-300:]
    if value is None:
        return "missed", [], ""
    found, text = value
    new = [hazard for hazard in found if hazard not in alarms.get(mutant.pipeline, [])]
    return "caught" if new else "alarm", found, text.splitlines()[0][:300]


def main(threads=12):
    """Print the report; return 0 if nothing is wrong."""
    with ThreadPoolExecutor(threads) as pool:
        programs = {p.pipeline: pool.submit(call, right, p.pipeline, seconds=20) for p in RIGHT}
        parts = {name: pool.submit(call, part, name, limit=400, seconds=20) for name in PARTS}
        mutants = {repr(m): pool.submit(call, broken, repr(m)) for m in RUN}
        alarms = {}
        for name, future in (programs | parts).items():
            returned, value = future.result()
            if not returned or value is not None:
                alarms[name] = value[0] if returned else []
                print(f"ALARM  {name}: {value[1][:1500] if returned else value[-1500:]}")
        results, kinds, as_simulated = {}, Counter(), 0
        for mutant in RUN:
            result, found, text = verdict(mutant, alarms, *mutants[repr(mutant)].result())
            results.setdefault(result, []).append(repr(mutant))
            simulated = mutant.caught.get("simulator", ("",))[0].split()
            if result == "caught":
                kinds.update({kind for kind, _ in found})
                as_simulated += bool({kind for kind, _ in found} & set(simulated))
            print(f"{result:7} {mutant}: {found} (simulator: {simulated}): {text}")
    for worker in _WORKERS:
        worker.stop()
    caught = len(results.get("caught", ()))
    print(f"caught {caught} of {len(RUN)}, {as_simulated} as the simulator names it: {dict(kinds)}")
    for result in ("missed", "alarm", "crashed", "lost"):
        print(f"{result}: {results.get(result, [])}")
    print(f"false alarms in {len(alarms)} of {len(programs) + len(parts)}: {list(alarms)}")
    for mode in ("0", "1", "races"):
        worker = RacesWorker(mode)
        try:
            print(mode, worker.call(times, limit=LIMIT))
        except (Exception, WorkerLost) as error:
            print(mode, str(error)[-800:])
        worker.stop()
    return int(bool(alarms))


if __name__ == "__main__":
    from tests.gpu import race_report  # the processes find their cases under this name

    sys.exit(race_report.main(*map(int, sys.argv[1:])))
