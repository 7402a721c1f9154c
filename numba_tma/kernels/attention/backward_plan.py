"""How the gradients of attention are cut up: the tiles, the stages, and who has which registers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from numba_tma.host.mma_rules import ROWS, THREADS
from numba_tma.kernels._host.limits import CACHED_BYTES
from numba_tma.kernels.attention.plan import Problem

WARPGROUPS = 2  #: that multiply; each has half of the keys of a block, and half of dQ
BLOCK_K = WARPGROUPS * ROWS  #: keys of a block
DEPTHS = (64, 128)  #: elements of a head


def block_q(depth: int) -> int:
    """Return the queries of one step: each warpgroup computes 64 x 64 of their dQ."""
    return WARPGROUPS * ROWS * ROWS // depth


@dataclass(frozen=True)
class Plan:
    """How the work is cut up.

    Parameters
    ----------
    stages
        Tiles of Q and dO that are loaded or used at a time; at least 2, since the products with the
        next queries start before the last ones with these.
    sum_stages
        Tiles of dQ of each warpgroup that are written or added up at a time.
    heads_together
        How many heads of keys are worked on before the next, longest blocks of keys first.
    """

    stages: int = 2
    sum_stages: int = 1
    heads_together: int = 1

    def __post_init__(self) -> None:
        if self.stages < 2:
            raise ValueError(
                f"Plan(stages={self.stages}): products with two tiles of queries run at a time; "
                "use 2 stages or more"
            )

    @property
    def threads(self) -> int:
        """Threads of a block: one more warpgroup loads."""
        return (WARPGROUPS + 1) * THREADS


#: What is fastest, by the depth of a head: as many stages as there is room for.
PLANS = {64: Plan(), 128: Plan(sum_stages=2)}


def plan_for(problem: Problem, queries: int, sharing: int) -> Plan:
    """Return what is fastest for so many queries, and heads that share keys."""
    plan = PLANS[problem.depth]
    if not problem.causal:
        return plan
    nbytes = queries * sharing * problem.depth * (2 * problem.dtype.itemsize + 4)
    # Of the heads that are worked on together, the cache holds queries, gradients and sums.
    together = max(1, min(64, CACHED_BYTES // nbytes))
    # A power of 2, since each number is a kernel of its own.
    return replace(plan, heads_together=1 << together.bit_length() - 1)
