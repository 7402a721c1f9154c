"""Rows streamed through a ring of stages, by persistent blocks that draw them from a queue.

A stage holds a row. Consumers take it into registers, and hand the stage back when they have stored
the result; the other stages keep loads in flight meanwhile.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda

from numba_tma import ptx
from numba_tma.device.row_share import (
    Share,
    from_float,
    load_cached,
    load_shared,
    store_global,
    to_float,
)
from numba_tma.device.shared import shared_tile
from numba_tma.host.dtypes import DType
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
from numba_tma.pipeline import TilePipeline, TileQueue


@functools.cache
def row_per_stage(op: Operation, dtype: DType, nbytes: int, plan: Plan, options: Options) -> Any:
    """Return the kernel over rows of `nbytes`, each a stage of a `TilePipeline`."""
    if options.residual or options.residual_out or not options.output:
        what = "adds no residual" if options.output else "writes rows"
        raise ValueError(f"{op.name}(plan=...): a plan with stages {what}; take one without stages")
    require_room(op.name, plan, plan.stages * nbytes)
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
                source = x + row * x_stride
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
