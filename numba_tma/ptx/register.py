"""The special registers that roles and schedules are read from."""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.ptx._instruction import instruction, u32


@instruction("mov.u32 {result}, %tid.x;", isa=(2, 0), sm=80, pure=True)
def tid_x() -> u32:
    """Return the thread's index in its block along x."""
    return simulator.thread_index()[0]


@instruction("mov.u32 {result}, %ntid.x;", isa=(2, 0), sm=80, pure=True)
def ntid_x() -> u32:
    """Return the number of threads of the block along x."""
    return simulator.block_dim()[0]


@instruction("mov.u32 {result}, %ctaid.x;", isa=(2, 0), sm=80, pure=True)
def ctaid_x() -> u32:
    """Return the block's index in the grid along x."""
    return simulator.block_index()[0]


@instruction("mov.u32 {result}, %nctaid.x;", isa=(2, 0), sm=80, pure=True)
def nctaid_x() -> u32:
    """Return the number of blocks of the grid along x."""
    return simulator.grid_dim()[0]


@instruction("mov.u32 {result}, %laneid;", isa=(1, 3), sm=80, pure=True)
def laneid() -> u32:
    """Return the thread's index in its warp."""
    return simulator.lane_id()


@instruction("mov.u32 {result}, %nctaid.y;", isa=(2, 0), sm=80, pure=True)
def nctaid_y() -> u32:
    """Return the number of blocks of the grid along y."""
    return simulator.grid_dim()[1]


@instruction("mov.u32 {result}, %nctaid.z;", isa=(2, 0), sm=80, pure=True)
def nctaid_z() -> u32:
    """Return the number of blocks of the grid along z."""
    return simulator.grid_dim()[2]
