"""The types of a kernel's arguments without a compiler, which makes its own types of them.

`TensorMapType` is also the compiler's name in signatures of kernels, which the simulator accepts
and does not read.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from numba_tma.host.boxes import Copies
from numba_tma.host.layout import Tile
from numba_tma.host.ragged import RaggedTensorMap
from numba_tma.host.tensor_map import TensorMap
from numba_tma.host.tensor_map_array import TensorMapArray


@dataclass(frozen=True)
class SimulatedMapType:
    """Stands for the compiler's type of a `TensorMap` in ``@cuda.jit((TensorMapType(2, TILE),))``.

    The compiler's class of this name has the meaning of the parameters.
    """

    rank: int | None = None
    tile: Tile | None = None
    interleave: int | None = None
    partial_rows: str = ""
    copies: Copies | None = None
    mode: str = "tiled"
    editable: bool = False


TensorMapType = SimulatedMapType  #: its public name


@dataclass(frozen=True)
class RaggedMapType:
    """Stands for the compiler's type of a `RaggedTensorMap`; its fields are attributes of it."""

    rank: int
    tile: Tile
    axis: int
    encoding: str
    extent: int
    partial_rows: str


@dataclass(frozen=True)
class MapArrayType:
    """Stands for the compiler's type of a `TensorMapArray`."""

    element: SimulatedMapType | RaggedMapType


@dataclass(frozen=True)
class ArrayType:
    """Stands for the compiler's type of an array."""

    dtype: np.dtype[np.generic]
    ndim: int
    layout: str  #: "C", "F" or "A", as Numba has it
    mutable: bool


@dataclass(frozen=True)
class ValueType:
    """Stands for the type of a number, or of another value that no other class here describes."""

    example: object


ArgumentType = (
    SimulatedMapType
    | RaggedMapType
    | MapArrayType
    | ArrayType
    | ValueType
    | tuple["ArgumentType", ...]
)


def type_of(argument: object) -> ArgumentType:
    """Describe the type that the compiler gives to an argument of a launch."""
    if isinstance(argument, TensorMapArray):
        return MapArrayType(_type_of_map(argument.maps[0]))
    if isinstance(argument, TensorMap):
        return _type_of_map(argument)
    if type(argument) is tuple:
        return tuple(map(type_of, argument))
    if isinstance(array := getattr(argument, "_ary", argument), np.ndarray):  # or to_device's
        layout = "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else "A"
        return ArrayType(array.dtype, array.ndim, layout, bool(array.flags.writeable))
    if isinstance(argument, np.generic):
        return ValueType(argument.dtype.type(0))
    if type(argument) in (bool, float, complex):
        return ValueType(type(argument)())
    if type(argument) is int:
        return ValueType(argument if not -(2**63) <= argument < 2**63 else 0)
    return ValueType(argument)


def _type_of_map(tensor_map: TensorMap) -> SimulatedMapType | RaggedMapType:
    if isinstance(tensor_map, RaggedTensorMap):
        return RaggedMapType(*(getattr(tensor_map, f.name) for f in fields(RaggedMapType)))
    return SimulatedMapType(
        *(tensor_map.rank, tensor_map.tile, tensor_map.interleave, tensor_map.partial_rows),
        copies=tensor_map.copies if tensor_map.mode == "tiled" else None,
        mode=tensor_map.mode,
    )
