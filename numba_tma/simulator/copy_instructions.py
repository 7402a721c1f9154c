"""The bulk and tensor copies, their groups and fences, executed for the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..tensor_map import wrong_mode
from .barriers import Barrier
from .copies import Bytes, GroupWait, Load, Store
from .errors import BadCoordinate, BadOperand, MissingFence
from .thread import SimulatedThread, current

if TYPE_CHECKING:
    from ..tensor_map import TensorMap

_BULK_ALIGNMENT = 16
_TENSOR_ALIGNMENT = 128
_COORDINATE_BYTES = 16


def cp_async_bulk_load(dst: int, src: Bytes, mbar: int) -> None:
    """Copy `src`, a 1-D view of global bytes, to shared `dst`; completes on `mbar`."""
    what = "cp_async_bulk_load"
    thread, address = current(), int(dst)
    source = _global_bytes(what, "src", src)
    _check_bulk(what, address, "dst", source.nbytes)
    _load(what, thread, address, source.nbytes, source.nbytes, source.copy, int(mbar))


def cp_async_bulk_store(dst: Bytes, src: int) -> None:
    """Copy shared bytes at `src` to `dst`, a 1-D view of global bytes; joins the bulk group."""
    what = "cp_async_bulk_store"
    thread, address = current(), int(src)
    target = _global_bytes(what, "dst", dst)
    _check_bulk(what, address, "src", target.nbytes)

    def write(image: Bytes) -> None:
        target[:] = image

    _store(what, thread, address, target.nbytes, write, every_byte=True)


def cp_async_bulk_tensor_load(
    dst: int, tensor_map: TensorMap, coords: Sequence[int], mbar: int
) -> None:
    """Copy the tile at `coords` (NumPy axis order) to shared `dst`; completes on `mbar`."""
    from ..layout import reference_tile

    what = "cp_async_bulk_tensor_load"
    thread, address = current(), int(dst)
    origin = _check_tensor(what, tensor_map, coords, address, "dst")

    def read() -> Bytes:
        return reference_tile(
            tensor_map.array,
            tensor_map.tile,
            origin,
            oob_fill=tensor_map.oob_fill,
            element_strides=tensor_map.element_strides,
        )

    tile = tensor_map.tile
    _load(what, thread, address, tile.shared_nbytes, tile.nbytes, read, int(mbar))


def cp_async_bulk_tensor_store(tensor_map: TensorMap, coords: Sequence[int], src: int) -> None:
    """Copy shared bytes at `src` to the tile at `coords` (NumPy axis order)."""
    from ..layout import reference_store

    what = "cp_async_bulk_tensor_store"
    thread, address = current(), int(src)
    origin = _check_tensor(what, tensor_map, coords, address, "src")
    if min(origin) < 0:
        raise BadCoordinate(
            f"{what}: the coordinates are {origin}; a store starts inside or past the tensor, "
            "never before it. On a GPU this is an illegal instruction that loses the context"
        )

    def write(image: Bytes) -> None:
        reference_store(
            tensor_map.array,
            image,
            tensor_map.tile,
            origin,
            element_strides=tensor_map.element_strides,
        )

    _store(what, thread, address, tensor_map.tile.shared_nbytes, write, every_byte=False)


def cp_async_bulk_commit_group() -> None:
    """Close this thread's group of stores."""
    thread = current()
    thread.groups.commit()
    thread.cta.scheduler.point()


def cp_async_bulk_wait_group(n: int) -> None:
    """Wait until all but this thread's newest `n` groups are visible in global memory."""
    _wait_group(int(n), read=False)


def cp_async_bulk_wait_group_read(n: int) -> None:
    """Wait until all but this thread's newest `n` groups have read their shared source."""
    _wait_group(int(n), read=True)


def prefetch_tensormap(tensor_map: TensorMap) -> None:
    """Fetch the descriptor; nothing to see here."""
    current()
    if not hasattr(tensor_map, "tile"):
        raise BadOperand(f"prefetch_tensormap: {tensor_map!r} is not a TensorMap")


def fence_proxy_async() -> None:
    """Let the copy engine see what this thread has written to shared memory."""
    thread = current()
    thread.cta.hazards.fence(thread)
    _fence_barriers(thread)
    thread.cta.scheduler.point()


def fence_mbarrier_init() -> None:
    """Let the copy engine see the mbarriers that this thread has initialised."""
    thread = current()
    _fence_barriers(thread)
    thread.cta.scheduler.point()


def _fence_barriers(thread: SimulatedThread) -> None:
    epoch = thread.cta.tracked_clocks().epoch(thread.row)
    for barrier in thread.cta.barriers.values():
        if barrier.initialised_by is thread and barrier.fenced_at is None:
            barrier.fenced_at = epoch


def _load(
    what: str,
    thread: SimulatedThread,
    address: int,
    nbytes: int,
    tx_bytes: int,
    read: Callable[[], Bytes],
    mbar: int,
) -> None:
    cta = thread.cta
    cta.memory.check_range(f"{what}, dst", address, nbytes)
    barrier = cta.barrier_at(thread, mbar)
    _check_fenced(thread, barrier)
    for other in cta.barriers.values():
        if address - 8 < other.address < address + nbytes:
            raise BadOperand(
                f"{what}: {nbytes} bytes to {address} would overwrite {other.name}, at "
                f"{other.address}"
            )
    cta.hazards.load(thread, address, nbytes, barrier)
    known = cta.tracked_clocks().publish(thread.row)
    load = Load(thread, address, nbytes, tx_bytes, read, barrier, known)
    barrier.issue(load)
    cta.emit(thread, "issue", barrier.name, tx_bytes)
    cta.scheduler.event()
    cta.scheduler.start_copy(load)
    cta.scheduler.point()


