"""New arrays of the caller's library, and `padded_empty`, whose rows TMA takes."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from numba_tma.host.annotations import DeviceArray, DTypeLike, Shape
from numba_tma.host.array_interface import class_name, reading_of
from numba_tma.host.dtypes import DType, as_dtype, stored_dtype
from numba_tma.host.environment import simulated
from numba_tma.host.host_only import host_only
from numba_tma.host.layout import MAX_RANK, as_shape


class NoNewArray(TypeError):
    """A library that no new array is made of; the text lacks its subject, the argument."""


def empty_of(
    like: DeviceArray | None, shape: tuple[int, ...], dtype: DType | None = None
) -> DeviceArray:
    """Return a new array of the library of `like`, and of its element type if `dtype` is None.

    Without `like` the array is Numba's. In the simulator, where NumPy's arrays stand for those of
    other libraries, the array is NumPy's.

    Raises
    ------
    NoNewArray
        If the library is none of torch, CuPy and Numba.
    """
    library = "numba" if like is None else type(like).__module__.partition(".")[0]
    if simulated() and like is not None:
        host: Any = getattr(like, "_ary", like)
        return np.empty(shape, dtype.storage if dtype else host.dtype)
    if library == "torch":
        torch = importlib.import_module(library)
        assert like is not None
        return like.new_empty(shape, dtype=getattr(torch, dtype.storage.name) if dtype else None)
    if library in ("cupy", "numba"):
        module, make = ("numba.cuda", "device_array") if library == "numba" else ("cupy", "empty")
        known: Any = getattr(like, "dtype", None) if dtype is None else dtype.storage
        if dtype is not None and known.kind == "V" and not dtype.is_record:
            # Neither library has ml_dtypes' floats.
            known = f"u{known.itemsize}"
        return getattr(importlib.import_module(module), make)(shape, known)
    raise NoNewArray(f"is a {class_name(like)}, and new arrays are of torch, CuPy or Numba alone")


@host_only
def padded_empty(
    shape: Shape | int, dtype: DTypeLike | None = None, *, like: DeviceArray | None = None
) -> DeviceArray:
    """Return a new device array whose rows begin at multiples of 16 bytes, which TMA takes.

    The array has the extents of `shape`, and a gap behind each row where one is needed. Nothing is
    initialised. The gaps are the array's own, the one behind the last row too: a map that stores to
    such rows is made with ``overwrite_padding=True``.

    Parameters
    ----------
    shape
        Extents in the array's axis order, in elements; an integer is one axis. The array of
        elements of 4 and 6 bits counts their bytes along its last axis.
    dtype
        The element type; that of `like` if None. An array of a type that its library lacks is one
        of unsigned integers: name the type to `tensor_map` again.
    like
        An array of torch, CuPy or Numba: the new array is of its library. Without it the array is
        Numba's, on the current GPU.

    Raises
    ------
    TypeError
        When the element type is none that TMA copies, or the library of `like` is another one.
    ValueError
        When an extent is negative, or a row of 4- or 6-bit elements is no whole number of bytes.
    """
    what = "padded_empty"
    found, extents = _element_type(what, dtype, like), _extents(what, shape)
    if extents[-1] * found.bits % 8:
        raise ValueError(
            f"{what}: axis {len(extents) - 1} is {extents[-1]} {found}; rows fill whole bytes: use "
            f"a multiple of {8 // math.gcd(8, found.bits)}"
        )
    *outer, columns = found.storage_shape(extents)
    unit = row_unit(found)
    try:
        whole = empty_of(like, (*outer, -(-columns // unit) * unit), dtype and found)
    except NoNewArray as error:
        raise TypeError(f"{what}: like {error}") from None
    return whole[(*(slice(None) for _ in outer), slice(columns))]


def row_unit(dtype: DType) -> int:
    """Return how many elements of an array a row has a multiple of, so that the next is aligned."""
    nbytes = 32 if dtype.is_unpacked else 16
    return nbytes // math.gcd(nbytes, dtype.storage.itemsize)


def _element_type(what: str, dtype: DTypeLike | None, like: DeviceArray | None) -> DType:
    if dtype is None and like is None:
        raise TypeError(f"{what}: dtype is None; give an element type, or an array as like=")
    stored = None if like is None else reading_of(like, f"{what}: like")[0][3]
    try:
        return stored_dtype(stored) if dtype is None else as_dtype(dtype)
    except TypeError as error:
        raise TypeError(f"{what}: {'like ' if dtype is None else ''}{error}") from None


def _extents(what: str, shape: Shape | int) -> tuple[int, ...]:
    try:
        extents = as_shape(shape)
    except TypeError:
        raise TypeError(
            f"{what}: shape is {shape!r}; give an integer, or a tuple of one for each axis"
        ) from None
    if not 1 <= len(extents) <= MAX_RANK:
        raise ValueError(f"{what}: shape is {extents}; an array that TMA takes has 1 to 5 axes")
    for axis, extent in enumerate(extents):
        if extent < 0:
            raise ValueError(f"{what}: axis {axis} is {extent}; an extent is not negative: use 0")
    return extents
