"""Old names, for the families that are not yet written with `numba_tma.host.arrays.Array`.

The parts are now `numba_tma.kernels._host.launch`, `memo`, `device`, `outputs` and `workspace`.
"""

from __future__ import annotations

import copy
import math
import types
from typing import Any

import numpy as np
from numba import cuda

from numba_tma.host.array_interface import contiguous_strides, read_array, readers
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.environment import simulated
from numba_tma.kernels._host.device import current_device as current_device
from numba_tma.kernels._host.device import fewest_in_same_waves as in_even_rounds
from numba_tma.kernels._host.device import resident_clusters as resident_clusters
from numba_tma.kernels._host.device import sm_count as multiprocessors
from numba_tma.kernels._host.launch import as_stream as as_stream
from numba_tma.kernels._host.launch import launch as launch
from numba_tma.kernels._host.launch import recorded as noting
from numba_tma.kernels._host.launch import stream_key as stream_key
from numba_tma.kernels._host.limits import STREAMED as STREAMED
from numba_tma.kernels._host.memo import launched_again as launched_again
from numba_tma.kernels._host.outputs import empty as empty
from numba_tma.kernels._host.outputs import empty_like as empty_like
from numba_tma.kernels._host.outputs import tile_for as tile_for
from numba_tma.kernels._host.workspace import queue_counter as queue_counter

__all__ = ["in_even_rounds", "multiprocessors", "noting"]


class View:
    """Another shape and strides (in bytes) over an array's memory; a source of tensor maps."""

    def __init__(
        self, array: Any, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any
    ) -> None:
        self.array, self.address, self.shape, self.strides = array, address, shape, strides
        self.dtype = dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """What numba-cuda asks for: the same memory, as bytes or of the array's type."""
        return {
            "shape": self.shape,
            "strides": None if len(self.shape) == 1 else self.strides,
            "typestr": np.dtype(self.dtype).str,
            "data": (self.address, False),
            "version": 3,
        }


readers[View] = lambda v: (v.address, v.shape, v.strides, v.dtype, False, v, v.array)


def element_type(name: str, stored: Any, dtype: object = None) -> DType:
    """Return the type that the elements of an array have, or that their bits are said to be."""
    found = as_dtype(stored if dtype is None else dtype)
    if found.itemsize != as_dtype(stored).itemsize:
        raise ValueError(
            f"{name} holds {as_dtype(stored)}, whose bits cannot be {found}: give a dtype "
            f"of {as_dtype(stored).itemsize} B, or an array of {found.itemsize} B elements"
        )
    return found


