"""Rows streamed through a ring of stages, by persistent blocks that draw them from a queue.

`row_per_stage`: a stage holds a row. Consumers take it into registers, and hand the stage back when
they have stored the result; the other stages keep loads in flight meanwhile.

`slots_per_row`: a row is several slots, for rows that registers do not hold. They stay in shared
memory until the row has been reduced; the slots beyond a row's keep loads in flight meanwhile.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda

from numba_tma import ptx
from numba_tma._device import i64
from numba_tma.clusters import cluster, cluster_sync
from numba_tma.dtypes import DType
from numba_tma.kernels._registers import (
    Share,
    from_float,
    global_memory,
    load_cached,
    load_shared,
    store_global,
    to_float,
)
from numba_tma.kernels._rows import (
    CACHE_HINTS,
    Operation,
    Options,
    Plan,
    meeting,
    meeting_places,
    storing_statistics,
)
from numba_tma.layout import Tile
from numba_tma.pipeline import TilePipeline, TileQueue
from numba_tma.shared import shared_barrier, shared_barriers, shared_tile


def require_plain(op: Operation, options: Options) -> None:
    """Raise if there is a residual, or no output."""
    if options.residual or options.residual_out or not options.output:
        what = "adds no residual" if options.output else "writes rows"
        raise ValueError(f"{op.name}(plan=...): a plan with stages {what}; take one without stages")


@functools.cache
def row_per_stage(op: Operation, dtype: DType, nbytes: int, plan: Plan, options: Options) -> Any:
    """Return the kernel over rows of `nbytes`, each a stage of a `TilePipeline`."""
    require_plain(op, options)
    reduce, apply = op.reduce, op.apply
    accesses, NBYTES = nbytes // 16, nbytes
    count = -(-accesses // plan.threads)
    SHARE = Share(dtype, 16, count, plan.threads, accesses == count * plan.threads)
    PIPE = TilePipeline(plan.stages, x=Tile(nbytes, "u8"))
    meet = meeting(op.combination(SHARE), plan.threads, 1)
    HINT = CACHE_HINTS[plan.cache]
    SCRATCH, _ = meeting_places(plan.threads, 1, turns=2)
    WEIGHT, BIAS = options.weight, options.bias
    STATISTICS, store_statistics = any(options.statistics), storing_statistics(op, options)

    def rows_in_stages(  # type: ignore[no-untyped-def]
        counter,
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
        limit,
        columns,
        scalar,
    ):
        pipe = PIPE.start()
        scratch = shared_tile(SCRATCH)
        thread = cuda.threadIdx.x
        if pipe.is_producer():
            for row, stage in pipe.produce_from(TileQueue(counter, rows)):
                source = global_memory(x + row * x_stride, NBYTES)
                ptx.cp_async_bulk_load(stage.x, source, NBYTES, stage.barrier, HINT)
        else:
            turn = 0
            for row, stage in pipe.consume_from():
                packed = load_shared(SHARE, stage.x.address_of(0), thread, limit)
                own, values = reduce(SHARE, to_float(SHARE, packed), thread, limit, scalar)
                whole = meet(own, scratch, scratch, scratch, turn, 0, scalar)
                turn = 1 - turn
                values = apply(values, own, whole, columns, scalar)
                if WEIGHT:
                    values = values * to_float(SHARE, load_cached(SHARE, weight, thread, limit))
                if BIAS:
                    values = values + to_float(SHARE, load_cached(SHARE, bias, thread, limit))
                store_global(SHARE, y + row * y_stride, thread, limit, from_float(SHARE, values))
                if STATISTICS and thread == 0:
                    store_statistics(whole, row, statistic_0, statistic_1, columns, scalar)

    rows_in_stages.__name__ = f"{op.name}_in_stages"
    return cuda.jit(rows_in_stages)


@functools.cache
def slots_per_row(op: Operation, dtype: DType, nbytes: int, plan: Plan, options: Options) -> Any:
    """Return the kernel over rows of `nbytes`, each some slots of a ring.

    With a cluster each block has its part of every row, and one part of the statistics goes to
    each other block. Alone, blocks draw rows from the queue; clusters take every so many.
    """
    require_plain(op, options)
    reduce, merge, finish = op.reduce, op.merge, op.finish
    SLOT, SLOTS, THREADS, BLOCKS = plan.slot, plan.stages, plan.threads, plan.cluster
    NBYTES, PART = nbytes, -(-nbytes // (16 * plan.cluster)) * 16
    CHUNKS = -(-PART // plan.slot)
    if CHUNKS >= SLOTS or SLOT % (16 * THREADS):
        raise ValueError(
            f"{op.name}(plan=...): a row of {nbytes:,} B is {CHUNKS} slots of {SLOT:,} B in each "
            f"of {BLOCKS} blocks; the ring has {SLOTS} and needs one more than that, and a slot is "
            f"a multiple of 16 B for each of the {THREADS} threads"
        )
    EACH = SLOT // 16
    whole_slots = PART % SLOT == 0 and PART * BLOCKS == nbytes
    SHARE = Share(dtype, 16, EACH // THREADS, THREADS, whole_slots)
    RING, ROWS = Tile((SLOTS, SLOT), "u8"), Tile((SLOTS,), "i32")
    meet = meeting(op.combination(SHARE), THREADS, plan.cluster)
    HINT, RESIDENT = CACHE_HINTS[plan.cache], plan.resident
    WARPS = max(1, THREADS // 32)
    SCRATCH, PEERS = meeting_places(THREADS, plan.cluster, turns=2)
    WEIGHT, BIAS = options.weight, options.bias
    STATISTICS, store_statistics = any(options.statistics), storing_statistics(op, options)
    KEPT = Tile((CHUNKS * SLOT if plan.resident else 16,), "u8")
    KEEP_WEIGHT, KEEP_BIAS = WEIGHT and plan.resident, BIAS and plan.resident
    VECTORS = KEEP_WEIGHT + KEEP_BIAS

    def rows_in_slots(  # type: ignore[no-untyped-def]
        counter,
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
        ring, row_of = shared_tile(RING), shared_tile(ROWS)
        scratch, peers = shared_tile(SCRATCH), shared_tile(PEERS)
        full, empty, heard = shared_barriers(SLOTS), shared_barriers(SLOTS), shared_barriers(2)
        if KEEP_WEIGHT:
            kept_weight = shared_tile(KEPT)
        if KEEP_BIAS:
            kept_bias = shared_tile(KEPT)
        kept = shared_barrier()
        thread = cuda.threadIdx.x
        rank = 0
        if BLOCKS > 1:
            rank = i64(ptx.cluster_ctarank())
        begin = rank * PART  # of this block's part, in bytes from the row's start
        if thread == 0:
            full.init(1)
            empty.init(WARPS)
            heard.init(1)
            kept.init(1)
            ptx.fence_mbarrier_init()
        cluster_sync()
        slot = 0
        phase = 0
        if thread >= THREADS:
            if thread == THREADS:
                nbytes = max(0, min(PART, NBYTES - begin))
                if VECTORS > 0:
                    kept.arrive_expect_tx(VECTORS * nbytes)
                if KEEP_WEIGHT and nbytes > 0:
                    source = global_memory(weight + begin, nbytes)
                    ptx.cp_async_bulk_load(kept_weight.address_of(0), source, nbytes, kept)
                if KEEP_BIAS and nbytes > 0:
                    source = global_memory(bias + begin, nbytes)
                    ptx.cp_async_bulk_load(kept_bias.address_of(0), source, nbytes, kept)
                last = rows + cuda.gridDim.x - 1
                clusters = cuda.gridDim.x // BLOCKS
                drawn = (
                    i64(ptx.atom_inc(counter, last)) if BLOCKS == 1 else cuda.blockIdx.x // BLOCKS
                )
                while drawn < rows:
                    row = drawn
                    # In flight while this row's slots fill.
                    drawn = i64(ptx.atom_inc(counter, last)) if BLOCKS == 1 else row + clusters
                    for chunk in range(CHUNKS):
                        empty[slot].wait(1 - phase)
                        row_of[slot] = row
                        size = max(0, min(SLOT, nbytes - chunk * SLOT))
                        full[slot].arrive_expect_tx(size)
                        if size > 0:
                            at = x + row * x_stride + begin + chunk * SLOT
                            ptx.cp_async_bulk_load(
                                ring.address_of((slot, 0)),
                                global_memory(at, size),
                                size,
                                full[slot],
                                HINT,
                            )
                        slot += 1
                        if slot == SLOTS:
                            slot = 0
                            phase = 1 - phase
                empty[slot].wait(1 - phase)
                row_of[slot] = -1
                full[slot].arrive()
            return
        mine = min(accesses, (begin + PART) // 16) - begin // 16  # accesses of this block
        if VECTORS > 0:
            kept.wait(0)
        turn = 0
        meeting_phase = 0
        while True:
            full[slot].wait(phase)
            row = i64(row_of[slot])
            if row < 0:
                break
            first_slot = slot
            packed = load_shared(SHARE, ring.address_of((slot, 0)), thread, mine)
            whole, _ = reduce(SHARE, to_float(SHARE, packed), thread, mine, scalar)
            for chunk in range(1, CHUNKS):
                slot += 1
                if slot == SLOTS:
                    slot = 0
                    phase = 1 - phase
                full[slot].wait(phase)
                here = mine - chunk * EACH
                packed = load_shared(SHARE, ring.address_of((slot, 0)), thread, here)
                part, _ = reduce(SHARE, to_float(SHARE, packed), thread, here, scalar)
                whole = merge(whole, part, scalar)
            # Weights that are not kept come from the L2 cache: each chunk's while the one before it
            # is stored.
            if WEIGHT and not RESIDENT:
                next_scale = load_cached(SHARE, weight + begin, thread, mine)
            if BIAS and not RESIDENT:
                next_shift = load_cached(SHARE, bias + begin, thread, mine)
            whole = meet(whole, scratch, peers, heard, turn, meeting_phase, scalar)
            turn = 1 - turn
            if turn == 0:
                meeting_phase = 1 - meeting_phase
            slot = first_slot
            if first_slot + CHUNKS > SLOTS:
                phase = 1 - phase  # as it was before the ring's end
            for chunk in range(CHUNKS):
                here, at = mine - chunk * EACH, begin + chunk * SLOT
                packed = load_shared(SHARE, ring.address_of((slot, 0)), thread, here)
                values = finish(to_float(SHARE, packed), whole, whole, columns, scalar)
                if WEIGHT:
                    if RESIDENT:
                        place = kept_weight.address_of(chunk * SLOT)
                        next_scale = load_shared(SHARE, place, thread, here)
                    values = values * to_float(SHARE, next_scale)
                if BIAS:
                    if RESIDENT:
                        place = kept_bias.address_of(chunk * SLOT)
                        next_shift = load_shared(SHARE, place, thread, here)
                    values = values + to_float(SHARE, next_shift)
                # An arrival does not wait for loads that are on their way, and the copy engine does
                # not queue behind them: unfenced, they may find the row that comes next.
                ptx.fence_proxy_async("shared::cta")
                ptx.bar_warp_sync()
                if thread % 32 == 0:
                    empty[slot].arrive()
                # After the fence, which would wait for them.
                ahead = min(chunk + 1, CHUNKS - 1)
                then, left = begin + ahead * SLOT, mine - ahead * EACH
                if WEIGHT and not RESIDENT:
                    next_scale = load_cached(SHARE, weight + then, thread, left)
                if BIAS and not RESIDENT:
                    next_shift = load_cached(SHARE, bias + then, thread, left)
                result = from_float(SHARE, values)
                store_global(SHARE, y + row * y_stride + at, thread, here, result)
                slot += 1
                if slot == SLOTS:
                    slot = 0
                    phase = 1 - phase
            if STATISTICS and thread == 0 and rank == 0:
                store_statistics(whole, row, statistic_0, statistic_1, columns, scalar)

    rows_in_slots.__name__ = f"{op.name}_in_slots"
    return cuda.jit(cluster(BLOCKS)(rows_in_slots) if BLOCKS > 1 else rows_in_slots)
