"""Arguments of a kernel without its compiler: their types as texts, and the bytes of a launch.

Two arguments of one type text have the same Numba type. The reverse need not hold: an array that
differs in nothing but a stride may be compiled for once more.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from numba_tma.host.annotations import DeviceArray
from numba_tma.host.array_interface import (
    byte_strides,
    orders_of,
    read_array,
    readers,
)
from numba_tma.host.backend import KernelArgument
from numba_tma.host.dtypes import storage_itemsize
from numba_tma.host.kernel_key import described

_ALIGNMENT = 64  # of a tensor map
_MAP_BYTES = 128
MAP_FORM = f"{_MAP_BYTES}s"  #: format of a tensor map
#: Format of a parameter in `struct`, by the argument's class.
_FORMATS: dict[type, str] = {
    **{int: "q", float: "d", bool: "?"},
    **{getattr(np, f"int{bits}"): code for bits, code in zip((8, 16, 32, 64), "bhiq")},
    **{getattr(np, f"uint{bits}"): code for bits, code in zip((8, 16, 32, 64), "BHIQ")},
    **{np.float16: "e", np.float32: "f", np.float64: "d", np.bool_: "?"},
}


class Unsupported(TypeError):
    """An argument that only the compiler's package can pass."""


#: Describes a class, or what a map is compiled to, once.
_described_once: Callable[[object], str] = functools.lru_cache(4096)(described)


def type_of(argument: object) -> str:
    """Return the text of an argument's type, or raise `Unsupported`."""
    cls = type(argument)
    if type(argument) is int:
        if not -(1 << 63) <= argument < 1 << 64:
            raise Unsupported(f"{argument} has more than 64 bits")
        return "int" if argument < 1 << 63 else "uint64"
    if cls in _FORMATS:
        return cls.__name__
    if isinstance(argument, KernelArgument) and (given := argument._launch_parameter_):
        return _described_once(given.kind)
    if isinstance(argument, tuple):
        names = getattr(argument, "_fields", ())
        return f"{_described_once(cls)}{names}({', '.join(map(type_of, argument))})"
    return _type_of_array(argument)


def _type_of_array(array: DeviceArray) -> str:
    try:
        view, *_ = readers.get(type(array), read_array)(array)
    except TypeError as error:
        raise Unsupported(str(error)) from None
    _, shape, strides, stored, in_elements, readonly = view
    itemsize = storage_itemsize(stored, 0)
    if not itemsize:
        raise Unsupported(f"an array of {stored}")
    library = type(array).__module__.partition(".")[0]
    extents = tuple(min(int(n), 2) for n in shape)
    if strides is None:
        order = "C"
    else:
        strides = byte_strides(tuple(shape), tuple(strides), in_elements, itemsize)
        order = orders_of(tuple(shape), strides, itemsize)
    return f"{library} array {stored} {extents} {order} readonly={readonly}"


def _flat(argument: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of an argument: their formats and values."""
    cls = type(argument)
    if cls in _FORMATS:
        yield _FORMATS[cls] if cls is not int or argument < 1 << 63 else "Q", argument
    elif isinstance(argument, KernelArgument) and (given := argument._launch_parameter_):
        yield given.form, given.value
    elif isinstance(argument, tuple):
        for item in argument:
            yield from _flat(item)
    else:
        yield from _flat_array(argument)


def _flat_array(array: DeviceArray) -> Iterator[tuple[str, Any]]:
    """Yield the fields of Numba's model of an array."""
    address, shape, strides, stored, in_elements, _ = readers.get(type(array), read_array)(array)[0]
    itemsize, extents = storage_itemsize(stored, 0), tuple(map(int, shape))
    strides = byte_strides(extents, strides and tuple(strides), in_elements, itemsize)
    count = 1
    for extent in extents:
        count *= extent
    for number in (0, 0, count, itemsize):
        yield "q", number
    yield "Q", address
    for number in (*extents, *strides):
        yield "q", int(number)


class Parameters:
    """The bytes of a launch's parameters, and the array of their addresses.

    They hold addresses of device memory, which they do not keep alive.
    """

    __slots__ = ("_base", "_memory", "_places", "_pointers", "address", "fields", "sizes")

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.fields = [parameter for argument in arguments for parameter in _flat(argument)]
        self.sizes = tuple(struct.calcsize(form) for form, _ in self.fields)
        #: Tensor maps come first, where the memory is aligned.
        order = sorted(range(len(self.fields)), key=lambda i: self.sizes[i] != _MAP_BYTES)
        offset, self._places = 0, [0] * len(self.fields)
        for i in order:
            self._places[i] = offset
            offset += max(8, self.sizes[i])
        self._allocate(offset)
        for (form, value), place in zip(self.fields, self._places):
            struct.pack_into(form, self._memory, self._base + place, value)

    def _allocate(self, nbytes: int) -> None:
        self._memory = ctypes.create_string_buffer(nbytes + _ALIGNMENT)
        start = ctypes.addressof(self._memory)
        self._base = -start % _ALIGNMENT
        places = [start + self._base + place for place in self._places]
        self._pointers = (ctypes.c_void_p * max(1, len(places)))(*places)
        #: What the driver takes: where the addresses of the parameters are.
        self.address = ctypes.addressof(self._pointers)

    def changed(self, values: Mapping[int, Any]) -> Parameters:
        """Return the parameters with other values of some, by their numbers."""
        new = object.__new__(Parameters)
        new.sizes, new._places, new.fields = self.sizes, self._places, self.fields.copy()
        nbytes = len(self._memory) - _ALIGNMENT
        new._allocate(nbytes)
        mine, others = (ctypes.addressof(p._memory) + p._base for p in (self, new))
        ctypes.memmove(others, mine, nbytes)
        for number, value in values.items():
            form, _ = new.fields[number]
            new.fields[number] = form, value
            struct.pack_into(form, new._memory, new._base + new._places[number], value)
        return new
