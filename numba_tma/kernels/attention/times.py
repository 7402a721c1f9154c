"""How long a plan takes: the model by which `plan_for` chooses tiles, splits and groups of heads.

A block works on its tiles of queries one after the other. Each takes a time of its own, and a step
for each K/V tile that it sees. The grid takes as long as its longest block, and to combine splits
takes as long as to write and to read them. Times are in microseconds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from numba_tma.kernels._host.limits import CACHED_BYTES

#: Numbers of heads that a causal schedule may group: each number is a kernel of its own.
HEAD_GROUPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
#: Slowdown where the K and V of a group are twice what stays in the L2 cache; measured.
COST_OF_TWICE = 0.03
#: Of the kernel that combines splits, and bytes of splits that move in a microsecond.
COMBINE_TIME, SPLIT_BYTES = 3, 6e6
SPLITS_PER_SM = 4  #: the most


class TileTimes(NamedTuple):
    """What a tile of queries takes, in microseconds."""

    step: float  #: for each K/V tile
    ends: float  #: for all that comes before the first and after the last


def causal_steps(queries: int, keys: int, block_q: int, block_k: int) -> np.ndarray:
    """Return the K/V tiles that each tile of queries sees, as `CausalSchedule` counts them."""
    ends = np.minimum(np.arange(block_q, queries + block_q, block_q), queries)
    return -(-np.maximum(ends + keys - queries, 0) // block_k)


def most_heads_together(lengths: np.ndarray, nbytes: float, heads: int, sms: int) -> int:
    """Return how many heads to schedule as a group under a mask.

    The tiles of a head take times that are as `lengths`. K and V of the group, `nbytes` for each of
    its heads, stay in the L2 cache, and its tiles divide evenly among the blocks.
    """

    def speed(together: int) -> float:
        excess = max(0, math.log2(together * nbytes / CACHED_BYTES))
        return balance(lengths, heads, together, sms) * (1 - COST_OF_TWICE * excess)

    return max((n for n in HEAD_GROUPS if n == 1 or n <= heads), key=speed)


def fastest_splits(
    times: TileTimes, steps: np.ndarray, nbytes: int, heads: int, sms: int
) -> tuple[float, int]:
    """Return the least time, and the number of splits that has it.

    The tiles of a head have `steps` K/V tiles each. A split of O has `nbytes`.
    """
    tiles, fewest, longest = len(steps) * heads, int(steps.min()), int(steps.max())
    most = min(longest, SPLITS_PER_SM * sms // tiles)

    def time(splits: int) -> float:
        split_heads = heads * splits
        if fewest == longest:
            waves = -(-tiles * splits // sms)
            sums = waves * (times.ends - -longest // splits * times.step)
        else:
            parts = times.ends - -steps // splits * times.step
            sums = block_lengths(parts, split_heads, split_heads, sms).max()
        combined = COMBINE_TIME + 2 * splits * nbytes / SPLIT_BYTES
        return float(sums) + combined * (splits > 1)

    return min((time(n), n) for n in range(1, max(1, most) + 1))


def balance(lengths: np.ndarray, heads: int, together: int, sms: int) -> float:
    """Return the mean length of a block over the largest."""
    sums = block_lengths(lengths, heads, together, sms)
    return float(sums.mean() / sums.max())


def block_lengths(lengths: np.ndarray, heads: int, together: int, sms: int) -> np.ndarray:
    """Return the sum of the tiles of each block, as `CausalSchedule` distributes the tiles.

    `lengths` are those of the tiles of one head, first queries first.
    """
    groups = [together] * (heads // together) + [heads % together]
    tiles = np.concatenate([np.repeat(lengths[::-1], group) for group in groups])
    waves = np.append(tiles, np.zeros(-len(tiles) % sms, int)).reshape(-1, sms)
    waves[1::2] = waves[1::2, ::-1]
    return waves.sum(axis=0)
