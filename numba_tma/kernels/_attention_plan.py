"""How attention is cut up: the tiles, the stages, and who has which registers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from numba_tma.dtypes import DType
from numba_tma.layout import Swizzle, Tile
from numba_tma.mma_rules import ROWS, THREADS

DTYPES = ("bf16", "f16")
#: Blocks of queries of the heads that are worked on together under a causal mask. The end of each
#: such group leaves multiprocessors idle, so it has many; more would not share the L2 cache.
BLOCKS_TOGETHER = 2048


@dataclass(frozen=True)
class Problem:
    """What a kernel is compiled for; lengths, heads and the scale are known when it runs.

    `left` and `right` are whether a window has a limit on that side; with `causal` it ends at the
    query's own place.
    """

    depth: int
    dtype: DType
    causal: bool = False
    lse: bool = False
    left: bool = False
    right: bool = False
    softcap: bool = False

    @property
    def swizzle(self) -> Swizzle:
        """The widest swizzle of which the rows of a head are whole spans."""
        return Swizzle.B128 if self.depth * self.dtype.itemsize % 128 == 0 else Swizzle.B64

    def tile(self, rows: int) -> Tile:
        """Return the tile of so many positions of one head, (batch, position, head, depth)."""
        return Tile((1, rows, 1, self.depth), self.dtype, self.swizzle)


@dataclass(frozen=True)
class Plan:
    """How the work is cut up.

    Parameters
    ----------
    warpgroups
        Warpgroups that multiply, each with 64 queries of a block.
    block_k
        Keys of one step.
    stages
        Tiles of keys, and tiles of values, that are loaded or used at a time.
    heads_together
        How many heads are worked on before the next, longest blocks of queries first.
    """

    warpgroups: int = 2
    block_k: int = 128
    stages: int = 2
    heads_together: int = 1

    @property
    def block_q(self) -> int:
        """Queries of a block."""
        return self.warpgroups * ROWS

    @property
    def threads(self) -> int:
        """Threads of a block: one more warpgroup loads."""
        return (self.warpgroups + 1) * THREADS


#: What is fastest, by the depth of a head and whether the mask is causal.
PLANS = {
    (64, False): Plan(3, 128),
    (64, True): Plan(3, 128),
    (96, False): Plan(2, 128),
    (96, True): Plan(2, 128),
    (128, False): Plan(2, 128),
    (128, True): Plan(2, 128),
}
DEPTHS = tuple(sorted({depth for depth, _ in PLANS}))  #: elements of a head


def plan_for(problem: Problem, queries: int) -> Plan:
    """Return what is fastest for sequences of so many queries."""
    plan = PLANS[problem.depth, problem.causal]
    if problem.left or not (problem.causal or problem.right):  # blocks are about equally long
        return plan
    together = max(1, BLOCKS_TOGETHER // -(-max(1, queries) // plan.block_q))
    # A power of 2, since each number is a kernel of its own. The scheduler stops at the last head.
    return replace(plan, heads_together=1 << together.bit_length() - 1)
