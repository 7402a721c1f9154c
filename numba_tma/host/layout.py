"""Tiles in shared memory: shape, swizzle, and the boxes of their copies.

Everything here is in NumPy axis order, innermost axis last.
"""

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.backend import KernelArgument
from numba_tma.host.dtypes import DType, Index, as_dtype
from numba_tma.host.host_only import host_only
from numba_tma.host.values import is_whole

MAX_RANK = 5
MAX_BOX = 256  # elements along one axis of one copy


class Swizzle(IntEnum):
    """Permutation of a tile's chunks in shared memory, which avoids bank conflicts.

    Chunks have 16 bytes. Swizzles with another atom exist from compute capability 10.0 on.
    """

    NONE = 0
    B32 = 1
    B64 = 2
    B128 = 3
    # The driver's 5 also swaps the halves of 16 bytes, which would split 16-byte vectors.
    B128_ATOM_32B = 4
    B128_ATOM_64B = 6

    @property
    def span(self) -> int:
        """Bytes within which chunks are permuted; the largest inner extent of a box."""
        return 16 << min(self.value, 3)

    @property
    def atom(self) -> int:
        """Bytes of a chunk."""
        return {4: 32, 6: 64}.get(self.value, 16)

    @property
    def alignment(self) -> int:
        """Bytes to which a tile must be aligned: its pattern repeats there."""
        return 128 * self.span // self.atom

    __hash__ = int.__hash__  # Enum's own hash is a Python function, too slow for tensor_map's cache


