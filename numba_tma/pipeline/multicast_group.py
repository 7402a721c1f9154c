"""The blocks of a cluster that share a tile, and which of them a block is."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.backend.interface import device_class, u32
from numba_tma.pipeline.ring import TilePipeline


@device_class()
@dataclass(frozen=True)
class MulticastGroup:
    """The blocks of a cluster that share a tile: as `mask`, and this block's `rank` in it."""

    rank: u32
    mask: u32


def multicast_rule(pipeline: TilePipeline, name: str) -> str:
    """Return what is wrong with the multicast group of a tile that is not shared."""
    return (
        f"multicast_group({name!r}): {pipeline} shares "
        f"{', '.join(n for n, _ in pipeline.multicast) or 'no tile'}; say so with "
        "cluster=... and multicast={name: 'x' or 'y'}"
    )


def axis_mask(cluster: tuple[int, int], axis: str, x: int, y: int) -> int:
    """Return the blocks, by rank, that differ from block (x, y) along `axis` alone."""
    width, height = cluster
    if axis == "x":
        return ((1 << width) - 1) << y * width
    return sum(1 << row * width for row in range(height)) << x
