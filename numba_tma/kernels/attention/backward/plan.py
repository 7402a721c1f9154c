"""How the gradients of attention are cut into tiles and stages."""

from __future__ import annotations

import functools
import heapq
from dataclasses import dataclass, replace

from numba_tma.backend.interface import constant_class
from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile
from numba_tma.host.values import check_fields, whole
from numba_tma.host.warpgroup import ROWS, THREADS
from numba_tma.kernels._host.limits import CACHED_BYTES
from numba_tma.kernels.attention.plan import AttentionProblem

WARPGROUPS = 2  #: consumer warpgroups; each has half of a tile's keys, and computes half of its dQ
BLOCK_K = WARPGROUPS * ROWS  #: keys of a tile
HEAD_DIMS = (64, 128)
DQ_PART = Tile((1, 16, 256), "f32")  #: of dQ, what a warpgroup computes in a step: 64 x 64
#: Of the kernels before and after: threads of a block, and elements of a thread.
PASS_THREADS, CHUNK = 256, 8


def block_q(head_dim: int) -> int:
    """Return the queries of a step: each warpgroup computes 64 x 64 elements of their dQ."""
    return WARPGROUPS * ROWS * ROWS // head_dim


@dataclass(frozen=True)
class BackwardPlan:
    """How the work is cut into tiles and stages.

    Parameters
    ----------
    stages
        Stages of the ring of Q and dO; at least 2, since S of the next queries is started before
        dK of these is complete.
    sum_stages
        Stages of each warpgroup's dQ on its way to global memory.
    heads_together
        K/V heads that are scheduled as a group, longest tiles first. Each counts once a split.
    splits
        Blocks among which the heads of Q that share K and V are divided evenly. Each block has dK
        and dV of its heads: splits are float32 in a workspace, and one more kernel adds them.
    """

    stages: int = 2
    sum_stages: int = 1
    heads_together: int = 1
    splits: int = 1

    def __post_init__(self) -> None:
        two = whole(2, 64)._replace(
            text="2 to 64: products with two tiles of queries run at a time"
        )
        check_fields(
            self,
            stages=two,
            sum_stages=whole(1, 64),
            heads_together=whole(1, 1 << 16),
            splits=whole(1, 1 << 16),
        )

    @property
    def threads(self) -> int:
        """Threads of a block: the consumer warpgroups and one producer warpgroup."""
        return (WARPGROUPS + 1) * THREADS


@constant_class
@dataclass(frozen=True)
class BackwardForm:
    """A problem and its plan: the compile-time value that the kernel's device functions take."""

    problem: AttentionProblem
    plan: BackwardPlan

    @property
    def head_dim(self) -> int:
        """Elements of a row of Q, K, V and O."""
        return self.problem.head_dim

    @property
    def dtype(self) -> DType:
        """Type of the arrays, and of P and dS."""
        return self.problem.dtype

    @property
    def block_q(self) -> int:
        """Queries of a step."""
        return block_q(self.problem.head_dim)

    @property
    def causal(self) -> bool:
        """Whether a query sees no key after its own position."""
        return self.problem.causal

    @property
    def heads_together(self) -> int:
        """K/V heads that are scheduled as a group."""
        return self.plan.heads_together

    @property
    def halves_columns(self) -> bool:
        """Whether a warpgroup computes half of dQ's columns; else it computes half of its rows."""
        return self.block_q == ROWS

    @property
    def rows(self) -> Tile:
        """The rows of dK or dV of one warpgroup, as a matrix."""
        return Tile((ROWS, self.head_dim), self.problem.dtype, self.problem.swizzle)


#: In steps: the beginning and the end of a block; and to write the splits of dK and dV for 64
#: columns of a tile, and to add them. Fitted to measurements on an H100.
END_STEPS, WRITE_STEPS, ADD_STEPS = 2, 1, 1.75
#: Waves that splits make no shorter.
MANY_WAVES = 8
#: The fastest plans by head dim: as many stages as shared memory has room for.
PLANS = {64: BackwardPlan(), 128: BackwardPlan(sum_stages=2)}


def check_plan(function: str, plan: BackwardPlan, group: int) -> None:
    """Raise a ValueError unless `group` heads of Q can be divided evenly."""
    if group % plan.splits:
        raise ValueError(
            f"{function}(plan={plan}): splits divides the {group} heads of q that share a head of k"
        )


@functools.lru_cache(maxsize=4096)
def plan_for(
    problem: AttentionProblem, queries: int, keys: int, kv_heads: int, group: int, sms: int
) -> BackwardPlan:
    """Return the fastest plan for sequences of `queries` and `keys`.

    `kv_heads` counts the heads of K of all sequences, each of which `group` heads of Q share. `sms`
    is the number of blocks that run at a time, one per SM.
    """
    steps = steps_of(problem, queries, keys)

    def divided(splits: int) -> BackwardPlan:
        together = most_heads_together(problem, queries * group // splits)
        return replace(PLANS[problem.head_dim], heads_together=together, splits=splits)

    def time(plan: BackwardPlan) -> float:
        return time_of(plan, steps, problem.head_dim, kv_heads, group, sms)

    if kv_heads * len(steps) > MANY_WAVES * sms:
        return divided(1)
    return min((divided(n) for n in range(1, group + 1) if group % n == 0), key=time)


def most_heads_together(problem: AttentionProblem, queries: int) -> int:
    """Return how many heads of K, each with so many queries of all heads of Q, form a group."""
    if not problem.causal:
        return 1
    nbytes = queries * problem.head_dim * (2 * problem.dtype.itemsize + 4)
    # The L2 cache holds Q, dO and the sums of dQ of the heads of a group.
    together = max(1, min(64, CACHED_BYTES // nbytes))
    # A power of 2, since each number is a kernel of its own.
    return 1 << together.bit_length() - 1


def steps_of(problem: AttentionProblem, queries: int, keys: int) -> list[int]:
    """Return the tiles of queries of a head that see each tile of keys, as `key_tile` counts."""
    rows = block_q(problem.head_dim)
    tiles, first = -(-queries // rows), keys - queries  # key that query 0 sees last
    return [
        tiles - (max(0, key - first) // rows if problem.causal else 0)
        for key in range(0, keys, BLOCK_K)
    ]


def time_of(
    plan: BackwardPlan, steps: list[int], head_dim: int, kv_heads: int, group: int, sms: int
) -> float:
    """Return the time in steps, where the tiles of keys of a head have `steps` for each head of Q.

    The next block starts on the first SM that is free.
    """
    heads, split = kv_heads * plan.splits, head_dim / 64 * (plan.splits > 1)
    ends = [0.0] * min(sms, heads * len(steps))
    for first in range(0, heads, plan.heads_together):
        for count in steps:
            length = count * group / plan.splits + END_STEPS + WRITE_STEPS * split
            for _ in range(min(plan.heads_together, heads - first)):
                heapq.heapreplace(ends, ends[0] + length)
    return max(ends) + ADD_STEPS * split * heads * len(steps) / sms
