"""How kernels start a `KVPipeline`: its memory, its barriers, and its two sides."""

from __future__ import annotations

from typing import Any

from numba_tma import simulator
from numba_tma.backend.interface import u32
from numba_tma.device.shared import TileAccesses
from numba_tma.pipeline.kv import KVPipeline
from numba_tma.pipeline.kv_consumer import TMAConsumerPipeline
from numba_tma.pipeline.kv_producer import TMAProducerPipeline
from numba_tma.pipeline.staged import StagedPipeline
from numba_tma.pipeline.started import block_rule, given_address
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import barrier_sync, fence_mbarrier_init, ntid_x, st_shared_u64, tid_x


def start(
    kv: KVPipeline, tiles: Any = None, barriers: Any = None, sync: bool = True
) -> tuple[TMAProducerPipeline, TMAConsumerPipeline]:
    """Do what `KVPipeline.start` says."""
    if ntid_x() != kv.block:
        raise simulator.BadOperand(block_rule(kv.block, ntid_x()))
    base, first = _allocate(kv, tiles, barriers)
    stages, parts = kv.num_kv_stages, kv.num_qk_stages_effective
    loading = StagedPipeline(stages, parts, first, PipelineState(stages, 0, 1))
    working = StagedPipeline(stages, parts, first, PipelineState(stages))
    thread = tid_x() - kv.producer.first & 0xFFFFFFFF
    initialise(loading, tid_x(), kv.empty_arrivals, kv.block, sync)
    return (
        TMAProducerPipeline(kv, loading, base, thread, TileAccesses()),
        TMAConsumerPipeline(kv, working, base, TileAccesses()),
    )


def initialise(
    pipeline: StagedPipeline, thread: int, arrivals: int, num_threads: int, sync: bool
) -> None:
    """Initialise the barriers of a ring and make them visible to the block and its copies."""
    if thread == 0:
        pipeline.init(u32(arrivals))
        if pipeline.ledger > 0:
            for i in range(pipeline.num_kv_stages * pipeline.num_qk_stages):
                st_shared_u64(pipeline.barriers + pipeline.ledger + 8 * i, 0)
        fence_mbarrier_init()
    if sync:
        barrier_sync(0, num_threads)


def _allocate(kv: KVPipeline, tiles: Any, barriers: Any) -> tuple[int, int]:
    """Return the addresses of a ring's tiles and barriers, with names for the simulator."""
    if tiles is None:
        nbytes = kv.nbytes if barriers is None else kv.storage_nbytes
        base = simulator.allocate_shared(kv, nbytes, kv.alignment)
    else:
        base = given_address("tiles", tiles, kv.storage_nbytes, kv.alignment)
    if barriers is not None:
        first = given_address("barriers", barriers, 8 * kv.num_barriers, 8)
    elif tiles is None:
        first = base + kv.storage_nbytes
    else:
        first = simulator.allocate_shared((kv, "barriers"), 8 * kv.num_barriers, 8)
    parts = kv.num_qk_stages_effective
    for i in range(kv.num_kv_stages * parts):
        stage, part = divmod(i, parts)
        where = f"[{stage}] of {f'sub-stage {part} of ' if parts > 1 else ''}{kv}"
        simulator.label(first + 8 * i, f"full{where}")
        simulator.label(first + kv.empty_offset + 8 * i, f"empty{where}")
        address = base + stage * kv.full_kv_bytes + part * kv.staged_k_bytes
        simulator.label(address, f"{kv.holds}{where}")
    return base, first
