"""Device memory of the kernels' own, which one call needs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np

from numba_tma.host import device_memory as _device_memory
from numba_tma.host import driver as _driver
from numba_tma.host.annotations import DeviceArray, DTypeLike
from numba_tma.host.environment import simulated
from numba_tma.host.process_bound import new_in_children

_COUNTERS = 256  # of a slab: one allocation, and one wait for its zeros, for so many calls
_slabs: dict[int, Iterator[DeviceArray]] = {}  # by device; what is left of the newest
_lock = new_in_children(threading.Lock)


def queue_counter() -> DeviceArray:
    """Return a new 32-bit counter, 0, for the `TileQueue` of one call.

    A kernel leaves its counter at 0 if it ends well, so the counter is set to 0 once, when it is
    made, and a launch costs nothing for it. Two launches must never draw from one counter at a
    time, and none may draw after one that failed. Three rules hold that:

    - The counter is in the workspace of a call (`launched_again`), which repeats its launches and
      shares them with no other call. Launches that share a counter therefore write the same output:
      two streams, or two graphs, that run them at a time race for this output already.
    - A launch that fails makes `launched_again` forget its call, and the counter with it.
    - A kernel with a queue is not launched by programmatic dependent launch. Such a kernel would
      draw only behind `griddepcontrol_wait`, since the launch before it may be of the same call.
    """
    if simulated():
        from numba import cuda

        return cuda.to_device(np.zeros(1, np.uint32))
    device = _driver.launching_device()
    with _lock:
        found = next(_slabs.get(device, iter(())), None)
        if found is None:
            _slabs[device] = counters = _new_counters()
            found = next(counters)
    return found


def _new_counters() -> Iterator[DeviceArray]:
    """Yield the words of a new slab, which is freed when all of them are."""
    with _driver.allocating_while_capturing():  # a call may be captured at its first launch
        slab = _device_memory.device_memory((_COUNTERS,), np.uint32)
        _driver.zero(slab.address, slab.nbytes)
    yield from slab.split()


def zero_counters(count: int) -> DeviceArray:
    """Return new 32-bit counters, 0, of one call; for them the rules of `queue_counter` hold."""
    if simulated():
        return np.zeros(count, np.uint32)
    with _driver.allocating_while_capturing():
        counters = _device_memory.device_memory((count,), np.uint32)
        _driver.zero(counters.address, counters.nbytes)
    return counters


def float_workspace(rows: int, columns: int) -> DeviceArray:
    """Return a new float32 array on the device, of which kernels write every element they read."""
    return device_memory((rows, columns), np.float32)


def device_memory(shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
    """Return a new array on the device; in the simulator one of NumPy."""
    return np.empty(shape, dtype) if simulated() else _device_memory.device_memory(shape, dtype)
