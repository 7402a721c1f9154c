"""The types of an exported kernel's arguments: as JSON, and as checks of a launch's arguments.

A kernel is exported for types, and its launches convert nothing but numbers: a map must be of the
same kind, an array of the same element type and number of axes.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeAlias

import numpy as np

from numba_tma.host.array_interface import byte_strides, class_name, orders_of, reading_of
from numba_tma.host.dtypes import name_of, storage_itemsize
from numba_tma.host.tensor_map import TensorMap, describe_kind
from numba_tma.host.tensor_map_array import TensorMapArray
from numba_tma.host.values import is_whole

#: An argument of a launch.
Argument: TypeAlias = Any
#: The names of the types of numbers, which are Numba's and NumPy's.
NUMBERS = (
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "bool"),
)


class ExportedArgument(ABC):
    """The type of an argument; its text is what errors and the C header call it."""

    kind: ClassVar[str]  #: its name in JSON

    def to_json(self) -> dict[str, Any]:
        """Return the type as JSON has it, which `from_json` reads."""
        kept = {f.name: _to_json(getattr(self, f.name)) for f in fields(self) if f.compare}  # type: ignore[arg-type]
        return {"type": self.kind, **kept}

    def accepted(self, argument: Argument, name: str) -> Argument:
        """Return an argument as `Parameters` takes it, or raise a TypeError that begins `name`."""
        try:
            return self._accepted(argument, name)
        except _Unfit as error:
            text = f"{name} is {error}, and the kernel was exported for: {self}"
            raise TypeError(text) from None

    @abstractmethod
    def _accepted(self, argument: Argument, name: str) -> Argument:
        """Return the argument, or raise `_Unfit` with a text of what it is."""


class _Unfit(Exception):
    """An argument that the kernel does not take."""


@dataclass(frozen=True)
class ExportedNumber(ExportedArgument):
    """A number, by the name of its NumPy type."""

    kind = "number"
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes of the parameter."""
        return np.dtype(self.dtype).itemsize

    def _accepted(self, argument: Argument, name: str) -> Argument:
        cls = np.dtype(self.dtype).type
        real = isinstance(argument, bool | int | float | np.bool_ | np.number)
        if not real or isinstance(argument, np.complexfloating):
            raise _Unfit(f"a {class_name(argument)}")
        if issubclass(cls, np.integer):
            limits = np.iinfo(cls)
            number = int(argument) if math.isfinite(argument) else limits.max + 1
            if number != argument or not limits.min <= number <= limits.max:
                raise _Unfit(repr(argument))
            return cls(number)
        with np.errstate(over="ignore"):  # to infinity, as Numba converts it
            return cls(argument)

    def __str__(self) -> str:
        return self.dtype


@dataclass(frozen=True)
class ExportedPointer(ExportedArgument):
    """An address on the device, as an integer."""

    kind = "pointer"
    element: str  #: the compiler's type of what it points to; nothing checks it

    def _accepted(self, argument: Argument, name: str) -> Argument:
        if not is_whole(argument) or not 0 <= argument < 1 << 64:
            raise _Unfit(repr(argument) if is_whole(argument) else f"a {class_name(argument)}")
        return np.uint64(argument)

    def __str__(self) -> str:
        return f"address of {self.element}"


@dataclass(frozen=True)
class ExportedArray(ExportedArgument):
    """An array on the device."""

    kind = "array"
    dtype: str  #: the element type, as `name_of` has it
    ndim: int
    layout: str  #: "C" or "F" if it must be contiguous in that order, else "A"
    readonly: bool  #: whether it may be read-only

    def _accepted(self, argument: Argument, name: str) -> Argument:
        (_, shape, strides, stored, in_elements, readonly), *_ = reading_of(argument, name)
        shape, itemsize = tuple(map(int, shape)), storage_itemsize(stored, 0)
        strides = byte_strides(shape, strides and tuple(strides), in_elements, itemsize)
        orders = "CF" if 0 in shape else orders_of(shape, strides, itemsize)
        dtype, ndim = name_of(stored), len(shape)
        fits = (dtype, ndim) == (self.dtype, self.ndim) and self.layout in f"{orders}A"
        if not fits or (readonly and not self.readonly):
            shown = ExportedArray(dtype, ndim, orders[:1] or "A", False)
            raise _Unfit(f"a read-only {shown}" if readonly else f"an {shown}")
        return argument

    def __str__(self) -> str:
        order = {"C": ", C-contiguous", "F": ", F-contiguous", "A": ""}[self.layout]
        readonly = ", may be read-only" * self.readonly
        return f"array of {self.dtype}, {self.ndim} axes{order}{readonly}"