class Matrix:
    """An array of any library seen as rows of contiguous elements: where it lies, and its type."""

    def __init__(self, name: str, array: Any, dtype: object = None) -> None:
        read = readers.get(type(array), read_array)
        address, shape, strides, stored, in_elements, self.array, _ = read(array)
        self.dtype = element_type(name, stored, dtype)
        self.shape, self.address = tuple(int(n) for n in shape), address
        self.stored = stored
        size = self.dtype.itemsize
        if strides is None or 0 in self.shape:
            steps = contiguous_strides(self.shape, size)
        else:
            steps = tuple(s * size if in_elements else s for s in strides)
        if not self.shape or (self.shape[-1] > 1 and steps[-1] != size):
            raise ValueError(
                f"{name} has shape {self.shape} and strides {steps} B: its last axis must be "
                "contiguous; pass a copy whose last axis is"
            )
        self.columns, self.rows = self.shape[-1], math.prod(self.shape[:-1])
        self.row_stride = common_stride(name, self.shape[:-1], steps[:-1], self.columns * size)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.rows * self.columns * self.dtype.itemsize

    def is_contiguous(self) -> bool:
        """Return whether the rows follow each other without a gap."""
        return self.rows <= 1 or self.row_stride == self.columns * self.dtype.itemsize

    def require_whole_chunks(self, what: str) -> None:
        """Raise unless rows end at a multiple of 16 B, as far as TMA stores."""
        nbytes = self.columns * self.dtype.itemsize
        if nbytes % 16:
            raise ValueError(
                f"{what} has rows of {self.columns} {self.dtype} = {nbytes} B; TMA stores whole "
                "chunks of 16 B and would overwrite what lies behind them: pad the rows to a "
                "multiple of 16 B"
            )

    def view(self, *inner: int) -> Any:
        """Return (rows, *inner) over the same memory, where prod(inner) == columns."""
        inner_strides = contiguous_strides(inner, self.dtype.itemsize)
        shape, strides = (self.rows, *inner), (self.row_stride, *inner_strides)
        if simulated():
            host: Any = getattr(self.array, "_ary", self.array)
            return np.lib.stride_tricks.as_strided(host, shape, strides)
        return View(self.array, self.address, shape, strides, self.stored)

    def cut(self, rows: int, columns: int) -> Any:
        """Return (rows, columns) over the same memory: its own, or any if it is contiguous."""
        if (rows, columns) == (self.rows, self.columns):
            return self.view(columns)
        other = copy.copy(self)
        other.rows, other.columns = rows, columns
        other.row_stride = columns * self.dtype.itemsize
        return other.view(columns)

    def part(self, rows: int, columns: int, start: int = 0) -> Matrix:
        """Return a contiguous array's memory from byte `start` on as a matrix of this size."""
        other = copy.copy(self)
        other.rows, other.columns, other.address = rows, columns, self.address + start
        other.shape, other.row_stride = (rows, columns), columns * self.dtype.itemsize
        if simulated():
            host: Any = getattr(self.array, "_ary", self.array)
            first = start // self.dtype.itemsize
            other.array = host.reshape(-1)[first : first + rows * columns]
        return other

    def span(self) -> Any:
        """Return the memory from the first element to the last, gaps too, as bytes."""
        last = (self.rows - 1) * self.row_stride + self.columns * self.dtype.itemsize
        return bytes_from(self.array, self.address, last)

    def as_counters(self) -> Any:
        """Return the memory of a contiguous array of 32 bits as a numba array of int32."""
        if simulated():
            host: Any = getattr(self.array, "_ary", self.array)
            return host.reshape(-1).view(np.int32)
        counters = (self.nbytes // 4,)
        return cuda.as_cuda_array(View(self.array, self.address, counters, (4,), np.int32))

    def as_bytes(self) -> Any:
        """Return the memory of a contiguous array as a numba array of bytes."""
        if simulated():
            host: Any = getattr(self.array, "_ary", self.array)
            return host.reshape(-1).view(np.uint8)
        return cuda.as_cuda_array(View(self.array, self.address, (self.nbytes,), (1,), np.uint8))


def as_array(view: Any) -> Any:
    """Return a view as a Numba array, with its gaps, which the simulator would refuse to copy."""
    return type(cuda.device_array(1))(view) if simulated() else cuda.as_cuda_array(view)


def bytes_from(array: Any, address: int, nbytes: int) -> Any:
    """Return `nbytes` of an array's memory as a numba array of bytes."""
    if simulated():
        host: Any = getattr(array, "_ary", array)
        interface = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (host.__array_interface__["data"][0], False),
            "version": 3,
        }
        return np.asarray(types.SimpleNamespace(__array_interface__=interface, array=host))
    return cuda.as_cuda_array(View(array, address, (nbytes,), (1,), np.uint8))


def common_stride(
    name: str, shape: tuple[int, ...], strides: tuple[int, ...], row_bytes: int
) -> int:
    """Return the one stride that leads through all rows, in bytes."""
    axes = [(n, s) for n, s in zip(shape, strides) if n > 1]
    if not axes:
        return row_bytes
    for (_, outer), (extent, inner) in zip(axes, axes[1:]):
        if outer != extent * inner:
            raise ValueError(
                f"{name} has leading shape {shape} and strides {strides} B, which is no single "
                "sequence of rows: pass a contiguous copy"
            )
    return axes[-1][1]


def check_same(function: str, **matrices: Matrix) -> None:
    """Raise unless the arrays all have the shape and type of the first."""
    (first_name, first), *others = matrices.items()
    for name, other in others:
        if other.shape != first.shape or other.dtype is not first.dtype:
            raise ValueError(
                f"{function}(): {name} has shape {other.shape} of {other.dtype}, but {first_name} "
                f"has shape {first.shape} of {first.dtype}; they must agree"
            )
