"""What attention does with fragments, and users seldom would.

`row_fragment` and `store_by_thread` are not seen by pipelines: the threads execute
`fence_proxy_async` before the copy engine may touch the tile again.
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


@native
def row_fragment(tile: SharedTile) -> Fragment:
    """Return the fragment each of whose 64 rows is `tile`, n numbers of float32 in shared memory.

    What belongs to the columns of a product: a thread reads its n / 4 numbers, two at a time, and
    both of its rows share the registers.
    """
    n = tile.tile.shape[-1]
    thread = simulator.thread_in_warpgroup()
    places = [tile.address + 32 * i + 8 * (thread % 4) for i in range(n // 8)]
    pairs = [simulator.shared_read(place, F32.numpy, 2) for place in places]
    return Fragment(F32, n, np.concatenate([pair for pair in pairs for _ in range(2)]))


@native
def store_by_thread(fragment: Fragment, tile: SharedTile) -> None:
    """Write a fragment of float32 to an unswizzled tile of its size, in the order of the threads.

    Elements 4 i to 4 i + 3 of thread t go to the 16 bytes at 128 i + t: each access of a warp is
    512 bytes in one piece, as no order of rows would be. For what the same order reads again.
    """
    elements = fragment._ready("store_by_thread").reshape(-1, 4)
    for i, four in enumerate(elements):
        place = tile.address + 16 * (128 * i + simulator.thread_in_warpgroup())
        simulator.shared_write(place, four)


@native
def store_rows(fragment: Fragment, location: Address, apart: Integer, count: Integer) -> None:
    """Write the first `count` rows of a fragment of float32 to global memory.

    They begin `apart` bytes after each other, the first one at the address `location`, all at
    multiples of 8 bytes. A thread writes neighbours together.
    """
    elements = fragment._ready("store_rows")
    for row, column, element in zip(*fragment._places(), elements):
        if row < count:
            place = location + apart * int(row) + F32.itemsize * int(column)
            ptx.st_global_f32(place, element)


@native
def packed_e4m3(fragment: Fragment) -> Fragment:
    """Return a fragment of float32 as one of e4m3, its columns in another order.

    Of each 16 they are columns 0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14 and 15: each thread
    keeps what it has, where `Fragment.to` exchanges elements. For the factor A of a product whose
    B is in the same order.
    """
    values = fragment._values("packed_e4m3")
    by_16 = values.reshape(-1, 2, 2, 2)  # left and right 8 columns, row, neighbours
    return Fragment(E4M3, fragment._n, _narrow(by_16.swapaxes(1, 2).reshape(-1), E4M3))
