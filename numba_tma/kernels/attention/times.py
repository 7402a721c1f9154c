"""How long a plan takes: the model by which `plan_for` chooses tiles, packs, splits and groups.

A block works on its tiles of queries one after the other. Each takes a time of its own, and a step
for each K/V tile that it sees. The grid takes as long as its longest block, but no less than memory
takes to move what the kernel reads and writes. To combine splits takes as long as to write and to
read them. Times are in microseconds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from numba_tma.kernels._host.limits import CACHED_BYTES

LAUNCH_TIME = 9  #: until the first tile has its data, and after the last one
DRAM_BYTES = 2.6e6  #: that move in a microsecond
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


class Traffic(NamedTuple):
    """What a kernel moves. Heads of Q that are packed into one tile count as one head."""

    heads: int
    q_and_o: float  #: bytes of Q and O
    kv: float  #: bytes of K and V for each head: a share where heads share them
    reads: float  #: how often all tiles read their K and V

    @classmethod
    def of(cls, row: int, rows: int, keys: int, heads: int, group: int, read: float) -> Traffic:
        """Return what heads of `rows` rows of Q move, of which `group` share K and V.

        A row of Q, K, V or O has `row` bytes. The tiles of a head read `read` rows of K.
        """
        return cls(heads, 2 * rows * heads * row, 2 * keys * row / group, read / keys * group)

    def excess(self, together: int) -> float:
        """Return log2 of a group's K and V over the bytes that L2 keeps; 0 where all stay."""
        return max(0, math.log2(together * self.kv / CACHED_BYTES))

    def time(self, together: int, sms: int) -> float:
        """Return how long memory takes where `together` heads are scheduled as a group.

        K and V are read from memory once where those of a group stay in the L2 cache. Where they
        are twice as large, they are read again for each tile, but tiles of a head that run at the
        same time share a read.
        """
        again = max(1, self.reads * min(1, together / sms)) - 1
        kv = self.kv * (1 + min(1, self.excess(together)) * again)
        return (self.q_and_o + self.heads * kv) / DRAM_BYTES


def most_heads_together(lengths: np.ndarray, traffic: Traffic, sms: int) -> int:
    """Return how many heads to schedule as a group under a mask; 0 is all of them.

    The tiles of a head take the times `lengths`. Tiles of a group divide evenly among the blocks,
    and its K and V stay in the L2 cache.
    """
    heads = traffic.heads

    def time(together: int) -> float:
        together = together or heads
        slower = 1 + COST_OF_TWICE * traffic.excess(together)
        longest = block_lengths(lengths, heads, together, sms).max()
        return max(float(longest) * slower, traffic.time(together, sms))

    return min((*(n for n in HEAD_GROUPS if n < heads), 0), key=time)


def fastest_splits(
    times: TileTimes, steps: np.ndarray, nbytes: int, heads: int, sms: int
) -> tuple[float, int]:
    """Return the least time, and the number of splits that has it.

    The tiles of a head have `steps` K/V tiles each. A split of O has `nbytes`.
    """
    most = min(int(steps.max()), SPLITS_PER_SM * sms // (len(steps) * heads))

    def time(splits: int) -> float:
        combined = COMBINE_TIME + 2 * splits * nbytes / SPLIT_BYTES
        return grid_time(times, -(-steps // splits), heads * splits, sms) + combined * (splits > 1)

    return min((time(n), n) for n in range(1, max(1, most) + 1))


def grid_time(times: TileTimes, steps: np.ndarray, heads: int, sms: int) -> float:
    """Return how long the longest block takes; all heads are one group."""
    if steps.min() == steps.max():
        return float(-(-len(steps) * heads // sms) * (times.ends + times.step * steps[0]))
    return float(block_lengths(times.ends + times.step * steps, heads, heads, sms).max())


def block_lengths(lengths: np.ndarray, heads: int, together: int, sms: int) -> np.ndarray:
    """Return the sum of the tiles of each block, as `CausalSchedule` distributes the tiles.

    `lengths` are those of the tiles of one head, first queries first.
    """
    groups = [together] * (heads // together) + [heads % together]
    tiles = np.concatenate([np.repeat(lengths[::-1], group) for group in groups])
    waves = np.append(tiles, np.zeros(-len(tiles) % sms, int)).reshape(-1, sms)
    waves[1::2] = waves[1::2, ::-1]
    return waves.sum(axis=0)
