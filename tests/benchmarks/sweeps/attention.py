"""The fastest plan of attention by shape, the expected times, and the peers.

``python tests/benchmarks/sweeps/attention.py [--below 0.95 | --shape BxQxHxD/KxH[c] ...]
[--seconds N]`` from the repository's root, whose library it measures. A shape is batch, queries,
heads and head dim, then keys and their heads; "c" is causal. Without ``--shape``, the shapes are
the survey's. ``--below 0.95`` keeps those whose ratio in ``--results`` is below 0.95. Lines go from
the fastest to the slowest; "chosen" marks what `plan_for` takes. Wrong values and failures are
printed. ``--prepare J`` compiles in J processes first, into the kernel cache.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, os.getcwd())

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.attention import AttentionPlan, attention
from numba_tma.kernels.attention.choice import PACKS, plan_for
from numba_tma.kernels.attention.plan import AttentionProblem, check_plan
from numba_tma.tools.bench.survey.calls import call_of
from numba_tma.tools.bench.survey.draw import FAMILIES, Case, cases
from numba_tma.tools.bench.timing import time_alternating

#: Warpgroups, keys of a tile and stages, by head dim. Without more stages, two.
TILES = {
    64: ((2, 96, 3), (2, 128, 3), (3, 96, 3), (3, 128, 3)),
    96: ((2, 96, 2), (2, 128, 2), (3, 112, 2)),
    128: ((2, 112, 2), (2, 128, 2), (2, 176, 2)),
    256: ((1, 64, 2), (2, 64, 2), (2, 80, 2)),
}


def parsed(text):
    """Return the case of a shape on the command line."""
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)x(\d+)/(\d+)x(\d+)(c?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape such as 27x175x16x256/175x2c")
    *shape, causal = found.groups()
    form = "causal" if causal else "full"
    return Case("attention", "attention", "bf16", tuple(map(int, shape)), form)


def drawn(below, path):
    """Return the survey's cases, or those that are slower than `below` in its results."""
    every = cases({"attention": FAMILIES["attention"][1]}, 0)
    if below is None:
        return every
    rows = json.loads(Path(path).read_text())["rows"]
    slow = {row["case"] for row in rows if row["family"] == "attention" and row["ratio"] < below}
    return [case for case in every if case.name in slow]


def problem_of(case):
    """Return what the kernel of a case is compiled for."""
    return AttentionProblem(case.shape[3], as_dtype(case.dtype), case.form == "causal")


def chosen_plan(case, sms):
    """Return the plan that the library takes."""
    batch, queries, heads, _, keys, kv_heads = case.shape
    return plan_for(problem_of(case), queries, keys, batch * heads, heads // kv_heads, sms)


def plans(case, chosen):
    """Return the plans that are tried for a case: tiles, packed heads, stages of queries, turns."""
    problem, group = problem_of(case), case.shape[2] // case.shape[5]
    found = {chosen: None}
    for warpgroups, block_k, stages in TILES[problem.head_dim]:
        votes = problem.head_dim > 64
        one = AttentionPlan(warpgroups, block_k, stages, votes=votes)
        one = replace(one, heads_together=0 if problem.causal else 1)
        forms = itertools.product(PACKS, (1, 2), (False, True))
        for packed_heads, q_stages, turns in forms:
            plan = replace(one, packed_heads=packed_heads, q_stages=q_stages, turns=turns)
            try:
                check_plan("attention", problem, plan, group)
            except ValueError:
                continue
            found[plan] = None
    return list(found)


def short(plan):
    """Return a plan in few letters."""
    text = f"{64 * plan.warpgroups}x{plan.block_k} stages {plan.stages} packed {plan.packed_heads}"
    text += " turns" * plan.turns
    return f"{text} q_stages {plan.q_stages} splits {plan.splits} together {plan.heads_together}"


def sweep(case, torch, measure, repeats):
    """Check, and measure, all plans of a case beside its peers."""
    call = call_of(torch, case)
    q, k, v = call.ours.args[2:5]
    out, causal = torch.full_like(q, float("nan")), case.form == "causal"
    chosen = chosen_plan(case, torch.cuda.get_device_properties(0).multi_processor_count)
    runs = {}
    for plan in plans(case, chosen):
        run = functools.partial(attention, q, k, v, out, causal=causal, plan=plan)
        try:
            out.fill_(float("nan"))
            call.right(run())
            runs[short(plan)] = run
        except Exception as error:
            if measure:
                print(f"# {case.name} {short(plan)}: {str(error)[-200:]!r}", flush=True)
    if not measure:
        return
    for name, run in call.peers.items():
        try:
            call.right(run())
            runs[name] = run
        except Exception as error:
            print(f"# {case.name} {name}: {str(error)[-200:]!r}", flush=True)
    times = time_alternating(runs, repeats)
    peers = [times[name] for name in call.peers if name in times]
    for name, seconds in sorted(times.items(), key=lambda item: item[1]):
        print(
            f"{case.name} {name}: {1e6 * seconds:.1f} us, "
            f"{call.operations / seconds / 1e12:.0f} TFLOP/s"
            + (f", {min(peers) / seconds:.3f} of the best peer" if peers else "")
            + (" chosen" if name == short(chosen) else ""),
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", nargs="*", type=parsed, default=[])
    parser.add_argument("--below", type=float)
    parser.add_argument("--results", default="tests/benchmarks/results/survey_h100.json")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--prepare", type=int, default=0, metavar="J")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    import torch

    end = time.monotonic() + given.seconds
    todo = given.shape or drawn(given.below, given.results)
    if given.part is not None:
        todo = todo[given.part :: given.prepare]
    elif given.prepare:
        command = [sys.executable, *sys.argv]
        parts = [
            subprocess.Popen([*command, "--part", str(i)], stdout=subprocess.DEVNULL)
            for i in range(given.prepare)
        ]
        for part in parts:
            part.wait()
    for case in todo:
        if time.monotonic() > end:
            print(f"# {case.name}: the time is over")
            continue
        torch.manual_seed(0)
        sweep(case, torch, given.part is None, given.repeats)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
