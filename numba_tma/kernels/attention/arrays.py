"""The arrays of attention as its kernels take them, and what is wrong with them."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from numba_tma.host.array_interface import contiguous_strides, read_array, readers
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.environment import simulated
from numba_tma.host.ragged import ragged_tensor_map
from numba_tma.host.tensor_map import tensor_map
from numba_tma.kernels._host.launching import View, as_array
from numba_tma.kernels.attention.plan import DTYPES, E4M3, FP8_HEAD_DIMS, HEAD_DIMS

AXES = ("batch", "sequence", "heads", "depth")


class Heads:
    """An array (batch, sequence, heads, depth) of any library: where it lies, and its type.

    One that is `packed` is (rows, heads, depth), and seen as a batch of one.
    """

    def __init__(
        self,
        name: str,
        array: Any,
        dtype: object,
        function: str = "attention",
        packed: bool = False,
    ) -> None:
        read = readers.get(type(array), read_array)
        self.address, shape, strides, stored, in_elements, self.array, _ = read(array)
        self.name, self.given = name, tuple(int(n) for n in shape)
        self.shape, self.is_packed = (1,) * packed + self.given, packed
        self.function = function  #: of which it is an argument
        self.dtype: DType = as_dtype(stored if dtype is None else dtype)
        size = self.dtype.itemsize
        axes = ("rows", *AXES[2:]) if packed else AXES
        if len(self.shape) != len(AXES) or size != as_dtype(stored).itemsize:
            raise ValueError(
                f"{function}(): {name} has shape {self.given} of {as_dtype(stored)}; it takes "
                f"({', '.join(axes)}) of {' or '.join(DTYPES)}"
            )
        if strides is None or 0 in self.shape:
            self.strides = contiguous_strides(self.shape, size)
        else:
            steps = (s * size if in_elements else s for s in strides)
            self.strides = tuple(int(s) for s in steps)
            self.strides = (self.strides[0] * self.shape[1],) * packed + self.strides

    def map(self, tile: Any) -> Any:
        """Return the tensor map that copies `tile`, all its columns at once."""
        return tensor_map(self._view(0, tile.dtype), tile, dtype=tile.dtype, fold=True)

    def swapped(self) -> Heads:
        """Return the same memory with the axes of positions and heads swapped."""
        other = copy.copy(self)
        other.shape, other.strides = (
            (values[0], values[2], values[1], values[3]) for values in (self.shape, self.strides)
        )
        return other

    def last(self, positions: int) -> Heads:
        """Return the same memory without all but so many positions, the last ones."""
        other, first = copy.copy(self), self.shape[1] - positions
        other.shape = (self.shape[0], positions, *self.shape[2:])
        other.address += first * self.strides[1]
        if simulated():
            host: Any = getattr(self.array, "_ary", self.array)
            other.array = host[:, first:]
        return other

    def as_queries(self, sharing: int) -> Heads:
        """Return the same memory, of one position, with each `sharing` heads as positions of one.

        So heads that share keys are the queries of the keys' head.
        """
        other = copy.copy(self)
        batch, _, heads, depth = self.shape
        step = self.strides[2]
        other.shape = batch, sharing, heads // sharing, depth
        other.strides = self.strides[0], step, step * sharing, self.strides[3]
        return other

    def ragged(self, part: Any) -> Any:
        """Return the map of packed sequences that copies `part`, some columns of a tile."""
        return ragged_tensor_map(self._view(1, part.dtype), part, dtype=self.dtype)

    def _view(self, first: int, dtype: DType) -> Any:
        """Return the array without its first axes, of this type: a source of tensor maps."""
        # The stride of an axis of one element is any; the copy engine wants one that it can take.
        plain = contiguous_strides(self.shape, self.dtype.itemsize)
        strides = tuple(s if n > 1 else p for n, s, p in zip(self.shape, self.strides, plain))
        shape, strides = self.shape[first:], strides[first:]
        if simulated():
            host: Any = getattr(self.array, "_ary", self.array)
            bits = host.view(f"u{dtype.itemsize}")  # as_strided has no name for floats of 8 bits
            return np.lib.stride_tricks.as_strided(bits, shape, strides).view(dtype.numpy)
        return View(self.array, self.address, shape, strides, dtype.numpy)


class Plain:
    """An array of numbers beside Q, K and V, of any library."""

    def __init__(self, array: Any) -> None:
        read = readers.get(type(array), read_array)
        address, shape, self.strides, stored, in_elements, self.array, _ = read(array)
        self.address, self.shape, self.dtype = int(address), tuple(shape), as_dtype(stored)
        plain = contiguous_strides(self.shape, 1 if in_elements else self.dtype.itemsize)
        steps = plain if self.strides is None else self.strides
        self.is_contiguous = all(n <= 1 or s == p for n, s, p in zip(self.shape, steps, plain))

    def holds(self, shape: tuple[int, ...], dtype: str) -> bool:
        """Return whether it has this shape and type, each number after the other."""
        aligned = self.address % self.dtype.itemsize == 0
        return self.shape == shape and self.dtype.name == dtype and self.is_contiguous and aligned

    def flat(self) -> Any:
        """Return all numbers as a Numba array of one axis."""
        if simulated():
            host: Any = getattr(self.array, "_ary", self.array)
            return host.reshape(-1)
        size = self.dtype.itemsize
        return as_array(
            View(self.array, self.address, (math.prod(self.shape),), (size,), self.dtype.numpy)
        )

    def __str__(self) -> str:
        return f"shape {self.shape} of {self.dtype} and strides {self.strides}"


def scale_of(function: str, scale: float | None, depth: int) -> float:
    """Return what scores are multiplied with, or raise."""
    found = 1 / math.sqrt(depth) if scale is None else scale
    if not 0 < found < math.inf:
        raise ValueError(
            f"{function}(scale={found}): the scale is a positive number; negate q for a negative "
            "one"
        )
    return found


def logarithms(array: Any, q: Heads) -> int:
    """Return the address of the logarithms of sums of these queries, or raise."""
    if array is None:
        raise ValueError(
            f"{q.function}(): lse is None; it takes the second result of the forward pass, which "
            "has it with return_lse=True"
        )
    given, (batch, queries, heads, _) = Plain(array), q.shape
    axes = ("heads", "rows") if q.is_packed else ("batch", "heads", "queries")
    expected = (heads, queries) if q.is_packed else (batch, heads, queries)
    if not given.holds(expected, "f32"):
        raise ValueError(
            f"{q.function}(): lse has {given}, but q has shape {q.given}; lse takes "
            f"({', '.join(axes)}) = {expected} of f32, contiguous, as it is returned with "
            "return_lse=True"
        )
    return given.address


def heads_scale(name: str, array: Any, like: Heads) -> Any:
    """Return the scales of an array's heads as a Numba array of one axis, or raise."""
    given, expected = Plain(array), (like.shape[0], like.shape[2])
    if not given.holds(expected, "f32"):
        raise ValueError(
            f"{like.function}(): {name} has {given}, "
            f"but {like.name} has shape {like.given}; {name} takes (batch, heads) = {expected} of "
            "f32, contiguous, or None where nothing is to be multiplied"
        )
    return given.flat()


