"""Fences between ordinary memory accesses and the copy engine's."""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.ptx._instruction import instruction


@instruction("fence.proxy.async.shared::cta;", isa=(8, 0), sm=90)
def fence_proxy_async() -> None:
    """Order the thread's generic accesses to shared memory before later copy-engine ones.

    Executed by each thread that wrote, before it synchronises with the thread that issues the copy.
    """
    simulator.fence_proxy_async()


@instruction("fence.mbarrier_init.release.cluster;", isa=(8, 0), sm=90)
def fence_mbarrier_init() -> None:
    """Make the thread's mbarrier initialisations visible to the cluster and the copy engine.

    Executed by the thread that initialised, before the block (or cluster) synchronises.
    """
    simulator.fence_mbarrier_init()
