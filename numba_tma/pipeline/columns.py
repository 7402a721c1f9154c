"""Loads and stores of tensor memory columns, as tuples of elements in each lane of a warp."""

from __future__ import annotations

from typing import Any

import numpy as np

from numba_tma.backend.interface import native
from numba_tma.host.layout import Tile
from numba_tma.ptx import (
    tcgen05_ld_32x32b,
    tcgen05_st_32x32b,
    tcgen05_wait_ld,
    tcgen05_wait_st,
)


@native
def load_columns(acc: Tile, taddr: int, num: int) -> Any:
    """Return `num` columns from `taddr` on as elements of `acc`. Executed by whole warps.

    The load and its wait are one instruction sequence: otherwise the compiler could move arithmetic
    on the registers before the wait.
    """
    registers = tcgen05_ld_32x32b(taddr, num)  # type: ignore[arg-type]
    tcgen05_wait_ld()
    bits = np.array([int(register) for register in registers], np.uint32)
    return tuple(bits.view(acc.dtype.numpy))


@native
def store_columns(acc: Tile, taddr: int, values: Any) -> None:
    """Store a tuple of elements of `acc` from `taddr` on, and wait. Executed by whole warps."""
    bits = np.array(values, acc.dtype.numpy).view(np.uint32)
    tcgen05_st_32x32b(taddr, tuple(bits), len(bits))  # type: ignore[arg-type]
    tcgen05_wait_st()
