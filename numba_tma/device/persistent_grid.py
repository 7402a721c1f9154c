"""`PersistentGrid`: the blocks of a grid that fits on the GPU, each with every so-many-th tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba_tma.backend.interface import Constant, constant_class, device_class, u32
from numba_tma.backend.primitives import quotient
from numba_tma.host.cluster_rules import cluster_size
from numba_tma.ptx import ctaid_x, nctaid_x


@constant_class
@dataclass(frozen=True)
class PersistentGrid:
    """A persistent scheduler: a block has its number's tile, and each one a whole grid further.

    Used like `LaunchControl`, which it replaces on GPUs without launch control: each block's tiles
    are fixed by the launch, whose grid has as many blocks, or clusters, as run at the same time.

    Parameters
    ----------
    cluster
        The blocks of the kernel's cluster along x and y, which compute a tile together.
    """

    device_methods = ("start",)
    cluster: tuple[int, int]

    def __init__(self, *, cluster: int | tuple[int, int] = 1) -> None:
        object.__setattr__(self, "cluster", cluster_size(cluster, "PersistentGrid")[:2])

    @property
    def width(self) -> int:
        """Blocks of the grid along x that compute a tile together."""
        return self.cluster[0]

    def start(self, sync: Constant[bool] = True) -> PersistentGridHandle:
        """Return the handle. It needs no memory, and synchronises nothing whatever `sync` says."""
        first, step = quotient(ctaid_x(), u32(self.width)), quotient(nctaid_x(), u32(self.width))
        return PersistentGridHandle(first[0], step[0])


@device_class()
@dataclass
class PersistentGridHandle:
    """A started `PersistentGrid`."""

    first: u32  # the block's number, or its cluster's
    step: u32  # blocks or clusters of the grid

    def tiles(self, schedule: Any) -> Any:
        """Iterate over this block's tiles of a `Schedule`: first, first + step, ..."""
        return schedule.tiles(self.first, self.step)
