"""Vectors: elements in registers, loaded and stored together, computed with lane by lane.

A vector has the operators +, -, * and / with vectors and numbers, `sum`, `max` and `min`, and is
indexed with literals. In the simulator it is a NumPy array. Every function here is executed by one
thread, for itself. `SharedTile.read_vector` and `write_vector` access shared memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numba_tma.backend.interface import native
from numba_tma.device.shared import SharedTile, _narrow, _widen, check_vectors
from numba_tma.host.annotations import (
    Coordinates,
    DeviceArray,
    DeviceFunction,
    Integer,
    Real,
    Registers,
)
from numba_tma.host.layout import Tile
from numba_tma.ptx._instruction import global_bytes


@native
def load_vector(array: DeviceArray, start: Integer, tile: Tile) -> Registers:
    """Load the elements of `tile` from byte `start` of `array`, in one access.

    `array` is a contiguous Numba array of uint8 in global memory. `tile` has 1, 2, 4, 8 or 16
    bytes, and the address is a multiple of them. Floats of 16 and 8 bits become float32.
    """
    check_vectors(tile)
    values = global_bytes(array[int(start) :], tile.nbytes).view(tile.dtype.kernel_storage)
    return _widen(values, tile.dtype.compute)


@native
def store_vector(array: DeviceArray, start: Integer, values: Registers, tile: Tile) -> None:
    """Store a vector to byte `start` of `array`, in one access; parameters as in `load_vector`."""
    check_vectors(tile)
    rounded = _narrow(values, tile.dtype)
    global_bytes(array[int(start) :], tile.nbytes)[:] = rounded.view(np.uint8)


@native
def map_lanes(
    function: DeviceFunction, vectors: tuple[Registers, ...], numbers: tuple[Real, ...] = ()
) -> Registers:
    """Return the vector of ``function(*lanes, *numbers)``, one call for each lane of `vectors`.

    The vectors have one length; a vector of one lane goes with every lane of the others.
    `function` is a device function from the kernel's globals and returns the type of the lanes.
    """
    lanes = np.broadcast_arrays(*vectors)
    with np.errstate(all="ignore"):
        results = [function(*lane, *numbers) for lane in zip(*lanes)]
    return np.array(results, lanes[0].dtype)


@native
def map_columns(
    function: DeviceFunction, values: Registers, first: int, num: int, numbers: tuple[Real, ...]
) -> Registers:
    """Return the vector of ``function(value, column, *numbers)`` for `num` elements of `values`.

    `values` are a thread's columns: a tuple, as `TensorTile.load` returns it, or a vector. `first`
    and `num` are literals; `column`, an int32, counts from the first of `values`. `function` is a
    device function from the kernel's globals and returns the type of the elements.
    """
    columns = range(first, first + num)
    with np.errstate(all="ignore"):
        results = [function(values[i], np.int32(i), *numbers) for i in columns]
    return np.array(results, type(values[first]))


@native
def four(a: Real, b: Real, c: Real, d: Real) -> Registers:
    """Return the vector of four float32."""
    return np.array([a, b, c, d], np.float32)


@native
def largest(values: Registers) -> Any:
    """Return the largest element of a vector of float32; NaN only if all are (max.f32)."""
    return np.fmax.reduce(values)


@native
def total(values: Registers) -> Any:
    """Return the sum of a vector of float32, added in pairs: a short chain and a small error."""
    while len(values) > 1:
        odd = values[len(values) // 2 * 2 :]
        values = np.concatenate([values[: len(values) // 2 * 2 : 2] + values[1::2], odd])
    return values[0]


@native
def read_block(source: SharedTile, at: Coordinates) -> tuple[Registers, ...]:
    """Read the square block of `source` whose first element is at `at`, for `write_transposed`.

    A row of the block has 16 bytes: it is 16 x 16 elements of 1 byte, 8 x 8 of 2, 4 x 4 of 4, or
    2 x 2 of 8. The thread holds all of it in registers.
    """
    (row, column), lanes = at, source.tile.dtype.chunk
    return tuple(source.read_vector((row + i, column)) for i in range(lanes))


@native
def write_transposed(
    destination: SharedTile, to: Coordinates, block: tuple[Registers, ...]
) -> None:
    """Write the transpose of what `read_block` returned, its first element at `to`."""
    row, column = to
    rows = np.stack(block)
    for i in range(len(rows)):
        destination.write_vector((row + i, column), rows[:, i])
