"""Where an array lies: address, shape, strides and element type, whatever library made it.

Nothing here synchronises with the stream that fills the array: a tensor map holds no data.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numba_tma.host.environment import simulated

# address, shape, strides (None: C-contiguous), dtype of the library, whether the strides count
# elements and not bytes, the array, and what else has to stay alive for its memory
# (a plain tuple, since every call of tensor_map builds one)
Reading = tuple[int, tuple[int, ...], tuple[int, ...] | None, Any, bool, Any, object]

# One reader per array class, since finding the right one costs more than reading.
readers: dict[type, Callable[[Any], Reading]] = {}

_REPAIR = (
    "pass a GPU array: numba.cuda.to_device(array), a CuPy array, a CUDA torch tensor, or any "
    "object with __cuda_array_interface__ or __dlpack__"
)


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array, in bytes."""
    strides = []
    for extent in reversed(shape):
        strides.append(itemsize)
        itemsize *= extent
    return tuple(reversed(strides))


def read_array(array: Any) -> Reading:
    """Read where `array` lies, and remember how to read others of its class."""
    if simulated():
        return _read_host(array)
    cls = type(array)
    reader: Callable[[Any], Reading]
    if getattr(array, "__cuda_ndarray__", False):
        reader = _read_numba
    elif all(hasattr(array, name) for name in ("data_ptr", "stride", "is_cuda")):
        reader = _read_torch
    elif cls.__module__.partition(".")[0] == "cupy" and hasattr(array, "strides"):
        reader = _read_cupy
    else:
        reader = _read_protocol
    reading = reader(array)
    readers[cls] = reader
    return reading


def _read_torch(tensor: Any) -> Reading:
    if not tensor.is_cuda:
        raise TypeError(
            f"tensor_map: array is a tensor on {str(tensor.device)!r}, which is host memory; "
            "TMA copies from GPU memory: pass tensor.cuda()"
        )
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, True, tensor, None


def _read_numba(array: Any) -> Reading:
    address = array.device_ctypes_pointer.value or 0
    return address, array.shape, array.strides, array.dtype, False, array, None


def _read_cupy(array: Any) -> Reading:
    return array.data.ptr, array.shape, array.strides, array.dtype, False, array, None


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
        raise TypeError(f"tensor_map: array is None; {_REPAIR}")
    if isinstance(array, np.ndarray | np.generic | memoryview | bytes | bytearray):
        raise _host_memory(array)
    raise TypeError(f"tensor_map: array is a {_class_name(array)}, which is no array; {_REPAIR}")


def _read_cuda_array_interface(array: Any, interface: dict[str, Any]) -> Reading:
    if interface.get("mask") is not None:
        raise TypeError("tensor_map: array has a mask, which TMA cannot apply; pass its data alone")
    strides = interface.get("strides")
    typestr = interface["typestr"]
    dtype = np.dtype("V1" if typestr[1:] == "f1" else typestr)  # "<f1": ml_dtypes' name of e5m2
    if dtype.kind == "V":  # how bfloat16 and fp8 look in a typestr; the array may know better
        dtype = getattr(array, "dtype", dtype)
    return (
        interface["data"][0] or 0,
        tuple(interface["shape"]),
        None if strides is None else tuple(strides),
        dtype,
        False,
        array,
        None,
    )


def _read_view(array: Any, view: Any) -> Reading:
    if not view.is_device_accessible:
        raise _host_memory(array)
    try:
        dtype = view.dtype
    except TypeError:  # no fp8 in the view, but exporters know their own
        dtype = getattr(array, "dtype", None)
    return view.ptr, view.shape, view.strides, dtype, True, array, view


def _read_host(array: Any) -> Reading:
    array = getattr(array, "_ary", array)  # what the simulator's device array wraps
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"tensor_map: array is a {_class_name(array)}; in the simulator pass a NumPy array or "
            "numba.cuda.to_device(array)"
        )
    return array.ctypes.data, array.shape, array.strides, array.dtype, False, array, None


def _host_memory(array: object) -> TypeError:
    return TypeError(
        f"tensor_map: array is a {_class_name(array)} in host memory; TMA copies from GPU memory: "
        f"{_REPAIR}"
    )


def _class_name(array: object) -> str:
    return f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")
