"""Warp election and exchange, named barriers, sleep, and the order of dependent grids."""

from __future__ import annotations

from typing import Any

from numba_tma import simulator
from numba_tma.ptx._instruction import f32, instruction, u32

__all__ = [
    "elect_sync", "activemask", "shfl_sync_bfly_b32", "shfl_sync_bfly_f32", "shfl_sync_idx_b32",
    "barrier_sync", "barrier_arrive", "bar_warp_sync", "nanosleep",
    "griddepcontrol_launch_dependents", "griddepcontrol_wait",
]  # fmt: skip


@instruction("elect.sync _|{predicate}, {mask};", isa=(8, 0), sm=90, convergent=True)
def elect_sync(mask: u32 = 0xFFFFFFFF) -> bool:
    """Return True in exactly one thread of `mask`, the same thread each time.

    Executed by every thread in `mask`, converged.
    """
    return simulator.elect_sync(mask)


@instruction("activemask.b32 {result};", isa=(6, 2), sm=80, convergent=True)
def activemask() -> u32:
    """Return the lanes of the warp that execute the instruction together, bit l for lane l.

    The hardware chooses the lanes: a lane may execute alone. Executed by any thread.
    """
    return simulator.activemask()


_SHUFFLED = " {result}, {value}, {lane_mask}, {clamp}, {mask};"


@instruction("shfl.sync.bfly.b32" + _SHUFFLED, isa=(6, 0), sm=80, pure=True, convergent=True)
def shfl_sync_bfly_b32(
    value: u32, lane_mask: u32, clamp: u32 = 0x1F, mask: u32 = 0xFFFFFFFF
) -> u32:
    """Return `value` of the lane whose number is the own lane's XOR `lane_mask`.

    The low five bits of `clamp` are the last lane of a segment. Bits 8 to 12 are the bits of a
    lane's number that name its segment. 0x1f makes the whole warp one segment. If the source lane
    is past the segment's last, the result is the thread's own `value`. Executed by every thread in
    `mask`, converged. Orders no memory.
    """
    return _butterfly(value, int(lane_mask), int(clamp), mask)


@instruction("shfl.sync.bfly.b32" + _SHUFFLED, isa=(6, 0), sm=80, pure=True, convergent=True)
def shfl_sync_bfly_f32(
    value: f32, lane_mask: u32, clamp: u32 = 0x1F, mask: u32 = 0xFFFFFFFF
) -> f32:
    """Return `value`, a float32, of another lane; all else is as for `shfl_sync_bfly_b32`."""
    return _butterfly(value, int(lane_mask), int(clamp), mask)


@instruction(
    "shfl.sync.idx.b32 {result}, {value}, {lane}, {clamp}, {mask};",
    isa=(6, 0),
    sm=80,
    pure=True,
    convergent=True,
)
def shfl_sync_idx_b32(value: u32, lane: u32, clamp: u32 = 0x1F, mask: u32 = 0xFFFFFFFF) -> u32:
    """Return `value` of lane `lane`, counted from the first lane of the own segment.

    `clamp` and all else is as for `shfl_sync_bfly_b32`.
    """
    segment, last, own = int(clamp) >> 8, int(clamp) & 0x1F, simulator.lane_id()
    source = own & segment | int(lane) & 0x1F & ~segment
    return simulator.shfl(
        "idx", value, source if source <= own & segment | last & ~segment else own, mask
    )


def _butterfly(value: float, lane_mask: int, clamp: int, mask: int) -> Any:
    segment, own = clamp >> 8, simulator.lane_id()
    inside = own ^ lane_mask <= own & segment | clamp & 0x1F & ~segment
    return simulator.shfl("bfly", value, lane_mask if inside else 0, mask)


@instruction("bar.sync {barrier_id}, {threads};", isa=(2, 0), sm=80, convergent=True)
def barrier_sync(barrier_id: u32, threads: u32) -> None:
    """Arrive at named barrier `barrier_id` (0 to 15) and wait until `threads` threads have arrived.

    `threads` is a multiple of 32. `cuda.syncthreads` uses barrier 0. Orders the memory accesses of
    the participating threads at block scope.
    """
    simulator.barrier_sync(barrier_id, threads)


@instruction("bar.arrive {barrier_id}, {threads};", isa=(2, 0), sm=80, convergent=True)
def barrier_arrive(barrier_id: u32, threads: u32) -> None:
    """Arrive at named barrier `barrier_id` without waiting; others wait with `barrier_sync`.

    `threads` is a multiple of 32, and counts both the arriving and the waiting threads. Executed by
    whole warps. Earlier writes of the arriving threads are visible to the waiting threads.
    """
    simulator.barrier_arrive(barrier_id, threads)


@instruction("bar.warp.sync {mask};", isa=(6, 0), sm=80, convergent=True)
def bar_warp_sync(mask: u32 = 0xFFFFFFFF) -> None:
    """Wait for the warp's threads in `mask`, and order their memory accesses among each other.

    Executed by every thread in `mask`.
    """
    simulator.syncwarp(mask)


@instruction("nanosleep.u32 {nanoseconds};", isa=(6, 3), sm=80)
def nanosleep(nanoseconds: u32) -> None:
    """Suspend the thread for about `nanoseconds`: at least 0, at most twice that or 1 ms.

    Meant for polling loops: a wait on an mbarrier suspends the thread by itself. Executed by any
    thread. Orders nothing.
    """
    simulator.nanosleep(nanoseconds)


@instruction("griddepcontrol.launch_dependents;", isa=(7, 8), sm=90)
def griddepcontrol_launch_dependents() -> None:
    """Allow the dependent grid to start, once all blocks have executed the instruction or exited.

    Executed by any thread; once per block is enough. Orders nothing: writes become visible to the
    dependent grid only through its own `griddepcontrol_wait`. Without a programmatic dependent
    launch the instruction has no effect.
    """
    simulator.yield_turn()


@instruction("griddepcontrol.wait;", isa=(7, 8), sm=90)
def griddepcontrol_wait() -> None:
    """Wait until the grids that this grid depends on are complete and their writes visible.

    Executed by each thread that reads these writes, unless it synchronises with a thread that has
    waited. Code before the wait (barriers, tensor maps, anything that the earlier grids do not
    write) overlaps the end of those grids. Without a programmatic dependent launch the instruction
    has no effect.
    """
    simulator.await_primary()