@dataclass(frozen=True)
class ExportedMap(ExportedArgument):
    """A tensor map, by what compiled code depends on: `describe_kind`, and the same as data."""

    kind = "map"
    name: str
    facts: dict[str, Any]
    #: The kinds of the maps that were accepted: a launch looks its map up.
    known: set[Any] = field(default_factory=set, compare=False, repr=False)

    @classmethod
    def of(cls, described: TensorMap, host_class: type) -> ExportedMap:
        """Return the type of a map, or of a compiler's type of maps, whose class is given."""
        rank, tile, interleave, loads_only, moved, mode, *others = described.kind
        if tile is None:
            raise TypeError("a tensor map without a tile: name its tile, TensorMapType(2, TILE)")
        if tile.dtype.is_record:
            raise TypeError(f"a map of records, {tile.dtype}: export a kernel of maps of words")
        steps, fold = moved or ((1,) * tile.ndim, False)
        swizzle = tile.swizzle.name
        facts = {
            "mode": mode,
            "rank": rank,
            "tile": {"shape": tile.shape, "dtype": tile.dtype.name, "swizzle": swizzle},
            "interleave": interleave,
            "loads_only": loads_only,
            "element_strides": steps,
            "fold": fold,
            "sequences": others or None,
        }
        name = f"{host_class.__name__}({describe_kind(described)})"
        return cls(name, json.loads(json.dumps(facts)))  # lists, as in a file

    def _accepted(self, argument: Argument, name: str) -> Argument:
        if not isinstance(argument, TensorMap):
            raise _Unfit(f"a {class_name(argument)}")
        if (described := argument.kind) not in self.known:
            given = ExportedMap.of(argument, type(argument))
            if given.facts != self.facts:
                raise _Unfit(f"a {given}")
            self.known.add(described)
        return argument

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class ExportedMapArray(ExportedArgument):
    """A `TensorMapArray`, by the type of its maps."""

    kind = "maps"
    element: ExportedMap

    def _accepted(self, argument: Argument, name: str) -> Argument:
        if not isinstance(argument, TensorMapArray):
            raise _Unfit(f"a {class_name(argument)}")
        self.element.accepted(argument.maps[0], f"{name}[0]")
        return argument

    def __str__(self) -> str:
        return f"TensorMapArray of {self.element}"


@dataclass(frozen=True)
class ExportedTuple(ExportedArgument):
    """A tuple, whose items are parameters of their own."""

    kind = "tuple"
    items: tuple[ExportedArgument, ...]

    def _accepted(self, argument: Argument, name: str) -> Argument:
        if not isinstance(argument, tuple):
            raise _Unfit(f"a {class_name(argument)}")
        if len(argument) != len(self.items):
            raise _Unfit(f"a tuple of {len(argument)}")
        pairs = enumerate(zip(self.items, argument))
        return tuple(item.accepted(value, f"{name}[{i}]") for i, (item, value) in pairs)

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


_CLASSES: dict[str, type[ExportedArgument]] = {
    cls.kind: cls for cls in ExportedArgument.__subclasses__()
}


def from_json(data: dict[str, Any]) -> ExportedArgument:
    """Return the type that `to_json` wrote."""
    given = {name: _from_json(value) for name, value in data.items() if name != "type"}
    return _CLASSES[data["type"]](**given)


def _to_json(value: object) -> object:
    if isinstance(value, ExportedArgument):
        return value.to_json()
    return list(map(_to_json, value)) if isinstance(value, tuple) else value


def _from_json(value: object) -> object:
    if isinstance(value, list):
        return tuple(map(_from_json, value))
    return from_json(value) if isinstance(value, dict) and "type" in value else value
