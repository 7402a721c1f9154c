"""wgmma: the fence and the groups that order a warpgroup's asynchronous products, sm_90a only.

A product takes up to 192 registers, more than the arguments of a call in a kernel can name:
`numba_tma.wgmma` emits the products.
"""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.ptx._instruction import Immediate, instruction

__all__ = ["wgmma_fence", "wgmma_commit_group", "wgmma_wait_group"]


@instruction("wgmma.fence.sync.aligned;", isa=(8, 0), sm="90a", convergent=True)
def wgmma_fence() -> None:
    """Order the warpgroup's accesses to registers before those of the products that follow.

    Executed by all threads of a warpgroup (128), converged, before the first product and after any
    thread has written an accumulator or a matrix A in registers. Not needed between products of one
    shape into the same accumulator. Orders no memory: threads' writes to shared memory need
    `fence_proxy_async`.
    """
    simulator.wgmma_fence()


@instruction("wgmma.commit_group.sync.aligned;", isa=(8, 0), sm="90a", convergent=True)
def wgmma_commit_group() -> None:
    """Commit all started and uncommitted products of the warpgroup as one group.

    Without such products the group is empty. Executed by all threads of the warpgroup, converged.
    """
    simulator.wgmma_commit_group()


@instruction("wgmma.wait_group.sync.aligned {pending};", isa=(8, 0), sm="90a", convergent=True)
def wgmma_wait_group(pending: Immediate) -> None:
    """Wait until at most `pending` (0 to 7) of the warpgroup's newest groups are incomplete.

    The accumulators of the older groups can then be read, and their operands in shared memory can
    be overwritten. Executed by all threads of the warpgroup, converged. The row does not declare to
    the compiler that the accumulators change; `numba_tma.wgmma_wait` does.
    """
    simulator.wgmma_wait_group(pending)
