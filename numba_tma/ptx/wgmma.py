"""wgmma's groups: what orders the asynchronous products of a warpgroup. sm_90a alone.

The products themselves take up to 192 registers, which no list of arguments in a kernel can name:
`numba_tma.wgmma` emits them.
"""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.ptx._instruction import Immediate, instruction


@instruction("wgmma.fence.sync.aligned;", isa=(8, 0), sm="90a", convergent=True)
def wgmma_fence() -> None:
    """Order the warpgroup's accesses to registers before those of the products that follow.

    Executed by all threads of a warpgroup (128), converged, before the first product and whenever a
    thread has written an accumulator or a matrix A in registers since. Not needed between products
    of one shape into the same accumulator. Orders no memory: what threads wrote to shared memory
    needs `fence_proxy_async`.
    """
    simulator.wgmma_fence()


@instruction("wgmma.commit_group.sync.aligned;", isa=(8, 0), sm="90a", convergent=True)
def wgmma_commit_group() -> None:
    """Make all products that the warpgroup has started and not yet committed a group.

    Executed by all threads of the warpgroup, converged. Without such a product the group is empty.
    """
    simulator.wgmma_commit_group()


@instruction("wgmma.wait_group.sync.aligned {pending};", isa=(8, 0), sm="90a", convergent=True)
def wgmma_wait_group(pending: Immediate) -> None:
    """Wait until at most `pending` (0 to 7) of the warpgroup's latest groups are under way.

    Executed by all threads of the warpgroup, converged. Then the older groups' accumulators can be
    read, and what they read from shared memory can be written. This row does not tell the compiler
    that the accumulators change; `numba_tma.wgmma_wait` does.
    """
    simulator.wgmma_wait_group(pending)
