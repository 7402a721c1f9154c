"""Cluster launch control: a running block takes the place of one that the grid has not launched.

The grid has a block for each tile. A thread asks for a block or cluster that has not begun; the
answer, 16 B, arrives in shared memory by the async proxy, with 16 bytes completed on an mbarrier.
A block that was cancelled does not run: its tile is the asking block's. The rows have been
assembled and simulated, and have run on no GPU.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.host.architectures import BLACKWELL, FAMILY
from numba_tma.ptx._instruction import (
    BarrierAddress,
    SharedAddress,
    address,
    b128,
    instruction,
    u32,
    u32x4,
)

__all__ = [
    "clusterlaunchcontrol_try_cancel", "clusterlaunchcontrol_query_cancel_is_canceled",
    "clusterlaunchcontrol_query_cancel_get_first_ctaid",
    "clusterlaunchcontrol_query_cancel_get_first_ctaid_v4",
]  # fmt: skip

#: To all blocks of the cluster.
Everywhere: TypeAlias = Literal["all"]
Axis: TypeAlias = Literal["x", "y", "z"]


@instruction(
    "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
    "<multicast:.multicast::cluster::{multicast}>.b128 [{response}], [{barrier}];",
    isa=(8, 6),
    sm=BLACKWELL,
    since={"all": ((8, 6), FAMILY)},
)
def clusterlaunchcontrol_try_cancel(
    response: SharedAddress, barrier: BarrierAddress, multicast: Everywhere | None = None
) -> None:
    """Start to ask for a block, or cluster, of the grid that has not begun.

    The answer is 16 B at `response`, a multiple of 16 B, and completes 16 bytes on `barrier`. With
    `multicast` it is written at the same offset of every block of the cluster, and completes 16
    bytes on the mbarrier of each, which expects them itself. Executed by one thread of the cluster.

    After an answer that nothing was cancelled, another request is undefined. The answer is written
    by the async proxy: threads that have read the one before execute `fence_proxy_async`, and
    arrive on a barrier that the asking thread waits for.
    """
    simulator.try_cancel(address(response), address(barrier), multicast)


@instruction(
    "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 {predicate}, {response};",
    isa=(8, 6),
    sm=BLACKWELL,
    pure=True,
)
def clusterlaunchcontrol_query_cancel_is_canceled(response: b128) -> bool:
    """Return whether a request took a block; `response` is the answer, as two 64-bit halves."""
    return simulator.is_canceled(response)


@instruction(
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::{axis}.b32.b128 {result}, {response};",
    isa=(8, 6),
    sm=BLACKWELL,
    pure=True,
)
def clusterlaunchcontrol_query_cancel_get_first_ctaid(response: b128, axis: Axis) -> u32:
    """Return the block index, along an axis, of the first block of what a request took.

    With clusters, each block adds its own place in the cluster. Undefined if nothing was taken.
    """
    return simulator.first_ctaid(response)["xyz".index(axis)]


@instruction(
    "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {result}, {response};",
    isa=(8, 6),
    sm=BLACKWELL,
    pure=True,
)
def clusterlaunchcontrol_query_cancel_get_first_ctaid_v4(response: b128) -> u32x4:
    """Return the block index x, y, z of the first block of what a request took; the fourth is 0.

    All else is as for `clusterlaunchcontrol_query_cancel_get_first_ctaid`.
    """
    x, y, z = simulator.first_ctaid(response)
    return x, y, z, 0
