"""Shared memory of a block: barriers, and tiles that are accessed through their swizzle."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from numba_tma import simulator
from numba_tma.backend.interface import (
    Constant,
    compile_time,
    constant_class,
    constant_property,
    device_class,
    native,
    u32,
)
from numba_tma.backend.primitives import sub32
from numba_tma.device.barrier import Barrier, BarrierArray
from numba_tma.device.matrix_descriptor import MatrixDescriptor, matrix_descriptor
from numba_tma.device.records import SharedRecord, record_refusal, write_bytes
from numba_tma.device.tile_indices import TileIndices, check_share, vector_width
from numba_tma.host.annotations import Registers
from numba_tma.host.dtypes import DType, as_dtype, complex_refusal
from numba_tma.host.layout import Tile
from numba_tma.host.records import alignment_in_rows

constant_class(Tile)


Index = Any  #: an integer, or a tuple of one integer per axis
_INTEGERS = (int, np.integer)


@device_class(mutable=True)
@dataclass
class TileAccesses:
    """Whether the thread has read or written tiles since its last `fence_proxy_async`.

    Reads count too: an arrival on an mbarrier does not wait for reads in flight, and the copy
    engine, which is in another proxy, is not ordered behind them.
    """

    unfenced: bool = False


@native
@device_class(static=("tile",))
@dataclass(frozen=True)
class SharedTile:
    """A tile in shared memory.

    ``tile[i, j]`` reads and writes an element through the swizzle. Floats of 16 bits or less are
    read as float32, which is exact, and rounded to nearest even when written (8-bit floats
    saturate). Complex numbers are read and written in one access of 8 or 16 bytes. Scale factors
    (ue8m0, ue4m3) are read as bytes, and elements of 4 and 6 bits not at all. No bounds are checked
    on the GPU, and negative indices do not count from the end. ``cuda.atomic.add(tile, (i, j), v)``
    and the other operations of ``cuda.atomic`` but `compare_and_swap` take elements of f32, f64 and
    the integers of 4 and 8 bytes, as of arrays. ``tile[i, j].x`` is a field of a record, to read
    and to write.
    Any thread may access the tile once its copy is complete. The thread fences its accesses
    (`fence_proxy_async`) before the copy engine accesses the tile again; pipelines do that by
    themselves.
    """

    tile: Tile
    address: u32
    accesses: TileAccesses
    shared_kind = "tile"

    @constant_property
    def shape(self) -> tuple[int, ...]:
        """Elements per axis; a compile-time constant, as the properties below."""
        return self.tile.shape

    @constant_property
    def ndim(self) -> int:
        """Number of axes."""
        return self.tile.ndim

    @constant_property
    def size(self) -> int:
        """Number of elements."""
        return self.tile.size

    @constant_property
    def nbytes(self) -> int:
        """Bytes that a load of the tile copies."""
        return self.tile.nbytes

    @constant_property
    def itemsize(self) -> int:
        """Bytes of an element in shared memory."""
        return self.tile.itemsize

    @constant_property
    def dtype(self) -> np.dtype[Any]:
        """Type of ``tile[i, j]``: float32 of floats of 16 bits or less."""
        return self.tile.dtype.held

    def __getitem__(self, index: Index) -> Any:
        check_elements(self.tile)
        dtype = self.tile.dtype
        if dtype.is_record:
            at = alignment_in_rows(dtype.numpy)
            return SharedRecord(dtype, at, self._address_of(index), self.accesses)
        value = simulator.shared_read(self._address_of(index), dtype.kernel_storage)
        value = _widen(value, dtype.compute)
        self.accesses.unfenced = True
        return value

    def __bool__(self) -> bool:
        raise TypeError("a shared tile is neither true nor false: compare one of its elements")

    def __setitem__(self, index: Index, value: Any) -> None:
        check_elements(self.tile)
        if self.tile.dtype.is_record:
            write_bytes(self._address_of(index), self._record(value))
            self.accesses.unfenced = True
            return
        simulator.shared_write(self._address_of(index), _narrow(value, self.tile.dtype))
        self.accesses.unfenced = True

    @native
    def address_of(self, index: Index) -> int:
        """Return the shared-memory address of the element `index`, through the swizzle.

        For instructions that take an address, such as ``tma.ptx.cp_async_cg``: the 16 bytes from
        an element whose offset in its row is a multiple of 16 B lie together. Pipelines do not
        track accesses by address: fence them (`fence_proxy_async`) before the copy engine accesses
        the tile again.
        """
        return self._address_of(index)

    @native
    def read_vector(self, index: Index) -> Any:
        """Return the 16 bytes that start at the element `index` as a vector.

        16 elements of 1 byte, 8 of 2, 4 of 4 or 2 of 8, in one shared-memory load; the offset of
        `index` in its row is a multiple of 16 B. Complex tiles have no vectors: `view` them as
        tiles of their words. Vectors have elementwise + - * / with each other
        and with numbers, ``v[i]`` with a literal, and ``sum()``, ``max()``, ``min()``.
        """
        check_vectors(self.tile)
        dtype = self.tile.dtype
        values = simulator.shared_read(
            self._vector_address(index), dtype.kernel_storage, dtype.chunk
        )
        self.accesses.unfenced = True
        return _widen(values, dtype.compute)

    @native
    def write_vector(self, index: Index, values: Registers) -> None:
        """Write a vector to the 16 bytes that start at `index`; the reverse of `read_vector`."""
        check_vectors(self.tile)
        simulator.shared_write(self._vector_address(index), _narrow(values, self.tile.dtype))
        self.accesses.unfenced = True

    def indices(self, thread: Constant[int], threads: Constant[int]) -> TileIndices:
        """Iterate over the indices of every `threads`-th element, from the `thread`-th on.

        ``for i, j in tile.indices(cuda.threadIdx.x, cuda.blockDim.x)``: `threads` threads, whose
        numbers are 0 to `threads` - 1, share the elements, and neighbours have neighbouring
        elements. An index is a tuple of one int32 for each axis, also of a single one, and
        ``tile[index]`` is its element. The loop costs less than ``//`` and ``%`` of a `range`,
        which divide signed integers of 64 bits.

        Executed by any thread, for itself. It accesses and orders nothing.
        """
        check_elements(self.tile)
        check_share("indices", thread, threads)
        return TileIndices(self.tile, 1, sub32(thread, threads), threads)

    def vectors(self, thread: Constant[int], threads: Constant[int]) -> TileIndices:
        """Iterate over the indices of 16-byte vectors, as `indices` does over those of elements.

        For `read_vector` and `write_vector`. Vectors divide the rows of the tile.
        """
        check_vectors(self.tile)
        check_share("vectors", thread, threads)
        return TileIndices(self.tile, vector_width(self.tile), sub32(thread, threads), threads)

    @native
    def view(self, tile: Tile) -> SharedTile:
        """Return the same bytes as another tile: same size, same swizzle.

        For a flat index over a tile of several axes (which has no swizzle), or for the bits of its
        elements.
        """
        check_view(self.tile, tile)
        return SharedTile(tile, self.address, self.accesses)

    @native
    def matrix_descriptor(self, major: str = "K") -> MatrixDescriptor:
        """Return the matrix descriptor of the tile, through which tensor cores read it.

        ``"K"``: the tile is (rows of A, K) or (columns of B, K), K innermost. ``"MN"``: the tile is
        (K, rows of A) or (K, columns of B), as PTX calls transposed, for 16-bit types on compute
        capability 9.0. An unswizzled tile has its chunks of 16 B as a first axis. A tile that the
        tensor cores cannot read is a compile error; see `MatrixLayout`.

        Executed by any thread. It reads nothing and orders nothing. What threads wrote to the tile
        must be fenced (`fence_proxy_async`) before the tensor cores read it.
        """
        return matrix_descriptor(self.tile, self.address, major)

    def __iter__(self) -> Any:
        raise TypeError(NOT_ITERABLE)

    def _record(self, value: object) -> Any:
        """Return a value as a record of the tile's type (simulator)."""
        if hasattr(type(value), "__array_ufunc__"):  # a record of an array in global memory
            value = getattr(getattr(value, "_item", value), "_ary", value)
        whole = isinstance(value, SharedRecord | np.void | np.ndarray)
        found = np.asarray(value) if whole else None
        if found is None or found.dtype != self.tile.dtype.numpy or found.ndim:
            raise TypeError(record_refusal(f"a tile of {self.tile.dtype}"))
        return found

    def _address_of(self, index: Index) -> int:
        index = index if isinstance(index, tuple) else (index,)
        for i in index:
            if not isinstance(i, _INTEGERS):
                raise IndexError(f"{self.tile} is indexed with integers, not {index}")
        return self.address + _offset(self.tile, index)

    def _vector_address(self, index: Index) -> int:
        address = self._address_of(index)
        if address % 16:
            raise IndexError(misaligned_vector(self.tile, index, address % 16))
        return address


