"""Where an array lies, as its library says it: address, shape, strides and element type.

Reading an array does not synchronise with the stream that fills it: neither a tensor map nor a
launch holds data.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numba_tma.host.annotations import DeviceArray
from numba_tma.host.environment import simulated

# Address; shape; strides, or None for a C-contiguous array; the library's element type; whether the
# strides count elements instead of bytes; whether the memory is read-only. They are hashable and
# form the keys of caches.
View = tuple[int, tuple[int, ...], tuple[int, ...] | None, Any, bool, bool]
# The view; the array; and what else keeps its memory alive. Plain tuples, because every call reads
# its arrays. Code behind the border uses `numba_tma.host.arrays.Array`, which is made of a reading.
Reading = tuple[View, Any, object]
#: The first five elements of a `View`: address, shape, strides, element type and stride unit.
Place = tuple[int, tuple[int, ...], tuple[int, ...] | None, Any, bool]

# One reader for each array class, because finding the right reader costs more than reading.
readers: dict[type, Callable[[Any], Reading]] = {}

_REPAIR = (
    "pass a GPU array: numba.cuda.to_device(array), a CuPy array, a CUDA torch tensor, or any "
    "object with __cuda_array_interface__ or __dlpack__"
)


class NoDeviceArray(TypeError):
    """An argument that the GPU cannot read; the text lacks its subject, the argument."""


def reading_of(array: DeviceArray, subject: str) -> Reading:
    """Read where `array` lies; an error begins with `subject`, such as ``"copy(): source"``."""
    try:
        return readers.get(type(array), read_array)(array)
    except NoDeviceArray as error:
        raise TypeError(f"{subject} {error}") from None


def read_array(array: DeviceArray) -> Reading:
    """Read where `array` lies, and remember the reader for its class."""
    cls = type(array)
    reader: Callable[[Any], Reading]
    if hasattr(cls, "as_reading"):  # this library's own `Array`
        reader = cls.as_reading
    elif simulated():
        return _read_host(array)
    elif getattr(array, "__cuda_ndarray__", False):
        reader = _read_numba
    elif all(hasattr(array, name) for name in ("data_ptr", "is_contiguous", "is_cuda")):
        reader = _read_torch
    elif cls.__module__.partition(".")[0] == "cupy" and hasattr(array, "strides"):
        reader = _read_cupy
    else:
        reader = _read_protocol
    reading = reader(array)
    readers[cls] = reader
    return reading


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array, in bytes."""
    strides = []
    for extent in reversed(shape):
        strides.append(itemsize)
        itemsize *= extent
    return tuple(reversed(strides))


def byte_strides(
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    in_elements: bool,
    itemsize: int,
) -> tuple[int, ...]:
    """Return the strides of a reading in bytes."""
    if strides is None:
        return contiguous_strides(shape, itemsize)
    return tuple([stride * itemsize for stride in strides]) if in_elements else strides


def orders_of(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> str:
    """Return the orders in which an array is contiguous: "C", "F", "CF" or ""; strides in bytes."""
    contiguous = {
        "C": contiguous_strides(shape, itemsize),
        "F": contiguous_strides(shape[::-1], itemsize)[::-1],
    }
    return "".join(
        order
        for order, wanted in contiguous.items()
        if all(n == 1 or given == one for n, given, one in zip(shape, strides, wanted))
    )


def class_name(array: object) -> str:
    """Return the name of an argument's class for an error, with its module."""
    return f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")


def _read_torch(tensor: Any) -> Reading:
    if not tensor.is_cuda:
        raise NoDeviceArray(
            f"is a tensor on {str(tensor.device)!r}, which is host memory; TMA copies from GPU "
            "memory: pass tensor.cuda()"
        )
    strides = None if tensor.is_contiguous() else tensor.stride()  # a bool costs less than a tuple
    return (tensor.data_ptr(), tensor.shape, strides, tensor.dtype, True, False), tensor, None


#: The same but the address, as source, without the error: a tensor on the host differs from any
#: on a GPU.
_TORCH_FORM = "({0}.shape, None if {0}.is_contiguous() else {0}.stride(), {0}.dtype, {0}.is_cuda)"


def is_torch(array: object) -> bool:
    """Return whether a class, whose reader is known, is torch's own tensor or parameter."""
    cls = type(array)
    return readers.get(cls) is _read_torch and cls.__module__.partition(".")[0] == "torch"


def form_source(cls: type, name: str, reader: str) -> tuple[str, str]:
    """Return the source that reads the variable `name`, an array of a known class.

    It reads the view without its address, and then the address. `reader` is the variable that holds
    the reader of the class.
    """
    if readers[cls] is _read_torch:
        return _TORCH_FORM.format(name), f"{name}.data_ptr()"
    return f"({name}_view := {reader}({name})[0])[1:]", f"{name}_view[0]"


def _read_numba(array: Any) -> Reading:
    address = array.device_ctypes_pointer.value or 0
    return (address, array.shape, array.strides, array.dtype, False, False), array, None


def _read_cupy(array: Any) -> Reading:
    return (array.data.ptr, array.shape, array.strides, array.dtype, False, False), array, None


def _read_protocol(array: Any) -> Reading:
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _read_cuda_array_interface(array, interface)
    if type(array).__name__ == "StridedMemoryView":
        return _read_view(array, array)
    if hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):
        from cuda.core.utils import StridedMemoryView

        return _read_view(array, StridedMemoryView.from_dlpack(array, stream_ptr=-1))
    if array is None:
        raise NoDeviceArray(f"is None; {_REPAIR}")
    if isinstance(array, np.ndarray | np.generic | memoryview | bytes | bytearray):
        raise _host_memory(array)
    raise NoDeviceArray(f"is a {class_name(array)}, which is no array; {_REPAIR}")


def _read_cuda_array_interface(array: Any, interface: dict[str, Any]) -> Reading:
    if interface.get("mask") is not None:
        raise NoDeviceArray("has a mask, which TMA cannot apply; pass its data alone")
    strides = interface.get("strides")
    typestr = interface["typestr"]
    dtype = np.dtype("V1" if typestr[1:] == "f1" else typestr)  # "<f1": ml_dtypes' name of e5m2
    if dtype.kind == "V":  # bfloat16 and fp8 have no typestr; the array may know its own type
        dtype = getattr(array, "dtype", dtype)
    view = (
        interface["data"][0] or 0,
        tuple(interface["shape"]),
        None if strides is None else tuple(strides),
        dtype,
        False,
        bool(interface["data"][1]),
    )
    return view, array, None


def _read_view(array: Any, view: Any) -> Reading:
    if not view.is_device_accessible:
        raise _host_memory(array)
    try:
        dtype = view.dtype
    except TypeError:  # the view has no fp8, but the exporter may know its own type
        dtype = getattr(array, "dtype", None)
    return (view.ptr, view.shape, view.strides, dtype, True, bool(view.readonly)), array, view


def _read_host(array: Any) -> Reading:
    array = getattr(array, "_ary", array)  # the simulator's device array wraps a NumPy array
    if not isinstance(array, np.ndarray):
        raise NoDeviceArray(
            f"is a {class_name(array)}; in the simulator pass a NumPy array or "
            "numba.cuda.to_device(array)"
        )
    place = array.ctypes.data, array.shape, array.strides, array.dtype, False
    return (*place, not array.flags.writeable), array, None


def _host_memory(array: object) -> NoDeviceArray:
    return NoDeviceArray(
        f"is a {class_name(array)} in host memory; TMA copies from GPU memory: {_REPAIR}"
    )
