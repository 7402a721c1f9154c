"""What the kernels' host wrappers share: streams, queue counters and ways to cut a row."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import cuda

from numba_tma._array_interface import read_array, readers
from numba_tma._environment import simulated
from numba_tma.dtypes import DType
from numba_tma.layout import MAX_BOX


def as_stream(stream: Any) -> Any:
    """Return what numba-cuda launches on, from a numba, torch or CuPy stream, or a handle."""
    if stream is None or simulated():
        return 0
    handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    if isinstance(handle, int):
        return cuda.external_stream(handle) if handle else 0
    return stream


def stream_key(stream: Any) -> int:
    """Return a number that tells streams apart."""
    handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    if handle is None or isinstance(handle, int):
        return handle or 0
    return int(stream.handle)


@functools.cache
def queue_counter(device: int, stream: int) -> Any:
    """Return the zeroed 32-bit counter that `TileQueue` kernels on this stream share.

    A kernel leaves it at 0, and kernels on one stream follow each other, so one is enough.
    """
    return cuda.to_device(np.zeros(1, np.uint32))


def current_device() -> int:
    """Return the number of the device that kernels run on now."""
    return 0 if simulated() else int(cuda.get_current_device().id)


def multiprocessors() -> int:
    """Return how many multiprocessors the current device has."""
    return 2 if simulated() else int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


def split_row(columns: int, dtype: DType) -> tuple[int, int]:
    """Return (chunks, width) with chunks * width == columns and both within a TMA box.

    A box is at most 256 elements along an axis, so a long row is seen as a matrix.
    """
    for width in range(min(MAX_BOX, columns), 0, -1):
        if columns % width == 0 and width * dtype.itemsize % 16 == 0:
            if columns // width <= MAX_BOX:
                return columns // width, width
            break
    raise ValueError(
        f"a row of {columns} {dtype.name} ({columns * dtype.itemsize} B) cannot be cut into at most "
        f"{MAX_BOX} pieces of at most {MAX_BOX} elements and a multiple of 16 B each: pad the rows "
        f"to a multiple of {MAX_BOX} columns"
    )


def leading_rows(array: Any) -> tuple[int, int]:
    """Return (rows, columns) of an array seen as a matrix of its last axis."""
    columns = int(array.shape[-1])
    return int(np.prod(array.shape[:-1], dtype=np.int64)), columns


class _Bytes:
    """Contiguous device memory, as bytes, for numba-cuda."""

    def __init__(self, address: int, nbytes: int, owner: Any) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "strides": None,
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def as_bytes(array: Any) -> Any:
    """Return a contiguous array, aligned to 16 B, as a numba array of bytes; None if it is not."""
    if simulated():
        host = getattr(array, "_ary", array)
        return host.reshape(-1).view(np.uint8) if host.flags.c_contiguous else None
    read = readers.get(type(array), read_array)
    address, shape, strides, stored, in_elements, array, owner = read(array)
    itemsize = stored.itemsize
    expected = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides or ())):
        if extent != 1 and stride * (itemsize if in_elements else 1) != expected:
            return None
        expected *= extent
    if address % 16:
        return None
    return cuda.as_cuda_array(_Bytes(address, math.prod(shape) * itemsize, array))
