"""New arrays of the caller's library, and tiles for arrays."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numba import cuda

from numba_tma.host.annotations import DeviceArray
from numba_tma.host.array_interface import class_name
from numba_tma.host.dtypes import DType
from numba_tma.host.environment import simulated
from numba_tma.host.layout import MAX_BOX, Tile


def empty_like(array: DeviceArray) -> DeviceArray:
    """Return a new array of the same library, shape and element type."""
    library = type(array).__module__.partition(".")[0]
    if library in ("torch", "cupy") and not simulated():
        return importlib.import_module(library).empty_like(array)
    return empty(array, array.shape)


def empty(like: DeviceArray, shape: tuple[int, ...], dtype: DType | None = None) -> DeviceArray:
    """Return a new array of the library of `like`, and of its element type if `dtype` is None.

    Raises
    ------
    TypeError
        If the library is none of torch, CuPy and Numba.
    """
    library = type(like).__module__.partition(".")[0]
    if simulated():
        host: Any = getattr(like, "_ary", like)
        return np.empty(shape, dtype.numpy if dtype else host.dtype)
    if library == "torch":
        torch = importlib.import_module(library)
        return like.new_empty(shape, dtype=getattr(torch, dtype.numpy.name) if dtype else None)
    if library in ("cupy", "numba"):
        # Neither library has bf16, which is held as bits.
        known = like.dtype if dtype is None else "u2" if dtype.name == "bf16" else dtype.numpy
        make = cuda.device_array if library == "numba" else importlib.import_module(library).empty
        return make(shape, known)
    raise TypeError(f"cannot make an array like a {class_name(like)}: give out=")


def tile_for(columns: int, dtype: DType, nbytes: int) -> Tile:
    """Return a tile of about `nbytes` for rows of `columns`, as wide as a box or the rows."""
    width = min(MAX_BOX, columns)
    return Tile((max(1, min(MAX_BOX, nbytes // (width * dtype.itemsize))), width), dtype)
