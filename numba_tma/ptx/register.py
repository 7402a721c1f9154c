"""Special registers: a thread's place in its warp, block, grid and on the GPU, and the time.

`warpid`, `smid` and the clocks may return another value at each read.
"""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.ptx._instruction import instruction, u32, u64

__all__ = [
    "tid_x", "tid_y", "tid_z", "ntid_x", "ntid_y", "ntid_z", "ctaid_x", "ctaid_y", "ctaid_z",
    "nctaid_x", "nctaid_y", "nctaid_z", "laneid", "warpid", "nwarpid", "smid", "nsmid",
    "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt", "clock64",
    "globaltimer",
]  # fmt: skip


@instruction("mov.u32 {result}, %tid.x;", isa=(2, 0), sm=80, pure=True)
def tid_x() -> u32:
    """Return the thread's index in its block along x."""
    return simulator.thread_index()[0]


@instruction("mov.u32 {result}, %tid.y;", isa=(2, 0), sm=80, pure=True)
def tid_y() -> u32:
    """Return the thread's index in its block along y."""
    return simulator.thread_index()[1]


@instruction("mov.u32 {result}, %tid.z;", isa=(2, 0), sm=80, pure=True)
def tid_z() -> u32:
    """Return the thread's index in its block along z."""
    return simulator.thread_index()[2]


@instruction("mov.u32 {result}, %ntid.x;", isa=(2, 0), sm=80, pure=True)
def ntid_x() -> u32:
    """Return the number of threads of the block along x."""
    return simulator.block_dim()[0]


@instruction("mov.u32 {result}, %ntid.y;", isa=(2, 0), sm=80, pure=True)
def ntid_y() -> u32:
    """Return the number of threads of the block along y."""
    return simulator.block_dim()[1]


@instruction("mov.u32 {result}, %ntid.z;", isa=(2, 0), sm=80, pure=True)
def ntid_z() -> u32:
    """Return the number of threads of the block along z."""
    return simulator.block_dim()[2]


@instruction("mov.u32 {result}, %ctaid.x;", isa=(2, 0), sm=80, pure=True)
def ctaid_x() -> u32:
    """Return the block's index in the grid along x."""
    return simulator.block_index()[0]


@instruction("mov.u32 {result}, %ctaid.y;", isa=(2, 0), sm=80, pure=True)
def ctaid_y() -> u32:
    """Return the block's index in the grid along y."""
    return simulator.block_index()[1]


@instruction("mov.u32 {result}, %ctaid.z;", isa=(2, 0), sm=80, pure=True)
def ctaid_z() -> u32:
    """Return the block's index in the grid along z."""
    return simulator.block_index()[2]


@instruction("mov.u32 {result}, %nctaid.x;", isa=(2, 0), sm=80, pure=True)
def nctaid_x() -> u32:
    """Return the number of blocks of the grid along x."""
    return simulator.grid_dim()[0]


@instruction("mov.u32 {result}, %nctaid.y;", isa=(2, 0), sm=80, pure=True)
def nctaid_y() -> u32:
    """Return the number of blocks of the grid along y."""
    return simulator.grid_dim()[1]


@instruction("mov.u32 {result}, %nctaid.z;", isa=(2, 0), sm=80, pure=True)
def nctaid_z() -> u32:
    """Return the number of blocks of the grid along z."""
    return simulator.grid_dim()[2]


@instruction("mov.u32 {result}, %laneid;", isa=(1, 3), sm=80, pure=True)
def laneid() -> u32:
    """Return the thread's index in its warp."""
    return simulator.lane_id()


@instruction("mov.u32 {result}, %warpid;", isa=(1, 3), sm=80)
def warpid() -> u32:
    """Return the thread's warp slot on its SM; ``tid // 32`` numbers a block's warps.

    The slot can change while the thread runs: it serves to observe where warps run.
    """
    return simulator.warp_id()


@instruction("mov.u32 {result}, %nwarpid;", isa=(2, 0), sm=80, pure=True)
def nwarpid() -> u32:
    """Return the number of warp slots of an SM."""
    return simulator.sm_registers()[2]


@instruction("mov.u32 {result}, %smid;", isa=(1, 3), sm=80)
def smid() -> u32:
    """Return the number of the SM that the thread runs on, below `nsmid`.

    If the GPU is shared, the SM can change while the thread runs.
    """
    return simulator.sm_registers()[0]


@instruction("mov.u32 {result}, %nsmid;", isa=(2, 0), sm=80, pure=True)
def nsmid() -> u32:
    """Return the upper limit of `smid`; some numbers below it may be missing."""
    return simulator.sm_registers()[1]


@instruction("mov.u32 {result}, %lanemask_eq;", isa=(2, 0), sm=80, pure=True)
def lanemask_eq() -> u32:
    """Return the mask of the thread's lane alone."""
    return 1 << simulator.lane_id()


@instruction("mov.u32 {result}, %lanemask_le;", isa=(2, 0), sm=80, pure=True)
def lanemask_le() -> u32:
    """Return the mask of the thread's lane and those below."""
    return (2 << simulator.lane_id()) - 1


@instruction("mov.u32 {result}, %lanemask_lt;", isa=(2, 0), sm=80, pure=True)
def lanemask_lt() -> u32:
    """Return the mask of the lanes below the thread's."""
    return simulator.lanemask_lt()


@instruction("mov.u32 {result}, %lanemask_ge;", isa=(2, 0), sm=80, pure=True)
def lanemask_ge() -> u32:
    """Return the mask of the thread's lane and those above."""
    return 0xFFFFFFFF & ~simulator.lanemask_lt()


@instruction("mov.u32 {result}, %lanemask_gt;", isa=(2, 0), sm=80, pure=True)
def lanemask_gt() -> u32:
    """Return the mask of the lanes above the thread's."""
    return 0xFFFFFFFF & -2 << simulator.lane_id()


@instruction("mov.u64 {result}, %clock64;", isa=(2, 0), sm=80)
def clock64() -> u64:
    """Return the SM's cycle counter; differences count cycles.

    Only values of the same SM are comparable. In the simulator the counter counts scheduling steps.
    """
    return simulator.clock()


@instruction("mov.u64 {result}, %globaltimer;", isa=(3, 1), sm=80)
def globaltimer() -> u64:
    """Return the time in nanoseconds, the same on all SMs.

    The timer advances in steps of up to a microsecond. In the simulator a scheduling step counts as
    a microsecond, and a wait in which nothing happens as a millisecond, so that time limits expire.
    """
    return simulator.global_time()
