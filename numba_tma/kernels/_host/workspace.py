"""Device memory of the kernels' own: what calls share, and what one call needs."""

from __future__ import annotations

import functools

import numpy as np
from numba import cuda

from numba_tma.host.annotations import DeviceArray
from numba_tma.host.environment import simulated


@functools.cache
def queue_counter(device: int, stream: int) -> DeviceArray:
    """Return the zeroed 32-bit counter that the `TileQueue` kernels of a stream share.

    A kernel leaves the counter at 0, and kernels of one stream follow each other, so one counter
    is enough. It is made at the first call on a stream; that call must not be captured by a graph.
    """
    counter = cuda.to_device(np.zeros(1, np.uint32))
    cuda.synchronize()  # the zero must be there before a kernel on any stream
    return counter


def float_workspace(rows: int, columns: int) -> DeviceArray:
    """Return a new float32 array on the device, of which kernels write every element they read."""
    make = np.empty if simulated() else cuda.device_array
    return make((rows, columns), np.float32)
