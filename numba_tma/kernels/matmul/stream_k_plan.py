"""How the clusters of a stream-K matmul divide its tiles."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba_tma.kernels.matmul.plan import WGMMA_ROWS, MatmulPlan

FEWEST = 2  #: stages of a part of a tile at least: a part's sums go through memory
SHORTEST = 8  #: stages of a cluster at least, if there are fewer tiles than clusters


class StreamK(NamedTuple):
    """How clusters divide the tiles of a launch, and the memory in which they hand over sums."""

    whole: Any  #: tiles that are not divided: the first of the schedule
    share: Any  #: stages of the other tiles for each cluster
    longer: Any  #: clusters that have one stage more
    sums: Any  #: address of the slots, one for each MMA warpgroup of the grid
    flags: Any  #: address of the 32-bit flags, one for each MMA warp of the grid


class Division(NamedTuple):
    """The fields of `StreamK` that do not depend on memory, and the clusters of the grid."""

    clusters: int
    whole: int
    share: int
    longer: int


def divide(tiles: int, steps: int, most: int) -> Division:
    """Divide `tiles` of `steps` stages each, 1 or more, among at most `most` clusters.

    Each cluster gets stages of one or two tiles, or of less than one if there are fewer tiles than
    clusters. All other tiles stay whole, and each cluster gets equally many of them.

    Raises
    ------
    ValueError
        If the stages do not fit into 31 bits.
    """
    clusters = min(most, max(tiles, tiles * steps // SHORTEST))
    whole = max(tiles // clusters - 1, 0) * clusters
    stages = (tiles - whole) * steps
    if stages >= 1 << 31:
        raise ValueError(
            f"matmul(): a StreamKConfig divides {stages:,} stages, more than 2**31: use a Config"
        )
    return Division(clusters, whole, *divmod(stages, clusters))


def slot_nbytes(plan: MatmulPlan) -> int:
    """Return the bytes of the sums of an MMA warpgroup."""
    return WGMMA_ROWS * plan.config.n * plan.accumulator.itemsize
