"""Kernel arguments as cuda.core's launch takes them: numbers, NumPy's and ctypes', and descriptors.

An argument becomes the same values as in numba-cuda's `_Kernel._prepare_args`. The steps that it
needs are chosen once, from its type and the kernel's parameter type.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.core import types

from numba_tma.backend.lowering.types import TensorMapArrayType, TensorMapType
from numba_tma.backend.numba_cuda.launches import typeof
from numba_tma.host.array_interface import contiguous_strides, read_array, readers
from numba_tma.host.launching import Unfit
from numba_tma.host.tensor_map import TensorMap

#: Turns an argument into the value of its parameter, or a sequence of several.
Read = Callable[[Any], Any]

# Raised when reading an argument that does not fit.
_WRONG = (AttributeError, TypeError, ValueError, OverflowError)


@dataclass
class Field:
    """The conversion of one argument to a kernel's parameter, or to several."""

    cls: type | None = None  #: the required class of an argument that is passed unchanged
    read: Read | None = None
    several: bool = False  #: whether `read` returns a sequence
    map_type: Any = None  #: the Numba type of a tensor map

    def source(self, name: str, field: str) -> str:
        """Return the value of argument `name` in generated code, where `field` is this object.

        ``{field}_type`` names the expected type in that code: `cls` or `map_type`.
        """
        if self.map_type is not None:  # a map that has its type needs no call
            quick = f"(_encoding := {name}._encoding).numba_type is {field}_type"
            return f"{quick} and _encoding.descriptor or {field}.value({name})"
        if self.read is None:
            return f"{name} if _type({name}) is {field}_type else {field}.value({name})"
        return f"{'*' * self.several}{field}.value({name})"

    def value(self, argument: Any) -> Any:
        """Return the value of an argument, or raise `Unfit`."""
        if self.read is None:
            if type(argument) is not self.cls:
                raise Unfit(f"it is a {type(argument).__name__}, not this {self.cls}")
            if isinstance(argument, int) and not -(2**63) <= argument < 2**63:
                raise Unfit("it is out of the range of int64")
            return argument
        try:
            return self.read(argument)
        except _WRONG as error:
            raise Unfit(str(error)) from None


class Packer:
    """Turns arguments of certain types into the values of a launch."""

    def __init__(
        self, names: Sequence[str], numba_types: Sequence[Any], arguments: Sequence[Any]
    ) -> None:
        self.names, self._types, self.fields = names, numba_types, list[Field]()
        for name, numba_type, argument in zip(names, numba_types, arguments, strict=True):
            try:
                self.fields.append(_field(numba_type, argument))
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from None

    def values(self, arguments: Sequence[Any]) -> list[Any]:
        """Return the values for these arguments, or raise `Unfit`."""
        values: list[Any] = []
        each = zip(self.names, self._types, self.fields, arguments)
        for name, numba_type, field, argument in each:
            try:
                value = field.value(argument)
            except Unfit as error:
                text = f"{name} is {argument!r}, where the kernel takes {numba_type}: {error}"
                raise Unfit(text) from None
            values += value if field.several else [value]
        return values


def _field(numba_type: Any, argument: Any) -> Field:
    """Return the conversion of an argument to a parameter of `numba_type`."""
    cls = type(argument)
    if isinstance(numba_type, TensorMapType):
        if not isinstance(argument, TensorMap):  # cuda.core's own descriptor
            return Field(cls)
        accepted = _accepted(numba_type, typeof(argument))
        return Field(read=_map_reader(accepted), map_type=accepted)
    if isinstance(numba_type, TensorMapArrayType):
        return Field(read=_map_array_reader(numba_type))
    if isinstance(numba_type, types.Array):
        return Field(read=_array_reader(numba_type, argument), several=True)
    if isinstance(numba_type, types.CPointer):
        return _number_field(types.intp, argument)
    if isinstance(numba_type, types.Integer | types.Float | types.Boolean):
        return _number_field(numba_type, argument)
    if numba_type in (types.complex64, types.complex128):
        part = ctypes.c_float if numba_type == types.complex64 else ctypes.c_double
        read = _reader_of_class(cls, lambda value: (part(value.real), part(value.imag)))
        return Field(read=read, several=True)
    if isinstance(numba_type, types.NPDatetime | types.NPTimedelta):
        return Field(read=_reader_of_class(cls, lambda value: int(value.view(np.int64))))
    if isinstance(numba_type, types.EnumMember):
        inner = _field(numba_type.dtype, argument.value)
        read = _reader_of_class(cls, lambda member: inner.value(member.value))
        return Field(read=read, several=inner.several)
    if isinstance(numba_type, types.BaseTuple):
        return Field(read=_tuple_reader(numba_type, argument), several=True)
    if isinstance(numba_type, types.Record) and hasattr(argument, "device_ctypes_pointer"):
        return Field(read=_record_reader(numba_type))
    raise TypeError(
        f"a {cls.__name__} (Numba type {numba_type}) is none of what a launcher passes: tensor "
        "maps, pointers, device arrays, numbers, and tuples of these"
    )


