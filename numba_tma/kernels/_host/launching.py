"""What the kernels' host wrappers share: launches, streams, queue counters and ways to cut a row.

A wrapper is written in two halves. The public one has the documentation and finds `out`; the other
checks the arrays, makes the maps and calls `launch`. Under `launched_again` the second half runs
once for arrays at the same place: another call launches the same kernels with the same bytes, and
costs the host little more than that::

    def copy(source, out, *, stream=None):
        _copy((source, out), stream, ())
        return out

    @launched_again
    def _copy(arrays, stream, numbers):
        x, y = Matrix("source", arrays[0]), Matrix("out", arrays[1])
        ...
        launch(copy_chunks, blocks, 32, stream, x.as_bytes(), y.as_bytes())
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import math
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numba import cuda

from numba_tma.host import driver as _driver
from numba_tma.host.array_interface import contiguous_strides, read_array, readers
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.environment import simulated
from numba_tma.host.launching import launcher
from numba_tma.host.layout import MAX_BOX, Tile
from numba_tma.host.streams import handle_of
from numba_tma.ptx import CachePolicy

#: The L2 policy of what kernels read once. It leaves the cache last, and so what they write leaves
#: it first, in long runs, which was measured to be faster on an H200.
STREAMED = int(CachePolicy.EVICT_LAST)


def as_stream(stream: Any) -> Any:
    """Return what numba-cuda launches on, from a numba, torch or CuPy stream, or a handle."""
    if stream is None or simulated():
        return 0
    handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    if isinstance(handle, int):
        return cuda.external_stream(handle) if handle else 0
    return stream


@functools.lru_cache(maxsize=1024)
def _launcher(kernel: Any, blocks: int, threads: int, stream: Any, pdl: bool) -> Any:
    return launcher(kernel, blocks, threads, stream=stream, pdl=pdl)


def launch(
    kernel: Any, blocks: int, threads: int, stream: Any, *arguments: Any, pdl: bool = False
) -> None:
    """Launch `kernel` on a numba, torch or CuPy stream; for `pdl` see `launcher`."""
    prepared = _launcher(kernel, blocks, threads, stream, pdl)
    launches = getattr(_noted, "launches", None)
    if launches is None:
        prepared(*arguments)
    else:
        again = prepared.bind(*arguments)
        again()
        launches.append(again)


# The launches of the wrapper that runs on this thread, if it stands under `launched_again`.
_noted = threading.local()

# Of each wrapper, in calls and in bytes of their own memory; the oldest goes first.
_MOST_CALLS = 1024
_MOST_BYTES = 256 << 20


@contextlib.contextmanager
def noting() -> Iterator[list[Callable[[], None]]]:
    """Fill the list that it yields with all launches, each to be launched again by a call."""
    outer, launches = getattr(_noted, "launches", None), list[Callable[[], None]]()
    _noted.launches = launches
    try:
        yield launches
    finally:
        _noted.launches = outer


def launched_again(prepare: Callable[..., Any]) -> Callable[..., None]:
    """Run `prepare`, the second half of a wrapper, once for arrays at the same place.

    It is called as ``prepare(arrays, stream, numbers, *options)``, where an array may be None, and
    launches by `launch` alone. Equal are calls with arrays of the same address, shape, strides and
    type, equal options, the same stream and device; these repeat the launches of the first one,
    which hold addresses and no arrays. Memory of its own that the launches need as well, a sequence
    of arrays, it returns, and it is kept with them: no other call may write there meanwhile. What a
    graph captures is kept for ever, since nobody says when the graph is gone.

    Options are hashable, and equal ones mean the same. What is passed to a kernel belongs to
    `numbers`, which are told apart as they are written: 0.0 and -0.0 differ, and NaN is NaN. Only
    the last ones are remembered, so that numbers that always change replace each other.
    """
    calls: dict[Any, tuple[str, list[Callable[[], None]], Sequence[Any]]] = {}

    @functools.wraps(prepare)
    def call(arrays: tuple[Any, ...], stream: Any, numbers: tuple[Any, ...], *options: Any) -> None:
        written = repr(numbers)
        key = (
            *(_driver.current_device(), stream_key(stream), options),
            *[a if a is None else readers.get(type(a), read_array)(a)[:5] for a in arrays],
        )
        known = calls.get(key)
        outer = getattr(_noted, "launches", None)
        if known is not None and known[0] == written:
            if known[2] and _driver.is_capturing(handle_of(stream)):
                _captured[id(known[2])] = known[2]
            for again in known[1]:
                again()
            if outer is not None:
                outer += known[1]
            return
        captured = _driver.is_capturing(handle_of(stream))
        allowed = _driver.allocating_while_capturing() if captured else contextlib.nullcontext()
        with noting() as launches, allowed:
            kept = prepare(arrays, stream, numbers, *options) or ()
        calls.pop(key, None)
        free = _MOST_BYTES - _nbytes(kept)
        while calls and (len(calls) >= _MOST_CALLS or _held(calls) > free):
            calls.pop(next(iter(calls)), None)
        calls[key] = written, launches, kept
        if captured and kept:
            _captured[id(kept)] = kept
        if outer is not None:
            outer += launches

    return prepare if simulated() else call


#: The memory of calls that graphs have captured.
_captured: dict[int, Sequence[Any]] = {}


def _nbytes(arrays: Sequence[Any]) -> int:
    return sum(array.nbytes for array in arrays)


def _held(calls: dict[Any, tuple[str, list[Callable[[], None]], Sequence[Any]]]) -> int:
    return sum(_nbytes(kept) for _, _, kept in tuple(calls.values()))


def stream_key(stream: Any) -> int:
    """Return a number that tells streams apart."""
    return 0 if simulated() else handle_of(stream)


@functools.cache
def queue_counter(device: int, stream: int) -> Any:
    """Return the zeroed 32-bit counter that `TileQueue` kernels on this stream share.

    A kernel leaves it at 0, and kernels on one stream follow each other, so one is enough. It is
    made at the first call on a stream, which therefore comes before a graph is captured there.
    """
    counter = cuda.to_device(np.zeros(1, np.uint32))
    cuda.synchronize()  # the zero is there before a kernel on any stream
    return counter


def current_device() -> int:
    """Return the number of the device that kernels run on now."""
    return 0 if simulated() else int(cuda.get_current_device().id)


def multiprocessors() -> int:
    """Return how many multiprocessors the current device has."""
    return 2 if simulated() else int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


def resident_clusters(size: int, blocks: int) -> int:
    """Return how many clusters of `size` surely run at once, with `blocks` on a multiprocessor.

    A cluster lies within a group of 16 or 18 multiprocessors, of which fewer than `size` may be
    left over; a cluster that had to wait for another's end would take its tiles as late.
    """
    if size == 1:
        return blocks * multiprocessors()
    group = 18 * blocks
    groups = multiprocessors() * blocks / group
    return max(1, int(groups * (group // size)))


def in_even_rounds(tiles: int, most: int) -> int:
    """Return how many blocks, or clusters, take equal tiles, one or more: as few as need no longer.

    `most` run at once and take tiles in rounds, of which the last has fewer: 900 are 6 rounds of
    132 and one of 108. With 129 at once there are 7 rounds too, and in all of them fewer share
    memory and power.
    """
    return -(-tiles // -(-tiles // most))


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


class Stack:
    """An array of any library seen as a batch of matrices: (batch, rows, columns)."""

    def __init__(self, name: str, array: Any) -> None:
        read = readers.get(type(array), read_array)
        self.address, shape, strides, self.stored, in_elements, self.array, _ = read(array)
        self.shape = tuple(int(n) for n in shape)
        self.itemsize = size = as_dtype(self.stored).itemsize
        if len(self.shape) < 2:
            raise ValueError(f"{name} has shape {self.shape}; a matrix has two axes or more")
        if strides is None or 0 in self.shape:
            steps = contiguous_strides(self.shape, size)
        else:
            steps = tuple(s * size if in_elements else s for s in strides)
        if self.shape[-1] > 1 and steps[-1] != size:
            raise ValueError(
                f"{name} has shape {self.shape} and strides {steps} B: its last axis must be "
                "contiguous; pass a copy whose last axis is"
            )
        self.rows, self.columns = self.shape[-2:]
        self.batch = math.prod(self.shape[:-2])
        row = steps[-2] if self.rows > 1 else self.columns * size
        each = common_stride(name, self.shape[:-2], steps[:-2], self.rows * row)
        self.steps = (each, row, size)

    def addressable(self) -> bool:
        """Return whether TMA reads and writes it: all starts and ends are multiples of 16 B."""
        places = (self.address, self.columns * self.itemsize, *self.steps[:2])
        return all(place % 16 == 0 for place in places)

    def view(self, dtype: DType) -> Any:
        """Return (batch, rows, columns) of elements of the same size: a source of tensor maps."""
        shape = (self.batch, self.rows, self.columns)
        if simulated():
            host: Any = getattr(self.array, "_ary", self.array)
            bits = host.view(dtype.numpy)
            return np.lib.stride_tricks.as_strided(bits, shape, self.steps)
        return View(self.array, self.address, shape, self.steps, dtype.numpy)

    def span(self) -> Any:
        """Return the memory from the first element to the last, gaps too, as bytes."""
        extents = (self.batch - 1, self.rows - 1, self.columns)
        last = sum(n * step for n, step in zip(extents, self.steps))
        return bytes_from(self.array, self.address, last)

    def array_of(self, dtype: DType) -> Any:
        """Return the view as a Numba array."""
        return as_array(self.view(dtype))


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


def tile_for(columns: int, dtype: DType, nbytes: int) -> Tile:
    """Return a tile of about `nbytes`, as wide as a box or the rows, for a matrix of `dtype`."""
    width = min(MAX_BOX, columns)
    return Tile((max(1, min(MAX_BOX, nbytes // (width * dtype.itemsize))), width), dtype)


def empty_like(array: Any) -> Any:
    """Return a new array of the same library, shape and type."""
    library = type(array).__module__.partition(".")[0]
    if library in ("torch", "cupy") and not simulated():
        return importlib.import_module(library).empty_like(array)
    return empty(array, array.shape)


def empty(like: Any, shape: tuple[int, ...], dtype: DType | None = None) -> Any:
    """Return a new array of the same library, and type if no other is given."""
    library = type(like).__module__.partition(".")[0]
    if simulated():
        return np.empty(shape, dtype.numpy if dtype else getattr(like, "_ary", like).dtype)
    if library == "torch":
        torch = importlib.import_module(library)
        return like.new_empty(shape, dtype=getattr(torch, dtype.numpy.name) if dtype else None)
    if library in ("cupy", "numba"):
        # Neither has bf16: it is held as bits.
        known = like.dtype if dtype is None else "u2" if dtype.name == "bf16" else dtype.numpy
        make = cuda.device_array if library == "numba" else importlib.import_module(library).empty
        return make(shape, known)
    raise TypeError(
        f"cannot make an array like a {type(like).__module__}.{type(like).__qualname__}: give out="
    )


def check_same(function: str, **matrices: Matrix) -> None:
    """Raise unless the arrays all have the shape and type of the first."""
    (first_name, first), *others = matrices.items()
    for name, other in others:
        if other.shape != first.shape or other.dtype is not first.dtype:
            raise ValueError(
                f"{function}(): {name} has shape {other.shape} of {other.dtype}, but {first_name} "
                f"has shape {first.shape} of {first.dtype}; they must agree"
            )
