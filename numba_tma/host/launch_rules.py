"""The requirements of a compiled kernel on its launches, and the check of a launch against them."""

from __future__ import annotations

from typing import NamedTuple

from numba_tma.host.cluster_rules import Dim3, check_grid


class Requirements(NamedTuple):
    """The requirements of a kernel on its launches."""

    #: Threads of its pipelines' roles; 0 for a pipeline without roles: two whole warps or more.
    blocks: frozenset[int]
    #: Whether the block must be one-dimensional, of whole warps: the whole block copies tiles.
    line: bool
    #: Blocks of a cluster along x, y and z.
    cluster: Dim3 | None
    #: Whether the kernel is in debug mode, and may write records to its process's buffer.
    watched: bool

    def check(self, grid: Dim3, block: Dim3) -> None:
        """Raise a ValueError unless the kernel can be launched with this grid and block."""
        if self.blocks:
            check_roles(self.blocks, block)
        if self.line:
            check_line(block)
        if self.cluster:
            check_grid(grid, self.cluster)


class Resources(NamedTuple):
    """The resources that a block of a compiled kernel takes."""

    registers: int  #: of a thread
    shared: int  #: bytes of static shared memory
    most_threads: int  #: that a block may have, by its registers and launch bounds
    requirements: Requirements


def check_roles(sizes: frozenset[int], block: Dim3) -> None:
    """Raise a ValueError unless a block has a pipeline's producer and consumers.

    `sizes` are the threads of its pipelines' roles; 0 for a pipeline without roles.
    """
    x, y, z = block
    for size in sizes - {0}:
        if tuple(block) != (size, 1, 1):
            raise ValueError(
                f"block {tuple(block)}: the roles of the kernel's pipeline have {size} threads, "
                f"in one dimension: launch blocks of {size}, which Roles.threads says"
            )
    if 0 in sizes and (y != 1 or z != 1 or not 64 <= x <= 1024 or x % 32):
        raise ValueError(
            f"block {tuple(block)}: a kernel with a TilePipeline has one-dimensional blocks of "
            "whole warps, the last of which produces and the others consume: use 64, 96, 128, ... "
            "1024 threads"
        )


def check_line(block: Dim3) -> None:
    """Raise a ValueError unless a block, all of which copies tiles, is one-dimensional."""
    x, y, z = block
    if y != 1 or z != 1 or x % 32:
        raise ValueError(
            f"block {tuple(block)}: a kernel with a StorePipeline or a CircularBuffer that "
            "names no role has one-dimensional blocks of whole warps: use 32, 64, 96, ... 1024 "
            "threads"
        )
