"""Columns of tensor memory in registers: loads, stores, and the claims of a kernel's matrices."""

from __future__ import annotations

from typing import get_args

import numpy as np

from numba_tma import simulator
from numba_tma.backend.interface import Unknown, compile_time, native
from numba_tma.device.shared import _narrow as narrow
from numba_tma.host.annotations import Registers
from numba_tma.host.tensor_tiles import Accumulator, ColumnClaim, TensorOperand
from numba_tma.ptx import (
    tcgen05_ld_32x32b,
    tcgen05_st_32x32b,
    tcgen05_wait_ld,
    tcgen05_wait_st,
)
from numba_tma.ptx.tcgen05 import Repeats
from numba_tma.simulator import BadOperand

#: Numbers of columns that a load or a store can move at once.
NUMS: tuple[int, ...] = get_args(Repeats)


@native
def load_columns(layout: Accumulator, taddr: int, num: int) -> Registers:
    """Return `num` columns from `taddr` on as elements of `layout`. Executed by whole warps.

    The load and its wait are one instruction sequence: otherwise the compiler could move arithmetic
    on the registers before the wait.
    """
    registers = tcgen05_ld_32x32b(taddr, num)  # type: ignore[arg-type]
    tcgen05_wait_ld()
    bits = np.array([int(register) for register in registers], np.uint32)
    stored = bits.astype(f"u{layout.dtype.itemsize}").view(layout.dtype.numpy)
    return tuple(stored.astype(layout.dtype.compute))


@native
def store_columns(layout: Accumulator | TensorOperand, taddr: int, values: Registers) -> None:
    """Store a tuple or a vector of elements of `layout` from `taddr` on, and wait.

    Executed by whole warps.
    """
    kept = narrow(np.array(values), layout.dtype).view(f"u{layout.dtype.itemsize}")
    if layout.per_cell == 1:
        bits = kept.astype(np.uint32)
    else:
        bits = kept.view(np.uint32)
    tcgen05_st_32x32b(taddr, tuple(bits), len(bits))  # type: ignore[arg-type]
    tcgen05_wait_st()


@native
def claim_columns(claim: ColumnClaim) -> None:
    """Raise if another matrix of the kernel has some of the columns."""
    try:
        simulator.claim_columns(claim)
    except ValueError as error:
        raise BadOperand(str(error)) from None


@compile_time
def check_columns(layout: Accumulator, what: str, column: int, num: int) -> None:
    """Raise unless the accumulator has the columns. A variable column passes."""
    if isinstance(num, Unknown):
        raise BadOperand(f"{what}(num=...) must be a compile-time constant, not {num}")
    _check_place(layout, what, column, num, num)


@compile_time
def check_values(layout: Accumulator | TensorOperand, what: str, column: int, values: int) -> None:
    """Raise unless `values` are a tuple of numbers that fit the matrix from `column` on."""
    count = values.num_numbers if isinstance(values, Unknown) else len(values)  # type: ignore[arg-type]
    if count is None:
        raise BadOperand(f"{what}(values=...) takes a tuple of numbers or a vector, not {values}")
    _check_place(layout, what, column, count, count / layout.per_cell)


def _check_place(
    layout: Accumulator | TensorOperand, what: str, column: int, count: int, cells: float
) -> None:
    if isinstance(column, Unknown) and not column.is_integer:
        raise BadOperand(f"{what}(column=...) takes an integer, not {column}")
    if cells not in NUMS:
        legal = [num * layout.per_cell for num in NUMS]
        raise BadOperand(f"{what} moves {', '.join(map(str, legal))} columns at once, not {count}")
    width = layout.columns * layout.per_cell
    known = not isinstance(column, Unknown)
    if known and column % layout.per_cell:
        raise BadOperand(
            f"{what}: column is {column}; a cell has {layout.per_cell} elements of {layout.dtype}: "
            f"use a multiple of {layout.per_cell}"
        )
    if count > width or (known and not 0 <= column <= width - count):
        of = f" {column} to {column + count - 1}" if known else f" of x{count}"
        matrix = "an accumulator" if isinstance(layout, Accumulator) else f"{layout},"
        raise BadOperand(f"{what}: columns{of} of {matrix} that has {width}")
