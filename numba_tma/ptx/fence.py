"""Fences between generic memory accesses and the copy engine's, and between threads."""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.ptx._instruction import instruction

__all__ = [
    "fence_proxy_async", "fence_proxy_async_all", "fence_proxy_async_generic_release",
    "fence_proxy_async_generic_acquire", "fence_mbarrier_init", "fence_acq_rel", "fence_sc",
    "fence_proxy_alias",
]  # fmt: skip

StateSpace: TypeAlias = Literal["shared::cta", "shared::cluster", "global"]
Scope: TypeAlias = Literal["cta", "cluster", "gpu", "sys"]


@instruction("fence.proxy.async.{space};", isa=(8, 0), sm=90)
def fence_proxy_async(space: StateSpace = "shared::cta") -> None:
    """Order the thread's generic accesses to `space` before later accesses of the copy engine.

    Executed by each thread that wrote, before it synchronises with the thread that issues the copy.
    Copy-engine accesses that the thread has waited for are also ordered before its later generic
    accesses. "global" is for bytes that threads write and a copy reads in the same kernel.
    """
    simulator.fence_proxy_async(space)


@instruction("fence.proxy.async;", isa=(8, 0), sm=90)
def fence_proxy_async_all() -> None:
    """Order the thread's generic accesses to all memory before later accesses of the copy engine.

    Equivalent to `fence_proxy_async` of every state space. Executed by each thread that wrote.
    """
    simulator.fence_proxy_async("shared::cluster")
    simulator.fence_proxy_async("global")


@instruction(
    "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;", isa=(8, 6), sm=90
)
def fence_proxy_async_generic_release() -> None:
    """Release the thread's generic accesses to its block's shared memory to the copy engine.

    The one-way form of `fence_proxy_async`, at cluster scope: earlier generic accesses are ordered
    before later copy-engine accesses, and not the other way round. Executed by each thread that
    wrote, before it synchronises with the thread that issues the copy.
    """
    simulator.fence_proxy_async("shared::cta")


@instruction(
    "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;",
    isa=(8, 6),
    sm=90,
)
def fence_proxy_async_generic_acquire() -> None:
    """Acquire for the copy engine the accesses that other blocks of the cluster have released.

    The counterpart of `fence_proxy_async_generic_release`, for the cluster's shared memory.
    Executed by the thread that issues the copies, after it has synchronised with the threads that
    released. Releases nothing: the thread's own writes need the release form.
    """
    simulator.yield_turn()


@instruction("fence.mbarrier_init.release.cluster;", isa=(8, 0), sm=90)
def fence_mbarrier_init() -> None:
    """Make the thread's mbarrier initialisations visible to the cluster and the copy engine.

    Executed by the thread that initialised, before the block (or cluster) synchronises.
    """
    simulator.fence_mbarrier_init()


@instruction("fence.acq_rel.{scope};", isa=(6, 0), sm=80, since={"cluster": ((7, 8), 90)})
def fence_acq_rel(scope: Scope) -> None:
    """Order the thread's memory accesses before the fence and those after it, at `scope`.

    Executed by any thread. Two threads synchronise if one writes a flag after its fence, and the
    other reads the flag before its own fence. Without such a flag a fence orders nothing between
    threads. Orders generic accesses only: the copy engine's need `fence_proxy_async`.
    """
    simulator.fence_acq_rel()


@instruction("fence.sc.{scope};", isa=(6, 0), sm=80, since={"cluster": ((7, 8), 90)})
def fence_sc(scope: Scope) -> None:
    """Order as `fence_acq_rel` does, and order sequentially consistent fences among each other.

    Executed by any thread. Algorithms in which two threads each write one flag and then read the
    other's need this fence. Slower than `fence_acq_rel`.
    """
    simulator.fence_acq_rel()


@instruction("fence.proxy.alias;", isa=(7, 5), sm=80)
def fence_proxy_alias() -> None:
    """Order the thread's accesses through two virtual addresses of the same memory.

    Executed by each thread that uses both addresses, between the two uses.
    """
    simulator.yield_turn()
