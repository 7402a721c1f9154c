"""Outputs: new arrays of the caller's library, what a given one must be, and tiles for arrays."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable

from numba_tma.host.annotations import DeviceArray
from numba_tma.host.array_interface import reading_of
from numba_tma.host.arrays import Array
from numba_tma.host.dtypes import DType
from numba_tma.host.environment import simulated
from numba_tma.host.layout import MAX_BOX, Tile
from numba_tma.host.new_arrays import NoNewArray, empty_of

#: The function of a class's library that makes an array like another.
_likes: dict[type, Callable[[DeviceArray], DeviceArray]] = {}


def empty_like(function: str, name: str, array: DeviceArray, out: str = "out") -> DeviceArray:
    """Return a new array of the same library, shape and element type as an argument.

    Raises
    ------
    TypeError
        If the argument is no array in device memory, or its library is none of those of `empty`.
    """
    like = _likes.get(type(array))
    if like is None or not getattr(array, "is_cuda", True):
        reading_of(array, f"{function}(): {name}")
        library = type(array).__module__.partition(".")[0]
        if library not in ("torch", "cupy") or simulated():
            return empty(function, name, array, array.shape, out=out)
        like = _likes[type(array)] = importlib.import_module(library).empty_like
    return like(array)


def empty(
    function: str,
    name: str,
    like: DeviceArray,
    shape: tuple[int, ...],
    dtype: DType | None = None,
    out: str = "out",
) -> DeviceArray:
    """Return a new array of the library of `like`, and of its element type if `dtype` is None.

    `function` and `name` are those of `like`, and `out` is the argument that it stands in for.

    Raises
    ------
    TypeError
        If the library is none of torch, CuPy and Numba.
    """
    try:
        return empty_of(like, shape, dtype)
    except NoNewArray as error:
        raise TypeError(f"{function}(): {name} {error}: pass {out}=") from None


def check_outputs(
    outputs: Iterable[Array | None],
    inputs: Iterable[Array | None],
    in_place: Iterable[Array | None] = (),
) -> None:
    """Raise a ValueError unless kernels can write `outputs` while they read `inputs`.

    An output can be written, has an element at each index, and shares no memory with the other
    arrays. It may be an array of `in_place`: an input of which the kernel reads each element before
    it writes the output's element at the same index. None is skipped.
    """
    others = [array for array in inputs if array is not None]
    replaceable = [array for array in in_place if array is not None]
    for out in outputs:
        if out is None:
            continue
        if out.readonly:
            raise out.error("is read-only, and the result is written to it: pass a writable array")
        if out.repeats:
            raise out.error(
                f"has shape {out.shape} and strides {out.strides} B, by which elements share "
                "memory: pass an array that is not expanded, such as a contiguous copy"
            )
        for other in others:
            legal = any(other is array for array in replaceable)
            if out.shares_memory(other) and not (legal and out.is_same_view(other)):
                raise out.error(
                    f"shares memory with {other.name}: blocks would read what others have written, "
                    "or overwrite it. Pass an array with memory of its own"
                    + f", or just {other.name}"
                    * legal
                )
        others.append(out)


def tile_for(columns: int, dtype: DType, nbytes: int) -> Tile:
    """Return a tile of about `nbytes` for rows of `columns`, as wide as a box or the rows."""
    width = min(MAX_BOX, columns)
    return Tile((max(1, min(MAX_BOX, nbytes // (width * dtype.itemsize))), width), dtype)
