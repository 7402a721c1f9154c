"""mbarrier operations at any block of the cluster, by the address that `mapa` returned.

The operations return nothing: only the block that contains a barrier may wait on it. The address of
a barrier in the executing block is valid, too.
"""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.ptx._instruction import ClusterAddress, instruction, u32
from numba_tma.ptx.mbarrier import Relaxed, Release

__all__ = [
    "mbarrier_arrive_remote", "mbarrier_arrive_expect_tx_remote", "mbarrier_arrive_drop_remote",
    "mbarrier_arrive_drop_expect_tx_remote", "mbarrier_expect_tx_remote",
    "mbarrier_complete_tx_remote",
]  # fmt: skip

_SINCE = {"relaxed.cta": ((8, 6), 90), "relaxed.cluster": ((8, 6), 90)}


@instruction(
    "mbarrier.arrive<semantics:.{semantics}>.shared::cluster.b64 _, [{barrier}]<count:, {count}>;",
    isa=(8, 0),
    sm=90,
    since=_SINCE,
)
def mbarrier_arrive_remote(
    barrier: ClusterAddress, count: u32 | None = None, semantics: Release | None = None
) -> None:
    """Arrive once, or `count` times, at a barrier of any block of the cluster.

    Executed by each arriving thread, while the barrier's block is known not to have exited. Release
    semantics at block scope. To make writes visible to waiters in another block, pass
    ``"release.cluster"`` here and ``"acquire.cluster"`` in their wait.
    """
    simulator.mbarrier_arrive_remote(barrier, count, semantics)


@instruction(
    "mbarrier.arrive.expect_tx<semantics:.{semantics}>.shared::cluster.b64"
    " _, [{barrier}], {tx_bytes};",
    isa=(8, 0),
    sm=90,
    since=_SINCE,
)
def mbarrier_arrive_expect_tx_remote(
    barrier: ClusterAddress, tx_bytes: u32, semantics: Release | None = None
) -> None:
    """Expect `tx_bytes` more at a barrier of any block of the cluster, then arrive once at it.

    Executed by the thread that issues copies on behalf of the barrier's block. Release semantics at
    block scope, or as `semantics` says.
    """
    simulator.mbarrier_arrive_expect_tx_remote(barrier, tx_bytes, semantics)


@instruction(
    "mbarrier.arrive_drop<semantics:.{semantics}>.shared::cluster.b64 _, [{barrier}]"
    "<count:, {count}>;",
    isa=(8, 0),
    sm=90,
    since=_SINCE,
)
def mbarrier_arrive_drop_remote(
    barrier: ClusterAddress, count: u32 | None = None, semantics: Release | None = None
) -> None:
    """Arrive at a barrier of any block of the cluster, and leave all its later phases.

    Executed by a thread of a block that ends before the others. Release semantics at block scope,
    or as `semantics` says.
    """
    simulator.mbarrier_arrive_drop_remote(barrier, count, semantics)


@instruction(
    "mbarrier.arrive_drop.expect_tx<semantics:.{semantics}>.shared::cluster.b64"
    " _, [{barrier}], {tx_bytes};",
    isa=(8, 0),
    sm=90,
    since=_SINCE,
)
def mbarrier_arrive_drop_expect_tx_remote(
    barrier: ClusterAddress, tx_bytes: u32, semantics: Release | None = None
) -> None:
    """Expect `tx_bytes` more at a barrier of any block of the cluster, arrive once and leave.

    Executed by the thread that issues its last copies on behalf of the barrier's block. Release
    semantics at block scope, or as `semantics` says.
    """
    simulator.mbarrier_arrive_drop_expect_tx_remote(barrier, tx_bytes, semantics)


@instruction(
    "mbarrier.expect_tx.{semantics}.shared::cluster.b64 [{barrier}], {tx_bytes};",
    isa=(8, 0),
    sm=90,
)
def mbarrier_expect_tx_remote(
    barrier: ClusterAddress, tx_bytes: u32, semantics: Relaxed = "relaxed.cluster"
) -> None:
    """Expect `tx_bytes` more at a barrier of any block of the cluster, without an arrival.

    Executed by any thread. Orders nothing.
    """
    simulator.mbarrier_expect_tx_remote(barrier, tx_bytes)


@instruction(
    "mbarrier.complete_tx.{semantics}.shared::cluster.b64 [{barrier}], {tx_bytes};",
    isa=(8, 0),
    sm=90,
)
def mbarrier_complete_tx_remote(
    barrier: ClusterAddress, tx_bytes: u32, semantics: Relaxed = "relaxed.cluster"
) -> None:
    """Count `tx_bytes` as copied at a barrier of any block of the cluster, without a copy.

    Executed by the thread that skips a load which the barrier's block expects. Orders nothing.
    """
    simulator.mbarrier_complete_tx_remote(barrier, tx_bytes)
