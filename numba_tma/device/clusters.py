"""Clusters: blocks that run at the same time and reach each other's shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba_tma.backend.interface import device_function
from numba_tma.host.cluster_rules import cluster_size, set_cluster
from numba_tma.host.host_only import host_only
from numba_tma.ptx import barrier_cluster_arrive, barrier_cluster_wait

F = TypeVar("F", bound=Callable[..., Any])


@host_only
def cluster(size: int | tuple[int, ...]) -> Callable[[F], F]:
    """Run a kernel's blocks in clusters of `size`.

    It stands below ``@cuda.jit``, and the kernel is launched as ever, with a grid in blocks::

        @cuda.jit
        @tma.cluster(2)
        def kernel(x): ...

    A function that a kernel calls has no clusters of its own; there this is an error.

    Parameters
    ----------
    size
        Blocks along x, or a tuple of blocks along x, y and z; at most 8 in all. A grid that they
        do not divide is a ValueError at the launch.
    """
    checked = cluster_size(size)
    return lambda function: set_cluster(function, checked)


@device_function
def cluster_sync() -> None:
    """Wait for all threads of the cluster; what they did before is visible afterwards.

    Executed by every thread of the cluster that has not exited (PTX barrier.cluster.arrive and
    .wait). Without a cluster, the block is one.
    """
    barrier_cluster_arrive()
    barrier_cluster_wait()
