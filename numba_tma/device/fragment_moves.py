"""Moves of fragments that kernels need: one row for all rows, thread order, packed e4m3.

Pipelines do not track the accesses of `row_fragment` and `store_by_thread`: the threads execute
`fence_proxy_async` before the copy engine accesses the tile again.

In thread order, elements 4 i to 4 i + 3 of thread t are in 16-byte slot 128 i + t, so that a warp
accesses 512 contiguous bytes.
"""

from __future__ import annotations

import numpy as np

from numba_tma import ptx, simulator
from numba_tma.backend.interface import native
from numba_tma.device.fragments import Fragment
from numba_tma.device.shared import SharedTile, _narrow
from numba_tma.host.annotations import Address, Integer
from numba_tma.host.dtypes import as_dtype

F32, E4M3 = as_dtype("f32"), as_dtype("e4m3")
PIECE = 128  #: columns that are moved together


@native
def row_fragment(tile: SharedTile) -> Fragment:
    """Return the fragment whose 64 rows all are `tile`, n float32 in shared memory.

    For a value per column of a product, such as a bias. A thread reads its n / 4 numbers, two at a
    time; both of its rows share the registers.
    """
    n = tile.tile.shape[-1]
    thread = simulator.thread_in_warpgroup()
    places = [tile.address + 32 * i + 8 * (thread % 4) for i in range(n // 8)]
    pairs = [simulator.shared_read(place, F32.numpy, 2) for place in places]
    return Fragment(F32, n, np.concatenate([pair for pair in pairs for _ in range(2)]))


@native
def store_by_thread(fragment: Fragment, tile: SharedTile) -> None:
    """Write a fragment of float32 to an unswizzled tile of its size, in the order of the threads.

    The tile is read back in the same order.
    """
    elements = fragment._ready("store_by_thread").reshape(-1, 4)
    for i, four in enumerate(elements):
        place = tile.address + 16 * (128 * i + simulator.thread_in_warpgroup())
        simulator.shared_write(place, four)


@native
def store_global_by_thread(fragment: Fragment, location: Address, columns: Integer) -> None:
    """Write the first columns of a fragment to global memory, in the order of the threads.

    `location` is a multiple of 16. Elements have 32 bits, so a fragment takes 256 bytes for each of
    its columns. Columns are written by pieces of 128; `columns` may be more than the fragment has.
    """
    elements = fragment._ready("store_global_by_thread").view(np.uint32).reshape(-1, 4)
    for place, four in zip(_slots(location, fragment, columns), elements):
        ptx.st_global_v4_u32(place, tuple(four))


@native
def add_global_by_thread(fragment: Fragment, location: Address, columns: Integer) -> Fragment:
    """Return a fragment with what `store_global_by_thread` wrote to `location` added to it.

    Both fragments have elements of one type, float32 or int32. Further columns stay as they are.
    """
    elements = fragment._ready("add_global_by_thread").copy()
    fours = elements.reshape(-1, 4)
    for place, four in zip(_slots(location, fragment, columns), fours):
        four += np.array(ptx.ld_global_v4_u32(place), np.uint32).view(four.dtype)
    return Fragment(fragment._dtype, fragment._n, elements)


def _slots(location: Address, fragment: Fragment, columns: Integer) -> list[int]:
    """Return the addresses of the calling thread's vectors of four elements."""
    wide = min(fragment._n, -(-max(0, int(columns)) // PIECE) * PIECE)
    thread = simulator.thread_in_warpgroup()
    return [int(location) + 16 * (128 * i + thread) for i in range(wide // 8)]


@native
def store_rows(fragment: Fragment, location: Address, apart: Integer, count: Integer) -> None:
    """Write the first `count` rows of a fragment of float32 to global memory.

    Row i begins at address ``location + apart * i``, a multiple of 8. A thread writes neighbouring
    elements in one access.
    """
    elements = fragment._ready("store_rows")
    for row, column, element in zip(*fragment._places(), elements):
        if row < count:
            place = location + apart * int(row) + F32.itemsize * int(column)
            ptx.st_global_f32(place, element)


@native
def packed_e4m3(fragment: Fragment) -> Fragment:
    """Return a fragment of float32 as one of e4m3, its columns in another order.

    Each 16 columns are in the order 0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15. No
    elements are exchanged between threads, unlike in `Fragment.to`. The result is the factor A of
    a product whose B has its rows in the same order.
    """
    values = fragment._values("packed_e4m3")
    by_16 = values.reshape(-1, 2, 2, 2)  # left and right 8 columns, row, neighbours
    return Fragment(E4M3, fragment._n, _narrow(by_16.swapaxes(1, 2).reshape(-1), E4M3))
