"""How the gradients of attention are cut up: the tiles, the stages, and who has which registers."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.kernels._attention_plan import Problem
from numba_tma.mma_rules import ROWS, THREADS

WARPGROUPS = 2  #: that multiply; each has half of the keys of a block, and half of dQ
BLOCK_K = WARPGROUPS * ROWS  #: keys of a block
#: What queries, gradients and sums of the heads may take that are worked on together: what the L2
#: cache holds beside all else.
BYTES_TOGETHER = 32 << 20


@dataclass(frozen=True)
class Plan:
    """How the work is cut up.

    Parameters
    ----------
    block_q
        Queries of one step.
    stages
        Tiles of queries, and of gradients, that are loaded or used at a time.
    sum_stages
        Tiles of dQ of each warpgroup that are written or added up at a time.
    heads_together
        How many heads of keys are worked on before the next, longest blocks of keys first.
    """

    block_q: int = 64
    stages: int = 2
    sum_stages: int = 1
    heads_together: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block: one more warpgroup loads."""
        return (WARPGROUPS + 1) * THREADS

    def splits_depth(self, depth: int) -> bool:
        """Return whether the warpgroups share dQ's columns, and not its rows."""
        return self.block_q == ROWS and depth == WARPGROUPS * ROWS


#: What is fastest, by the depth of a head.
PLANS = {64: Plan(128), 128: Plan(64)}
DEPTHS = tuple(PLANS)  #: elements of a head


def plan_for(problem: Problem, queries: int, sharing: int) -> Plan:
    """Return what is fastest for so many queries, and heads that share keys."""
    plan = PLANS[problem.depth]
    if not problem.causal:
        return plan
    nbytes = queries * sharing * problem.depth * (2 * problem.dtype.itemsize + 4)
    together = max(1, min(64, BYTES_TOGETHER // max(1, nbytes)))
    # A power of 2, since each number is a kernel of its own.
    return Plan(plan.block_q, plan.stages, plan.sum_stages, 1 << together.bit_length() - 1)