@dataclass(frozen=True)
class Tile(KernelArgument):
    """A block of elements in shared memory, in row-major order.

    A tile may be larger than the box of one copy; `boxes` lists its boxes. Rows that are wider than
    the swizzle's span lie in slabs of that width, one after the other. The last slab is padded.

    Parameters
    ----------
    shape
        Elements per axis, 1 to 5 axes, innermost last.
    dtype
        Anything that `as_dtype` takes.
    swizzle
        The permutation of chunks.

    Examples
    --------
    >>> Tile((64, 32), np.float32, Swizzle.B128)
    Tile((64, 32), f32, B128)
    >>> Tile((64, 80), np.float32, Swizzle.B128).boxes()
    [(0, (0, 0)), (8192, (0, 32)), (16384, (0, 64))]
    """

    shape: tuple[int, ...]
    dtype: DType
    swizzle: Swizzle

    def __init__(
        self, shape: int | Sequence[int], dtype: object, swizzle: Swizzle = Swizzle.NONE
    ) -> None:
        shape, dtype, swizzle = _tile_shape(shape), _tile_dtype(dtype), _tile_swizzle(swizzle)
        if not 1 <= len(shape) <= MAX_RANK:
            raise ValueError(
                f"Tile(shape={shape}): tile shape {shape} has {len(shape)} axes; a tile has 1 to 5"
            )
        for axis, extent in enumerate(shape):
            if extent < 1:
                raise ValueError(
                    f"Tile(shape={shape}): tile axis {axis} is {extent}; a tile needs at least 1 "
                    "element"
                )
        if swizzle and dtype.is_record and 16 % dtype.itemsize:
            raise ValueError(
                f"Tile(swizzle={swizzle.name}): elements of {dtype} have {dtype.itemsize} B, and a "
                "swizzle permutes chunks of 16 B, which they would be split by: use Swizzle.NONE, "
                "or records of 1, 2, 4, 8 or 16 B"
            )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "swizzle", swizzle)
        object.__setattr__(self, "_hash", hash((shape, dtype, swizzle)))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element; elements of 4 and 6 bits have none (`DType.itemsize`)."""
        return self.dtype.itemsize

    @property
    def slab(self) -> int:
        """Contiguous elements of a row: all of them, or those of the swizzle's span."""
        if self.swizzle is Swizzle.NONE:
            return self.shape[-1]
        return min(self.shape[-1], 8 * self.swizzle.span // self.dtype.shared_bits)

    @property
    def num_slabs(self) -> int:
        """Slabs that the rows are split into, 1 unless they are wider than the swizzle's span."""
        return _ceil_div(self.shape[-1], self.slab)

    @property
    def slab_nbytes(self) -> int:
        """Bytes from one slab to the next in shared memory: all rows, rounded up to `alignment`."""
        nbytes = self.size // self.shape[-1] * self.pitch
        return nbytes if self.num_slabs == 1 else _ceil_div(nbytes, self.alignment) * self.alignment

    @property
    def nbytes(self) -> int:
        """Bytes that a load copies and its barrier expects: whole slabs, without gaps."""
        return self.dtype.nbytes(self.size // self.shape[-1] * self.num_slabs * self.slab)

    @property
    def pitch(self) -> int:
        """Bytes from one row to the next in shared memory: a swizzled row takes a whole span."""
        row = self.dtype.shared_nbytes(self.slab)
        return row if self.swizzle is Swizzle.NONE else self.swizzle.span

    @property
    def shared_nbytes(self) -> int:
        """Bytes of the tile in shared memory; more than `nbytes` if there are paddings or gaps."""
        return self.num_slabs * self.slab_nbytes

    @property
    def box(self) -> tuple[int, ...]:
        """The tile of one copy: this tile, or its largest contiguous part."""
        return cut(self)

    def boxes(
        self, element_strides: Sequence[int] | None = None
    ) -> list[tuple[int, tuple[int, ...]]]:
        """List the boxes: the byte offset of each in shared memory, and its first index.

        Boxes that skip elements of the tensor cover more of it, so there may be more boxes.
        """
        starts = map(range, (0,) * self.ndim, self.shape, cut(self, element_strides))
        return [(int(self.offset(*start)), start) for start in itertools.product(*starts)]

    @property
    def alignment(self) -> int:
        """Bytes to which the tile's base in shared memory must be aligned."""
        return self.swizzle.alignment

    def offset(self, *index: Index) -> Index:
        """Byte offset of an element from the aligned base of the tile, through the swizzle.

        An element under a byte has the offset of the byte in which it begins.

        Parameters
        ----------
        *index
            One index per axis: ints, or integer arrays that broadcast against each other.
        """
        if len(index) != self.ndim:
            raise IndexError(f"{self!r} takes {self.ndim} indices, got {len(index)}")
        row: Any = 0
        for axis, (i, extent) in enumerate(zip(index, self.shape, strict=True)):
            # int64: in a narrower index type the arithmetic below would wrap round.
            i = int(i) if isinstance(i, int | np.integer) else np.asarray(i, np.int64)
            inside = 0 <= i < extent if isinstance(i, int) else np.all((i >= 0) & (i < extent))
            if not inside:
                raise IndexError(f"index {i} is outside axis {axis} of {self!r}")
            if axis < self.ndim - 1:
                row = row * extent + i
        slab, column = divmod(i, self.slab)
        linear = slab * self.slab_nbytes + row * self.pitch + self.dtype.shared_offset(column)
        result: Index = swizzle_index(self.swizzle, linear)
        return result

    def __hash__(self) -> int:
        cached: int = self._hash  # type: ignore[attr-defined]
        return cached

    def __reduce__(self) -> tuple[Callable[..., "Tile"], tuple[object, ...]]:
        return Tile, (self.shape, self.dtype, self.swizzle)  # a hash is valid in one process

    def __repr__(self) -> str:
        return f"Tile({self.shape}, {self.dtype}, {self.swizzle.name})"


@overload
@host_only
def swizzle_index(swizzle: Swizzle, byte_offset: int) -> int: ...
@overload
def swizzle_index(
    swizzle: Swizzle, byte_offset: NDArray[np.integer[Any]]
) -> NDArray[np.integer[Any]]: ...
def swizzle_index(swizzle: Swizzle, byte_offset: Index) -> Index:
    """Return the offset in the swizzled tile of the byte at `byte_offset` of the row-major tile.

    The number of its 128-byte line is XORed into the number of its chunk: as many bits of it as
    number the chunks of a span, so one for B32, two for B64, three for B128. The hardware takes
    these bits from the shared-memory address, so the offset counts from a base aligned to
    ``swizzle.alignment``. The map is its own inverse.
    """
    span, atom = swizzle.span, swizzle.atom
    return byte_offset ^ ((byte_offset >> 7) * atom & (span - atom))


def cut(tile: Tile, element_strides: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the largest box that cuts a tile into equal copies, in elements of the tile.

    Each box is contiguous in shared memory, and aligned as a copy needs. With element strides a box
    covers more of the tensor, and so has fewer elements. If no box divides the tile, the result is
    too large for a copy.
    """
    steps = element_strides or (1,) * tile.ndim
    shape = (*tile.shape[:-1], tile.slab)
    for axis in reversed(range(tile.ndim)):
        inner = axis == tile.ndim - 1
        limit = tile.dtype.max_inner_box if inner else MAX_BOX
        most = max(1, limit // max(1, steps[axis]))
        if shape[axis] <= most:
            continue
        row = math.prod(shape[axis + 1 : -1]) * tile.pitch
        for extent in range(most, 0, -1):
            nbytes = tile.dtype.shared_nbytes(extent) if inner else extent * row
            if shape[axis] % extent == 0 and nbytes % tile.alignment == 0:
                return (1,) * axis + (extent,) + shape[axis + 1 :]
        break
    return shape


def box_violations(
    tile: Tile | Sequence[int],
    dtype: object = None,
    swizzle: Swizzle = Swizzle.NONE,
    interleave: int | None = None,
    splits: bool = True,
) -> list[str]:
    """List every rule for the box of one tensor copy that a tile breaks, each with a repair.

    Parameters
    ----------
    tile
        A `Tile`, which may have to be cut into boxes, or the shape of one box with its `dtype` and
        `swizzle`.
    dtype, swizzle
        Element type and swizzle where `tile` is only a shape.
    interleave
        None, 16 or 32 bytes.
    splits
        Whether a `Tile` of this shape would be split into several boxes, which repairs some.
    """
    if isinstance(tile, Tile):
        shape, dtype, swizzle = tile.box, tile.dtype, tile.swizzle
    else:
        shape, dtype = tuple(tile), as_dtype(dtype)
    violations = []
    for axis, extent in enumerate(shape):
        words = dtype.words if axis == len(shape) - 1 else 1
        limit = MAX_BOX // words
        if not 1 <= extent <= limit:
            count = _ceil_div(extent, limit)
            split = f"split it into {count} boxes of {limit} or fewer"
            split += "; a Tile is split by itself" if splits else ""
            what = f" {dtype} of {words} words" if words > 1 else ""
            violations.append(
                f"box axis {axis} is {extent}{what}; TMA copies 1 to {limit} elements along "
                f"{'that' if what else 'an'} axis: " + (split if extent > 0 else "use at least 1")
            )
    if not shape:
        return violations
    inner, last = shape[-1], len(shape) - 1
    nbytes = dtype.shared_nbytes(inner)
    if dtype.is_unpacked and inner != dtype.max_inner_box:
        violations.append(
            f"box axis {last} is {inner} {dtype}; TMA copies exactly {dtype.max_inner_box} along "
            f"the innermost axis of {dtype.tensor_map}: use {dtype.max_inner_box}"
        )
    elif interleave is None and inner > 0 and inner % dtype.chunk:
        unit = dtype.chunk
        below, above = inner // unit * unit, _ceil_div(inner, unit) * unit
        violations.append(
            f"box axis {last} is {inner} {dtype} = {nbytes} B; TMA needs a "
            "multiple of 16 B along the innermost axis: use "
            + " or ".join(str(n) for n in (below, above) if 1 <= n <= dtype.max_inner_box)
        )
    if swizzle is not Swizzle.NONE and nbytes > swizzle.span:
        fits = 8 * swizzle.span // dtype.shared_bits
        repair = f"use {fits} or fewer elements"
        if interleave is None and not splits:
            repair += f" (and {_ceil_div(inner, fits)} copies), or Swizzle.NONE"
        elif interleave is None:
            repair += (
                f", Swizzle.NONE, or Tile({shape}, {dtype}, {swizzle.name}), which splits it into "
                f"{_ceil_div(inner, fits)} boxes"
            )
        violations.append(
            f"box axis {last} is {inner} {dtype} = {nbytes} B; swizzle "
            f"{swizzle.name} spans {swizzle.span} B: {repair}"
        )
    return violations


def _tile_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    try:
        return as_shape(shape)
    except TypeError:
        raise TypeError(
            f"Tile(shape={shape!r}): shape is an integer, or a tuple of one for each axis"
        ) from None


def _tile_dtype(dtype: object) -> DType:
    try:
        return as_dtype(dtype)
    except TypeError as error:
        raise TypeError(f"Tile(dtype={dtype!r}): {error}") from None


def _tile_swizzle(swizzle: int) -> Swizzle:
    if is_whole(swizzle) and swizzle in list(Swizzle):
        return Swizzle(swizzle)
    names = ", ".join(f"Swizzle.{each.name}" for each in Swizzle)
    error = ValueError if is_whole(swizzle) else TypeError
    raise error(f"Tile(swizzle={swizzle!r}): swizzle is one of {names}")


def as_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Normalise a shape to a tuple of Python ints; one int is one axis. Raise a TypeError else."""
    extents = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if any(isinstance(extent, bool) for extent in extents):
        raise TypeError(f"{shape!r} has a bool, which is no extent")
    return tuple(operator.index(extent) for extent in extents)


def _ceil_div(n: int, divisor: int) -> int:
    return -(-n // divisor)
