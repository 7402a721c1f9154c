"""Calls of the driver: tensor maps are encoded as the 128 bytes that a launch passes by value."""

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from numba_tma.host.dtypes import DType
from numba_tma.host.environment import simulated
from numba_tma.host.layout import Swizzle

if TYPE_CHECKING:
    from cuda.core._tensor_map import TensorMapDescriptor

    from numba_tma.host.pixel_box import PixelBox

# Names of the options in the driver's enumerations.
L2_PROMOTION = {None: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}
OOB_FILL = {"zeros": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}
INTERLEAVE = {None: "NONE", 16: "16B", 32: "32B"}
SWIZZLE = {
    Swizzle.NONE: "NONE",
    Swizzle.B32: "32B",
    Swizzle.B64: "64B",
    Swizzle.B128: "128B",
    Swizzle.B128_ATOM_32B: "128B_ATOM_32B",
    Swizzle.B128_ATOM_64B: "128B_ATOM_64B",
}

NBYTES = 128

#: An encoded map: its bytes, or cuda.core's object that holds them.
Encoded: TypeAlias = "bytes | TensorMapDescriptor"


#: The bindings, once they are imported, and what stands for the current context in a call of them.
#: It costs less than a 0 that the call makes one of.
_bindings: Any = None
_current: Any = None


@functools.cache
def _driver() -> Any:
    global _bindings, _current
    from cuda.bindings import driver

    _current, _bindings = driver.CUcontext(0), driver
    return driver


#: Whether this process had a CUDA context at its last fork, and whether its parent had one.
_had_context = _lost_context = False

FORKED = (
    "this process was forked from one that used CUDA, and a context does not survive a fork: "
    'start it by multiprocessing.get_context("spawn"), or fork before the first use of CUDA'
)


def current_device() -> int:
    """Ordinal of the GPU whose context is current on this thread; -1 if there is none.

    Raises
    ------
    RuntimeError
        If the process was forked from one with a context.
    """
    try:
        error, device = _driver().cuCtxGetDevice()
    except RuntimeError:  # no driver on this machine
        return -1
    if error and _lost_context:
        raise RuntimeError(FORKED)
    return -1 if error else int(device)


def current_context() -> int:
    """Return the number of this thread's current context, which no other gets; -1 without one.

    Raises
    ------
    RuntimeError
        If the process was forked from one with a context.
    """
    try:
        error, number = (_bindings or _driver()).cuCtxGetId(_current)
    except RuntimeError:  # no driver on this machine
        return -1
    if error and _lost_context:
        raise RuntimeError(FORKED)
    return -1 if error else int(number)


def lost_context() -> bool:
    """Return whether this process was forked from one with a context."""
    return _lost_context


def _before_fork() -> None:
    global _had_context
    _had_context = _lost_context or (_driver.cache_info().currsize > 0 and current_device() >= 0)


def _in_child() -> None:
    global _lost_context
    _lost_context = _had_context


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)


def misplaced(address: int) -> str:
    """Say why kernels on the current GPU cannot access an address; "" if they can.

    It is "" as well where nobody can tell: in the simulator, without a current context, and of an
    unknown address on a GPU that can access all memory of the process.
    """
    device = -1 if simulated() else current_device()
    if device < 0:
        return ""
    driver = _driver()
    asked = driver.CUpointer_attribute
    error, _ = driver.cuPointerGetAttribute(asked.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address)
    if not error:
        return ""
    error, context = driver.cuPointerGetAttribute(asked.CU_POINTER_ATTRIBUTE_CONTEXT, address)
    if not error:
        owner = f"GPU {_device_of(context)}" if int(context) else "another GPU"
        return (
            f"lies on {owner}, and kernels on the current GPU, {device}, cannot access it: make "
            "its GPU current (numba.cuda.gpus[i], torch.cuda.device(i)), enable peer access, or "
            "copy the array"
        )
    pageable = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS
    if _checked(driver.cuDeviceGetAttribute(pageable, device)):
        return ""
    return (
        f"lies at {address:#x}, where CUDA has no memory: it was freed or never allocated; keep "
        "the array alive"
    )


