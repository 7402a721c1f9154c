"""`copy`: contiguous bytes by bulk copies, matrices of any row stride by tiles."""

from __future__ import annotations

import math

from numba_tma.host.annotations import DeviceArray, StreamLike
from numba_tma.host.arrays import Array, check_same
from numba_tma.host.cached_kernel import shipped
from numba_tma.host.rows import Divisor, PlacedRows, form_of, part_of, pieces, units_of
from numba_tma.host.tensor_map import tensor_map
from numba_tma.host.values import checked, instance, optional
from numba_tma.kernels._host.device import sm_count
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.limits import BY_THREADS
from numba_tma.kernels._host.memo import launched_again
from numba_tma.kernels._host.outputs import check_outputs, tile_for
from numba_tma.kernels._host.workspace import queue_counter
from numba_tma.kernels.copy.plan import CopyPlan

Plan = CopyPlan  #: its name before 0.1.0

_PAGE = "numba_tma.kernels.copy.kernel"
copy_chunks_kernel = shipped(_PAGE, "copy_chunks_kernel")
copy_tiles_kernel = shipped(_PAGE, "copy_tiles_kernel")
copy_units_kernel = shipped(_PAGE, "copy_units_kernel")

UNIT_THREADS = 256
TILE_BYTES, STAGES, BLOCKS_PER_SM = 8192, 2, 4


def copy(
    source: DeviceArray,
    out: DeviceArray,
    *,
    stream: StreamLike = None,
    plan: CopyPlan | None = None,
) -> DeviceArray:
    """Copy `source` to `out` on the GPU.

    Large contiguous arrays are copied as bytes, large arrays with gaps between rows tile by tile.
    Small arrays, and those that TMA cannot address (it moves memory that starts and ends at
    multiples of 16 B), are copied by threads, which shift the 16-byte units of `source` into those
    of `out`.

    Parameters
    ----------
    source, out
        Device arrays of the same shape and type: torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``. The last axis is contiguous. They share no
        memory.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    plan
        How contiguous arrays are cut up; ``CopyPlan()`` for large arrays if None.

    Returns
    -------
    DeviceArray
        `out`.

    Raises
    ------
    TypeError
        If an argument is no array in GPU memory.
    ValueError
        If shapes or types differ, or the last axis of an array is not contiguous.
    """
    _copy((source, out), stream, (), plan)
    return out


@launched_again("copy", "source", "out")
def _copy(
    arrays: tuple[DeviceArray, DeviceArray],
    stream: StreamLike,
    numbers: tuple[()],
    plan: CopyPlan | None,
) -> list[DeviceArray]:
    """Launch, and return the workspace."""
    source, out = Array.read("copy", "source", arrays[0]), Array.read("copy", "out", arrays[1])
    x, y = source.as_rows(), out.as_rows()
    check_same(source, out)
    check_outputs([out], [source])
    checked("copy", "plan", plan, optional(instance(CopyPlan)))
    if x.nbytes == 0:
        return []
    by_tma = plan.store != "vector" if plan else 2 * x.nbytes >= BY_THREADS
    plan = CopyPlan() if plan is None else plan
    if x.is_contiguous and y.is_contiguous:
        if by_tma and x.address % 16 == y.address % 16 == 0:
            blocks = -(-x.nbytes // plan.chunk_bytes)
            kernel = copy_chunks_kernel(plan)
            launch(kernel, blocks, plan.threads, stream, x.as_bytes(), y.as_bytes())
        else:
            _copy_units(x.view((1, x.size)), y.view((1, y.size)), stream)
    elif by_tma and x.is_storable and y.is_storable:
        return _copy_tiles(x, y, stream)
    else:
        _copy_units(x, y, stream)
    return []


def _copy_units(x: Array, y: Array, stream: StreamLike) -> None:
    """Copy rows that begin anywhere, by threads."""
    row_bytes = x.shape[1] * x.itemsize
    size = math.gcd(4, x.alignment, y.alignment, row_bytes)
    for first, rows in pieces(y):
        source, out = part_of(x, first, rows), part_of(y, first, rows)
        units = units_of(out)
        launch(
            copy_units_kernel(size, UNIT_THREADS, rows == 1, form_of([source], out)),
            -(-rows * units // UNIT_THREADS),
            UNIT_THREADS,
            stream,
            PlacedRows.of(source),
            PlacedRows.of(out),
            rows,
            row_bytes,
            Divisor.of(units),
        )


def _copy_tiles(x: Array, y: Array, stream: StreamLike) -> list[DeviceArray]:
    """Copy rows with gaps by TMA; return the workspace."""
    tile = tile_for(x.shape[1], x.dtype, TILE_BYTES)
    source, destination = tensor_map(x, tile), tensor_map(y, tile)
    row_tiles, column_tiles = (-(-n // t) for n, t in zip(x.shape, tile.shape))
    blocks = min(BLOCKS_PER_SM * sm_count(), row_tiles * column_tiles)
    counter = queue_counter()
    kernel = copy_tiles_kernel(tile, STAGES)
    launch(kernel, blocks, 64, stream, source, destination, counter, row_tiles, column_tiles)
    return [counter]
