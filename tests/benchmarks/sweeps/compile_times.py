"""CPU seconds of kernels' first compiles, by phase: tests/benchmarks/results/compile_times.json.

``python tests/benchmarks/sweeps/compile_times.py [KERNEL ...] [--repeats N]`` from the repository's
root, whose library it measures; no GPU is needed. Each compile is that of a new process, in which
nothing is cached; importing the library is not counted. Of the repeats, the one with the smallest
sum counts. A run replaces what it measured, and leaves the rest of the file.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import functools
import json
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, os.getcwd())

RESULTS = Path("tests/benchmarks/results/compile_times.json")
KERNELS = ("copy_tiles", "rmsnorm_1024", "kv_pipeline", "matmul", "attention", "attention_causal")
#: The phases, and the passes of the first ones. Any other pass belongs to "passes".
PASSES = {
    "cuda_translate_bytecode": "bytecode",
    "nopython_type_inference": "types",
    "cuda_native_lowering": "lowering",
}
PHASES = ("start", "bytecode", "types", "passes", "lowering", "LLVM text", "libNVVM", "ptxas")


class Clock:
    """The CPU seconds of nested phases, each without those in it."""

    def __init__(self):
        self.seconds, self.counts = collections.Counter(), collections.Counter()
        self.open, self.since = [], time.process_time()

    def tick(self):
        """Give the time since the last tick to the innermost open phase."""
        now = time.process_time()
        if self.open:
            self.seconds[self.open[-1]] += now - self.since
        self.since = now

    def timed(self, phase, function):
        """Return `function` as a part of `phase`."""

        @functools.wraps(function)
        def run(*args, **kws):
            self.tick()
            self.open.append(phase)
            self.counts[phase] += 1
            try:
                return function(*args, **kws)
            finally:
                self.tick()
                self.open.pop()

        return run


def watch(clock):
    """Let the compiler's phases run by `clock`."""
    from numba.cuda.codegen import CUDACodeLibrary
    from numba.cuda.core.compiler_machinery import PassManager
    from numba.cuda.cudadrv import nvvm

    from numba_tma.backend.numba_cuda import body_compiler, kernels

    def phase_of(step):
        return PASSES.get(step.name(), "passes")

    run_pass = PassManager._runPass

    def run_numba_pass(self, index, step, state):
        return clock.timed(phase_of(step), run_pass)(self, index, step, state)

    PassManager._runPass = run_numba_pass
    make = body_compiler._Passes.__init__

    def make_and_watch(self, passes):
        make(self, passes)
        self._steps = [
            (step, clock.timed(phase_of(step), run), *rest) for step, run, *rest in self._steps
        ]

    body_compiler._Passes.__init__ = make_and_watch
    kernels.register_declared = clock.timed("start", kernels.register_declared)
    text = clock.timed("LLVM text", CUDACodeLibrary.llvm_strs.fget)
    CUDACodeLibrary.llvm_strs = property(text)
    nvvm.compile_ir = clock.timed("libNVVM", nvvm.compile_ir)


def kernel_of(name):
    """Return a kernel, its argument types, and the target."""
    from tests.kernels import attention_forms, golden_kernels

    if name == "attention_causal":
        return *attention_forms.form("d128 causal"), golden_kernels.HOPPER
    make, target = golden_kernels.GOLDENS[name]
    return *make(), target


def compiled(name):
    """Print the phases of one compile, as JSON."""
    from numba_tma.tools.testing import compile_ptx, ptxas

    kernel, signature, target = kernel_of(name)
    clock = Clock()
    watch(clock)
    ptx = clock.timed("passes", compile_ptx)(kernel, signature, cc=target)
    before = os.times()
    ptxas(ptx)
    after = os.times()
    clock.seconds["ptxas"] = sum(after[2:4]) - sum(before[2:4])
    seconds = {phase: round(clock.seconds[phase], 3) for phase in PHASES}
    print(json.dumps({"functions": clock.counts["lowering"], "seconds": seconds}))


def measured(name, repeats):
    """Return the phases of the fastest of several compiles, each in a process of its own."""
    command = [sys.executable, __file__, "--one", name]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # as installed modules are
    runs = []
    for _ in range(repeats):
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return min(runs, key=lambda run: sum(run["seconds"].values()))


def table(results):
    """Return the table of docs/development/compile-times.md."""
    lines = [f"| kernel | functions | {' | '.join(PHASES)} | sum |", "|---" * 11 + "|"]
    for name in KERNELS:
        found = results["kernels"][name]
        seconds = found["seconds"]
        total = math.fsum(seconds.values())  # `sum` rounds as Python's version does
        cells = [*(seconds[phase] for phase in PHASES), total]
        numbers = " | ".join(f"{value:.2f}" for value in cells)
        lines.append(f"| {name} | {found['functions']} | {numbers} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="*", default=KERNELS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", action="store_true")
    options = parser.parse_args()
    if options.one:
        compiled(*options.kernels)
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"kernels": {}}
    results |= {"date": datetime.date.today().isoformat(), "python": platform.python_version()}
    for name in options.kernels:
        results["kernels"][name] = measured(name, options.repeats)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if set(KERNELS) <= set(results["kernels"]):
        print(table(results))


if __name__ == "__main__":
    main()
