"""The arrays of a pointwise kernel: which have the result's shape, and which are broadcast."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from numba_tma.host.annotations import DeviceArray, DTypeLike
from numba_tma.host.arrays import Array
from numba_tma.kernels.pointwise.plan import FULL, ONE, ONE_PER_ROW, ROW


@dataclass(frozen=True)
class Operands:
    """The inputs as rows, each of the result's shape or of a kind that is broadcast to it."""

    arrays: tuple[Array, ...]  #: (rows, columns)
    kinds: tuple[str, ...]  #: of each array: `FULL`, `ROW`, `ONE_PER_ROW` or `ONE`
    shape: tuple[int, ...]  #: of the result

    @classmethod
    def read(
        cls,
        function: str,
        names: Sequence[str],
        given: Sequence[DeviceArray],
        dtype: DTypeLike | None,
    ) -> Operands:
        """Read the inputs of a pointwise function, or raise for those that do not fit together."""
        arrays = [Array.read(function, name, array, dtype) for name, array in zip(names, given)]
        first = arrays[0]
        if first.dtype.name not in ("f32", "f16", "bf16"):
            raise first.error(f"is {first.dtype}; it works on f32, f16 and bf16")
        for array in arrays:
            if array.dtype is not first.dtype:
                raise array.error(
                    f"is {array.dtype}, but {names[0]} is {first.dtype}; they must agree: convert "
                    "one"
                )
        shapes = [array.shape for array in arrays]
        try:
            shape = np.broadcast_shapes(*shapes)
        except ValueError:
            raise ValueError(
                f"{function}(): shapes {' and '.join(map(str, shapes))} cannot be broadcast to one"
            ) from None
        kinds = tuple(_kind(array, shape) for array in arrays)
        return cls(tuple(array.as_rows() for array in arrays), kinds, shape)

    def target(self, out: DeviceArray) -> Array:
        """Read the output as rows; it has the shape and the type of the result."""
        first = self.arrays[0]
        target = Array.read(first.function, "out", out).with_bits_of(first)
        if target.shape != self.shape or target.dtype is not first.dtype:
            raise target.error(
                f"has shape {target.shape} of {target.dtype}, but the result has shape "
                f"{self.shape} of {first.dtype}; they must agree"
            )
        return target.as_rows()

    @property
    def like(self) -> int | None:
        """The first input of the result's shape, if there is one."""
        return self.kinds.index(FULL) if FULL in self.kinds else None

    def are_flat(self, target: Array) -> bool:
        """Return whether all arrays are contiguous and of one shape, so that rows do not matter."""
        return set(self.kinds) == {FULL} and all(a.is_contiguous for a in (*self.arrays, target))

    def are_addressable(self, target: Array) -> bool:
        """Return whether TMA can address the output and all inputs of its shape."""
        return (
            FULL in self.kinds and target.is_storable and all(map(_fits, self.arrays, self.kinds))
        )

    def view(self, shape: tuple[int, int], offset: int = 0) -> Operands:
        """Return the memory of contiguous inputs as matrices that start `offset` bytes on."""
        return replace(self, arrays=tuple(a.view(shape, offset=offset) for a in self.arrays))


@functools.lru_cache(4096)
def result_of(shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], int | None]:
    """Return the shape of the result of such inputs, and the first of them that has it."""
    shape = np.broadcast_shapes(*shapes)
    return shape, shapes.index(shape) if shape in shapes else None


def _kind(array: Array, result: tuple[int, ...]) -> str:
    """Return how an input is broadcast to the shape of the result."""
    shape = array.shape
    if shape == result:
        return FULL
    if math.prod(shape) == 1:
        return ONE
    if shape[-1] == result[-1] and math.prod(shape[:-1]) == 1:
        return ROW
    if shape[-1] == 1 and shape[:-1] == result[:-1]:
        return ONE_PER_ROW
    raise array.error(
        f"has shape {shape} and the result {result}; what is broadcast is a row, one element per "
        "row, or one element: expand the array and copy it"
    )


def _fits(array: Array, kind: str) -> bool:
    """Return whether the ring kernel can read an input: by TMA, or in vectors of 16 B."""
    if kind == FULL:
        return array.is_storable
    return array.address % 16 == 0 if kind == ROW else array.is_contiguous
