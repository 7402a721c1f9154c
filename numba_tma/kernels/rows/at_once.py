"""Rows that blocks take at once: a block, or a warp for short rows, takes one row and ends.

Each thread holds its `Share` of the row in registers between reading and writing it. Several blocks
on a multiprocessor overlap one's loads with the others' arithmetic, in the hardware's order of
blocks, which keeps the addresses in flight together.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda

from numba_tma import ptx
from numba_tma.device.clusters import cluster
from numba_tma.device.row_share import (
    Share,
    from_float,
    load_cached,
    load_global,
    load_shared,
    store_global,
    to_float,
)
from numba_tma.device.shared import shared_barrier, shared_barriers, shared_tile
from numba_tma.host.environment import simulated
from numba_tma.host.layout import Tile
from numba_tma.kernels.rows.operation import (
    CACHE_HINTS,
    Operation,
    Options,
    Plan,
    meeting,
    meeting_places,
    require_room,
    storing_statistics,
)


@functools.cache
def at_once(op: Operation, share: Share, plan: Plan, options: Options) -> Any:
    """Return the kernel in which each block takes `plan.rows` rows and ends."""
    reduce, apply = op.reduce, op.apply
    BLOCKS, ROWS, THREADS, WIDTH = plan.cluster, plan.rows, plan.threads, share.width
    meet = meeting(op.combination(share), plan.threads, plan.cluster)
    SHARE, STEP = share, share.step * share.count  # accesses of a block
    ROW = Tile(STEP * share.width, "u8")
    SCRATCH, PEERS = meeting_places(plan.threads, plan.cluster)
    if plan.bulk:
        require_room(op.name, plan, plan.rows * ROW.size)
    BULK, STAGED = plan.bulk, Tile((plan.rows, ROW.size), "u8") if plan.bulk else Tile(16, "u8")
    WEIGHT, BIAS, OUTPUT = options.weight, options.bias, options.output
    RESIDUAL, RESIDUAL_OUT = options.residual, options.residual_out
    STATISTICS, store_statistics = any(options.statistics), storing_statistics(op, options)
    EARLY, HINT = plan.early, CACHE_HINTS[plan.cache]

    def rows_at_once(  # type: ignore[no-untyped-def]
        x,
        x_stride,
        residual,
        residual_stride,
        weight,
        bias,
        y,
        y_stride,
        total,
        total_stride,
        statistic_0,
        statistic_1,
        rows,
        accesses,
        columns,
        scalar,
    ):
        scratch, peers, full = shared_tile(SCRATCH), shared_tile(PEERS), shared_barriers(1)
        rank = 0
        thread = cuda.threadIdx.x
        row = cuda.blockIdx.x // BLOCKS
        limit = accesses
        if ROWS > 1:
            thread = cuda.threadIdx.x % THREADS
            row = row * ROWS + cuda.threadIdx.x // THREADS
            limit = accesses if row < rows else 0
        if BLOCKS > 1:
            rank = ptx.cluster_ctarank()
        first = rank * STEP + thread
        if BULK:
            staged, loaded = shared_tile(STAGED), shared_barrier()
            if cuda.threadIdx.x == 0:
                loaded.init(1)
                ptx.fence_mbarrier_init()
                begin = cuda.blockIdx.x // BLOCKS * ROWS
                here = min(ROWS, rows - begin)
                nbytes = max(0, min(STEP, accesses - rank * STEP)) * WIDTH
                loaded.arrive_expect_tx(here * nbytes)
                for k in range(ROWS):
                    if k < here and nbytes > 0:
                        source = x + (begin + k) * x_stride + rank * STEP * WIDTH
                        ptx.cp_async_bulk_load(
                            staged.address_of((k, 0)),
                            source,
                            nbytes,
                            loaded,
                            HINT,
                        )
        if BLOCKS > 1:
            if cuda.threadIdx.x == 0:
                full.init(1)
                ptx.fence_mbarrier_init()
            ptx.barrier_cluster_arrive()
        if BULK:
            cuda.syncthreads()
            loaded.wait(0)
            place = staged.address_of((cuda.threadIdx.x // THREADS, 0))
            packed = load_shared(SHARE, place, thread, limit - rank * STEP)
        else:
            packed = load_global(SHARE, x + row * x_stride, first, limit)
        if RESIDUAL:
            added = load_global(SHARE, residual + row * residual_stride, first, limit)
        if WEIGHT and EARLY:
            scale = load_cached(SHARE, weight, first, limit)
        if BIAS and EARLY:
            shift = load_cached(SHARE, bias, first, limit)
        values = to_float(SHARE, packed)
        if RESIDUAL:
            values = values + to_float(SHARE, added)
        if RESIDUAL_OUT:
            store_global(SHARE, total + row * total_stride, first, limit, from_float(SHARE, values))
        own, values = reduce(SHARE, values, first, limit, scalar)
        if BLOCKS > 1:
            ptx.barrier_cluster_wait()  # the peers have started and initialised their barriers
        whole = meet(own, scratch, peers, full, 0, 0, scalar)
        if OUTPUT:
            values = apply(values, own, whole, columns, scalar)
            if WEIGHT and not EARLY:
                scale = load_cached(SHARE, weight, first, limit)
            if BIAS and not EARLY:
                shift = load_cached(SHARE, bias, first, limit)
            if WEIGHT:
                values = values * to_float(SHARE, scale)
            if BIAS:
                values = values + to_float(SHARE, shift)
            store_global(SHARE, y + row * y_stride, first, limit, from_float(SHARE, values))
        if STATISTICS and thread == 0 and rank == 0 and row < rows:
            store_statistics(whole, row, statistic_0, statistic_1, columns, scalar)

    rows_at_once.__name__ = f"{op.name}_at_once"
    kernel = cluster(plan.cluster)(rows_at_once) if plan.cluster > 1 else rows_at_once
    bounds = (plan.threads * plan.rows, plan.blocks) if plan.blocks else plan.threads * plan.rows
    return cuda.jit(kernel) if simulated() else cuda.jit(launch_bounds=bounds)(kernel)