@functools.lru_cache(maxsize=2**16)
def _offset(tile: Tile, index: tuple[int, ...]) -> int:
    """Return the offset of a tile's element (simulator), which many threads ask for."""
    shape = tile.shape
    if len(index) != len(shape):
        raise IndexError(f"{tile} has {len(shape)} axes but is indexed with {len(index)} integers")
    if any(not 0 <= i < n for i, n in zip(index, shape)):
        raise IndexError(f"index {index} is outside {tile}, whose shape is {shape}")
    return int(tile.offset(*index))


#: The error of a loop over a tile.
NOT_ITERABLE = (
    "a shared tile cannot be iterated over: iterate over its indices, as in "
    "for index in tile.indices(thread, threads)"
)


def misaligned_vector(tile: Tile, index: Index, excess: int) -> str:
    """Return the error of a vector whose 16 bytes are not aligned."""
    return (
        f"a vector at index {index} of {tile} starts {excess} B after a multiple of 16 B: use a "
        f"multiple of {tile.dtype.chunk} along the last axis"
    )


def check_view(tile: Tile, other: Any) -> None:
    """Raise a ValueError unless the bytes of `tile` can be seen as the tile `other`."""
    if not isinstance(other, Tile):
        raise ValueError(f"SharedTile.view(tile=...) takes a Tile, not {other!r}")
    if other.shared_nbytes != tile.shared_nbytes:
        raise ValueError(
            f"{tile} has {tile.shared_nbytes:,} B and cannot be seen as {other}, which has "
            f"{other.shared_nbytes:,} B"
        )
    if (tile.swizzle or other.swizzle) and (tile.swizzle, _row_nbytes(tile)) != (
        other.swizzle,
        _row_nbytes(other),
    ):
        raise ValueError(
            f"{tile} cannot be seen as {other}: a swizzled tile keeps its swizzle and the bytes of "
            "its innermost axis"
        )


