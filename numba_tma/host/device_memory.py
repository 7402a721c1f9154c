"""Device memory of the library's own: workspaces, counters, tables of maps.

It is the driver's, of whatever library the arrays of a call are. A library's pool gives what was
freed to the next array on the stream that it was taken on, which need not be the stream of the
call; and Numba's import takes longer than a launch of cached code.

Freeing waits for all work of the GPU, and so nothing is freed that a launch still uses. Because it
waits, and because an object may die in any thread, in a garbage collection, while a stream is
captured, or at the end of the process, memory is not freed where its last user dies: a later
allocation frees it, much at once.
"""

from __future__ import annotations

import math
import threading
from typing import Any, NamedTuple

import numpy as np

from numba_tma.host.annotations import DTypeLike, StreamLike
from numba_tma.host.driver import (
    allocate,
    allocating_while_capturing,
    copy_from_host,
    current_context,
    free,
    is_capturing,
    launching_device,
)
from numba_tma.host.process_bound import new_in_children
from numba_tma.host.streams import handle_of

# What may wait to be freed in a context: blocks, and bytes.
_MOST_BLOCKS = 16
_MOST_BYTES = 256 << 20


class _Place(NamedTuple):
    """Memory that was allocated, as it is freed."""

    context: int  #: its number, which no other context of the process has
    address: int
    nbytes: int


_unused: list[_Place] = []  #: appended to by any thread, at any time
_lock = new_in_children(threading.Lock)


class _Block:
    """The owner of an allocation: the memory is unused when it dies."""

    __slots__ = ("place",)

    def __init__(self, place: _Place) -> None:
        self.place = place

    def __del__(self, unused: list[_Place] = _unused) -> None:
        unused.append(self.place)


class DeviceMemory:
    """A contiguous array in device memory, which lives as long as one of its views."""

    __slots__ = ("__weakref__", "_block", "address", "dtype", "shape")

    def __init__(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], block: _Block
    ) -> None:
        self.address, self.shape, self.dtype, self._block = address, shape, dtype, block

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def split(self) -> list[DeviceMemory]:
        """Return views of the elements, one each."""
        size = self.dtype.itemsize
        places = range(self.address, self.address + self.nbytes, size)
        return [DeviceMemory(place, (1,), self.dtype, self._block) for place in places]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array for other libraries."""
        return {
            "shape": self.shape,
            "strides": None,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
        }


def device_memory(shape: tuple[int, ...], dtype: DTypeLike) -> DeviceMemory:
    """Return a new array on the current device; also while a stream is captured.

    Raises
    ------
    MemoryError
        If the device has not so much memory left.
    """
    stored = np.dtype(dtype)
    nbytes = max(1, math.prod(shape) * stored.itemsize)
    launching_device()  # makes a context where there is none
    with allocating_while_capturing():
        context = current_context()
        waiting = [place.nbytes for place in _unused[:] if place.context == context]
        if len(waiting) >= _MOST_BLOCKS or sum(waiting) >= _MOST_BYTES:
            _free_unused(context)
        address = allocate(nbytes)
        if address is None:
            _free_unused(context)
            address = allocate(nbytes)
    if address is None:
        raise MemoryError(
            f"the GPU has no {nbytes} B left, which a kernel needs beside its arrays: free arrays, "
            "or what a library keeps of freed ones (torch.cuda.empty_cache())"
        )
    return DeviceMemory(address, tuple(shape), stored, _Block(_Place(context, address, nbytes)))


def copied_to_device(values: np.ndarray[Any, Any], stream: StreamLike = None) -> DeviceMemory:
    """Return a copy of a contiguous array on the current device.

    It is there for work that follows on `stream`; with None for all work that follows.

    Raises
    ------
    RuntimeError
        If a graph captures `stream`: its replays would read `values`, which may be gone.
    """
    handle = None if stream is None else handle_of(stream)
    if handle and is_capturing(handle):
        raise RuntimeError(
            f"stream {stream!r} is captured, and a graph cannot repeat this copy from the host's "
            "memory: make it before the capture"
        )
    new = device_memory(values.shape, values.dtype)
    copy_from_host(new.address, values.ctypes.data, values.nbytes, handle)
    return new


def _free_unused(context: int) -> None:
    """Free the unused memory of the current context; that of others is freed where they are."""
    with _lock:
        found = _unused[:]
        del _unused[: len(found)]
    for place in found:
        if place.context == context:
            free(place.address)
        else:
            _unused.append(place)
