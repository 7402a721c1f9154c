"""The im2col copies and reductions, executed for the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.dtypes import reduction_violation
from numba_tma.host.reference import reduce_elements
from numba_tma.simulator.copies import Bytes
from numba_tma.simulator.copy_instructions import _arrivals, _load, _store
from numba_tma.simulator.copy_rules import check_tensor
from numba_tma.simulator.errors import BadCoordinate, BadOperand
from numba_tma.simulator.thread import current

if TYPE_CHECKING:
    from numba_tma.host.im2col import Im2colMap


def cp_async_bulk_tensor_im2col_load(
    dst: int,
    tensor_map: Im2colMap,
    coords: Sequence[int],
    mbar: int,
    offsets: Sequence[int],
    multicast: int | None = None,
    cta_group: int | None = None,
) -> None:
    """Copy the column of pixels from `coords` on to shared `dst`; completes on `mbar`."""
    from numba_tma.host.pixel_box import reference_im2col

    what = "cp_async_bulk_tensor_im2col_load"
    thread, address = current(), int(dst)
    first = _check_im2col(what, tensor_map, coords, address, "dst")
    further = _check_offsets(what, tensor_map, offsets)

    def read() -> Bytes:
        return reference_im2col(
            tensor_map.array,
            tensor_map.tile,
            first,
            further,
            tensor_map.pixel_box,
            oob_fill=tensor_map.oob_fill,
        )

    tile = tensor_map.tile
    arrivals = _arrivals(what, thread, address, tile.shared_nbytes, int(mbar), multicast, cta_group)
    _load(thread, arrivals, address, tile.shared_nbytes, tile.nbytes, read, swizzle=tile.swizzle)


def cp_async_bulk_tensor_im2col_w_load(
    dst: int,
    tensor_map: Im2colMap,
    coords: Sequence[int],
    mbar: int,
    w_halo: int,
    w_offset: int,
    mode: str,
    multicast: int | None = None,
    cta_group: int | None = None,
) -> None:
    """Copy pixels along W from `coords` on to shared `dst`; completes on `mbar`."""
    from numba_tma.host.pixel_box import reference_im2col

    what = "cp_async_bulk_tensor_im2col_w_load"
    thread, address = current(), int(dst)
    first = _check_wide(what, tensor_map, coords, address, w_halo, w_offset, mode)

    def read() -> Bytes:
        return reference_im2col(
            tensor_map.array,
            tensor_map.tile,
            first,
            (int(w_offset),),
            tensor_map.pixel_box,
            oob_fill=tensor_map.oob_fill,
            along_w=True,
        )

    tile = tensor_map.tile
    arrivals = _arrivals(what, thread, address, tile.shared_nbytes, int(mbar), multicast, cta_group)
    _load(thread, arrivals, address, tile.shared_nbytes, tile.nbytes, read, swizzle=tile.swizzle)


def cp_async_bulk_prefetch_tensor_im2col_w(
    tensor_map: Im2colMap, coords: Sequence[int], w_halo: int, w_offset: int, mode: str
) -> None:
    """Check the operands as a load does; there is no cache to fill."""
    what = "cp_async_bulk_prefetch_tensor_im2col_w"
    current()
    _check_wide(what, tensor_map, coords, 0, w_halo, w_offset, mode)


def cp_async_bulk_tensor_im2col_store(
    tensor_map: Im2colMap, coords: Sequence[int], src: int
) -> None:
    """Copy shared bytes at `src` to the column of pixels from `coords` on."""
    _write("cp_async_bulk_tensor_im2col_store", tensor_map, coords, src, lambda old, new: new)


def cp_reduce_async_bulk_tensor_im2col(
    tensor_map: Im2colMap, coords: Sequence[int], src: int, operation: str
) -> None:
    """Combine shared bytes at `src` with the column of pixels from `coords` on."""
    what = "cp_reduce_async_bulk_tensor_im2col"
    current()
    if violation := reduction_violation(tensor_map.dtype, operation):
        raise BadOperand(f"{what}: {violation}")

    def combine(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
        return reduce_elements(operation, old, new)

    _write(what, tensor_map, coords, src, combine)


def cp_async_bulk_prefetch_tensor_im2col(
    tensor_map: Im2colMap, coords: Sequence[int], offsets: Sequence[int]
) -> None:
    """Check the operands as a load does; there is no cache to fill."""
    what = "cp_async_bulk_prefetch_tensor_im2col"
    current()
    _check_im2col(what, tensor_map, coords, 0, "dst")
    _check_offsets(what, tensor_map, offsets)


def _write(
    what: str,
    tensor_map: Im2colMap,
    coords: Sequence[int],
    src: int,
    combine: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]],
) -> None:
    from numba_tma.host.pixel_box import im2col_store_values

    thread, address = current(), int(src)
    box = tensor_map.pixel_box
    if min(*coords, *box.lower) < 0 or max(box.upper) > 0:
        raise BadCoordinate(
            f"{what}: the coordinates are {tuple(coords)} and the pixel box has the corners "
            f"{box.lower} and {box.upper}; a store begins and stays inside the tensor: no "
            "coordinate and no lower corner is negative, no upper corner positive"
        )
    first = _check_im2col(what, tensor_map, coords, address, "src")

    def write(image: Bytes) -> None:
        array, tile = tensor_map.array, tensor_map.tile
        positions, bits = im2col_store_values(array, image, tile, first, box)
        values = bits.view(tile.dtype.numpy)
        stored = array.view(tile.dtype.numpy)
        stored[positions] = combine(stored[positions], values)

    _store(what, thread, address, tensor_map.tile.shared_nbytes, write, every_byte=False)


def _check_im2col(
    what: str, tensor_map: Im2colMap, coords: Sequence[int], address: int, name: str
) -> tuple[int, ...]:
    from numba_tma.host.pixel_box import outside

    first = check_tensor(what, tensor_map, coords, address, name, "im2col")
    extents, place = tensor_map.shape[1:-1], first[1:-1]
    if not tensor_map.pixel_box.holds(extents, place):
        raise BadCoordinate(f"{what}: {outside(tensor_map.pixel_box, extents, place)}")
    return first


def _check_wide(
    what: str,
    tensor_map: Im2colMap,
    coords: Sequence[int],
    address: int,
    w_halo: int,
    w_offset: int,
    mode: str,
) -> tuple[int, ...]:
    from numba_tma.host.im2col_rules import MAX_HALO, MAX_W_OFFSET
    from numba_tma.host.pixel_box import outside

    first = check_tensor(what, tensor_map, coords, address, "dst", mode)
    for name, value, limit in (
        ("w_halo", int(w_halo), MAX_HALO[mode]),
        ("w_offset", int(w_offset), MAX_W_OFFSET),
    ):
        if not 0 <= value <= limit:
            raise BadCoordinate(f"{what}: {name} is {value}; mode {mode!r} takes 0 to {limit}")
    if w_halo:
        raise NotImplementedError(
            f"{what}: w_halo is {w_halo}; the PTX manual shows in figures alone where halo pixels "
            "lie, and they are not simulated: use w_halo 0, and one load for each w_offset"
        )
    extents, place = tensor_map.shape[1:-1], first[1:-1]
    if not tensor_map.pixel_box.ends_after(extents, place):
        raise BadCoordinate(f"{what}: {outside(tensor_map.pixel_box, extents, place)}")
    return first


def _check_offsets(what: str, tensor_map: Im2colMap, offsets: Sequence[int]) -> tuple[int, ...]:
    from numba_tma.host.im2col_rules import offset_limit

    if not all(isinstance(offset, int | np.integer) for offset in offsets):
        raise BadOperand(
            f"{what} takes a tuple of 1 to 3 integers from 0 to 65535, one per spatial axis in the "
            f"array's axis order, not {offsets}"
        )
    further = tuple(int(offset) for offset in offsets)
    limit = offset_limit(tensor_map.rank)
    if len(further) != tensor_map.rank - 2 or not all(0 <= o <= limit for o in further):
        raise BadCoordinate(
            f"{what}: the offsets are {further}; {tensor_map} takes {tensor_map.rank - 2}, one per "
            f"spatial axis, each 0 to {limit}"
        )
    return further
