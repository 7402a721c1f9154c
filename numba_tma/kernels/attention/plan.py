"""What the attention kernel is compiled for, and how work is cut into tiles, stages and splits."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.backend.interface import constant_class
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.values import FLAG, check_fields, whole
from numba_tma.host.warpgroup import MAX_COLUMNS, ROWS, STEP_BYTES, THREADS
from numba_tma.kernels._host.limits import SHARED_BYTES

DTYPES = ("bf16", "f16")
E4M3 = as_dtype("e4m3")


def widest_swizzle(nbytes: int) -> Swizzle:
    """Return the widest swizzle whose span divides rows of `nbytes`."""
    return next(s for s in (Swizzle.B128, Swizzle.B64, Swizzle.B32) if nbytes % s.span == 0)


@dataclass(frozen=True)
class AttentionProblem:
    """What a kernel is compiled for. Lengths, heads and scales are known when it runs.

    Parameters
    ----------
    head_dim, dtype
        Elements of a row of Q, K and V, and their type.
    causal
        Whether a query sees no key after its own position.
    lse
        Whether the kernel stores the logarithms of the row sums.
    left, right
        Whether a window limits the keys before and after a query's position. `right` is False where
        `causal` is True.
    softcap
        Whether scores are capped.
    packed
        Whether sequences are packed, with lengths in global memory.
    splits
        Whether the K/V tiles of a tile of queries are split over several blocks (split-K/V). O and
        lse of each split are float32. In the backward pass the heads of Q that share K and V are
        split, and dK and dV of each split are float32.
    result
        Type of O, if not `dtype`.
    q_scale, k_scale, v_scale
        Whether each head of Q, K or V has a scale.
    """

    head_dim: int
    dtype: DType
    causal: bool = False
    lse: bool = False
    left: bool = False
    right: bool = False
    softcap: bool = False
    packed: bool = False
    splits: bool = False
    result: DType | None = None
    q_scale: bool = False
    k_scale: bool = False
    v_scale: bool = False

    @property
    def swizzle(self) -> Swizzle:
        """The widest swizzle whose span divides a row of a head."""
        return widest_swizzle(self.head_dim * self.dtype.itemsize)

    @property
    def tiles_are_equal(self) -> bool:
        """Whether all tiles of queries see the same number of keys."""
        return not (self.causal or self.left or self.right or self.packed)

    @property
    def packs_heads(self) -> bool:
        """Whether heads of Q may lie in one tile: with no mask but a causal one, and no scales."""
        scaled = self.q_scale or self.k_scale or self.v_scale
        return not (self.left or self.right or self.packed or self.splits or scaled)

    @property
    def is_fp8(self) -> bool:
        """Whether inputs are e4m3. wgmma reads 8-bit operands K-major only, so V is transposed."""
        return self.dtype.itemsize == 1

    @property
    def span(self) -> int:
        """Columns that a ragged copy moves: as many as the swizzle is wide."""
        return self.swizzle.span // self.dtype.itemsize

    def ragged_tile(self, rows: int) -> Tile:
        """Return the tile that a ragged copy moves, (row, head, column)."""
        return Tile((rows, 1, self.span), self.dtype, self.swizzle)

    def tile(self, rows: int, heads: int = 1) -> Tile:
        """Return the tile of `rows` rows, (batch, query, head, column); a query has `heads`."""
        return Tile((1, rows // heads, heads, self.head_dim), self.dtype, self.swizzle)

    def v_tile(self, keys: int) -> Tile:
        """Return the tile of V of `keys` keys; of V', (batch, column, head, key), for e4m3."""
        if not self.is_fp8:
            return self.tile(keys)
        swizzle = widest_swizzle(keys * self.dtype.itemsize)
        return Tile((1, self.head_dim, 1, keys), self.dtype, swizzle)

    def o_tile(self, rows: int, heads: int = 1) -> Tile:
        """Return the tile of `rows` rows of O, of which a query has `heads`."""
        dtype = self.result or self.dtype
        swizzle = widest_swizzle(self.head_dim * dtype.itemsize)
        return Tile((1, rows // heads, heads, self.head_dim), dtype, swizzle)


@dataclass(frozen=True)
class AttentionPlan:
    """How the work is cut into tiles, stages and splits.

    Parameters
    ----------
    warpgroups
        Consumer warpgroups of a block. Each has 64 queries.
    block_k
        Keys of a K/V tile.
    stages
        Stages of the K ring, and of the V ring.
    heads_together
        Heads that are scheduled as a group, longest tiles first; 0 for all heads.
    votes
        Whether a warp skips the rescaling of O where none of its rows has a new maximum.
    splits
        Number of splits of each tile's keys. Splits are float32 in a workspace, and a second kernel
        combines them.
    q_stages
        Stages of Q. With two the next queries are loaded before these are done.
    packed_heads
        Heads of Q that lie in one tile, query by query (pack-GQA): a power of 2 up to 64 that
        divides the heads that share K and V. They fill the tiles of short sequences.
    turns
        Whether consumer warpgroups take turns to start their products, so that one computes
        exponentials while the products of another run, from the first K/V tiles on.
    """

    warpgroups: int = 2
    block_k: int = 128
    stages: int = 2
    heads_together: int = 1
    votes: bool = True
    splits: int = 1
    q_stages: int = 1
    packed_heads: int = 1
    turns: bool = False

    def __post_init__(self) -> None:
        check_fields(
            self,
            warpgroups=whole(1, 3),
            block_k=whole(16, MAX_COLUMNS, step=16),
            stages=whole(1, 64),
            heads_together=whole(0, 1 << 16),
            votes=FLAG,
            splits=whole(1, 1 << 16),
            q_stages=whole(1, 64),
            packed_heads=whole(1, ROWS),
            turns=FLAG,
        )

    @property
    def block_q(self) -> int:
        """Rows of a tile: queries, times the heads that are packed."""
        return self.warpgroups * ROWS

    @property
    def q_rows(self) -> int:
        """Queries that one copy loads, and rows of O that one copy stores: of a warpgroup."""
        return ROWS

    @property
    def threads(self) -> int:
        """Threads of a block: the consumer warpgroups and one producer warpgroup."""
        return (self.warpgroups + 1) * THREADS

    @property
    def load_registers(self) -> int:
        """Registers of a producer thread: what consumers with 240 or 160 each leave."""
        return 32 if self.warpgroups == 3 else 24


def check_plan(
    function: str, problem: AttentionProblem, plan: AttentionPlan, group: int = 1
) -> None:
    """Raise a ValueError unless the kernels can follow the plan, where `group` heads share K."""
    heads = plan.packed_heads
    if heads > 1 and (heads & (heads - 1) or group % heads or not problem.packs_heads):
        raise ValueError(
            f"{function}(plan={plan}): packed_heads is a power of 2 that divides the {group} heads "
            "of q that share a head of k, and 1 with a window, scales of heads or packed sequences"
        )
    if plan.q_stages > 1 and AttentionForm(problem, plan).stages_o_in_q:
        raise ValueError(
            f"{function}(plan={plan}): q_stages is 1 where O is staged in Q's memory, since there "
            "is no room beside Q, K and V: take fewer stages or a smaller block_k"
        )
    if plan.turns and plan.warpgroups == 1:
        raise ValueError(
            f"{function}(plan={plan}): turns is False with one warpgroup, which has nobody to take "
            "turns with"
        )
    if heads > 1 and plan.splits > 1:
        raise ValueError(f"{function}(plan={plan}): splits is 1 where heads are packed")
    if problem.packed and plan.splits > 1:
        raise ValueError(
            f"{function}(plan={plan}): splits is 1 for packed sequences, whose lengths only the "
            "device knows"
        )
    unit = STEP_BYTES // problem.dtype.itemsize
    if plan.block_k % unit:
        raise ValueError(
            f"{function}(plan={plan}): block_k is a multiple of {unit} up to {MAX_COLUMNS}, since "
            f"a product with {problem.dtype} takes {unit} keys at a time: use a block_k of 64, 96 "
            "or 128"
        )


@constant_class
@dataclass(frozen=True)
class AttentionForm:
    """A problem and its plan: the compile-time value that the kernel's device functions take."""

    problem: AttentionProblem
    plan: AttentionPlan

    @property
    def head_dim(self) -> int:
        """Elements of a row of Q, K, V and O."""
        return self.problem.head_dim

    @property
    def dtype(self) -> DType:
        """Type of Q, K, V and P."""
        return self.problem.dtype

    @property
    def block_q(self) -> int:
        """Rows of a tile: queries, times the heads that are packed."""
        return self.plan.block_q

    @property
    def packed_heads(self) -> int:
        """Heads of Q in a tile; row r of a tile is of query ``r // packed_heads``."""
        return self.plan.packed_heads

    @property
    def tile_queries(self) -> int:
        """Queries of a tile."""
        return self.plan.block_q // self.plan.packed_heads

    @property
    def warpgroup_queries(self) -> int:
        """Queries of a consumer warpgroup."""
        return ROWS // self.plan.packed_heads

    @property
    def block_k(self) -> int:
        """Keys of a K/V tile."""
        return self.plan.block_k

    @property
    def warpgroups(self) -> int:
        """Consumer warpgroups."""
        return self.plan.warpgroups

    @property
    def votes(self) -> bool:
        """Whether a warp skips the rescaling of O where none of its rows has a new maximum."""
        return self.plan.votes

    @property
    def softcap(self) -> bool:
        """Whether scores are capped."""
        return self.problem.softcap

    @property
    def turns(self) -> bool:
        """Whether consumer warpgroups take turns to start their products."""
        return self.plan.turns

    @property
    def masks_left(self) -> bool:
        """Whether keys before a query's window are masked."""
        return self.problem.left

    @property
    def masks_right(self) -> bool:
        """Whether keys after a query's window, or its own position, are masked."""
        return self.problem.causal or self.problem.right

    @property
    def masks_end(self) -> bool:
        """Whether columns after the last key are masked; a causal mask covers them."""
        return not self.problem.causal

    @property
    def spans(self) -> int:
        """Ragged copies of a tile of packed sequences, side by side."""
        return self.problem.head_dim // self.problem.span

    @property
    def span(self) -> int:
        """Columns of a ragged copy."""
        return self.problem.span

    @property
    def span_nbytes(self) -> int:
        """Bytes of a row of a ragged copy."""
        return self.problem.span * self.problem.dtype.itemsize

    @property
    def q_tile(self) -> Tile:
        """All queries of the tiles that are in shared memory."""
        return self.problem.tile(self.plan.q_stages * self.block_q)

    @property
    def o_dtype(self) -> DType:
        """Type of O."""
        return self.problem.result or self.problem.dtype

    @property
    def q_rows(self) -> Tile:
        """The rows of Q of one warpgroup, as a matrix."""
        return Tile((ROWS, self.head_dim), self.dtype, self.problem.swizzle)

    @property
    def o_rows(self) -> Tile:
        """The rows of O of one warpgroup, as a matrix."""
        return Tile((ROWS, self.head_dim), self.o_dtype, self.problem.o_tile(ROWS).swizzle)

    @property
    def stages_o_in_q(self) -> bool:
        """Whether O is staged in Q's shared memory, where there is no room beside Q, K and V."""
        if self.problem.splits:
            return False  # splits go from registers to global memory
        kv = 2 * self.plan.stages * self.problem.tile(self.block_k).nbytes
        q_and_o = self.q_tile.nbytes + self.problem.o_tile(self.block_q).nbytes
        return q_and_o + kv > SHARED_BYTES
