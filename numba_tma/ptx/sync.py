"""Warp election and named barriers."""

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
