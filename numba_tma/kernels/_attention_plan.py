"""How attention is cut up: the tiles, the stages, and who has which registers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from numba_tma.dtypes import DType
from numba_tma.layout import Swizzle, Tile
from numba_tma.mma_rules import ROWS, THREADS

DEPTHS = (64, 96, 128, 256)  #: elements of a head
DTYPES = ("bf16", "f16")
L2_BYTES = 32 << 20  #: of the L2 cache, for the keys and values that blocks work on together


@dataclass(frozen=True)
class Problem:
    """What a kernel is compiled for; lengths, heads and the scale are known when it runs."""

    depth: int
    dtype: DType
    causal: bool = False

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
    ping_pong
        Whether the warpgroups take turns at starting their products, so that one computes its
        softmax while the tensor cores work for another.
    heads_together
        How many heads are worked on before the next: as many as have their keys and values in the
        L2 cache together.
    """

    warpgroups: int = 2
    block_k: int = 128
    stages: int = 2
    ping_pong: bool = True
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


def plan_for(problem: Problem, keys: int) -> Plan:
    """Return what is fastest for a problem with sequences of so many keys."""
    plan = PLANS[problem.depth, problem.causal]
    if not problem.causal:
        return plan
    each = 2 * max(1, keys) * problem.depth * problem.dtype.itemsize
    # A power of 2: each number is a kernel of its own.
    return replace(plan, heads_together=1 << max(1, L2_BYTES // each).bit_length() - 1)
