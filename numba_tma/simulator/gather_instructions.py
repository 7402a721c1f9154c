"""gather4 and scatter4, which copy four rows of a matrix by number, for the calling thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from numba_tma.host.reference import gathered, scatter_values, slots
from numba_tma.simulator.copies import Bytes
from numba_tma.simulator.copy_instructions import _arrivals, _load, _store
from numba_tma.simulator.copy_rules import check_inside, check_rows
from numba_tma.simulator.global_memory import accessed
from numba_tma.simulator.thread import current

if TYPE_CHECKING:
    from numba_tma.host.gather import GatherMap


def cp_async_bulk_tensor_gather4(
    dst: int,
    tensor_map: GatherMap,
    rows: Sequence[int],
    column: int,
    mbar: int,
    multicast: int | None = None,
    cta_group: int | None = None,
) -> None:
    """Copy four rows, from `column` on, to shared `dst`; completes on `mbar`."""
    what = "cp_async_bulk_tensor_gather4"
    thread, address = current(), int(dst)
    *numbers, first = check_rows(what, tensor_map, rows, column, address, "dst")
    box = tensor_map.copies.box

    def read() -> Bytes:
        image = np.zeros(box.shared_nbytes, np.uint8)
        matrix = tensor_map.copies.view(tensor_map.array)
        values = gathered(matrix, box, numbers, first, tensor_map.oob_fill)
        image.view(values.dtype)[slots(box, address)] = values
        return image

    nbytes = box.shared_nbytes
    arrivals = _arrivals(what, thread, address, nbytes, int(mbar), multicast, cta_group)
    _accessed(tensor_map, numbers, first, writes=False)
    _load(thread, arrivals, address, nbytes, box.nbytes, read, swizzle=box.swizzle)


def cp_async_bulk_tensor_scatter4(
    tensor_map: GatherMap, rows: Sequence[int], column: int, src: int
) -> None:
    """Copy a box of four rows at shared `src` to four rows of the matrix, from `column` on."""
    what = "cp_async_bulk_tensor_scatter4"
    thread, address = current(), int(src)
    *numbers, first = check_rows(what, tensor_map, rows, column, address, "src")
    check_inside(what, (*numbers, first))
    box = tensor_map.copies.box

    def write(image: Bytes) -> None:
        values = image.view(f"u{box.itemsize}")[slots(box, address)]
        scatter_values(tensor_map.copies.view(tensor_map.array), values, box, numbers, first)

    _accessed(tensor_map, numbers, first, writes=True)
    _store(what, thread, address, box.shared_nbytes, write, every_byte=False)


def _accessed(tensor_map: GatherMap, rows: Sequence[int], column: int, *, writes: bool) -> None:
    """Record the accesses to the elements of a box that lie inside the matrix."""
    box = tensor_map.copies.box
    matrix, stop = tensor_map.copies.view(tensor_map.array), column + box.shape[1]
    for row in rows:
        if 0 <= row < matrix.shape[0]:
            accessed(matrix[row, max(0, column) : max(0, stop)], writes=writes)


def cp_async_bulk_prefetch_tensor_gather4(
    tensor_map: GatherMap, rows: Sequence[int], column: int
) -> None:
    """Check the operands as a gather does; there is no cache to fill."""
    current()
    check_rows("cp_async_bulk_prefetch_tensor_gather4", tensor_map, rows, column, 0, "")