@compile_time
def check_elements(tile: Tile) -> None:
    """Raise a ValueError if kernels cannot access the elements of `tile`."""
    if tile.dtype.is_packed:
        raise ValueError(
            f"{tile} has elements of {tile.dtype.bits} bits, which kernels neither read nor write "
            "one by one: access the bytes, as tile.view(Tile(..., 'u8')) of "
            f"{_row_nbytes(tile):,} B a row, or give the tile to the tensor cores"
        )


@compile_time
def check_vectors(tile: Tile) -> None:
    """Raise a ValueError if kernels cannot access the elements of `tile` in vectors."""
    check_elements(tile)
    if (words := tile.dtype.words) > 1 or tile.dtype.is_record:
        word = as_dtype(f"u{tile.itemsize * 8}") if words == 1 else tile.dtype.word
        of_words = Tile((*tile.shape[:-1], words * tile.shape[-1]), word, tile.swizzle)
        raise ValueError(
            f"{tile} has elements of {'fields' if tile.dtype.is_record else f'{words} words'}, and "
            "vectors have elements of one word: read and write its elements, or vectors of "
            f"tile.view({of_words!r})"
        )


def _row_nbytes(tile: Tile) -> int:
    return tile.dtype.shared_nbytes(tile.shape[-1])


def _widen(value: Any, compute: str) -> Any:
    return value if value.dtype == compute else value.astype(compute)


def _narrow(value: Any, dtype: DType) -> Any:
    if isinstance(value, complex | np.complexfloating) and dtype.numpy.kind != "c":
        raise TypeError(complex_refusal(dtype))
    if dtype.compute == "float32" and dtype.itemsize == 1:  # 8 bits saturate: cvt.satfinite
        limit = float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]
        value = np.clip(np.float32(value), -limit, limit)
    value, storage = np.asarray(value), dtype.kernel_storage
    if value.dtype == storage:
        return value
    with np.errstate(over="ignore"):  # 16-bit floats overflow to infinity, as on a GPU
        return value.astype(storage)


@native
def shared_tile(tile: Tile) -> SharedTile:
    """Return a new tile in the block's shared memory, aligned as TMA and its swizzle need.

    Each call in the source is one allocation, the same for every thread of the block. `tile` is a
    `Tile` from the kernel's globals. Called in the kernel, and passed down to device functions.
    """
    return SharedTile(
        tile, simulator.allocate_shared(tile, tile.shared_nbytes, tile.alignment), TileAccesses()
    )


@native
def shared_barrier() -> Barrier:
    """Return a new, uninitialised mbarrier in the block's shared memory.

    Each call in the source is one barrier, the same for every thread of the block.
    """
    return Barrier(simulator.allocate_shared("shared_barrier", 8, 8))


@native
def shared_barriers(count: int) -> BarrierArray:
    """Return `count` new, uninitialised mbarriers in the block's shared memory, as an array.

    Each call in the source is one array, the same for every thread of the block. `count` is a
    compile-time constant.
    """
    if not isinstance(count, int) or count < 1:
        raise simulator.BadOperand(barrier_count_rule(count))
    return BarrierArray(count, simulator.allocate_shared("shared_barriers", 8 * count, 8))


def barrier_count_rule(count: int) -> str:
    """Return what is wrong with an array of `count` barriers."""
    return f"shared_barriers({count}): an array has at least 1 barrier"
