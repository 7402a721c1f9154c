"""Warp election, named barriers, sleep, and the order of dependent grids."""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.ptx._instruction import instruction, u32


@instruction("elect.sync _|{predicate}, {mask};", isa=(8, 0), sm=90, convergent=True)
def elect_sync(mask: u32 = 0xFFFFFFFF) -> bool:
    """Return True in exactly one thread of those in `mask`, the same each time.

    Executed by every thread in `mask`, converged.
    """
    return simulator.elect_sync(mask)


@instruction("bar.sync {barrier_id}, {threads};", isa=(2, 0), sm=80, convergent=True)
def barrier_sync(barrier_id: u32, threads: u32) -> None:
    """Arrive at named barrier `barrier_id` (0 to 15) and wait until `threads` threads have.

    `threads` is a multiple of 32. Barrier 0 is the one of cuda.syncthreads. Orders the memory
    accesses of the participating threads at block scope.
    """
    simulator.barrier_sync(barrier_id, threads)


@instruction("bar.arrive {barrier_id}, {threads};", isa=(2, 0), sm=80, convergent=True)
def barrier_arrive(barrier_id: u32, threads: u32) -> None:
    """Arrive at named barrier `barrier_id` without waiting; others wait with `barrier_sync`.

    `threads` is a multiple of 32 and counts both kinds. Executed by whole warps. What the arriving
    threads wrote before is visible to those that wait.
    """
    simulator.barrier_arrive(barrier_id, threads)


@instruction("bar.warp.sync {mask};", isa=(6, 0), sm=80, convergent=True)
def bar_warp_sync(mask: u32 = 0xFFFFFFFF) -> None:
    """Wait for the warp's threads in `mask`; orders their memory accesses among each other.

    Executed by every thread in `mask`.
    """
    simulator.syncwarp(mask)


@instruction("nanosleep.u32 {nanoseconds};", isa=(6, 3), sm=80)
def nanosleep(nanoseconds: u32) -> None:
    """Suspend the thread for about `nanoseconds`: at least 0, at most twice that or 1 ms.

    Executed by any thread. For a loop that polls; a wait on an mbarrier sleeps by itself. Orders
    nothing.
    """
    simulator.nanosleep(nanoseconds)


@instruction("griddepcontrol.launch_dependents;", isa=(7, 8), sm=90)
def griddepcontrol_launch_dependents() -> None:
    """Allow the grid that depends on this one to start, once all blocks have said so or ended.

    Executed by any thread; once per block is enough. Orders nothing: what the dependent grid may
    read is said by its own `griddepcontrol_wait` alone. Without a programmatic dependent launch it
    does nothing.
    """
    simulator.yield_turn()


@instruction("griddepcontrol.wait;", isa=(7, 8), sm=90)
def griddepcontrol_wait() -> None:
    """Wait until the grids that this one depends on have completed and their writes are visible.

    Executed by each thread that reads what they wrote, or that synchronises with one that waited.
    What comes before it (barriers, tensor maps, anything the earlier grids do not write) overlaps
    their end. Without a programmatic dependent launch it does nothing.
    """
    simulator.yield_turn()
