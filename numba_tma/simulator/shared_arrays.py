"""``cuda.shared`` in kernels: arrays in the block's shared window, with the checks of its bytes."""

from __future__ import annotations

import itertools
import sys
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
from numba.cuda import types
from numba.cuda.np import numpy_support

from numba_tma.simulator.barriers import check_over_none
from numba_tma.simulator.copies import Bytes
from numba_tma.simulator.memory import BASE, END
from numba_tma.simulator.thread import SimulatedThread, current

#: What names an element, or elements, of an array.
Axis: TypeAlias = int | slice | EllipsisType
Index: TypeAlias = Axis | tuple[Axis, ...]


class SharedArray(np.ndarray[Any, Any]):
    """An array in shared memory, or a view of it: a kernel's accesses to elements are checked."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if not isinstance(found, np.ndarray):
            read(self, index)
        return found

    def __setitem__(self, index: Any, value: Any) -> None:
        write(self, index, value)
        super().__setitem__(index, value)


def plain(array: SharedArray) -> np.ndarray[Any, Any]:
    """Return the same array without the checks."""
    return array.view(np.ndarray)


def read(array: SharedArray, index: Index, *, atomic: bool = False) -> int:
    """Check and record the read of an element; return its address."""
    thread, address = current(), 0
    for address in _addresses(thread, element(plain(array), index)):  # one, or none elsewhere
        read_at(thread, address, array.itemsize, atomic=atomic)
    return address


def read_at(thread: SimulatedThread, address: int, nbytes: int, *, atomic: bool = False) -> None:
    """Check and record a read of bytes."""
    thread.cta.hazards.read(thread, address, nbytes, atomic=atomic)
    if thread.log is not None:
        thread.log.read(thread.cta, address, nbytes)


def write(array: SharedArray, index: Index, value: object, *, atomic: bool = False) -> None:
    """Check and record a write of `value` to an element, or to all elements of a slice."""
    thread, nbytes, part = current(), array.itemsize, element(plain(array), index)
    images: Any = itertools.repeat(None)
    if not atomic:
        values = np.empty(part.shape, part.dtype)
        values[...] = value
        images = values.reshape(-1, 1).view(np.uint8)
    for address, image in zip(_addresses(thread, part), images):
        check_over_none(thread.cta.barriers, "a write to an array", address, nbytes)
        write_at(thread, address, nbytes, image, atomic=atomic)


def write_at(
    thread: SimulatedThread, address: int, nbytes: int, image: Bytes | None, *, atomic: bool = False
) -> None:
    """Check and record a write of bytes, whose new values are `image`; None of an atomic."""
    thread.cta.hazards.write(thread, address, nbytes, image, atomic=atomic)
    if thread.log is not None:
        thread.log.wrote(thread.cta, address, nbytes)


def element(array: np.ndarray[Any, Any], index: Index) -> np.ndarray[Any, Any]:
    """Return the elements that `index` names, as a view if they are an element or a slice."""
    axes: Any = index if isinstance(index, tuple) else (index,)
    part: np.ndarray[Any, Any] = array[axes if any(i is ... for i in axes) else (*axes, ...)]
    return part


def _addresses(thread: SimulatedThread, part: np.ndarray[Any, Any]) -> list[int]:
    """Return the shared addresses of the elements of a view; none of a copy."""
    memory = thread.cta.memory
    first = part.__array_interface__["data"][0] - memory.pointer
    if not BASE <= first < END:
        return []
    if part.ndim == 0:
        return [first]
    return [first + int(np.dot(place, part.strides)) for place in np.ndindex(part.shape)]


class Shared:
    """Makes arrays in the block's shared window, with an address."""

    def __init__(self, dynamic_bytes: int) -> None:
        self._dynamic_bytes = dynamic_bytes

    def array(
        self, shape: int | tuple[int, ...], dtype: Any, alignment: int | None = None
    ) -> SharedArray:
        """Return the block's array for this call in the source, the same for all its threads."""
        dtype = np.dtype(numpy_support.as_dtype(dtype) if _is_numba_type(dtype) else dtype)
        extents = shape if isinstance(shape, tuple) else (shape,)
        frame = sys._getframe(1)
        code = frame.f_code
        key: tuple[object, ...] = (code, frame.f_lasti)
        where = f"cuda.shared.array at line {frame.f_lineno} of {code.co_name}"
        count = int(np.prod(extents))
        if extents == (0,):
            # Every array of size 0 is the launch's dynamic shared memory.
            count = self._dynamic_bytes // dtype.itemsize
            extents, key, where = (count,), ("dynamic",), "dynamic shared memory"
            nbytes, alignment = self._dynamic_bytes, None
        else:
            nbytes = count * dtype.itemsize
        memory = current().cta.memory
        start = memory.allocate(
            ("array", *key), where, nbytes, alignment or 16, tracked=False
        ).start
        window = memory.data[start : start + count * dtype.itemsize]
        array: SharedArray = window.view(dtype).reshape(extents).view(SharedArray)
        return array


def _is_numba_type(dtype: object) -> bool:
    return isinstance(dtype, types.Type)
