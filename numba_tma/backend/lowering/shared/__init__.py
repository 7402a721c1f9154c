"""Shared memory in kernels: its `allocation`, its `tiles`, and `atomics` on their elements."""

from numba_tma.backend.lowering.shared import atomics as atomics
from numba_tma.backend.lowering.shared.allocation import ACCESSES, BARRIER, shared_tile_type
from numba_tma.backend.lowering.shared.tiles import (
    mark_used,
    read_vector,
    tile_of,
    tile_offset,
    write_vector,
)

__all__ = [
    "ACCESSES",
    "BARRIER",
    "mark_used",
    "read_vector",
    "shared_tile_type",
    "tile_of",
    "tile_offset",
    "write_vector",
]
