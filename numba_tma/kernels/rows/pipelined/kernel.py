"""RMSNorm through a `TilePipeline`, written as users write kernels: an example, run by the demo.

Blocks stay on the SM and draw rows from a queue. A producer warp loads each row into a stage by a
bulk copy (TMA); the consumers take the row into registers, normalise and store it, and release the
stage when they have read it. The other stages keep loads in flight meanwhile. `rmsnorm` has no
pipeline: rows/kernel.py says why.
"""

from __future__ import annotations

import functools

from numba import cuda

import numba_tma as tma
from numba_tma.device.combine import Exchange, combine_in_turns, exchange_tiles
from numba_tma.device.row_share import from_float, load_cached, load_shared, store_global, to_float
from numba_tma.device.share import Share
from numba_tma.host.annotations import Kernel
from numba_tma.host.dtypes import DType
from numba_tma.kernels.rows.rmsnorm.operation import add_lanes, divide_by_rms, sum_of_squares
from numba_tma.kernels.rows.steps import row_of


@functools.cache
def pipelined_kernel(columns: int, dtype: DType, threads: int, stages: int) -> Kernel:
    """Return the kernel over rows of `columns`, with `threads` consumers."""
    NBYTES = columns * dtype.itemsize
    ACCESSES, PER_THREAD = NBYTES // 16, -(-NBYTES // (16 * threads))
    SHARE = Share(dtype, 16, PER_THREAD, threads, ACCESSES == PER_THREAD * threads)
    PIPE = tma.TilePipeline(stages, x=tma.Tile(NBYTES, "u8"))
    SCRATCH, _ = exchange_tiles(threads, 1, turns=2)
    _, combine_row = combine_in_turns(add_lanes, threads, 1)

    @cuda.jit
    def rmsnorm_pipelined(counter, x, weight, y, rows, columns, eps):  # type: ignore[no-untyped-def]
        pipe = PIPE.start()
        scratch = tma.shared_tile(SCRATCH)
        if pipe.is_producer():
            for row, stage in pipe.produce_from(tma.TileQueue(counter, rows)):
                tma.ptx.cp_async_bulk_load(stage.x, row_of(x, row), NBYTES, stage.barrier)
        else:
            exchange, turn = Exchange(scratch, scratch, scratch), 0
            thread = cuda.threadIdx.x
            for row, stage in pipe.consume_from():
                packed = load_shared(SHARE, stage.x.address_of(0), thread, ACCESSES)
                values = to_float(SHARE, packed)
                own, values = sum_of_squares(SHARE, values, thread, ACCESSES, eps)
                row_stats = combine_row(own, exchange, turn, 0, eps)
                turn = 1 - turn
                values = divide_by_rms(values, own, row_stats, columns, eps)
                scale = to_float(SHARE, load_cached(SHARE, weight, thread, ACCESSES))
                result = from_float(SHARE, values * scale)
                store_global(SHARE, row_of(y, row), thread, ACCESSES, result)

    return rmsnorm_pipelined