def check(q: Heads, k: Heads, v: Heads, out: Heads, narrow: bool = False) -> None:
    """Raise unless the arrays fit each other and the copy engine.

    `narrow` is whether the function takes e4m3 as well.
    """
    is_fp8 = narrow and q.dtype is E4M3
    depths = FP8_HEAD_DIMS if is_fp8 else HEAD_DIMS
    if not (is_fp8 or q.dtype.name in DTYPES) or q.shape[3] not in depths:
        also = f", and e4m3 with {' or '.join(map(str, FP8_HEAD_DIMS))}" if narrow else ""
        raise ValueError(
            f"{q.function}(): q has shape {q.given} of {q.dtype}; it takes {' and '.join(DTYPES)} "
            f"with a depth of {', '.join(map(str, HEAD_DIMS))}{also}"
        )
    batch, _, heads, depth = q.shape
    fits = k.shape[0] == batch and k.shape[3] == depth
    if not fits or 0 in k.shape[1:3] or heads % k.shape[2]:
        raise ValueError(
            f"{q.function}(): k has shape {k.given}, but q {q.given}; k takes the same batch and "
            "depth, at least one key, and a number of heads that divides that of q"
        )
    for array, like in ((v, k), (out, q)):
        if array.shape != like.shape:
            raise ValueError(
                f"{q.function}(): {array.name} has shape {array.given}, but {like.name} has "
                f"{like.given}; they must agree"
            )
    for array in (q, k, v, out):
        if is_fp8 and array is out:
            if out.dtype.name not in DTYPES:
                raise ValueError(
                    f"{q.function}(): out is {out.dtype}; the result of e4m3 is "
                    f"{' or '.join(DTYPES)}: say which of them its bits are by out_dtype"
                )
        elif array.dtype is not q.dtype:
            raise ValueError(
                f"{q.function}(): {array.name} is {array.dtype}, but q is {q.dtype}; they must "
                "agree: convert one"
            )
        steps = [s for n, s in zip(array.shape, array.strides) if n > 1]
        contiguous = array.strides[3] == array.dtype.itemsize
        if not contiguous or any(s % 16 for s in (array.address, *steps[:-1])):
            raise ValueError(
                f"{q.function}(): {array.name} lies at {array.address:#x} with strides "
                f"{array.strides} B; the depth is contiguous, and the address and the other "
                "strides are multiples of 16 B: pass a contiguous copy"
            )
