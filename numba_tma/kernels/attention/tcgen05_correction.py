"""Correction of O in tensor memory: rescaled where maxima grow, and stored at the end.

A thread has one row of O, the lane of tensor memory that its warp reaches. It holds 16 columns at
once: with 32, a thread of head dim 96 needs more than the 80 registers of its role.
"""

from __future__ import annotations

import functools
from typing import Any

from numba_tma.backend.interface import device_function
from numba_tma.device.shared import SharedTile
from numba_tma.device.tensor_tile import TensorTile
from numba_tma.device.vectors import map_columns
from numba_tma.host.annotations import DeviceFunction, Integer, Real, Registers
from numba_tma.kernels.attention.tcgen05_plan import Tcgen05AttentionForm

#: Columns of O that a thread holds at once.
LOADED_COLUMNS = 16


@device_function
def scaled(value: Real, column: Integer, factor: Real) -> Any:
    """Return value * factor."""
    return value * factor


@device_function
def rescale(form: Tcgen05AttentionForm, o: TensorTile, factor: Real) -> None:
    """Multiply the thread's row of O with its factor. Executed by whole warps."""
    for column in range(0, form.head_dim, LOADED_COLUMNS):
        values = o.load(column, LOADED_COLUMNS)
        o.store(column, map_columns(scaled, values, 0, LOADED_COLUMNS, (factor,)))


@functools.cache
def row_store(form: Tcgen05AttentionForm) -> DeviceFunction:
    """Return the function that writes the thread's row of O times a factor to shared memory."""
    ROWS, HEAD_DIM = form.o_rows, form.head_dim
    NUM = form.o_dtype.chunk
    write_chunks = chunks_write(form, LOADED_COLUMNS // NUM - 1)

    @device_function
    def store_row(o: TensorTile, tile: SharedTile, lane: int, factor: Real) -> None:
        for column in range(0, HEAD_DIM, LOADED_COLUMNS):
            values = o.load(column, LOADED_COLUMNS)
            write_chunks(values, tile.view(ROWS), lane, column, factor)

    return store_row


@functools.cache
def chunks_write(form: Tcgen05AttentionForm, index: int) -> DeviceFunction:
    """Return the function that writes chunks 0 to `index`, of 16 bytes, of the loaded columns.

    This is an unrolled loop, as `chunks_write` of matmul's epilogue.
    """
    NUM = form.o_dtype.chunk
    START = index * NUM
    write_previous = chunks_write(form, index - 1) if index else nothing_to_write

    @device_function
    def write(values: Registers, rows: SharedTile, lane: int, column: int, factor: Real) -> None:
        write_previous(values, rows, lane, column, factor)
        chunk = map_columns(scaled, values, START, NUM, (factor,))
        rows.write_vector((lane, column + START), chunk)

    return write


@device_function
def nothing_to_write(
    values: Registers, rows: SharedTile, lane: int, column: int, factor: Real
) -> None:
    """Write nothing: there is no chunk to the left of the first."""
