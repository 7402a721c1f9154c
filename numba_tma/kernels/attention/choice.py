"""Which plan attention takes: plans, how long their tiles take, and the fastest one by lengths."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from numba_tma.host.warpgroup import ROWS
from numba_tma.kernels.attention.plan import AttentionPlan, AttentionProblem
from numba_tma.kernels.attention.times import (
    LAUNCH_TIME,
    TileTimes,
    Traffic,
    causal_steps,
    fastest_splits,
    grid_time,
    most_heads_together,
)

#: The usual plans, by head dim: the fastest for long sequences, under a causal mask, too.
PLANS = {
    64: AttentionPlan(3, 128, stages=3, votes=False, q_stages=2, turns=True),
    96: AttentionPlan(3, 112, q_stages=2),
    128: AttentionPlan(2, 128),
    256: AttentionPlan(2, 80, turns=True),
}


class Candidate(NamedTuple):
    """A plan, and how long its tiles take."""

    plan: AttentionPlan
    times: TileTimes


class Reckoned(NamedTuple):
    """What the model says of a plan."""

    time: float  #: of the call
    splits: int  #: of the keys
    lengths: np.ndarray  #: times of the tiles of a head
    traffic: Traffic


def _turns(plan: AttentionPlan) -> AttentionPlan:
    """Return a plan with turns and two stages of Q."""
    return replace(plan, q_stages=2, turns=True)


#: Plans that may be the fastest for some lengths, by head dim and whether the mask is causal.
#: Their times are fitted to 40 shapes on an H100, those with turns to 19 on an H200, and to 4
#: of head dim 256 on an H100.
CANDIDATES = {
    (64, False): (
        Candidate(PLANS[64], TileTimes(1.49, 0.3)),
        Candidate(_turns(replace(PLANS[64], block_k=96)), TileTimes(1.18, 0.2)),
        Candidate(_turns(replace(PLANS[64], warpgroups=2, block_k=96)), TileTimes(0.97, 0.5)),
    ),
    (64, True): (
        Candidate(PLANS[64], TileTimes(1.46, 1.4)),
        Candidate(_turns(replace(PLANS[64], warpgroups=2)), TileTimes(1.2, 1.0)),
        Candidate(_turns(replace(PLANS[64], warpgroups=2, block_k=96)), TileTimes(0.98, 0.9)),
    ),
    (96, False): (
        Candidate(PLANS[96], TileTimes(1.48, 3.6)),
        Candidate(_turns(PLANS[96]), TileTimes(1.45, 3.4)),
        Candidate(_turns(replace(PLANS[96], warpgroups=2, block_k=128)), TileTimes(1.3, 3.2)),
    ),
    (96, True): (
        Candidate(PLANS[96], TileTimes(1.54, 1.7)),
        Candidate(AttentionPlan(2, 128, q_stages=2), TileTimes(1.36, 1.4)),
    ),
    (128, False): (
        Candidate(PLANS[128], TileTimes(1.52, 2.1)),
        Candidate(_turns(PLANS[128]), TileTimes(1.55, 0.5)),
        Candidate(_turns(replace(PLANS[128], block_k=112)), TileTimes(1.36, 0.9)),
        Candidate(AttentionPlan(2, 176, turns=True), TileTimes(2.06, 2.4)),
    ),
    (128, True): (
        Candidate(PLANS[128], TileTimes(1.54, 2.4)),
        Candidate(AttentionPlan(2, 128, q_stages=2), TileTimes(1.62, 1.7)),
    ),
    (256, False): (
        Candidate(PLANS[256], TileTimes(1.61, 2.6)),
        Candidate(AttentionPlan(1, 64), TileTimes(0.88, 2.3)),
    ),
    (256, True): (
        Candidate(PLANS[256], TileTimes(1.5, 4.2)),
        Candidate(AttentionPlan(1, 64), TileTimes(0.9, 2.0)),
    ),
}
#: Factor on the time of all plans but the usual one: a smaller gain compiles no other kernel.
DOUBT = 1.02
PACKS = 1, 2, 4, 8, 16  #: Heads that may lie in a tile.
OTHER_TIMES = TileTimes(0.67, 0.67)  #: of plans without another one beside them
#: Plans for packed sequences, whose lengths only the device knows, where not the usual ones.
PACKED_PLANS = dict.fromkeys(
    ((96, True), (128, False), (128, True)), AttentionPlan(2, 128, q_stages=2)
)
#: As `CANDIDATES`, for e4m3, where P V of a tile takes registers beside O. Times are fitted to 20
#: shapes on an H100.
FP8_CANDIDATES = {
    (64, False): (
        Candidate(AttentionPlan(2, 224, q_stages=2), TileTimes(1.42, 1.8)),
        Candidate(AttentionPlan(2, 128, q_stages=2), TileTimes(0.94, 1.4)),
    ),
    (64, True): (
        Candidate(AttentionPlan(2, 224), TileTimes(1.48, 2.6)),
        Candidate(AttentionPlan(2, 128, q_stages=2), TileTimes(1.04, 1.0)),
    ),
    (128, False): (Candidate(AttentionPlan(2, 128, 3, q_stages=2), TileTimes(1.16, 1.2)),),
    (128, True): (Candidate(AttentionPlan(2, 128, 3, q_stages=2), TileTimes(1.18, 2.0)),),
}
#: Plans for 64 queries or fewer, by head dim. Loads of K and V bound the time; more stages were
#: slower, since TMA then reads from more places at a time.
FEW_QUERIES_PLANS = {
    64: AttentionPlan(1, 192, votes=False),
    96: AttentionPlan(1, 128),
    128: AttentionPlan(1, 128),
    256: AttentionPlan(1, 48),
}
FP8_FEW_QUERIES_PLANS = {64: AttentionPlan(1, 96, stages=6), 128: AttentionPlan(1, 96, stages=4)}
HEAD_DIMS, FP8_HEAD_DIMS = tuple(FEW_QUERIES_PLANS), tuple(FP8_FEW_QUERIES_PLANS)


@functools.lru_cache(maxsize=4096)
def plan_for(
    problem: AttentionProblem, queries: int, keys: int, heads: int, group: int, sms: int
) -> AttentionPlan:
    """Return the fastest plan for sequences of `queries` and `keys`.

    `heads` counts the heads of all sequences, of which `group` neighbours share K and V. `sms` is
    the number of blocks that run at a time, one per SM. With a window on the left, `keys` counts
    the keys that one tile of queries sees.
    """
    keys = max(keys, 1)  # no keys have the plan of one
    candidates = candidates_for(problem, queries, group)
    usual = candidates[0].plan
    if problem.packed:
        return usual
    is_even = problem.tiles_are_equal or problem.left  # as nearly all tiles of a window are
    row = problem.head_dim * problem.dtype.itemsize

    def reckon(plan: AttentionPlan, times: TileTimes) -> Reckoned:
        pack = plan.packed_heads
        rows, packs = plan.block_q // pack, heads // pack
        if is_even:
            steps = np.full(-(-queries // rows), -(-keys // plan.block_k))
        else:
            steps = causal_steps(queries, keys, rows, plan.block_k)
        if pack > 1:
            time, splits = grid_time(times, steps, packs, sms), 1
        else:
            nbytes = 4 * queries * heads * problem.head_dim
            time, splits = fastest_splits(times, steps, nbytes, heads, sms)
        read = int(steps.sum()) * plan.block_k
        traffic = Traffic.of(row, queries * pack, keys, packs, group // pack, read)
        doubt = 1 if plan == usual else DOUBT
        time = doubt * (LAUNCH_TIME + max(time, traffic.time(1, sms)))
        return Reckoned(time, splits, times.ends + times.step * steps, traffic)

    reckoned = {plan: reckon(plan, times) for plan, times in candidates}
    plan = min(reckoned, key=lambda plan: reckoned[plan].time)
    _, splits, lengths, traffic = reckoned[plan]
    if splits > 1:
        plan = in_registers(plan, problem, splits)
        return replace(plan, splits=splits, heads_together=1 if is_even else 0)
    if is_even:
        return replace(plan, heads_together=1)
    return replace(plan, heads_together=most_heads_together(lengths, traffic, sms))


def in_registers(plan: AttentionPlan, problem: AttentionProblem, splits: int = 1) -> AttentionPlan:
    """Return a plan, without turns where its kernel would spill registers with them.

    ptxas says so of head dim 256, with a soft cap and with splits.
    """
    spills = problem.head_dim == 256 and (problem.softcap or splits > 1)
    return replace(plan, turns=False) if spills else plan


def candidates_for(problem: AttentionProblem, queries: int, group: int) -> tuple[Candidate, ...]:
    """Return the plans that may be the fastest, before they are fitted to lengths.

    The first one is the usual plan.
    """
    depth, causal = problem.head_dim, problem.causal
    if queries <= ROWS and not problem.packed:
        few = FP8_FEW_QUERIES_PLANS if problem.is_fp8 else FEW_QUERIES_PLANS
        return (Candidate(few[depth], OTHER_TIMES),)
    if problem.packed:
        return (Candidate(PACKED_PLANS.get((depth, causal), PLANS[depth]), OTHER_TIMES),)
    plans = (FP8_CANDIDATES if problem.is_fp8 else CANDIDATES)[depth, causal]
    if problem.left or problem.right or problem.softcap:
        usual = in_registers(plans[0].plan, problem)
        return (plans[0]._replace(plan=usual),)  # there are no times for others
    if problem.is_fp8:
        return plans  # their heads may have scales, and are not packed
    packs = [n for n in PACKS if group % n == 0]
    return tuple(
        Candidate(replace(plan, packed_heads=n), times) for plan, times in plans for n in packs
    )
