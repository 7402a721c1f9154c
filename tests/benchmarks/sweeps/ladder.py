"""Rates of the rungs of the notebooks' ladders, in tests/benchmarks/results/ladder.json.

``python tests/benchmarks/sweeps/ladder.py [--only matmul] [--repeats N] [--output FILE]`` from the
repository's root, whose notebooks and library it measures, on a GPU of compute capability 9.0.
Rungs take turns, with what the library ships beside them. What is wrong is printed and left out. A
run replaces what it measured and leaves the rest of the file. Then ``python -m
tests.sim.project.test_notebooks`` shows the numbers in the notebooks.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, os.getcwd())

from tests.ladders import LADDERS, executed

RESULTS = Path("tests/benchmarks/results/ladder.json")


def view(array, shape, strides):
    """Return 16-bit elements of a device array in another shape; strides are in elements."""
    interface = {**array.__cuda_array_interface__, "shape": shape}
    interface["strides"] = tuple(2 * stride for stride in strides)
    return SimpleNamespace(__cuda_array_interface__=interface, dtype=array.dtype, kept=array)


def shipped_matmul(names):
    """Return the same product by the library."""
    from numba_tma.kernels.matmul import matmul

    right = view(names["b"], (names["K"], names["N"]), (1, names["K"]))
    return functools.partial(matmul, names["a"], right, names["c"], dtype="bf16")


def shipped_attention(names):
    """Return the same attention by the library."""
    from numba_tma.kernels.attention import attention

    heads, length, depth = names["HEADS"], names["LENGTH"], names["DEPTH"]
    shape, strides = (1, length, heads, depth), (heads * length * depth, depth, length * depth, 1)
    arrays = [view(names[name], shape, strides) for name in ("q", "k", "v", "out")]
    return functools.partial(attention, *arrays, causal=True, dtype="bf16")


def operations(ladder, names):
    """Return how many operations the result needs."""
    if ladder == "matmul":
        return 2 * names["M"] * names["N"] * names["K"]
    return 4 * names["HEADS"] * names["LENGTH"] ** 2 * names["DEPTH"] // 2  # half is masked


def measured(ladder, repeats):
    """Check and measure the rungs of a ladder; return their rates in TFLOP/s."""
    names = executed(ladder, "where", "tiles", "arrays", "rung")
    if names["simulated"]:
        sys.exit("a GPU of compute capability 9.0 is needed: speeds of the simulator say nothing")
    import numpy as np

    from numba_tma.tools.bench.timing import time_alternating

    result = names["c" if ladder == "matmul" else "out"]
    poison = np.full(result.shape, 0x7FC0, np.uint16)  # NaN
    shipped = {"matmul": shipped_matmul, "attention": shipped_attention}[ladder](names)
    library = f"numba_tma.kernels.{ladder}"
    every = {name: names["launcher"](name) for name in names["RUNGS"]} | {library: shipped}
    last, right = list(names["RUNGS"])[-1], {}
    for name, run in every.items():
        try:
            result.copy_to_device(poison)
            run()
            error = names["error"](last if name == library else name)
        except Exception as failure:
            print(f"# {ladder}, {name}: {str(failure)[-300:]!r}", flush=True)
            continue
        if error <= 1:
            right[name] = run
        else:
            print(f"# {ladder}, {name}: WRONG, {error:.3g} of what is allowed", flush=True)
    times = time_alternating(right, repeats)
    rates = {name: operations(ladder, names) / times[name] / 1e12 for name in times}
    for name, rate in rates.items():
        print(f"{ladder}, {name}: {1e6 * times[name]:.1f} us, {rate:.1f} TFLOP/s", flush=True)
    return {name: round(rate, 1) for name, rate in rates.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=LADDERS)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = json.loads(given.output.read_text()) if given.output.exists() else {}
    for ladder in [given.only] if given.only else LADDERS:
        rates = measured(ladder, given.repeats)
        from numba import cuda

        gpu = cuda.get_current_device().name
        found["gpu"] = gpu.decode() if isinstance(gpu, bytes) else gpu
        found["date"] = datetime.date.today().isoformat()
        found[ladder] = rates
        given.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
