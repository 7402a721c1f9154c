"""``cuda.shared`` in kernels: arrays in the block's shared window, with the hazards of its bytes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numba.cuda import types
from numba.cuda.np import numpy_support

from numba_tma.simulator.barriers import check_over_none
from numba_tma.simulator.thread import SimulatedThread, current


class SharedArray(np.ndarray[Any, Any]):
    """An array in shared memory, or a view of it: a kernel's accesses to elements are checked."""

    def __getitem__(self, index: Any) -> Any:
        element = super().__getitem__(index)
        if not isinstance(element, np.ndarray):
            read(self, index)
        return element

    def __setitem__(self, index: Any, value: Any) -> None:
        write(self, index, value)
        super().__setitem__(index, value)


def plain(array: SharedArray) -> np.ndarray[Any, Any]:
    """Return the same array without the checks."""
    return array.view(np.ndarray)


def read(array: SharedArray, index: Any, *, atomic: bool = False) -> int:
    """Check and record the read of an element; return its address."""
    thread, address = current(), 0
    for address, image in _pieces(thread, array, index):
        thread.cta.hazards.read(thread, address, image.nbytes, atomic=atomic)
        if thread.log is not None:
            thread.log.read(thread.cta, address, image.nbytes)
    return address


def write(array: SharedArray, index: Any, value: Any, *, atomic: bool = False) -> None:
    """Check and record a write of `value` to an element, or to all elements of a slice."""
    thread = current()
    for address, target in _pieces(thread, array, index):
        image = None
        if target.ndim == 0 and not atomic:
            image = np.full((), value, target.dtype).reshape(1).view(np.uint8)
        check_over_none(thread.cta.barriers, "a write to an array", address, target.nbytes)
        thread.cta.hazards.write(thread, address, target.nbytes, image, atomic=atomic)
        if thread.log is not None:
            thread.log.wrote(thread.cta, address, target.nbytes)


def _pieces(
    thread: SimulatedThread, array: SharedArray, index: Any
) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """Return the addresses and elements that `index` names; none for an index that copies."""
    index = index if isinstance(index, tuple) else (index,)
    whole = index if Ellipsis in index else (*index, ...)
    window = thread.cta.memory.data
    part = plain(array)[whole]
    first = part.__array_interface__["data"][0] - window.__array_interface__["data"][0]
    if not 0 <= first < window.nbytes:
        return []
    if part.ndim == 0:
        return [(first, part)]
    places = np.ndindex(part.shape)
    return [(first + int(np.dot(place, part.strides)), part[(*place, ...)]) for place in places]


class Shared:
    """Makes arrays in the block's shared window, with an address."""

    def __init__(self, dynamic_bytes: int) -> None:
        self._dynamic_bytes = dynamic_bytes

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> SharedArray:
        """Return the block's array for this call in the source, the same for all its threads."""
        element = np.dtype(numpy_support.as_dtype(dtype) if _is_numba_type(dtype) else dtype)
        extents = shape if isinstance(shape, tuple) else (shape,)
        frame = sys._getframe(1)
        code = frame.f_code
        key: tuple[object, ...] = (code, frame.f_lasti)
        where = f"cuda.shared.array at line {frame.f_lineno} of {code.co_name}"
        count = int(np.prod(extents))
        if extents == (0,):
            # Every array of size 0 is the launch's dynamic shared memory.
            count = self._dynamic_bytes // element.itemsize
            extents, key, where = (count,), ("dynamic",), "dynamic shared memory"
            nbytes, alignment = self._dynamic_bytes, None
        else:
            nbytes = count * element.itemsize
        memory = current().cta.memory
        start = memory.allocate(
            ("array", *key), where, nbytes, alignment or 16, tracked=False
        ).start
        window = memory.data[start : start + count * element.itemsize]
        return window.view(element).reshape(extents).view(SharedArray)


def _is_numba_type(dtype: Any) -> bool:
    return isinstance(dtype, types.Type)
