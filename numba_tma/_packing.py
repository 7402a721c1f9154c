"""Kernel arguments as the driver takes them: values in one buffer, and the addresses of these.

One `struct.Struct` writes all arguments of a launch, and refuses what does not fit. What a value
becomes is what numba-cuda makes of it, field by field: see `_Kernel._prepare_args` there.

The function that packs and launches is generated from the types, as `dataclasses` generate an
``__init__``: what a loop over the arguments costs is more than what the packing does.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.core import types

from numba_tma._array_interface import contiguous_strides, read_array, readers
from numba_tma._compiler.launches import typeof
from numba_tma._driver import image_of
from numba_tma.launching import Unfit
from numba_tma.tensor_map import TensorMap
from numba_tma.types import TensorMapArrayType, TensorMapType

#: Turns an argument into the value of its parameter, or the values of several.
Read = Callable[[Any], Any]

_INTEGERS = {(8, True): "b", (16, True): "h", (32, True): "i", (64, True): "q"}
_INTEGERS |= {(bits, False): code.upper() for (bits, _), code in _INTEGERS.items()}
_POINTER = "Q"
_MAP = "0q128s"  # 128 bytes on a boundary of 8


# What reading and writing raise when an argument does not fit.
_WRONG = (AttributeError, TypeError, ValueError, OverflowError, struct.error)


#: A buffer, the address of the list of its values' addresses, and that list.
Parameters = tuple[bytearray, int, Any]


@dataclass
class Field:
    """A kernel's parameter, or the several that numba-cuda makes of one argument."""

    codes: tuple[str, ...]  #: how `struct` writes them
    read: Read | None = None  #: gives their values; None where the argument is its own value
    cls: type | None = None  #: what the argument must be, if `read` does not look
    encoding: Any = None  #: of tensor maps: the Numba type

    def source(self, i: int) -> str:
        """Return the value, or the values, of argument `i` in a generated function."""
        if self.encoding is not None:  # once typed and read, a map needs no call
            quick = f"(e := a{i}._encoding).numba_type is f{i}.encoding"
            return f"({quick} and e.image or f{i}.read(a{i}))"
        if self.read is None:
            return f"a{i} if type(a{i}) is f{i}.cls else unfit(a{i})" if self.cls else f"a{i}"
        return f"{'*' * (len(self.codes) != 1)}f{i}.read(a{i})"

    def values(self, argument: Any) -> Any:
        """Return the values of an argument."""
        value = argument if self.read is None else self.read(argument)
        return value if len(self.codes) != 1 else (value,)


def _unfit(argument: Any) -> Any:
    raise TypeError(f"it is a {type(argument).__name__}, of which there is another launch")


_LAUNCH = """
def launch({arguments}):
    try:
        parameters = take()
    except IndexError:
        parameters = new()
    buffer, address, _ = parameters
    try:
        pack_into(buffer, 0, {values})
    except WRONG:
        raise Unfit from None
    (error,) = run(config, function, address, 0)
    if error:
        recover(error, address)
    give_back(parameters)
"""

_PACK = """
def pack({arguments}):
    parameters = new()
    try:
        pack_into(parameters[0], 0, {values})
    except WRONG:
        raise Unfit from None
    return parameters
"""


class Packer:
    """Packs arguments of certain Numba types into `Parameters`."""

    def __init__(
        self, names: Sequence[str], numba_types: Sequence[Any], arguments: Sequence[Any]
    ) -> None:
        self._names, self._types, self._fields = names, numba_types, list[Field]()
        for name, numba_type, argument in zip(names, numba_types, arguments, strict=True):
            try:
                self._fields.append(_field(numba_type, argument))
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from None
        codes = [code for field in self._fields for code in field.codes]
        self.sizes = list(map(struct.calcsize, codes))
        self._struct = struct.Struct("@" + "".join(codes))
        self._offsets = [
            struct.calcsize("@" + "".join(codes[: i + 1])) - size
            for i, size in enumerate(self.sizes)
        ]
        self.pack: Callable[..., Parameters] = self._generate(_PACK, "pack")

    def launcher(self, run: Any, config: Any, function: Any, recover: Any) -> Callable[..., None]:
        """Return a function that packs arguments and calls ``run(config, function, address, 0)``.

        It raises `Unfit`, and launches nothing, if an argument does not fit. Buffers are
        used again: a launch takes one, and gives it back when the driver has copied it. So several
        threads, and a launch in the middle of another one, each have their own.
        """
        free: list[Parameters] = []
        launch: Callable[..., None] = self._generate(
            *(_LAUNCH, "launch"),
            take=free.pop,
            give_back=free.append,
            run=run,
            config=config,
            function=function,
            recover=recover,
        )
        return launch

    def explain(self, arguments: Sequence[Any]) -> str:
        """Say which of the arguments does not fit, and why."""
        each = zip(self._names, self._types, self._fields, arguments)
        for name, numba_type, field, argument in each:
            try:
                struct.pack("@" + "".join(field.codes), *field.values(argument))
            except _WRONG as error:
                return f"{name} is {argument!r}, where the kernel takes {numba_type}: {error}"
        raise AssertionError("each argument fits")

    def _new(self) -> Parameters:
        buffer = bytearray(self._struct.size or 1)
        start = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        addresses = [start + offset for offset in self._offsets]
        pointers = (ctypes.c_void_p * (len(addresses) or 1))(*addresses)
        return buffer, ctypes.addressof(pointers), pointers

    def _generate(self, template: str, name: str, **namespace: Any) -> Any:
        numbers = range(len(self._fields))
        source = template.format(
            arguments="".join(f"a{i}, " for i in numbers),
            values=", ".join(field.source(i) for i, field in enumerate(self._fields)),
        )
        namespace |= {f"f{i}": field for i, field in enumerate(self._fields)}
        namespace |= {"new": self._new, "pack_into": self._struct.pack_into, "unfit": _unfit}
        namespace |= {"Unfit": Unfit, "WRONG": _WRONG}
        exec(compile(source, f"<{name} of {', '.join(self._names)}>", "exec"), namespace)
        return namespace[name]


