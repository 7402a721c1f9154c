"""The model that chooses attention's plans, held to the times that it was fitted to."""

import json
import math
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.attention.choice import CANDIDATES, plan_for
from numba_tma.kernels.attention.plan import AttentionProblem
from numba_tma.kernels.attention.times import LAUNCH_TIME, Traffic, block_lengths, causal_steps

FILE = Path(__file__).parents[2] / "benchmarks" / "results" / "attention_plans.json"
CASE = r"(\w+) (\d+) x (\d+) x (\d+) x (\d+) on (\d+) x (\d+), (full|causal)"
RUN = r"(\d+)x(\d+) stages (\d+) packed (\d+) q_stages (\d+) splits (\d+) together (\d+)"
SMS = 132  # of the H100


def measured():
    """Return the times of plans that do not split keys, by case."""
    found = defaultdict(dict)
    for row in json.loads(FILE.read_text())["rows"]:
        run = re.fullmatch(RUN, row["run"])
        if run and run[6] == "1":
            found[row["case"]][tuple(map(int, run.groups()))] = row["us"]
    return found


MEASURED = measured()


def problem_of(case):
    """Return the problem of a case, and (batch, queries, heads, keys, kv_heads)."""
    dtype, batch, queries, heads, depth, keys, kv_heads, mask = re.fullmatch(CASE, case).groups()
    shape = tuple(map(int, (batch, queries, heads, keys, kv_heads)))
    return AttentionProblem(int(depth), as_dtype(dtype), mask == "causal"), shape


def reckoned(problem, shape, run, times):
    """Return what the model says of a run."""
    block_q, block_k, _, packed, _, _, together = run
    batch, queries, heads, keys, kv_heads = shape
    rows, packs, group = block_q // packed, batch * heads // packed, heads // kv_heads // packed
    steps = np.full(-(-queries // rows), -(-keys // block_k))
    if problem.causal:
        steps = causal_steps(queries, keys, rows, block_k)
    together = min(together or packs, packs)
    longest = block_lengths(times.ends + times.step * steps, packs, together, SMS).max()
    read = int(steps.sum()) * block_k
    traffic = Traffic.of(2 * problem.head_dim, queries * packed, keys, packs, group, read)
    return LAUNCH_TIME + max(longest, traffic.time(together, SMS))


def test_times_are_those_that_were_measured():
    """Of each candidate: the root mean square of all cases is 5 %, and no plan is off by much."""
    ratios = defaultdict(list)
    for case, runs in MEASURED.items():
        problem, shape = problem_of(case)
        for number, (plan, times) in enumerate(CANDIDATES[problem.head_dim, problem.causal]):
            for run, us in runs.items():
                if run[:3] + run[4:5] == (plan.block_q, plan.block_k, plan.stages, plan.q_stages):
                    ratio = math.log(reckoned(problem, shape, run, times) / us)
                    ratios[problem.head_dim, problem.causal, number].append(ratio)
    assert ratios.keys() == {
        (*key, i) for key, plans in CANDIDATES.items() for i in range(len(plans))
    }
    errors = {key: np.sqrt(np.mean(np.square(ratio))) for key, ratio in ratios.items()}
    assert max(errors.values()) < 0.09, errors
    assert np.sqrt(np.mean(np.square(list(errors.values())))) < 0.05
    assert all(abs(np.mean(ratio)) < 0.05 for ratio in ratios.values()), ratios


def test_chosen_plans_are_among_the_fastest():
    """Of all that were measured, by 3 % in the mean; a group of heads may be another one."""
    slower = []
    for case, runs in MEASURED.items():
        problem, (batch, queries, heads, keys, kv_heads) = problem_of(case)
        shape = (queries, keys, batch * heads, heads // kv_heads, SMS)
        plan = plan_for(problem, *shape)
        mine = (plan.block_q, plan.block_k, plan.stages, plan.packed_heads, plan.q_stages)
        times = [us for run, us in runs.items() if run[:5] == mine]
        assert times or plan.splits > 1, case
        if times:
            slower.append(math.log(min(times) / min(runs.values())))
    assert len(slower) > 30 and math.exp(np.mean(slower)) == pytest.approx(1.015, abs=0.015)