def _device_of(context: Any) -> int:
    """Return the ordinal of a context's GPU."""
    driver = _driver()
    _checked(driver.cuCtxPushCurrent(context))
    try:
        return int(_checked(driver.cuCtxGetDevice()))
    finally:
        driver.cuCtxPopCurrent()


def is_capturing(stream: int) -> bool:
    """Return whether launches on the stream of this handle go to a graph."""
    try:
        error, status = _driver().cuStreamIsCapturing(stream)
    except RuntimeError:  # no driver on this machine
        return False
    return not error and bool(int(status))


@contextlib.contextmanager
def allocating_while_capturing() -> Iterator[None]:
    """Let this thread allocate memory while a stream is captured; the graph does not contain it."""
    driver = _driver()
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _, before = driver.cuThreadExchangeStreamCaptureMode(mode)
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


def allocate(nbytes: int) -> int | None:
    """Return the address of new memory of the current context; None if there is too little."""
    driver = _driver()
    returned = driver.cuMemAlloc(nbytes)
    if returned[0] == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        return None
    return int(_checked(returned))


def free(address: int) -> None:
    """Free memory of the current context, after all work of its GPU; after a fault nothing is."""
    _driver().cuMemFree(address)


def zero(address: int, nbytes: int) -> None:
    """Set device memory to zeros, and wait for it."""
    with _stream_of_its_own() as stream:
        _checked(_driver().cuMemsetD8Async(address, 0, nbytes, stream))


def copy_from_host(address: int, source: int, nbytes: int, stream: int | None) -> None:
    """Copy memory of the host to the device: in the order of a stream, or with None wait for it.

    The host's memory may change as soon as the function returns.
    """
    if stream is not None:
        _checked(_driver().cuMemcpyHtoDAsync(address, source, nbytes, stream))
        return
    with _stream_of_its_own() as own:
        _checked(_driver().cuMemcpyHtoDAsync(address, source, nbytes, own))


def copy_to_host(target: int, address: int, nbytes: int) -> None:
    """Copy memory of the device to the host, and wait for it."""
    with _stream_of_its_own() as own:
        _checked(_driver().cuMemcpyDtoHAsync(target, address, nbytes, own))


def wait_for_device() -> None:
    """Wait until all work of the current context is done; raise its error, if it has one."""
    _checked(_driver().cuCtxSynchronize())


