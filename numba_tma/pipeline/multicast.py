"""The blocks of a cluster that share a tile, and a block's rank among them.

In CTA pairs (`cta_group` 2) the blocks that share a tile along x have one place in their pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numba_tma.backend.interface import (
    Constant,
    Unknown,
    compile_time,
    device_class,
    device_function,
    u32,
)
from numba_tma.ptx import cluster_ctaid_x, cluster_ctaid_y, cluster_ctarank
from numba_tma.simulator import BadOperand

if TYPE_CHECKING:
    from numba_tma.pipeline.tile import TilePipeline


@device_class()
@dataclass(frozen=True)
class MulticastGroup:
    """The blocks of a cluster that share a tile: their `mask`, and this block's `rank` in it."""

    rank: u32
    mask: u32


@compile_time
def is_shared_along_x(pipeline: TilePipeline, name: str) -> bool:
    """Return whether blocks share the tile `name` along x of the cluster; otherwise along y."""
    if isinstance(name, Unknown):
        raise BadOperand(f"multicast_group(name=...) must be a compile-time constant, not {name}")
    axis = dict(pipeline.multicast).get(name)
    if axis is None:
        raise BadOperand(
            f"multicast_group({name!r}): {pipeline} shares "
            f"{', '.join(n for n, _ in pipeline.multicast) or 'no tile'}; say so with "
            "cluster=... and multicast={name: 'x' or 'y'}"
        )
    return axis == "x"


def axis_mask(cluster: tuple[int, int], axis: str, x: int, y: int, step: int = 1) -> int:
    """Return the blocks that differ from block (x, y) only along `axis`, one bit for each rank.

    Along x these are the blocks at every `step`-th place.
    """
    width, height = cluster
    if axis == "x":
        return sum(1 << place for place in range(x % step, width, step)) << y * width
    return sum(1 << row * width for row in range(height)) << x


@device_function
def blocks_along(pipeline: TilePipeline, along_x: Constant[bool]) -> MulticastGroup:
    """Return the blocks that differ from this block only in x; without `along_x`, only in y."""
    x, y = u32(0), u32(0)
    if pipeline.cluster_width > 1:
        x = cluster_ctaid_x()
    if pipeline.cluster_height > 1:
        y = cluster_ctaid_y()
    if along_x and pipeline.in_pair:
        return MulticastGroup(
            x // u32(2), pipeline.row_mask << u32(y * pipeline.cluster_width + x % 2)
        )
    if along_x:
        return MulticastGroup(x, pipeline.row_mask << u32(y * pipeline.cluster_width))
    return MulticastGroup(y, pipeline.column_mask << x)


@device_function
def peers(pipeline: TilePipeline) -> int:
    """Return the blocks that load into this block's stages, one bit for each rank."""
    mask = u32(0)
    if pipeline.shares_x:
        mask = u32(mask | blocks_along(pipeline, True).mask)
    if pipeline.shares_y:
        mask = u32(mask | blocks_along(pipeline, False).mask)
    return mask


@device_function
def is_leader() -> bool:
    """Return whether the block is the even one of its CTA pair, which multiplies for both."""
    return cluster_ctarank() % u32(2) == 0


@device_function
def released_blocks(pipeline: TilePipeline) -> int:
    """Return the blocks that a commit of this block releases a stage to, one bit for each rank.

    These are the blocks that load into the stages that the product read. In a CTA pair, whose even
    block commits, they are those of both blocks.
    """
    if not pipeline.in_pair:
        return peers(pipeline)
    mask = u32(u32(1) << cluster_ctarank() | peers(pipeline))
    return u32(mask | mask << 1)
