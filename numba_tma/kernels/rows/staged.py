"""Rows that wait in shared memory, of blocks that take one and end.

A block copies its part of a row to shared memory, reduces it there slot by slot, and reads it again
to normalise it. Registers hold one slot at a time: shared memory alone decides how many blocks a
multiprocessor has, and their parts are what is in flight.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i64
from numba_tma.device.clusters import cluster
from numba_tma.device.row_share import (
    Share,
    from_float,
    load_cached,
    load_shared,
    store_global,
    to_float,
)
from numba_tma.device.shared import shared_barrier, shared_barriers, shared_tile
from numba_tma.host.dtypes import DType
from numba_tma.host.environment import simulated
from numba_tma.host.layout import Tile
from numba_tma.kernels.rows.operation import (
    CACHE_HINTS,
    Operation,
    Options,
    Plan,
    block_part,
    meeting,
    meeting_places,
    require_room,
    storing_statistics,
)


@functools.cache
def staged_rows(op: Operation, dtype: DType, nbytes: int, plan: Plan, options: Options) -> Any:
    """Return the kernel over rows of `nbytes`, each in the shared memory of a block or cluster."""
    reduce, merge, finish = op.reduce, op.merge, op.finish
    SLOT, THREADS, BLOCKS = plan.slot, plan.threads, plan.cluster
    PART, NBYTES, COPIES = block_part(nbytes, BLOCKS), nbytes, 1 + options.residual
    require_room(op.name, plan, COPIES * PART)
    CHUNKS, EACH = -(-PART // SLOT), SLOT // 16
    whole_slots = PART % SLOT == 0 and PART * BLOCKS == nbytes
    SHARE = Share(dtype, 16, EACH // THREADS, THREADS, whole_slots)
    STAGED = Tile((COPIES, PART), "u8")
    SCRATCH, PEERS = meeting_places(THREADS, BLOCKS)
    meet = meeting(op.combination(SHARE), THREADS, BLOCKS)
    HINT = CACHE_HINTS[plan.cache]
    WEIGHT, BIAS, EARLY = options.weight, options.bias, plan.early
    RESIDUAL, RESIDUAL_OUT = options.residual, options.residual_out
    OUTPUT, INDEX = options.output, options.index
    STATISTICS, store_statistics = any(options.statistics), storing_statistics(op, options)

    @device_function
    def with_residual(values: Any, staged: Any, chunk: Any, thread: Any, here: Any) -> Any:
        """Return a thread's values of a slot and what is added to them."""
        place = staged.address_of((1, chunk * SLOT))
        return values + to_float(SHARE, load_shared(SHARE, place, thread, here))

    @device_function
    def reduce_slot(
        values: Any,
        staged: Any,
        total: Any,
        begin: Any,
        chunk: Any,
        thread: Any,
        here: Any,
        scalar: Any,
    ) -> Any:
        """Return a thread's part of a slot, of which the row's part begins at byte `begin`."""
        at = begin + chunk * SLOT
        if RESIDUAL:
            values = with_residual(values, staged, chunk, thread, here)
        if RESIDUAL_OUT:
            store_global(SHARE, total + at, thread, here, from_float(SHARE, values))
        if INDEX:  # which access of the row it is
            part, _ = reduce(SHARE, values, at // 16 + thread, at // 16 + here, scalar)
        else:
            part, _ = reduce(SHARE, values, thread, here, scalar)
        return part

    def rows_staged(  # type: ignore[no-untyped-def]
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
        staged, loaded = shared_tile(STAGED), shared_barrier()
        scratch, peers, heard = shared_tile(SCRATCH), shared_tile(PEERS), shared_barriers(1)
        thread = cuda.threadIdx.x
        row = i64(cuda.blockIdx.x // BLOCKS)
        rank = 0
        if BLOCKS > 1:
            rank = i64(ptx.cluster_ctarank())
        begin = rank * PART  # of this block's part, in bytes from the row's start
        if thread == 0:
            loaded.init(1)
            heard.init(1)
            ptx.fence_mbarrier_init()
            size = max(0, min(PART, NBYTES - begin))
            loaded.arrive_expect_tx(COPIES * size)
            if size > 0:
                source = x + row * x_stride + begin
                ptx.cp_async_bulk_load(staged.address_of((0, 0)), source, size, loaded, HINT)
                if RESIDUAL:
                    added = residual + row * residual_stride + begin
                    ptx.cp_async_bulk_load(staged.address_of((1, 0)), added, size, loaded, HINT)
        if BLOCKS > 1:
            ptx.barrier_cluster_arrive()
        cuda.syncthreads()
        mine = min(accesses, (begin + PART) // 16) - begin // 16  # accesses of this block
        loaded.wait(0)
        summed = total + row * total_stride
        packed = load_shared(SHARE, staged.address_of((0, 0)), thread, mine)
        values = to_float(SHARE, packed)
        whole = reduce_slot(values, staged, summed, begin, 0, thread, mine, scalar)
        for chunk in range(1, CHUNKS):
            here = mine - chunk * EACH
            packed = load_shared(SHARE, staged.address_of((0, chunk * SLOT)), thread, here)
            values = to_float(SHARE, packed)
            part = reduce_slot(values, staged, summed, begin, chunk, thread, here, scalar)
            whole = merge(whole, part, scalar)
        if WEIGHT and EARLY:
            next_scale = load_cached(SHARE, weight + begin, thread, mine)
        if BIAS and EARLY:
            next_shift = load_cached(SHARE, bias + begin, thread, mine)
        if BLOCKS > 1:
            ptx.barrier_cluster_wait()  # the peers have started and initialised their barriers
        whole = meet(whole, scratch, peers, heard, 0, 0, scalar)
        if OUTPUT:
            for chunk in range(CHUNKS):
                here, at = mine - chunk * EACH, begin + chunk * SLOT
                packed = load_shared(SHARE, staged.address_of((0, chunk * SLOT)), thread, here)
                values = to_float(SHARE, packed)
                if RESIDUAL:
                    values = with_residual(values, staged, chunk, thread, here)
                values = finish(values, whole, whole, columns, scalar)
                if WEIGHT:
                    if not EARLY:
                        next_scale = load_cached(SHARE, weight + at, thread, here)
                    values = values * to_float(SHARE, next_scale)
                if BIAS:
                    if not EARLY:
                        next_shift = load_cached(SHARE, bias + at, thread, here)
                    values = values + to_float(SHARE, next_shift)
                ahead = min(chunk + 1, CHUNKS - 1)
                then, left = begin + ahead * SLOT, mine - ahead * EACH
                if WEIGHT and EARLY:
                    next_scale = load_cached(SHARE, weight + then, thread, left)
                if BIAS and EARLY:
                    next_shift = load_cached(SHARE, bias + then, thread, left)
                store_global(
                    SHARE, y + row * y_stride + at, thread, here, from_float(SHARE, values)
                )
        if STATISTICS and thread == 0 and rank == 0:
            store_statistics(whole, row, statistic_0, statistic_1, columns, scalar)

    rows_staged.__name__ = f"{op.name}_staged"
    kernel = cluster(BLOCKS)(rows_staged) if BLOCKS > 1 else rows_staged
    bounds = (THREADS, plan.blocks) if plan.blocks else THREADS
    return cuda.jit(kernel) if simulated() else cuda.jit(launch_bounds=bounds)(kernel)
