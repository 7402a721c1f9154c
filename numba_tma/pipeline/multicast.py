"""The blocks of a cluster that share a tile, and a block's rank among them."""

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
from numba_tma.ptx import cluster_ctaid_x, cluster_ctaid_y
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


def axis_mask(cluster: tuple[int, int], axis: str, x: int, y: int) -> int:
    """Return the blocks that differ from block (x, y) only along `axis`, one bit for each rank."""
    width, height = cluster
    if axis == "x":
        return ((1 << width) - 1) << y * width
    return sum(1 << row * width for row in range(height)) << x


@device_function
def blocks_along(pipeline: TilePipeline, along_x: Constant[bool]) -> MulticastGroup:
    """Return the blocks that differ from this block only in x; without `along_x`, only in y."""
    x, y = u32(0), u32(0)
    if pipeline.cluster_width > 1:
        x = cluster_ctaid_x()
    if pipeline.cluster_height > 1:
        y = cluster_ctaid_y()
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
