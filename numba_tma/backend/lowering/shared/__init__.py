"""Shared memory in kernels: its `allocation`, its `tiles`, and `operands` of copies."""

from numba_tma.backend.lowering.shared.allocation import ACCESSES, BARRIER, shared_tile_type
from numba_tma.backend.lowering.shared.operands import check_reduction, require_map, tile_of
from numba_tma.backend.lowering.shared.tiles import (
    mark_used,
    read_vector,
    tile_offset,
    write_vector,
)

__all__ = [
    "ACCESSES",
    "BARRIER",
    "check_reduction",
    "mark_used",
    "read_vector",
    "require_map",
    "shared_tile_type",
    "tile_of",
    "tile_offset",
    "write_vector",
]
