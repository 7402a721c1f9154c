"""How attention is cut up: the tiles, the stages, and who has which registers."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from numba_tma.device.causal_scheduler import CausalLPTScheduler
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.matrix_layout import STEP_BYTES
from numba_tma.host.mma_rules import MAX_COLUMNS, ROWS, THREADS
from numba_tma.kernels._host.limits import CACHED_BYTES, SHARED_BYTES

DTYPES = ("bf16", "f16")
E4M3 = as_dtype("e4m3")
#: How many heads are worked on together under a causal mask: each number is a kernel of its own.
TOGETHER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
#: What it costs if their keys and values are twice what stays in the L2 cache.
COST_OF_TWICE = 0.03
#: What it takes to add up the parts of results, in steps, and how many a block of threads has.
ADDING_STEPS, PARTS_PER_BLOCK = 3, 2


def widest(nbytes: int) -> Swizzle:
    """Return the widest swizzle of which rows of so many bytes are whole spans."""
    return next(s for s in (Swizzle.B128, Swizzle.B64, Swizzle.B32) if nbytes % s.span == 0)


@dataclass(frozen=True)
class Problem:
    """What a kernel is compiled for; lengths, heads and the scale are known when it runs.

    `left` and `right` are whether a window has a limit on that side; with `causal` it ends at the
    query's own place. `packed` are sequences one after the other, whose lengths the device knows.
    `splits` is whether keys are shared out to several blocks, whose results are parts. `q_scale`,
    `k_scale` and `v_scale` are whether the heads of an array have a scale each.
    """

    depth: int
    dtype: DType
    causal: bool = False
    lse: bool = False
    left: bool = False
    right: bool = False
    softcap: bool = False
    packed: bool = False
    splits: bool = False
    result: DType | None = None  #: type of the result, if not that of the inputs
    q_scale: bool = False
    k_scale: bool = False
    v_scale: bool = False

    @property
    def swizzle(self) -> Swizzle:
        """The widest swizzle of which the rows of a head are whole spans."""
        return widest(self.depth * self.dtype.itemsize)

    @property
    def tiles_are_equal(self) -> bool:
        """Whether all blocks of queries see as many keys."""
        return not (self.causal or self.left or self.right or self.packed)

    @property
    def is_narrow(self) -> bool:
        """Whether inputs have 8 bits, which the tensor cores read along the sum alone.

        So V is turned before: its tiles are (depth, keys).
        """
        return self.dtype.itemsize == 1

    @property
    def span(self) -> int:
        """Columns of a tile that lie together, as wide as the swizzle."""
        return self.swizzle.span // self.dtype.itemsize

    def part(self, rows: int) -> Tile:
        """Return those columns of a tile of packed sequences, (position, head, span)."""
        return Tile((rows, 1, self.span), self.dtype, self.swizzle)

    def tile(self, rows: int) -> Tile:
        """Return the tile of so many positions of one head, (batch, position, head, depth)."""
        return Tile((1, rows, 1, self.depth), self.dtype, self.swizzle)

    def values(self, keys: int) -> Tile:
        """Return the tile of V of so many keys."""
        if not self.is_narrow:
            return self.tile(keys)
        return Tile((1, self.depth, 1, keys), self.dtype, widest(keys * self.dtype.itemsize))

    def output(self, rows: int) -> Tile:
        """Return the tile of so many rows of the result."""
        dtype = self.result or self.dtype
        return Tile((1, rows, 1, self.depth), dtype, widest(self.depth * dtype.itemsize))


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
        How many heads are worked on before the next, longest blocks of queries first; 0 for all.
    votes
        Whether a warp multiplies O only if one of its rows has a new maximum.
    splits
        How many parts the keys of a block of queries are cut into, each as a block's work of its
        own. The parts of results are float32 in a workspace, and a second kernel adds them up.
    """

    warpgroups: int = 2
    block_k: int = 128
    stages: int = 2
    heads_together: int = 1
    votes: bool = True
    splits: int = 1

    @property
    def block_q(self) -> int:
        """Queries of a block."""
        return self.warpgroups * ROWS

    @property
    def threads(self) -> int:
        """Threads of a block: one more warpgroup loads."""
        return (self.warpgroups + 1) * THREADS

    @property
    def load_registers(self) -> int:
        """Registers of each thread that loads: what 240 or 160 of each that multiplies leave."""
        return 32 if self.warpgroups == 3 else 24


def check_plan(function: str, problem: Problem, plan: Plan) -> None:
    """Raise unless the kernels can follow the plan."""
    whole = isinstance(plan.splits, int) and plan.splits >= 1
    if not whole or (problem.packed and plan.splits > 1):
        raise ValueError(
            f"{function}(plan={plan}): splits is 1 or more, and 1 for packed sequences, whose "
            "lengths only the device knows"
        )
    unit = STEP_BYTES // problem.dtype.itemsize
    if plan.warpgroups < 1 or plan.block_k % unit or not unit <= plan.block_k <= MAX_COLUMNS:
        raise ValueError(
            f"{function}(plan={plan}): a plan has 1 warpgroup or more, and its block_k is a "
            f"multiple of {unit} up to {MAX_COLUMNS}, since a product with {problem.dtype} takes "
            f"{unit} keys at a time: use a block_k of 64, 96 or 128"
        )