def _store(
    what: str,
    thread: SimulatedThread,
    address: int,
    nbytes: int,
    write: Callable[[Bytes], None],
    *,
    every_byte: bool,
) -> None:
    cta, groups = thread.cta, thread.groups
    cta.memory.check_range(f"{what}, src", address, nbytes)
    groups.stores += 1
    cta.hazards.store(thread, address, nbytes, groups.stores, every_byte=every_byte)
    store = Store(thread, groups.stores, address, nbytes, write)
    groups.add(store)
    cta.emit(thread, "store", cta.memory.describe(address, nbytes), nbytes)
    cta.scheduler.event()
    cta.scheduler.start_copy(store)
    cta.scheduler.point()


def _wait_group(n: int, *, read: bool) -> None:
    thread = current()
    name = f"cp_async_bulk_wait_group{'_read' if read else ''}"
    if n < 0:
        raise BadOperand(f"{name}({n}): the number of groups left must not be negative")
    cta = thread.cta
    wait = GroupWait(thread.groups, n, read)
    if wait.satisfied():
        cta.scheduler.point()
    else:
        cta.scheduler.park(wait)
    newest = thread.groups.finish_wait(wait)
    known = cta.tracked_clocks().stores(thread.row)
    known[thread.row] = max(int(known[thread.row]), newest)


def _check_fenced(thread: SimulatedThread, barrier: Barrier) -> None:
    known = barrier.clocks.epochs(thread.row)[barrier.initialised_by.row]
    if barrier.fenced_at is None or barrier.fenced_at > known:
        raise MissingFence(
            f"{barrier.name}: a load completes on it, but the copy engine may not see its "
            f"mbarrier_init by {barrier.initialised_by.description}: that thread must execute "
            "fence_mbarrier_init() (or fence_proxy_async()) after it, before the syncthreads"
        )


def _global_bytes(what: str, name: str, array: Any) -> Bytes:
    """Return `array` as plain bytes; it must be a contiguous view that starts at 16 bytes."""
    if hasattr(array, "_item"):  # numba's simulated device array, as kernels see it
        array = array._item
    if hasattr(array, "_ary"):
        array = array._ary
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or array.ndim == 0:
        raise BadOperand(f"{what}: {name} must be a contiguous array, not {type(array).__name__}")
    flat: Bytes = array.reshape(-1).view(np.uint8)
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    offset = _pointer(flat) - _pointer(root)
    if offset % _BULK_ALIGNMENT:
        raise BadOperand(
            f"{what}: {name} starts {offset} bytes into its allocation; global addresses must be "
            f"multiples of {_BULK_ALIGNMENT}"
        )
    return flat


def _pointer(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _check_bulk(what: str, address: int, name: str, nbytes: int) -> None:
    if nbytes % _BULK_ALIGNMENT or nbytes == 0:
        raise BadOperand(
            f"{what}: the size is {nbytes} bytes; it must be a positive multiple of "
            f"{_BULK_ALIGNMENT}"
        )
    if address % _BULK_ALIGNMENT:
        raise BadOperand(
            f"{what}: {name} is shared address {address}; it must be a multiple of "
            f"{_BULK_ALIGNMENT}"
        )


def _check_tensor(
    what: str,
    tensor_map: TensorMap,
    coords: Sequence[int],
    address: int,
    name: str,
    mode: str = "tiled",
) -> tuple[int, ...]:
    """Raise unless the copy would run on a GPU; return the coordinates as plain integers."""
    if tensor_map.mode != mode:
        raise BadOperand(f"{what}: {wrong_mode(str(tensor_map), tensor_map.mode)}")
    tile = tensor_map.tile
    if address % _TENSOR_ALIGNMENT:
        raise BadOperand(
            f"{what}: {name} is shared address {address}; a tensor copy needs a multiple of "
            f"{_TENSOR_ALIGNMENT}"
        )
    if address % tile.alignment:
        raise BadOperand(
            f"{what}: {name} is shared address {address}, not a multiple of {tile.alignment}: "
            f"swizzle {tile.swizzle.name} follows address bits, so that {tile} has another image "
            "here than it has at its alignment"
        )
    origin = tuple(int(c) for c in coords)
    if len(origin) != tensor_map.rank:
        of = str(tile) if mode == "tiled" else f"{tensor_map}"
        raise BadCoordinate(
            f"{what}: {len(origin)} coordinates for {of}, which has {tensor_map.rank} axes"
        )
    for axis, coordinate in enumerate(origin):
        if not -(2**31) <= coordinate < 2**31:
            raise BadCoordinate(
                f"{what}: the coordinate of axis {axis} is {coordinate}; the hardware takes 32 bits"
            )
    if origin[-1] * tile.itemsize % _COORDINATE_BYTES:
        step = _COORDINATE_BYTES // tile.itemsize
        raise BadCoordinate(
            f"{what}: the innermost coordinate (axis {len(origin) - 1}) is {origin[-1]}, which is "
            f"{origin[-1] * tile.itemsize} bytes; it must be a multiple of {step} ("
            f"{_COORDINATE_BYTES} bytes). On a GPU this is an illegal instruction that loses the "
            "context"
        )
    return origin
