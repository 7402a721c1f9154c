"""RMSNorm through a `TilePipeline`, written as users write kernels: an example, run by the demo.

Blocks stay on the SM and draw rows from a queue. A producer warp loads each row into a stage by a
bulk copy (TMA); the consumers take the row into registers, normalise and store it, and release the
stage when they have read it, so that the other stages keep loads in flight meanwhile. `rmsnorm`
itself does without a pipeline: kernel.py says why.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma.device.combine import Exchange, combine_in_turns, exchange_tiles
from numba_tma.device.row_share import (
    Share,
    from_float,
    load_cached,
    load_shared,
    store_global,
    to_float,
)
from numba_tma.host.dtypes import DType
from numba_tma.kernels._host import launching as _host
from numba_tma.kernels._host.launching import Matrix, empty_like, launched_again
from numba_tma.kernels.rows.kernel import row_of
from numba_tma.kernels.rows.launching import access_width, check, check_vector, rows_of
from numba_tma.kernels.rows.plan import require_room
from numba_tma.kernels.rows.rmsnorm import add_lanes, divide_by_rms, sum_of_squares


@functools.cache
def pipelined_kernel(columns: int, dtype: DType, threads: int, stages: int) -> Any:
    """Return the kernel over rows of `columns`, with `threads` consumers."""
    NBYTES = columns * dtype.itemsize
    ACCESSES, PER_THREAD = NBYTES // 16, -(-NBYTES // (16 * threads))
    SHARE = Share(dtype, 16, PER_THREAD, threads, ACCESSES == PER_THREAD * threads)
    PIPE = tma.TilePipeline(stages, x=tma.Tile(NBYTES, "u8"))
    SCRATCH, _ = exchange_tiles(threads, 1, turns=2)
    _, combine = combine_in_turns(add_lanes, threads, 1)

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
                whole = combine(own, exchange, turn, 0, eps)
                turn = 1 - turn
                values = divide_by_rms(values, own, whole, columns, eps)
                scale = to_float(SHARE, load_cached(SHARE, weight, thread, ACCESSES))
                result = from_float(SHARE, values * scale)
                store_global(SHARE, row_of(y, row), thread, ACCESSES, result)

    return rmsnorm_pipelined


def rmsnorm_pipelined(
    x: Any,
    weight: Any,
    *,
    eps: float = 1e-6,
    out: Any = None,
    stream: Any = None,
    dtype: object = None,
    threads: int = 512,
    stages: int = 4,
    blocks: int = 2,
) -> Any:
    """Normalise the rows of `x` by their root mean square and scale them by `weight`.

    Parameters
    ----------
    x, weight, eps, out, stream, dtype
        As for `rmsnorm`; rows start and end at multiples of 16 B.
    threads
        Consumer threads per block, a power of 2 from 32; a producer warp is added.
    stages
        Stages of the pipeline, a row each.
    blocks
        Blocks per SM.

    Returns
    -------
    Any
        `out`.

    Raises
    ------
    ValueError
        If shapes or types disagree, rows are not aligned, or the stages do not fit into shared
        memory.
    """
    out = empty_like(x) if out is None else out
    _launch((x, weight, out), stream, (eps,), dtype, threads, stages, blocks)
    return out


@launched_again
def _launch(
    arrays: tuple[Any, Any, Any],
    stream: Any,
    numbers: tuple[float],
    dtype: object,
    threads: int,
    stages: int,
    blocks: int,
) -> None:
    x, weight, y = (Matrix(n, a, dtype) for n, a in zip(("x", "weight", "out"), arrays))
    check("rmsnorm_pipelined", x, out=y)
    check_vector("rmsnorm_pipelined", "weight", weight, x)
    if x.nbytes == 0:
        return
    if (width := access_width(x, y, weight)) < 16:
        raise ValueError(
            f"rmsnorm_pipelined(): rows and weight are aligned to {width} B; bulk copies take "
            "multiples of 16 B: use rmsnorm"
        )
    require_room("rmsnorm_pipelined", f"{stages} stages", stages * x.columns * x.dtype.itemsize)
    _host.launch(
        pipelined_kernel(x.columns, x.dtype, threads, stages),
        min(x.rows, blocks * _host.multiprocessors()),
        threads + 32,
        stream,
        _host.queue_counter(_host.current_device(), _host.stream_key(stream)),
        rows_of(x),
        weight.address,
        rows_of(y),
        x.rows,
        x.columns,
        np.float32(numbers[0]),
    )
