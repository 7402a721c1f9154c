"""`rmsnorm_pipelined`: the example of a `TilePipeline` over rows, from the host; see `kernel`."""

from __future__ import annotations

import numpy as np

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.host.arrays import check_same
from numba_tma.host.cached_kernel import shipped
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

pipelined_kernel = shipped("numba_tma.kernels.rows.pipelined.kernel", "pipelined_kernel")


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