def _accepted(numba_type: Any, given: Any) -> Any:
    """Return `given`, the type of an argument, if it converts to `numba_type`."""
    if given != numba_type and given.can_convert_to(None, numba_type) is None:
        raise TypeError(f"it is a {given}, and the kernel takes a {numba_type}")
    return given


# The (parameter type, argument class) that cuda.core packs without conversion.
_AS_IT_IS = {(types.intp, int), (types.float64, float), (types.boolean, bool)} | {
    (getattr(types, name), getattr(np, name))
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}
_AS_IT_IS |= {(types.float32, np.float32), (types.float64, np.float64), (types.boolean, np.bool_)}


def _number_field(numba_type: Any, argument: Any) -> Field:
    cls = type(argument)
    if (numba_type, cls) in _AS_IT_IS:
        return Field(cls)
    if not isinstance(argument, bool | int | float | np.number | np.bool_):
        raise TypeError(f"it is a {cls.__name__}, and the kernel takes a {numba_type}")
    if isinstance(numba_type, types.Float):
        if numba_type == types.float16:
            return Field(read=_reader_of_class(cls, _bits_of_half))
        number = ctypes.c_float if numba_type == types.float32 else ctypes.c_double
        return Field(read=_reader_of_class(cls, number))
    if isinstance(numba_type, types.Boolean):
        return Field(read=_reader_of_class(cls, bool))
    exact = getattr(ctypes, f"c_{numba_type}")

    def read(value: Any) -> Any:
        number = exact(value)
        if number.value != value:
            raise OverflowError(f"it is out of the range of {numba_type}")
        return number

    return Field(read=_reader_of_class(cls, read))


def _bits_of_half(value: Any) -> ctypes.c_uint16:
    return ctypes.c_uint16(int(np.float16(value).view(np.uint16)))


def _reader_of_class(cls: type, read: Read) -> Read:
    def checked(value: Any) -> Any:
        if type(value) is not cls:
            raise TypeError(f"it is a {type(value).__name__}, not a {cls.__name__}")
        return read(value)

    return checked


def _map_reader(accepted: Any) -> Read:
    def read(tensor_map: Any) -> Any:
        given = typeof(tensor_map)
        if given != accepted:
            raise TypeError(f"it is a {given}, and the kernel takes a {accepted}")
        return tensor_map.value

    return read


def _map_array_reader(numba_type: Any) -> Read:
    def read(maps: Any) -> int:
        if maps.numba_type is not numba_type and typeof(maps) != numba_type:
            raise TypeError(f"it is a {maps.numba_type}, and the kernel takes a {numba_type}")
        return int(maps.address)

    return read


def _record_reader(numba_type: Any) -> Read:
    def read(record: Any) -> int:
        if typeof(record) != numba_type:
            raise TypeError(f"it is a {typeof(record)}, and the kernel takes a {numba_type}")
        return int(record.device_ctypes_pointer.value)

    return read


def _tuple_reader(numba_type: Any, argument: Any) -> Read:
    fields = [_field(t, a) for t, a in zip(numba_type, argument, strict=True)]

    def read(items: Any) -> list[Any]:
        values: list[Any] = []
        for field, item in zip(fields, items, strict=True):
            value = field.value(item)
            values += value if field.several else [value]
        return values

    return _reader_of_class(type(argument), read)


# ------------------------------------------------------------------------------ arrays

# Arrays of the same class, shape, strides and element type share their Numba type, and the values
# before and after the address.
_Layout = tuple[Any, tuple[int, ...], tuple[int, ...]]
_layouts: dict[Any, _Layout] = {}
_MOST_LAYOUTS = 4096


def _array_reader(numba_type: Any, argument: Any) -> Read:
    accepted = _accepted(numba_type, _read_array(argument)[1][0])

    def read(array: Any) -> tuple[int, ...]:
        address, (given, head, tail) = _read_array(array)
        if given is not accepted and given != accepted:
            raise TypeError(f"it is a {given}, and the kernel takes a {accepted}")
        return (*head, address, *tail)

    return read


def _read_array(array: Any) -> tuple[int, _Layout]:
    cls = type(array)
    address, shape, strides, stored, in_elements, _ = readers.get(cls, read_array)(array)[0]
    key = cls, shape, strides, stored, in_elements
    layout = _layouts.get(key)
    if layout is None:
        layout = _new_layout(array, shape, strides, stored.itemsize, in_elements)
        # An array known by its protocol alone states in the protocol whether it is read-only.
        if readers[cls].__name__ != "_read_protocol":
            if len(_layouts) >= _MOST_LAYOUTS:
                _layouts.clear()
            _layouts[key] = layout
    return address, layout


def _new_layout(array: Any, shape: Any, strides: Any, itemsize: int, in_elements: bool) -> _Layout:
    numba_type, shape = typeof(array), tuple(map(int, shape))
    if strides is None:
        strides = contiguous_strides(shape, itemsize)
    elif in_elements:
        strides = tuple(int(stride) * itemsize for stride in strides)
    return numba_type, (0, 0, math.prod(shape), itemsize), (*shape, *map(int, strides))