@contextlib.contextmanager
def _stream_of_its_own() -> Iterator[Any]:
    """Yield a stream that orders and captures no other, and wait for it at the end."""
    driver = _driver()
    stream = _checked(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    try:
        yield stream
        _checked(driver.cuStreamSynchronize(stream))
    finally:
        driver.cuStreamDestroy(stream)


def _checked(returned: tuple[Any, ...]) -> Any:
    """Return the result of a driver call, or raise for its error."""
    error, *results = returned
    if error:
        raise RuntimeError(f"the CUDA driver refused a call: {error.name}")
    return results[0] if results else None


def encode_tiled(
    dtype: DType,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    element_strides: tuple[int, ...],
    interleave: int | None,
    swizzle: Swizzle,
    l2_promotion: int | None,
    oob_fill: str,
) -> bytes:
    """Encode a tensor map. Here alone NumPy's axis order is reversed to the hardware's."""
    arguments = {
        **_tensor(dtype, address, shape, strides),
        "boxDim": _u32(box),
        "elementStrides": _u32(element_strides),
        **_interleave(interleave),
        **_options(swizzle, l2_promotion, oob_fill),
    }
    return _encode("cuTensorMapEncodeTiled", arguments)


def encode_im2col(
    dtype: DType,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    column: tuple[int, ...],
    box: "PixelBox",
    interleave: int | None,
    swizzle: Swizzle,
    l2_promotion: int | None,
    oob_fill: str,
) -> bytes:
    """Encode an im2col map of columns of (pixels, channels)."""
    arguments = {
        **_tensor(dtype, address, shape, strides),
        "pixelBoxLowerCorner": list(box.lower[::-1]),
        "pixelBoxUpperCorner": list(box.upper[::-1]),
        "channelsPerPixel": column[1],
        "pixelsPerColumn": column[0],
        "elementStrides": _u32((1, *box.stride, 1)),
        **_interleave(interleave),
        **_options(swizzle, l2_promotion, oob_fill),
    }
    return _encode("cuTensorMapEncodeIm2col", arguments)


def encode_im2col_wide(
    dtype: DType,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    column: tuple[int, ...],
    box: "PixelBox",
    mode: str,
    swizzle: Swizzle,
    l2_promotion: int | None,
    oob_fill: str,
) -> bytes:
    """Encode an im2col map that walks along W alone; only the last axis of `box` is used."""
    arguments = {
        **_tensor(dtype, address, shape, strides),
        "pixelBoxLowerCornerWidth": box.lower[-1],
        "pixelBoxUpperCornerWidth": box.upper[-1],
        "channelsPerPixel": column[1],
        "pixelsPerColumn": column[0],
        "elementStrides": _u32((1, *box.stride, 1)),
        **_interleave(None),
        "mode": _option("CUtensorMapIm2ColWideMode", "IM2COL_WIDE_MODE", mode.upper()),
        **_options(swizzle, l2_promotion, oob_fill),
    }
    return _encode("cuTensorMapEncodeIm2colWide", arguments)


@functools.cache
def compute_capability(device: int) -> tuple[int, int]:
    """Return the compute capability of a GPU."""
    names = ("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR")
    major, minor = (device_attribute(device, name) for name in names)
    return major, minor


def present_capability() -> tuple[int, int] | None:
    """Return the compute capability of the current or first GPU; None where there is none.

    It makes no context.
    """
    device = max(current_device(), 0)
    try:
        _checked(_driver().cuInit(0))
        return compute_capability(device)
    except RuntimeError:  # no driver, or no GPU
        return None


def device_attribute(device: int, name: str) -> int:
    """Return an attribute of a GPU: ``CU_DEVICE_ATTRIBUTE_`` and `name`."""
    which = getattr(_driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    error, number = _driver().cuDeviceGetAttribute(which, device)
    if error:
        raise RuntimeError(f"cuDeviceGetAttribute({which.name}, {device}): {error.name}")
    return int(number)


@functools.cache
def name_of_device(device: int) -> str:
    """Return the name of a GPU."""
    name: bytes = _checked(_driver().cuDeviceGetName(256, device))
    return name.split(b"\0")[0].decode()


def launching_device() -> int:
    """Return the ordinal of the current GPU, after making the first one current if there is none.

    Raises
    ------
    RuntimeError
        If the process was forked from one with a context, or has no GPU.
    """
    device = current_device()
    return device if device >= 0 else make_context_current()


def make_context_current() -> int:
    """Make the primary context of the first GPU current on this thread, and return 0."""
    driver = _driver()
    _checked(driver.cuInit(0))
    device = _checked(driver.cuDeviceGet(0))
    _checked(driver.cuCtxSetCurrent(_checked(driver.cuDevicePrimaryCtxRetain(device))))
    return 0


def _tensor(
    dtype: DType, address: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> dict[str, Any]:
    u64 = _driver().cuuint64_t
    return {
        "tensorDataType": _option("CUtensorMapDataType", "DATA_TYPE", dtype.tensor_map),
        "tensorRank": len(shape),
        "globalAddress": address,
        "globalDim": [u64(n) for n in shape[::-1]],
        # The innermost stride is implied. A map of rank 1 reads none, but an empty list becomes
        # a null pointer, which the driver's manual does not allow.
        "globalStrides": [u64(n) for n in strides[-2::-1] or (16,)],
    }


def _u32(numbers: tuple[int, ...]) -> list[Any]:
    return [_driver().cuuint32_t(n) for n in numbers[::-1]]


def _interleave(interleave: int | None) -> dict[str, Any]:
    option = _option("CUtensorMapInterleave", "INTERLEAVE", INTERLEAVE[interleave])
    return {"interleave": option}


def _options(swizzle: Swizzle, l2_promotion: int | None, oob_fill: str) -> dict[str, Any]:
    promotion = L2_PROMOTION[l2_promotion]
    return {
        "swizzle": _option("CUtensorMapSwizzle", "SWIZZLE", SWIZZLE[swizzle]),
        "l2Promotion": _option("CUtensorMapL2promotion", "L2_PROMOTION", promotion),
        "oobFill": _option("CUtensorMapFloatOOBfill", "FLOAT_OOB_FILL", OOB_FILL[oob_fill]),
    }


def _encode(function: str, arguments: dict[str, Any]) -> bytes:
    try:
        error, encoded = getattr(_driver(), function)(*arguments.values())
    except Exception as exception:  # no driver, or one that does not know the function
        raise RuntimeError(_refusal(function, str(exception), arguments)) from exception
    if error:
        raise RuntimeError(_refusal(function, error.name, arguments))
    return ctypes.string_at(int(encoded.getPtr()), NBYTES)


def replace_address(encoded: "Encoded", address: int) -> bytes:
    """Return a copy of an encoded map with another base address."""
    driver = _driver()
    copied = driver.CUtensorMap()
    ctypes.memmove(int(copied.getPtr()), bytes_of(encoded), NBYTES)
    (error,) = driver.cuTensorMapReplaceAddress(copied, address)
    if error:
        raise RuntimeError(
            f"cuTensorMapReplaceAddress failed: {error.name}, for the address {address:#x}"
        )
    return ctypes.string_at(int(copied.getPtr()), NBYTES)


def bytes_of(encoded: "Encoded") -> bytes:
    """Return the 128 bytes of an encoded map."""
    if isinstance(encoded, bytes):
        return encoded
    return ctypes.string_at(address_of(encoded), NBYTES)


def descriptor_of(encoded: "Encoded") -> "TensorMapDescriptor":
    """Return an encoded map as the object that numba-cuda and cuda.core launch with."""
    if not isinstance(encoded, bytes):
        return encoded
    return _descriptor(encoded)


@functools.cache
def _option(enumeration: str, prefix: str, name: str) -> Any:
    return getattr(getattr(_driver(), enumeration), f"CU_TENSOR_MAP_{prefix}_{name}")


def _refusal(function: str, problem: str, arguments: dict[str, Any]) -> str:
    dump = "\n".join(f"  {name} = {value}" for name, value in arguments.items())
    return (
        f"{function} failed: {problem}. The arguments keep every rule known to us, so "
        "look first at the set-up: a driver for CUDA 12.0 or newer, a GPU of compute capability "
        "9.0 or newer, and a context that is current on this thread (cuda.core.Device()"
        f".set_current()). Its arguments, innermost axis first:\n{dump}"
    )


def _descriptor(source: int | bytes) -> Any:
    """Put encoded bytes, or those at an address, into a descriptor of exactly cuda.core's class.

    The launcher takes no other class by value, and the class has no constructor from bytes. Where
    its bytes lie is told by the launcher's own preparation of a kernel argument.
    """
    TensorMapDescriptor, _ = _launcher_classes()
    descriptor = TensorMapDescriptor.__new__(TensorMapDescriptor)
    ctypes.memmove(address_of(descriptor), source, NBYTES)
    return descriptor


def address_of(descriptor: Any) -> int:
    """Return the address of the 128 bytes in a descriptor."""
    TensorMapDescriptor, ParamHolder = _launcher_classes()
    holder = ParamHolder((descriptor,))
    target = ctypes.c_void_p.from_address(holder.ptr).value or 0
    if not 0 <= target - id(descriptor) <= TensorMapDescriptor.__basicsize__ - NBYTES:
        raise RuntimeError(
            "this version of cuda.core keeps a descriptor's bytes outside of the object; "
            "numba_tma needs a version that keeps them inside, e.g. 1.2"
        )
    return target


@functools.cache
def _launcher_classes() -> tuple[Any, Any]:
    from cuda.core._kernel_arg_handler import ParamHolder
    from cuda.core._tensor_map import TensorMapDescriptor

    return TensorMapDescriptor, ParamHolder
