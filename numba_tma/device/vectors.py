"""Vectors of elements in registers: to and from global memory, lane by lane through a function.

`SharedTile.read_vector` and `write_vector` are the same for shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numba_tma.backend.interface import native
from numba_tma.device.shared import SharedTile, _narrow, _widen
from numba_tma.host.layout import Tile
from numba_tma.ptx._instruction import global_bytes


@native
def load_vector(array: Any, start: int, tile: Tile) -> Any:
    """Return the elements of `tile`, 16 bytes or fewer of global memory, as a vector.

    `array` is a contiguous Numba array of uint8 and `start` a byte offset. The address is a
    multiple of the tile's bytes, which are a power of two. Floats of 16 bits come as float32.
    """
    values = global_bytes(array[int(start) :], tile.nbytes).view(tile.dtype.numpy)
    return _widen(values, tile.dtype.compute)


@native
def store_vector(array: Any, start: int, values: Any, tile: Tile) -> None:
    """Write a vector to global memory; the reverse of `load_vector`."""
    rounded = _narrow(values, tile.dtype)
    global_bytes(array[int(start) :], tile.nbytes)[:] = rounded.view(np.uint8)


@native
def map_lanes(function: Callable[..., Any], vectors: tuple[Any, ...], numbers: Any = ()) -> Any:
    """Return the vector of ``function(*lanes, *numbers)``, one call for each lane of `vectors`.

    A vector of one lane counts for all lanes of the others. `function` is a device function from
    the kernel's globals and returns the type of the lanes.
    """
    lanes = np.broadcast_arrays(*vectors)
    with np.errstate(all="ignore"):
        results = [function(*lane, *numbers) for lane in zip(*lanes)]
    return np.array(results, lanes[0].dtype)


@native
def four(a: float, b: float, c: float, d: float) -> Any:
    """Return the vector of four float32."""
    return np.array([a, b, c, d], np.float32)


@native
def largest(values: Any) -> Any:
    """Return the largest element of a vector of float32; NaN only if all are (max.f32)."""
    return np.fmax.reduce(values)


@native
def total(values: Any) -> Any:
    """Return the sum of a vector of float32, added in pairs: a short chain and a small error."""
    while len(values) > 1:
        odd = values[len(values) // 2 * 2 :]
        values = np.concatenate([values[: len(values) // 2 * 2 : 2] + values[1::2], odd])
    return values[0]


@native
def read_block(source: SharedTile, at: Any) -> Any:
    """Return a square block of `source` that starts at `at`, for `write_transposed`.

    The block is as wide as 16 bytes: 16 x 16 elements of 1 byte, 8 x 8 of 2, 4 x 4 of 4, 2 x 2 of
    8. Executed by one thread, which keeps it in registers.
    """
    (row, column), lanes = at, 16 // source.tile.itemsize
    return np.stack([source.read_vector((row + i, column)) for i in range(lanes)])


@native
def write_transposed(destination: SharedTile, to: Any, block: Any) -> None:
    """Write the transpose of what `read_block` returned to `destination`, from `to` on."""
    row, column = to
    rows = np.stack(block)
    for i in range(len(rows)):
        destination.write_vector((row + i, column), rows[:, i])
