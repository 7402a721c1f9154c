"""RMSNorm through a `TilePipeline`, written as users write kernels: an example, run by the demo.

Blocks stay on the SM and draw rows from a queue. A producer warp loads each row into a stage by a
bulk copy (TMA); the consumers take the row into registers, normalise and store it, and release the
stage when they have read it. The other stages keep loads in flight meanwhile. `rmsnorm` has no
pipeline: kernel.py says why.
"""

from __future__ import annotations

import functools

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma.device.combine import Exchange, combine_in_turns, exchange_tiles
from numba_tma.device.row_share import from_float, load_cached, load_shared, store_global, to_float
from numba_tma.device.share import Share
from numba_tma.host.annotations import DeviceArray, DTypeLike, Kernel, StreamLike
from numba_tma.host.arrays import check_same
from numba_tma.host.dtypes import DType
from numba_tma.host.values import NOT_NEGATIVE, checked, power_of_2, whole
from numba_tma.kernels._host import device
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.memo import launched_again
from numba_tma.kernels._host.outputs import check_outputs, empty_like
from numba_tma.kernels._host.workspace import queue_counter
from numba_tma.kernels.rows.launching import (
    access_width,
    address_of,
    check_vector,
    read,
    read_rows,
    rows_of,
)
from numba_tma.kernels.rows.plan import require_room
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


def rmsnorm_pipelined(
    x: DeviceArray,
    weight: DeviceArray,
    *,
    eps: float = 1e-6,
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    threads: int = 512,
    stages: int = 4,
    blocks: int = 2,
) -> DeviceArray:
    """Normalise the rows of `x` by their root mean square and scale them by `weight`.

    Parameters
    ----------
    x, weight, eps, out, stream, dtype
        As for `rmsnorm`; rows start and end at multiples of 16 B.
    threads
        Consumer threads per block, a power of 2, 32 to 512; a producer warp is added.
    stages
        Stages of the pipeline, a row each.
    blocks
        Blocks per SM.

    Returns
    -------
    DeviceArray
        `out`.

    Raises
    ------
    ValueError
        If shapes or types disagree, rows are not aligned, or the stages do not fit into shared
        memory.
    """
    out = empty_like("rmsnorm_pipelined", "x", x) if out is None else out
    _launch((x, weight, out), stream, (eps,), dtype, threads, stages, blocks)
    return out


@launched_again("rmsnorm_pipelined", "x", "weight", "out")
def _launch(
    arrays: tuple[DeviceArray, DeviceArray, DeviceArray],
    stream: StreamLike,
    numbers: tuple[float],
    dtype: DTypeLike | None,
    threads: int,
    stages: int,
    blocks: int,
) -> list[DeviceArray]:
    """Launch, and return the workspace."""
    name = "rmsnorm_pipelined"
    eps = checked(name, "eps", numbers[0], NOT_NEGATIVE)
    threads = checked(name, "threads", threads, power_of_2(32, 512))
    stages = checked(name, "stages", stages, whole(1, 64))
    blocks = checked(name, "blocks", blocks, whole(1, 32))
    x = read_rows(name, "x", arrays[0], dtype)
    weight, y = read(name, "weight", arrays[1], dtype), read(name, "out", arrays[2], dtype)
    check_same(x, y)
    check_vector(weight, x)
    check_outputs([y], [x, weight], in_place=[x])
    if x.size == 0:
        return []
    if (width := access_width(x, y, weight)) < 16:
        raise ValueError(
            f"{name}(): rows and weight are aligned to {width} B; bulk copies take multiples of "
            "16 B: use rmsnorm"
        )
    (rows, columns), counter = x.as_rows().shape, queue_counter()
    require_room(name, f"{stages} stages", stages * columns * x.itemsize)
    launch(
        pipelined_kernel(columns, x.dtype, threads, stages),
        min(rows, blocks * device.sm_count()),
        threads + 32,
        stream,
        counter,
        rows_of(x),
        address_of(weight),
        rows_of(y),
        rows,
        columns,
        np.float32(eps),
    )
    return [counter]