def _field(numba_type: Any, argument: Any) -> Field:
    """Return the parameters that an argument becomes where the kernel takes `numba_type`."""
    cls = type(argument)
    if isinstance(numba_type, TensorMapType):
        if not isinstance(argument, TensorMap):  # cuda.core's own descriptor
            return Field((_MAP,), image_of)
        accepted = _accepted(numba_type, typeof(argument))
        return Field((_MAP,), _map_reader(accepted), encoding=accepted)
    if isinstance(numba_type, TensorMapArrayType):
        return Field((_POINTER,), _map_array_reader(numba_type))
    if isinstance(numba_type, types.Array):
        codes = *("q",) * 4, _POINTER, *("q",) * (2 * numba_type.ndim)
        return Field(codes, _array_reader(numba_type, argument))
    if isinstance(numba_type, types.CPointer):
        return Field((_POINTER,))
    if isinstance(numba_type, types.Integer):
        return Field((_INTEGERS[numba_type.bitwidth, numba_type.signed],), cls=cls)
    if isinstance(numba_type, types.Boolean):
        return Field(("?",), cls=_class_of_boolean(argument))
    if numba_type == types.float16:
        return Field(("H",), lambda value: int(np.float16(value).view(np.uint16)))
    if numba_type in (types.float32, types.float64):
        return Field(("f" if numba_type == types.float32 else "d",), cls=cls)
    if numba_type in (types.complex64, types.complex128):
        part = "f" if numba_type == types.complex64 else "d"
        return Field((part, part), lambda value: (value.real, value.imag))
    if isinstance(numba_type, types.NPDatetime | types.NPTimedelta):
        return Field(("q",), lambda value: int(value.view(np.int64)))
    if isinstance(numba_type, types.EnumMember):
        return _enum_field(numba_type, argument)
    if isinstance(numba_type, types.BaseTuple):
        return _tuple_field(numba_type, argument)
    if isinstance(numba_type, types.Record) and hasattr(argument, "device_ctypes_pointer"):
        return Field((_POINTER,), _record_reader(numba_type))
    raise TypeError(
        f"a {cls.__name__} (Numba type {numba_type}) is none of what a launcher passes: tensor "
        "maps, pointers, device arrays, numbers, and tuples of these"
    )


def _accepted(numba_type: Any, given: Any) -> Any:
    """Return `given`, the type of an argument, if a kernel that takes `numba_type` takes that."""
    if given != numba_type and given.can_convert_to(None, numba_type) is None:
        raise TypeError(f"it is a {given}, and the kernel takes a {numba_type}")
    return given


def _map_reader(accepted: Any) -> Read:
    def read(tensor_map: Any) -> bytes:
        encoding = tensor_map._encoding
        if typeof(tensor_map) != accepted:
            raise TypeError(f"it is a {encoding.numba_type}, and the kernel takes a {accepted}")
        encoding.image = image_of(encoding.value)
        return bytes(encoding.image)

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


def _class_of_boolean(argument: Any) -> type:
    if not isinstance(argument, bool | int | np.bool_):
        raise TypeError(f"it is a {type(argument).__name__}, and the kernel takes a boolean")
    return type(argument)


def _enum_field(numba_type: Any, argument: Any) -> Field:
    inner, cls = _field(numba_type.dtype, argument.value), type(argument)

    def read(member: Any) -> Any:
        if type(member) is not cls:
            raise TypeError(
                f"it is a {type(member).__name__}, and the kernel takes a {cls.__name__}"
            )
        return member.value if inner.read is None else inner.read(member.value)

    return Field(inner.codes, read)


def _tuple_field(numba_type: Any, argument: Any) -> Field:
    fields = [_field(t, a) for t, a in zip(numba_type, argument, strict=True)]
    codes = tuple(code for field in fields for code in field.codes)
    classes = tuple(map(type, argument))

    def read(value: Any) -> Any:
        if tuple(map(type, value)) != classes:
            raise TypeError(f"it is a {typeof(value)}, and the kernel takes a {numba_type}")
        values = [v for field, item in zip(fields, value) for v in field.values(item)]
        return values[0] if len(codes) == 1 else values

    return Field(codes, read)


# ------------------------------------------------------------------------------ arrays

# What arrays of the same class, shape, strides and element type share: their Numba type, and what
# stands before and behind the address.
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
    address, shape, strides, stored, in_elements, _, _ = readers.get(cls, read_array)(array)
    key = cls, shape, strides, stored, in_elements
    layout = _layouts.get(key)
    if layout is None:
        layout = _new_layout(array, shape, strides, stored.itemsize, in_elements)
        # Of a class that is only known by its protocol, the array alone knows if it is read-only.
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
