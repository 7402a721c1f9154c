"""The fastest plan of attention by shape, the expected times, and the peers.

``python tests/benchmarks/sweeps/attention.py [--below 0.95 | --shape BxQxHxD/KxH[c] ... |
--packed [D ...] | --e4m3] [--seconds N]`` from the repository's root, whose library it measures. A
shape is batch, queries, heads and head dim, then keys and their heads; "c" is causal. Without
``--shape``, the shapes are the survey's. ``--below 0.95`` keeps those whose ratio in ``--results``
is below 0.95. ``--packed`` measures packed sequences, of these head dims or of all; ``--e4m3``
inputs of 8 bits, whose peer is attention of 16-bit inputs. Lines go from the fastest to the
slowest; "chosen" marks what `plan_for` takes. Wrong values and failures are printed.
``--prepare J`` compiles in J processes first, into the kernel cache. ``--json FILE`` writes the
times as rows, those of packed sequences as the group "packed" of `attention_plans.json`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, os.getcwd())

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.attention import AttentionPlan, attention
from numba_tma.kernels.attention.choice import PACKS, plan_for
from numba_tma.kernels.attention.plan import AttentionProblem, check_plan
from numba_tma.tools.bench import attention_varlen
from numba_tma.tools.bench.attention import HEADS, check_rows
from numba_tma.tools.bench.survey.calls import Call, call_of
from numba_tma.tools.bench.survey.draw import FAMILIES, Case, cases
from numba_tma.tools.bench.timing import time_alternating
from tests.benchmarks.sweeps.parts import add_options, share_of

#: Warpgroups, keys of a tile and stages, by head dim. Without more stages, two.
TILES = {
    64: ((2, 96, 3), (2, 128, 3), (3, 96, 3), (3, 128, 3)),
    96: ((2, 96, 2), (2, 128, 2), (3, 112, 2)),
    128: ((2, 112, 2), (2, 128, 2), (2, 176, 2)),
    256: ((1, 64, 2), (2, 64, 2), (2, 80, 2)),
}
#: The same for e4m3.
FP8_TILES = {
    64: ((2, 128, 2), (2, 192, 2), (2, 224, 2)),
    128: ((2, 96, 3), (2, 128, 2), (2, 128, 3)),
}
#: Shapes of e4m3: batch, length and heads.
FP8_SHAPES = ((37, 384, 16), (16, 1024, 16), (5, 2048, 24), (4, 4096, 16), (1, 16384, 16))


#: Lengths of packed sequences, by what they are called.
PACKED = {
    "8 of 512 to 8192": attention_varlen.LENGTHS,
    "64 of 20 to 700": tuple(Random(0).randint(20, 700) for _ in range(64)),
}


class PackedCase(NamedTuple):
    """Packed sequences: what their lengths are called, the head dim and the mask."""

    lengths: str
    head_dim: int
    causal: bool

    @property
    def name(self):
        """What the rows of the case are called."""
        mask = "causal" if self.causal else "full"
        return f"bf16 {self.lengths} x {HEADS} x {self.head_dim}, {mask}"


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


def packed_cases(head_dims):
    """Return the cases of packed sequences with these head dims, or with all."""
    return [
        PackedCase(lengths, head_dim, causal)
        for lengths in PACKED
        for head_dim in head_dims or TILES
        for causal in (False, True)
    ]


def fp8_cases():
    """Return the cases of e4m3, of every head dim and mask."""
    return [
        Case("attention", "attention", "e4m3", (batch, length, heads, depth, length, heads), form)
        for depth in FP8_TILES
        for form in ("full", "causal")
        for batch, length, heads in FP8_SHAPES
    ]


def fp8_call(torch, case):
    """Return attention of e4m3, beside that of the same values in bf16."""
    batch, queries, heads, depth, keys, kv_heads = case.shape
    shapes = (queries, heads), (keys, kv_heads), (keys, kv_heads)
    made = [torch.randn((batch, *shape, depth), device="cuda") for shape in shapes]
    narrow = [t.to(torch.float8_e4m3fn) for t in made]
    wide, causal = [t.bfloat16() for t in narrow], case.form == "causal"
    o, of_wide = torch.full_like(wide[0], float("nan")), torch.empty_like(wide[0])
    right = functools.partial(check_rows, torch, *wide, causal)
    return Call(
        functools.partial(attention, *narrow, out=o, causal=causal),
        functools.partial(right, narrow=True),
        {"bf16": functools.partial(attention, *wide, out=of_wide, causal=causal)},
        sum(t.nbytes for t in (*narrow, o)),
        4 * batch * heads * queries * keys * depth // (2 if causal else 1),
    )


def problem_of(case):
    """Return what the kernel of a case is compiled for."""
    if isinstance(case, PackedCase):
        return AttentionProblem(case.head_dim, as_dtype("bf16"), case.causal, packed=True)
    result = as_dtype("bf16") if case.dtype == "e4m3" else None
    return AttentionProblem(
        case.shape[3], as_dtype(case.dtype), case.form == "causal", result=result
    )


def chosen_plan(case, sms):
    """Return the plan that the library takes."""
    if isinstance(case, PackedCase):
        return plan_for(problem_of(case), 0, 0, HEADS, 1, sms)
    batch, queries, heads, _, keys, kv_heads = case.shape
    return plan_for(problem_of(case), queries, keys, batch * heads, heads // kv_heads, sms)


def plans(case, chosen):
    """Return the plans that are tried for a case: tiles, packed heads, stages of queries, turns."""
    problem = problem_of(case)
    group = 1 if problem.packed else case.shape[2] // case.shape[5]
    found = {chosen: None}
    tiles, packs, turned = TILES, PACKS, (False, True)
    if problem.is_fp8:
        tiles, packs, turned = FP8_TILES, (1,), (False,)
    for warpgroups, block_k, stages in tiles[problem.head_dim]:
        votes = problem.is_fp8 or problem.head_dim > 64
        one = AttentionPlan(warpgroups, block_k, stages, votes=votes)
        one = replace(one, heads_together=0 if problem.causal and not problem.packed else 1)
        forms = itertools.product(packs, (1, 2), turned)
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
    """Check, and measure, all plans of a case beside its peers; return the rows of their times."""
    if isinstance(case, PackedCase):
        lengths = PACKED[case.lengths]
        call = attention_varlen.call_of(torch, lengths, case.head_dim, case.causal)
    elif case.dtype == "e4m3":
        call = fp8_call(torch, case)
    else:
        call = call_of(torch, case)
    chosen = chosen_plan(case, torch.cuda.get_device_properties(0).multi_processor_count)
    runs = {}
    for plan in plans(case, chosen):
        run = functools.partial(call.ours, plan=plan)
        try:
            out = run()
            call.right(out)
            out.fill_(float("nan"))  # so that the next plan has to write all of it
            runs[short(plan)] = run
        except Exception as error:
            if measure:
                print(f"# {case.name} {short(plan)}: {str(error)[-200:]!r}", flush=True)
    if not measure:
        return []
    for name, run in call.peers.items():
        try:
            call.right(run())
            runs[name] = run
        except Exception as error:
            print(f"# {case.name} {name}: {str(error)[-200:]!r}", flush=True)
    times = time_alternating(runs, repeats)
    peers = [times[name] for name in call.peers if name in times]
    sorted_times = sorted(times.items(), key=lambda item: item[1])
    for name, seconds in sorted_times:
        print(
            f"{case.name} {name}: {1e6 * seconds:.1f} us, "
            f"{call.operations / seconds / 1e12:.0f} TFLOP/s"
            + (f", {min(peers) / seconds:.3f} of the best peer" if peers else "")
            + (" chosen" if name == short(chosen) else ""),
            flush=True,
        )
    return [
        {"case": case.name, "run": name, "us": round(1e6 * seconds, 1)}
        for name, seconds in sorted_times
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", nargs="*", type=parsed, default=[])
    parser.add_argument("--packed", nargs="*", type=int, choices=TILES, metavar="D")
    parser.add_argument("--e4m3", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--below", type=float)
    parser.add_argument("--results", default="tests/benchmarks/results/survey_h100.json")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=400)
    add_options(parser)
    given = parser.parse_args()
    import torch

    end = time.monotonic() + given.seconds
    if given.packed is not None:
        todo = packed_cases(given.packed)
    elif given.e4m3:
        todo = fp8_cases()
    else:
        todo = given.shape or drawn(given.below, given.results)
    rows = []
    for case in share_of(todo, given):
        if time.monotonic() > end:
            print(f"# {case.name}: the time is over")
            continue
        torch.manual_seed(0)
        rows += sweep(case, torch, given.part is None, given.repeats)
        torch.cuda.empty_cache()
    if given.json and given.part is None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
