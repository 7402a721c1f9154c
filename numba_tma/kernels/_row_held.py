"""Rows that come in slots of a ring and move to registers, for rows of one block.

As `slots_per_row`, but a row is read from shared memory once, and where its threads meet for its
statistics they also know that its slots have been read: one of them refills these while the row is
normalised and stored, and there are no empty barriers and no producer warp, which would leave each
thread 96 registers of 128. A row of 128 KB takes 64 registers of each of 512 threads.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda

from numba_tma import ptx
from numba_tma._device import device_function, i64
from numba_tma._environment import simulated
from numba_tma.dtypes import DType
from numba_tma.kernels._registers import (
    Share,
    from_float,
    global_memory,
    joined,
    load_cached,
    load_shared,
    part_of,
    store_global,
    to_float,
)
from numba_tma.kernels._row_rings import require_plain
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
from numba_tma.shared import shared_barriers, shared_tile


def _taking(op: Operation, share: Share, slots: int, chunk: int) -> Any:
    """Return the function that reads a row up to `chunk`, and reduces it.

    Each chunk has a function, since what is held grows by each.
    """
    reduce, merge, SHARE, SLOTS, CHUNK = op.reduce, op.merge, share, slots, chunk
    EACH = share.count * share.step
    before: Any = _taking(op, share, slots, chunk - 1) if chunk else None

    @device_function
    def first(ring: Any, full: Any, slot: Any, phase: Any, accesses: Any, scalar: Any) -> Any:
        full[slot].wait(phase)
        packed = load_shared(SHARE, ring.address_of((slot, 0)), ptx.tid_x(), accesses)
        part, _ = reduce(SHARE, to_float(SHARE, packed), ptx.tid_x(), accesses, scalar)
        return packed, part

    @device_function
    def another(ring: Any, full: Any, slot: Any, phase: Any, accesses: Any, scalar: Any) -> Any:
        held, whole = before(ring, full, slot, phase, accesses, scalar)
        at, parity, here = slot + CHUNK, phase, accesses - CHUNK * EACH
        if at >= SLOTS:
            at -= SLOTS
            parity = 1 - phase
        full[at].wait(parity)
        packed = load_shared(SHARE, ring.address_of((at, 0)), ptx.tid_x(), here)
        part, _ = reduce(SHARE, to_float(SHARE, packed), ptx.tid_x(), here, scalar)
        return joined(held, packed), merge(whole, part, scalar)

    return another if chunk else first


def _storing(op: Operation, share: Share, options: Options, chunk: int) -> Any:
    """Return the function that normalises and stores a row up to `chunk`."""
    finish, SHARE, CHUNK = op.finish, share, chunk
    EACH, NBYTES = share.count * share.step, share.count * share.step * share.width
    WEIGHT, BIAS, MORE = options.weight, options.bias, chunk > 0
    before: Any = _storing(op, share, options, chunk - 1) if chunk else None

    @device_function
    def store(
        held: Any,
        whole: Any,
        weight: Any,
        bias: Any,
        y: Any,
        accesses: Any,
        columns: Any,
        scalar: Any,
    ) -> None:
        if MORE:
            before(held, whole, weight, bias, y, accesses, columns, scalar)
        here, at = accesses - CHUNK * EACH, CHUNK * NBYTES
        values = to_float(SHARE, part_of(SHARE, held, CHUNK, columns >> 62))
        values = finish(values, whole, whole, columns, scalar)
        if WEIGHT:
            scale = load_cached(SHARE, weight + at, ptx.tid_x(), here)
            values = values * to_float(SHARE, scale)
        if BIAS:
            shift = load_cached(SHARE, bias + at, ptx.tid_x(), here)
            values = values + to_float(SHARE, shift)
        store_global(SHARE, y + at, ptx.tid_x(), here, from_float(SHARE, values))

    return store


@functools.cache
def held_rows(op: Operation, dtype: DType, nbytes: int, plan: Plan, options: Options) -> Any:
    """Return the kernel over rows of `nbytes`, each some slots of a ring and then in registers."""
    require_plain(op, options)
    SLOT, SLOTS, THREADS, NBYTES = plan.slot, plan.stages, plan.threads, nbytes
    CHUNKS = -(-nbytes // SLOT)
    alone = plan.cluster == 1 and not plan.resident and THREADS >= 64
    if not alone or CHUNKS > SLOTS or SLOT % (16 * THREADS):
        raise ValueError(
            f"{op.name}(plan=...): a plan that holds rows is of one block of 64 threads or more, "
            f"without resident weights; a row of {nbytes:,} B is {CHUNKS} slots of a ring of "
            f"{SLOTS}, which has at least those, and a slot is a multiple of 16 B for each of the "
            f"{THREADS} threads"
        )
    SHARE = Share(dtype, 16, SLOT // 16 // THREADS, THREADS, nbytes % SLOT == 0)
    take = _taking(op, SHARE, SLOTS, CHUNKS - 1)
    store = _storing(op, SHARE, options, CHUNKS - 1)
    meet = meeting(op.combination(SHARE), THREADS, 1)
    HINT = CACHE_HINTS[plan.cache]
    RING, ROWS = Tile((SLOTS, SLOT), "u8"), Tile((SLOTS,), "i32")
    SCRATCH, _ = meeting_places(THREADS, 1, turns=2)
    STATISTICS, store_statistics = any(options.statistics), storing_statistics(op, options)

    @device_function
    def refill(
        ring: Any,
        row_of: Any,
        full: Any,
        counter: Any,
        last: Any,
        x: Any,
        x_stride: Any,
        rows: Any,
        row: Any,
        drawn: Any,
        slot: Any,
        chunk: Any,
        count: Any,
    ) -> Any:
        """Load `count` chunks from `slot` on; return the row of the last, and the one after it."""
        for _ in range(count):
            if chunk == 0:
                row = drawn
                if row < rows:
                    row_of[slot] = row
                    drawn = i64(ptx.atom_inc(counter, last))
                else:
                    row_of[slot] = -1
                    full[slot].arrive()
            if row < rows:
                size = min(SLOT, NBYTES - chunk * SLOT)
                full[slot].arrive_expect_tx(size)
                source = global_memory(x + row * x_stride + chunk * SLOT, size)
                ptx.cp_async_bulk_load(ring.address_of((slot, 0)), source, size, full[slot], HINT)
            chunk = chunk + 1 if chunk + 1 < CHUNKS else 0
            slot = slot + 1 if slot + 1 < SLOTS else 0
        return row, drawn

    def rows_held(  # type: ignore[no-untyped-def]
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
        ring, row_of, scratch = shared_tile(RING), shared_tile(ROWS), shared_tile(SCRATCH)
        full = shared_barriers(SLOTS)
        thread = cuda.threadIdx.x
        last = rows + cuda.gridDim.x - 1
        if thread == 0:
            full.init(1)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        slot = 0
        phase = 0
        turn = 0
        loading, drawn = i64(0), i64(0)  # of thread 0: the row of the last chunk, and the next row
        if thread == 0:
            drawn = i64(ptx.atom_inc(counter, last))
            loading, drawn = refill(
                ring, row_of, full, counter, last, x, x_stride, rows, loading, drawn, 0, 0, SLOTS
            )
        while True:
            full[slot].wait(phase)
            row = i64(row_of[slot])
            if row < 0:
                break
            held, part = take(ring, full, slot, phase, accesses, scalar)
            # What is on its way out of the slots, a load into them would not wait for.
            ptx.fence_proxy_async("shared::cta")
            whole = meet(part, scratch, scratch, scratch, turn, 0, scalar)
            turn = 1 - turn
            if thread == 0:  # what this row was in gets what follows in the ring
                loading, drawn = refill(
                    ring,
                    row_of,
                    full,
                    counter,
                    last,
                    x,
                    x_stride,
                    rows,
                    loading,
                    drawn,
                    slot,
                    SLOTS % CHUNKS,
                    CHUNKS,
                )
            store(held, whole, weight, bias, y + row * y_stride, accesses, columns, scalar)
            slot += CHUNKS
            if slot >= SLOTS:
                slot -= SLOTS
                phase = 1 - phase
            if STATISTICS and thread == 0:
                store_statistics(whole, row, statistic_0, statistic_1, columns, scalar)

    rows_held.__name__ = f"{op.name}_held"
    if simulated():
        return cuda.jit(rows_held)
    return cuda.jit(launch_bounds=(THREADS, plan.blocks))(rows_held)
