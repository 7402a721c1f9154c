"""`Array`: where a device array lies, read once at the border of a public function.

A public function reads each argument once, under the names that its errors use; all code behind it
takes `Array`, and none asks a library again::

    def negate(x, *, out, dtype=None):
        source = Array.read("negate", "x", x, dtype)
        target = Array.read("negate", "out", out, dtype)
        check_same(source, target)                 # ValueError: negate(): out has shape ...
        x, y = source.as_rows(), target.as_rows()  # (rows, columns), one stride between rows
        if x.is_storable and y.is_storable:        # 16-byte rules of TMA
            maps = tensor_map(x, TILE), tensor_map(y, TILE)
        else:
            views = x.as_bytes(), y.as_bytes()     # arrays, for kernels without TMA

An `Array` is immutable. Each method that changes the shape, the strides, the element type or the
address returns another `Array` over the same memory, with the same names and owner. It is a source
for `tensor_map`, for Numba (`as_numba`) and for any library that takes
``__cuda_array_interface__``. In the simulator the same methods return views of NumPy arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from numba_tma.host.annotations import DeviceArray, DTypeLike
from numba_tma.host.array_interface import (
    Reading,
    byte_strides,
    contiguous_strides,
    reading_of,
)
from numba_tma.host.driver import misplaced
from numba_tma.host.dtypes import (
    DType,
    as_dtype,
    contradicts,
    storage_itemsize,
    stored_dtype,
    wrong_storage,
)
from numba_tma.host.environment import simulated

CHUNK = 16  #: bytes; TMA takes addresses and strides that are multiples of it


@dataclass(frozen=True, eq=False)
class Array:
    """Where an array lies in device memory, and what its elements are."""

    address: int  #: of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...]  #: bytes from one element to the next along each axis
    dtype: DType  #: what the bits mean
    stored: Any  #: the element type as the array's library calls it
    owner: Any  #: the object that keeps the memory alive
    function: str  #: the public function that took the array; errors begin with it
    name: str  #: the argument's name in that function
    readonly: bool  #: whether its library forbids writes

    @classmethod
    def read(
        cls, function: str, name: str, array: DeviceArray, dtype: DTypeLike | None = None
    ) -> Array:
        """Read an argument of a public function.

        Parameters
        ----------
        function, name
            Names of the function and of its argument, for errors: ``function(): name has ...``.
        array
            The argument: torch, CuPy, Numba, cuda.core, or an object with
            ``__cuda_array_interface__`` or ``__dlpack__``; a NumPy array in the simulator.
        dtype
            What the bits of integers mean, in the same size. An array whose own type says it may
            not say another.

        Raises
        ------
        TypeError
            If it is no array in device memory, or its element type is none that TMA copies.
        ValueError
            If `dtype` has another size than the array's elements, or contradicts their type; if the
            array lies on a GPU that the current one cannot access, or in memory that was freed.
        """
        subject = f"{function}(): {name}"
        view, owner, exported = reading_of(array, subject)
        address, shape, strides, stored, in_elements, readonly = view
        found = _element_type(subject, stored, dtype)
        shape = tuple(int(extent) for extent in shape)
        if 0 in shape:  # libraries give empty arrays any strides and any address
            strides = None
        elif problem := misplaced(int(address)):
            raise ValueError(f"{subject} {problem}")
        return cls(
            int(address),
            shape,
            tuple(map(int, byte_strides(shape, strides, in_elements, found.storage.itemsize))),
            found,
            stored,
            owner if exported is None else (owner, exported),
            function,
            name,
            readonly,
        )

    # ------------------------------------------------------------------ what it is

    @property
    def itemsize(self) -> int:
        """Bytes of an element; 1 if elements are packed: then the last axis counts bytes."""
        return self.dtype.storage.itemsize

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without the gaps between them."""
        return self.size * self.itemsize

    @cached_property
    def is_contiguous(self) -> bool:
        """Whether the elements follow each other in C order, without a gap."""
        plain = contiguous_strides(self.shape, self.itemsize)
        return all(n <= 1 or s == p for n, s, p in zip(self.shape, self.strides, plain))

    @property
    def has_contiguous_rows(self) -> bool:
        """Whether the elements along the last axis follow each other."""
        return not self.shape or self.shape[-1] <= 1 or self.strides[-1] == self.itemsize

    @cached_property
    def alignment(self) -> int:
        """Largest power of two, up to 16, that divides the addresses of all rows."""
        steps = [s for n, s in zip(self.shape[:-1], self.strides) if n > 1]
        return math.gcd(CHUNK, self.address, *steps)

    @property
    def is_reversed(self) -> bool:
        """Whether an axis runs backwards through memory."""
        return any(s < 0 for n, s in zip(self.shape, self.strides) if n > 1)

    @property
    def is_loadable(self) -> bool:
        """Whether TMA can load it: contiguous rows at multiples of 16 B, none before the first."""
        return self.has_contiguous_rows and self.alignment == CHUNK and not self.is_reversed

    @property
    def is_storable(self) -> bool:
        """Whether TMA can store to it: loadable, with rows of whole 16-byte chunks."""
        return self.is_loadable and self.shape[-1] * self.itemsize % CHUNK == 0

    @property
    def repeats(self) -> bool:
        """Whether elements share memory: an axis is expanded, or rows overlap."""
        span = self.itemsize
        for stride, extent in sorted((abs(s), n) for n, s in zip(self.shape, self.strides)):
            if extent > 1 and stride < span:
                return bool(self.size)
            span += (extent - 1) * stride
        return False

    @property
    def extent(self) -> tuple[int, int]:
        """Addresses of the first byte of all elements, and of the first one behind them."""
        ends = [(n - 1) * s for n, s in zip(self.shape, self.strides)]
        return (
            self.address + sum(end for end in ends if end < 0),
            self.address + sum(end for end in ends if end > 0) + self.itemsize,
        )

    def is_same_view(self, other: Array) -> bool:
        """Return whether two arrays have the same elements, each at the same index."""
        steps = [
            [s for n, s in zip(array.shape, array.strides) if n > 1] for array in (self, other)
        ]
        same = (self.address, self.shape, self.itemsize) == (
            *(other.address, other.shape, other.itemsize),
        )
        return same and steps[0] == steps[1]

    def shares_memory(self, other: Array) -> bool:
        """Return whether a byte belongs to elements of both arrays."""
        if not self.size or not other.size:
            return False
        (first, end), (other_first, other_end) = self.extent, other.extent
        if end <= other_first or other_end <= first:
            return False
        if self.is_contiguous and other.is_contiguous:
            return True
        try:  # views of one buffer, such as the q, k and v of one matrix, may interleave
            work: Any = 10**5  # NumPy's stubs know -1 and 0 alone
            return bool(np.shares_memory(self._places(), other._places(), max_work=work))
        except np.exceptions.TooHardError:
            return True

    def _places(self) -> np.ndarray[Any, Any]:
        """Return a NumPy array with these addresses, which may be device memory: not to be read."""
        interface = {
            "shape": self.shape,
            "strides": self.strides,
            "typestr": f"|V{self.itemsize}",
            "data": (self.address, True),
            "version": 3,
        }
        return np.asarray(SimpleNamespace(__array_interface__=interface))

    def error(self, text: str) -> ValueError:
        """Return the error that `text` is true of this argument: ``function(): name text``."""
        return ValueError(f"{self.function}(): {self.name} {text}")

    # ------------------------------------------------------- other views of the memory

    def view(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        *,
        offset: int = 0,
        dtype: DType | None = None,
    ) -> Array:
        """Return another view of the memory; nothing is checked.

        Parameters
        ----------
        shape, strides
            Of the view; strides in bytes, those of a C-contiguous array if None.
        offset
            Bytes from this array's first element to the view's.
        dtype
            Element type of the view; this array's if None.
        """
        dtype = self.dtype if dtype is None else dtype
        if strides is None:
            strides = contiguous_strides(shape, dtype.storage.itemsize)
        return Array(  # `dataclasses.replace` takes three times as long
            self.address + offset,
            shape,
            strides,
            dtype,
            self.stored,
            self.owner,
            self.function,
            self.name,
            self.readonly,
        )

    def as_dtype(self, dtype: DType) -> Array:
        """Return the same elements with bits that mean `dtype`, a type of the same size."""
        return self.view(self.shape, self.strides, dtype=dtype)

    def with_bits_of(self, other: Array) -> Array:
        """Return the array with bits that mean what those of `other` do, if both store one type."""
        return self.as_dtype(other.dtype) if self.stored == other.stored else self

    def as_words(self) -> Array:
        """Return the words of the elements: a complex number is two along the last axis."""
        if (words := self.dtype.words) == 1:
            return self
        shape = (*self.shape[:-1], self.shape[-1] * words)
        return self.view(shape, (*self.strides[:-1], self.itemsize // words), dtype=self.dtype.word)

    def as_bits(self) -> Array:
        """Return the same elements as unsigned integers: for kernels that only move them.

        Raises
        ------
        ValueError
            If an element has more than 8 bytes.
        """
        if self.itemsize > 8:
            raise self.error(
                f"is {self.dtype}, whose elements have {self.itemsize} B; they are moved as "
                "integers of up to 8 B: pass an array of c64, or of a real type"
            )
        return self.as_dtype(as_dtype(f"u{8 * self.itemsize}"))

    def transposed(self, *axes: int) -> Array:
        """Return the axes in another order; without `axes` the last two change places."""
        order = axes or (*range(len(self.shape) - 2), -1, -2)
        shape, strides = ([values[i] for i in order] for values in (self.shape, self.strides))
        return self.view(tuple(shape), tuple(strides))

    def as_rows(self) -> Array:
        """Return (rows, columns): the leading axes merged, and the last axis contiguous.

        Raises
        ------
        ValueError
            If the last axis is not contiguous, or no single stride leads through all rows.
        """
        return self._rows

    @cached_property
    def _rows(self) -> Array:
        if not self.shape or not self.has_contiguous_rows:
            raise self.error(
                f"has shape {self.shape} and strides {self.strides} B: its last axis must be "
                "contiguous; pass a copy whose last axis is"
            )
        columns, rows = self.shape[-1], math.prod(self.shape[:-1])
        pitch = self._merged_stride(self.shape[:-1], columns * self.itemsize)
        return self.view((rows, columns), (pitch, self.itemsize))

    def as_matrices(self) -> Array:
        """Return (batch, rows, columns): the axes before the last two merged, of any strides.

        Axes of one element get the stride that a contiguous array has there. An expanded batch
        keeps its extent and has stride 0.

        Raises
        ------
        ValueError
            If there are fewer than two axes, or no single stride leads through all matrices.
        """
        if len(self.shape) < 2:
            raise self.error(
                f"has shape {self.shape}; a matrix has two axes or more: use "
                f"{self.name}[None, :] for a row, {self.name}[:, None] for a column"
            )
        rows, columns = self.shape[-2:]
        step = self.strides[-1] if columns > 1 else self.itemsize
        pitch = self.strides[-2] if rows > 1 else columns * step
        each = self._merged_stride(self.shape[:-2], rows * pitch)
        return self.view((math.prod(self.shape[:-2]), rows, columns), (each, pitch, step))

    def _merged_stride(self, shape: tuple[int, ...], packed: int) -> int:
        """Return the stride of the leading axes as one axis; `packed` if they have one element."""
        axes = [(n, s) for n, s in zip(shape, self.strides) if n > 1]
        if not axes:
            return packed
        for (_, outer), (extent, inner) in zip(axes, axes[1:]):
            if outer != extent * inner:
                raise self.error(
                    f"has leading shape {shape} and strides {self.strides[: len(shape)]} B, which "
                    "is no single sequence of rows: pass a contiguous copy"
                )
        return axes[-1][1]

    # --------------------------------------------------------------- for other libraries

    def as_numba(self) -> DeviceArray:
        """Return the view as a Numba device array, gaps between its rows included."""
        from numba import cuda

        if simulated():
            return type(cuda.device_array(1))(self.as_numpy())
        return cuda.as_cuda_array(self)

    def as_argument(self) -> DeviceArray:
        """Return the view as an array that kernels take, without an import of Numba.

        Numba gives it the type of `as_numba`, unless the view is contiguous along its first axis.
        """
        return self.as_numba() if simulated() else self

    @property
    def span(self) -> int:
        """Bytes from the first element to the last, gaps too; 0 of an empty array.

        Raises
        ------
        ValueError
            If an axis is reversed.
        """
        if self.is_reversed:
            raise self.error(
                f"has strides {self.strides} B, and kernels walk forward: pass a contiguous copy"
            )
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides)) + self.itemsize
        return last if self.size else 0

    def as_bytes(self) -> DeviceArray:
        """Return the memory from the first element to the last, gaps too, as kernels take it.

        Raises
        ------
        ValueError
            If an axis is reversed.
        """
        return self.view((self.span,), dtype=_U8).as_argument()

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """Return the view as a NumPy array over the same memory, in the simulator."""
        # NumPy has no typestr for bf16 and fp8, so the bits are wrapped as integers.
        interface = {
            "shape": self.shape,
            "strides": self.strides,
            "typestr": f"<u{self.itemsize}",
            "data": (self.address, False),
            "version": 3,
        }
        memory = SimpleNamespace(__array_interface__=interface, owner=self.owner)
        return np.asarray(memory).view(self.dtype.storage)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The view for other libraries, Numba among them."""
        return {
            "shape": self.shape,
            "strides": None if self.is_contiguous else self.strides,
            "typestr": self.dtype.storage.str,
            "data": (self.address, False),
            "version": 3,
        }

    def as_reading(self) -> Reading:
        """Return what `read_array` returns of other arrays; its element type is a `DType`."""
        owner = self.as_numpy() if simulated() else self
        place = self.address, self.shape, self.strides, self.dtype, False
        return (*place, self.readonly), owner, None


_U8 = as_dtype("u8")


def _element_type(subject: str, stored: object, asked: DTypeLike | None) -> DType:
    """Return what the bits of an array mean, or raise."""
    try:
        known = isinstance(stored, DType) or hasattr(stored, "itemsize")
        own = None if asked is not None and known else stored_dtype(stored)
    except TypeError as error:
        raise TypeError(f"{subject} has elements of an unknown type: {error}") from None
    if asked is None:
        assert own is not None
        return own
    try:
        found = as_dtype(asked)
    except TypeError as error:
        raise TypeError(f"{subject}: {error}") from None
    itemsize = storage_itemsize(own or stored, 0)
    if wrong := wrong_storage(stored):
        raise TypeError(f"{subject} has {wrong}")
    if found.storage.itemsize != itemsize:
        raise ValueError(
            f"{subject} holds {_name(stored)}, whose bits cannot be {found}: give a dtype of "
            f"{itemsize} B, or an array of {found.storage.itemsize} B elements"
        )
    if contradicts(stored, found):
        raise ValueError(
            f"{subject} holds {_name(stored)}, and dtype is {found}; dtype says what the bits of "
            "integers mean, and this array says it itself: convert the array, or leave dtype out"
        )
    return found


def option_dtype(function: str, name: str, given: DTypeLike | None) -> DType | None:
    """Return the element type that an option of a public function names; None for None."""
    try:
        return None if given is None else as_dtype(given)
    except TypeError as error:
        raise TypeError(f"{function}(): {name}: {error}") from None


def _name(stored: object) -> str:
    try:
        return str(as_dtype(stored))
    except TypeError:
        return str(stored)


def check_same(first: Array, *others: Array | None) -> None:
    """Raise unless all arrays have the shape and element type of the first; None is skipped.

    Raises
    ------
    ValueError
        Names the function, both arguments, their shapes and their types.
    """
    for other in others:
        if other is not None and (other.shape != first.shape or other.dtype is not first.dtype):
            raise other.error(
                f"has shape {other.shape} of {other.dtype}, but {first.name} has shape "
                f"{first.shape} of {first.dtype}; they must agree"
            )
