"""The plan of the attention kernel of Blackwell's tensor cores, and its compile-time value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from numba_tma.backend.interface import constant_class
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.tensor_memory_layout import LANES
from numba_tma.host.values import check_fields, one_of, whole
from numba_tma.kernels._host.limits import SHARED_BYTES
from numba_tma.kernels.attention.choice import CANDIDATES
from numba_tma.kernels.attention.plan import (
    DTYPES,
    AttentionForm,
    AttentionPlan,
    AttentionProblem,
)
from numba_tma.kernels.attention.times import Traffic, causal_steps, most_heads_together

#: Tiles of queries of a block, each with a softmax warpgroup, S and O of its own.
TILES = 2
#: Warps of a block: a warpgroup for the softmax of each tile, one for the correction, four more.
WARPS = 4 * TILES + 4 + 4
#: Two accumulators of 128 x head dim beside two of scores fill at most 512 columns.
TCGEN05_HEAD_DIMS = (64, 96, 128)
#: Keys of a K/V tile: a thread loads its row of scores in one instruction.
BLOCKS_K = (32, 64, 128)


@dataclass(frozen=True)
class Tcgen05AttentionPlan:
    """How attention's work is cut on Blackwell's tensor cores: 256 queries a block.

    Parameters
    ----------
    block_k
        Keys of a K/V tile: 32, 64 or 128.
    stages
        Stages of the K/V ring, each a K tile or a V tile: 2 or more, and no more than shared memory
        has room for.
    heads_together
        Heads that are scheduled as a group, longest tiles first; 0 for all heads.
    polynomial_period
        Each so many-th exponential of a row is computed by multiply-adds instead of ``ex2``, of
        which an SM of compute capability 10.0 computes 16 a cycle; 0 for none.
    """

    block_k: int = 128
    stages: int = 6
    heads_together: int = 1
    polynomial_period: int = 8

    def __post_init__(self) -> None:
        check_fields(
            self,
            block_k=one_of(*BLOCKS_K),
            stages=whole(2, 64)._replace(text="2 to 64: one for K and one for V at least"),
            heads_together=whole(0, 1 << 16),
            polynomial_period=whole(0, 1 << 16),
        )

    @property
    def block_q(self) -> int:
        """Queries of a block."""
        return TILES * LANES

    @property
    def packed_heads(self) -> int:
        """Heads of Q in a tile."""
        return 1

    @property
    def q_rows(self) -> int:
        """Queries that one copy loads, and rows of O that one copy stores: of a tile."""
        return LANES

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * WARPS

    @property
    def splits(self) -> int:
        """Splits of each tile's keys: there are none."""
        return 1


AnyAttentionPlan: TypeAlias = AttentionPlan | Tcgen05AttentionPlan


def check_tcgen05(function: str, problem: AttentionProblem) -> None:
    """Raise a ValueError unless the kernel has the problem."""
    takes = (
        f"attention on Blackwell's tensor cores takes {' and '.join(DTYPES)} with a head dim of "
        f"{', '.join(map(str, TCGEN05_HEAD_DIMS))}"
    )
    if problem.packed:
        raise ValueError(
            f"{function}(): sequences are packed; {takes}, and no packed sequences: call attention "
            "for each sequence, or pad them to a batch"
        )
    if problem.is_fp8:
        raise ValueError(
            f"{function}(): q is {problem.dtype}; {takes}: convert q, k and v to bf16, and "
            "multiply them with their scales"
        )
    if problem.head_dim not in TCGEN05_HEAD_DIMS:
        raise ValueError(
            f"{function}(): q has a head dim of {problem.head_dim}; {takes}, since S and O of two "
            "tiles fill tensor memory: use a GPU of compute capability 9.0"
        )


@constant_class
@dataclass(frozen=True)
class Tcgen05AttentionForm(AttentionForm):
    """A problem and its `Tcgen05AttentionPlan`, as device functions take them."""

    plan: Any

    @property
    def stages(self) -> int:
        """Stages of the K/V ring: as many as the plan asks for and shared memory holds."""
        free = SHARED_BYTES - TILES * (self.q_tile.nbytes + self.o_tile.nbytes)
        return min(self.plan.stages, free // self.problem.tile(self.block_k).nbytes)

    @property
    def polynomial_period(self) -> int:
        """Each so many-th exponential is computed by a polynomial; 0 for none."""
        return self.plan.polynomial_period

    @property
    def lse(self) -> bool:
        """Whether the logarithms of the row sums are stored."""
        return self.problem.lse

    @property
    def q_tile(self) -> Tile:
        """One of the two tiles of queries."""
        return self.problem.tile(LANES)

    @property
    def q_nbytes(self) -> int:
        """Bytes of a tile of queries."""
        return self.q_tile.nbytes

    @property
    def o_tile(self) -> Tile:
        """The tile of O through which results go to memory."""
        return self.problem.o_tile(LANES)

    @property
    def o_rows(self) -> Tile:
        """The tile of O as a matrix: a row for each thread."""
        return Tile((LANES, self.head_dim), self.o_dtype, self.o_tile.swizzle)

    @property
    def memory(self) -> Tile:
        """The shared memory of Q, K/V ring and O: one piece, so that no alignment is lost."""
        kv = self.stages * self.problem.tile(self.block_k).nbytes
        nbytes = TILES * (self.q_tile.nbytes + self.o_tile.nbytes) + kv
        return Tile((nbytes // Swizzle.B128.span, Swizzle.B128.span), "u8", Swizzle.B128)

    @property
    def columns(self) -> int:
        """Columns of tensor memory: S of both tiles, then O of both."""
        return TILES * (self.block_k + self.head_dim)

    @property
    def p_dtype(self) -> str:
        """Type of P, that of V."""
        return self.dtype.name

    @property
    def p_column(self) -> int:
        """Column of S from which on P lies: in the right half, two elements a column."""
        return self.block_k // 2

    @property
    def first_o(self) -> int:
        """Column of the first O."""
        return TILES * self.block_k


def tcgen05_plan_for(
    problem: AttentionProblem, queries: int, keys: int, heads: int, group: int, sms: int
) -> Tcgen05AttentionPlan:
    """Return the plan for sequences of `queries` and `keys`; parameters as in `plan_for`.

    No GPU has measured it. Under a causal mask as many heads are scheduled together as Hopper
    would group if it took tiles of 256 queries at the pace of two of 128.
    """
    plan = Tcgen05AttentionPlan()
    if problem.tiles_are_equal or problem.left:
        return plan
    keys = max(keys, 1)
    times = CANDIDATES[128, True][0].times
    steps = causal_steps(queries, keys, plan.block_q, plan.block_k)
    row, read = problem.head_dim * problem.dtype.itemsize, int(steps.sum()) * plan.block_k
    traffic = Traffic.of(row, queries, keys, heads, group, read)
    lengths = TILES * (times.ends + times.step * steps)
    return replace(plan, heads_together=most_heads_together(lengths, traffic, sms))
