"""The start of a `TilePipeline`: barriers, and the simulator's checks and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba_tma import simulator
from numba_tma.backend.interface import (
    Unknown,
    compile_time,
    device_function,
    simulator_only,
    u32,
)
from numba_tma.pipeline.roles import MAX_ROLES, WARP
from numba_tma.pipeline.stage_layout import tile_stride
from numba_tma.ptx import (
    barrier_cluster_arrive,
    barrier_cluster_wait,
    barrier_sync,
    fence_mbarrier_init,
    mbarrier_init,
    ntid_x,
    st_shared_u64,
)

if TYPE_CHECKING:
    from numba_tma.pipeline.tile import TilePipeline

CONSUMER_BARRIER = 1  # named barrier of the consumers of a pipeline without roles


@device_function
def initialise(
    pipeline: TilePipeline, barriers: int, thread: int, num_threads: int, sync: bool
) -> None:
    """Initialise the barriers of a ring and make them visible to the block and its copies."""
    if thread == 0:
        releases = u32(pipeline.empty_arrivals)
        if releases == 0:
            releases = u32(num_threads) // u32(WARP) - u32(1)
        for stage in range(pipeline.num_stages):
            mbarrier_init(barriers + 8 * stage, pipeline.full_arrivals)
            mbarrier_init(barriers + pipeline.empty_offset + 8 * stage, releases)
            if pipeline.ledger_offset > 0:
                st_shared_u64(barriers + pipeline.ledger_offset + 8 * stage, 0)
        if pipeline.debug:
            if pipeline.block == 0:
                meeting = barriers + pipeline.sync_offset + 8 * CONSUMER_BARRIER
                mbarrier_init(meeting, num_threads - WARP)
            for number in range(MAX_ROLES + 1):
                if pipeline.sync_arrivals[number] > 0:
                    meeting = barriers + pipeline.sync_offset + 8 * number
                    mbarrier_init(meeting, pipeline.sync_arrivals[number])
        fence_mbarrier_init()
    if sync:
        meet_at_start(pipeline.in_cluster, num_threads)


@device_function
def meet_at_start(in_cluster: bool, num_threads: int) -> None:
    """Synchronise the block, and wait until all blocks of its cluster have initialised barriers.

    What else the threads wrote before is visible to their block alone: a release to the cluster
    would wait for all writes to global memory, which takes longer than the first load.
    """
    if in_cluster:
        barrier_cluster_arrive("relaxed")  # `fence_mbarrier_init` has released the barriers
    barrier_sync(0, num_threads)
    if in_cluster:
        barrier_cluster_wait()


@compile_time
def check_sync(sync: bool) -> None:
    """Raise unless `sync` is known when the kernel is compiled."""
    if isinstance(sync, Unknown):
        raise ValueError(f"start(sync=...) must be a compile-time constant, but its type is {sync}")


@simulator_only
def check_launch(pipeline: Any, minimum: int = WARP) -> None:
    """Raise unless the block has the roles' threads. Outside the simulator the launch checks it."""
    name = repr(pipeline).partition("(")[0]
    simulator.check_block(name, minimum=minimum)
    if pipeline.block and ntid_x() != pipeline.block:
        raise simulator.BadOperand(block_rule(pipeline.block, ntid_x()))


def block_rule(expected: int, given: Any) -> str:
    """Return the error of a block whose size is not that of the roles."""
    return (
        f"block {given}: the roles of the kernel's pipeline have {expected} threads in all, in one "
        f"dimension: launch blocks of {expected}, which Roles.threads says"
    )


@simulator_only
def label_stages(pipeline: TilePipeline, base: int, first: int) -> None:
    """Name the tiles and the barriers of the stages for the simulator's errors and timeline."""
    if simulator.labelled(first, f"full[0] of {pipeline}"):
        return  # by another thread of the block
    for role in (pipeline.producer, *pipeline.consumers):
        if role is not None:
            simulator.name_role(role.name, role.first, role.members)
    for stage in range(pipeline.num_stages):
        simulator.label(first + 8 * stage, f"full[{stage}] of {pipeline}")
        simulator.label(first + pipeline.empty_offset + 8 * stage, f"empty[{stage}] of {pipeline}")
        for name, tile in pipeline.tiles:
            for j in range(pipeline.k_group):
                slot = stage * pipeline.k_group + j
                address = base + pipeline.tile_offset(name) + slot * tile_stride(tile)
                part = f"[{stage}][{j}]" if pipeline.k_group > 1 else f"[{stage}]"
                simulator.label(address, f"{name}{part} of {pipeline}")