def replaces_queries(problem: Problem, plan: Plan) -> bool:
    """Return whether results go where their queries were: shared memory has no room beside them."""
    if problem.splits:
        return False  # parts go from registers to global memory
    keys = 2 * plan.stages * problem.tile(plan.block_k).nbytes
    held = problem.tile(plan.block_q).nbytes + problem.output(plan.block_q).nbytes
    return held + keys > SHARED_BYTES


#: What is fastest, by the depth of a head and whether the mask is causal.
PLANS = {
    (64, False): Plan(3, 128, stages=3, votes=False),
    (64, True): Plan(3, 128, stages=3, votes=False),
    (96, False): Plan(3, 112),
    (96, True): Plan(2, 128),
    (128, False): Plan(2, 128),
    (128, True): Plan(2, 128),
    (256, False): Plan(2, 80),
    (256, True): Plan(2, 80),
}
#: And of inputs of 8 bits. P V of a tile takes registers beside O.
NARROW_PLANS = {
    (64, False): Plan(3, 96),
    (64, True): Plan(3, 96),
    (128, False): Plan(2, 128),
    (128, True): Plan(2, 128),
}
#: Of one warpgroup's queries or fewer, where time goes into reading keys and values. More stages
#: are slower: the copy engine then reads from more places at a time.
FEW_PLANS = {
    64: Plan(1, 192, votes=False),
    96: Plan(1, 128),
    128: Plan(1, 128),
    256: Plan(1, 48),
}
NARROW_FEW_PLANS = {64: Plan(1, 96, stages=6), 128: Plan(1, 96, stages=4)}
DEPTHS = tuple(sorted({depth for depth, _ in PLANS}))  #: elements of a head
NARROW_DEPTHS = tuple(sorted({depth for depth, _ in NARROW_PLANS}))


@functools.lru_cache(maxsize=4096)
def plan_for(
    problem: Problem, queries: int, keys: int, heads: int, sharing: int, blocks: int
) -> Plan:
    """Return what is fastest for sequences of so many queries and keys.

    There are `heads` in all sequences together, of which `sharing` neighbours have the same keys,
    and `blocks` of threads that run at a time. Of a window on the left, `keys` are those that a
    block of queries sees.
    """
    few, narrow = queries <= ROWS and not problem.packed, problem.is_narrow
    if few:
        plan = (NARROW_FEW_PLANS if narrow else FEW_PLANS)[problem.depth]
    else:
        plan = (NARROW_PLANS if narrow else PLANS)[problem.depth, problem.causal]
    if problem.packed:
        return plan
    schedule = CausalLPTScheduler(plan.block_q, plan.block_k).over(queries, keys, 1)
    is_even = problem.tiles_are_equal or problem.left  # as nearly all blocks of a window are
    if is_even:
        steps = np.full(schedule.num_query_blocks, -(-keys // plan.block_k))
    else:
        steps = np.array([schedule.num_key_blocks(b) for b in range(schedule.num_query_blocks)])
    splits = splits_for(steps, heads, blocks)
    if is_even or splits > 1:
        return replace(plan, splits=splits, heads_together=1 if is_even else 0)
    nbytes = 2 * keys * problem.depth * problem.dtype.itemsize / sharing

    def speed(together: int) -> float:
        spilt = max(0, math.log2(together * nbytes / CACHED_BYTES))
        return balance(1 + steps, heads, together, blocks) * (1 - COST_OF_TWICE * spilt)

    best = max((n for n in TOGETHER if n == 1 or n <= heads), key=speed)
    return replace(plan, heads_together=best)


def splits_for(steps: np.ndarray, heads: int, blocks: int) -> int:
    """Return into how many parts to cut the keys, of which blocks of queries have so many `steps`.

    What counts is the block of threads that has the most to do, and that parts are added up.
    """
    tiles, fewest, longest = len(steps) * heads, int(steps.min()), int(steps.max())
    most = min(longest, PARTS_PER_BLOCK * blocks // tiles)

    def time(splits: int) -> int:
        parts = heads * splits
        if fewest == longest:
            sums = -(-tiles * splits // blocks) * (1 - -longest // splits)
        else:
            sums = int(dealt(1 - -steps // splits, parts, parts, blocks).max())
        return sums + ADDING_STEPS * (splits > 1)

    return min(range(1, max(1, most) + 1), key=time)


def balance(steps: np.ndarray, heads: int, together: int, blocks: int) -> float:
    """Return the mean of what blocks have to do over the most."""
    sums = dealt(steps, heads, together, blocks)
    return float(sums.mean() / sums.max())


def dealt(steps: np.ndarray, heads: int, together: int, blocks: int) -> np.ndarray:
    """Return what each block of threads has to do, as `CausalSchedule` deals it out.

    `steps` are those of the blocks of queries of a head, the first ones first.
    """
    groups = [together] * (heads // together) + [heads % together]
    tiles = np.concatenate([np.repeat(steps[::-1], group) for group in groups])
    rounds = np.append(tiles, np.zeros(-len(tiles) % blocks, int)).reshape(-1, blocks)
    rounds[1::2] = rounds[1::2, ::-1]
    return rounds.sum(axis=0)
