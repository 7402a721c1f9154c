"""The driver's part: 128 encoded bytes inside the one object that a launch passes by value."""

import ctypes
import functools
from typing import TYPE_CHECKING, Any

from .dtypes import DType
from .layout import Swizzle

if TYPE_CHECKING:
    from cuda.core._tensor_map import TensorMapDescriptor

# What the options are called in the driver's enumerations.
L2_PROMOTION = {None: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}
OOB_FILL = {"zeros": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}
INTERLEAVE = {None: "NONE", 16: "16B", 32: "32B"}
SWIZZLE = {
    Swizzle.NONE: "NONE",
    Swizzle.B32: "32B",
    Swizzle.B64: "64B",
    Swizzle.B128: "128B",
}

NBYTES = 128


@functools.cache
def _driver() -> Any:
    from cuda.bindings import driver

    return driver


def current_device() -> int:
    """Ordinal of the GPU whose context is current on this thread; -1 if there is none."""
    try:
        error, device = _driver().cuCtxGetDevice()
    except RuntimeError:  # no driver on this machine
        return -1
    return -1 if error else int(device)


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
) -> "TensorMapDescriptor":
    """Encode a tensor map. This is where NumPy's axis order becomes the hardware's, reversed."""
    driver = _driver()
    u32, u64 = driver.cuuint32_t, driver.cuuint64_t
    arguments = {
        "tensorDataType": _option("CUtensorMapDataType", "DATA_TYPE", dtype.tensor_map),
        "tensorRank": len(shape),
        "globalAddress": address,
        "globalDim": [u64(n) for n in shape[::-1]],
        # The innermost stride is implied. Of rank 1 none is read, but an empty list would become
        # a null pointer, of which the driver's manual does not say that it is allowed.
        "globalStrides": [u64(n) for n in strides[-2::-1] or (16,)],
        "boxDim": [u32(n) for n in box[::-1]],
        "elementStrides": [u32(n) for n in element_strides[::-1]],
        "interleave": _option("CUtensorMapInterleave", "INTERLEAVE", INTERLEAVE[interleave]),
        "swizzle": _option("CUtensorMapSwizzle", "SWIZZLE", SWIZZLE[swizzle]),
        "l2Promotion": _option(
            "CUtensorMapL2promotion", "L2_PROMOTION", L2_PROMOTION[l2_promotion]
        ),
        "oobFill": _option("CUtensorMapFloatOOBfill", "FLOAT_OOB_FILL", OOB_FILL[oob_fill]),
    }
    try:
        error, encoded = driver.cuTensorMapEncodeTiled(*arguments.values())
    except Exception as exception:  # no driver, or one that does not know the function
        raise RuntimeError(_refusal(str(exception), arguments)) from exception
    if error:
        raise RuntimeError(_refusal(error.name, arguments))
    return _descriptor(int(encoded.getPtr()))


def replace_address(descriptor: "TensorMapDescriptor", address: int) -> "TensorMapDescriptor":
    """Return a copy of an encoded map with another base address."""
    driver = _driver()
    copied = driver.CUtensorMap()
    ctypes.memmove(int(copied.getPtr()), address_of(descriptor), NBYTES)
    (error,) = driver.cuTensorMapReplaceAddress(copied, address)
    if error:
        raise RuntimeError(
            f"cuTensorMapReplaceAddress failed: {error.name}, for the address {address:#x}"
        )
    return _descriptor(int(copied.getPtr()))


@functools.cache
def _option(enumeration: str, prefix: str, name: str) -> Any:
    return getattr(getattr(_driver(), enumeration), f"CU_TENSOR_MAP_{prefix}_{name}")


def _refusal(problem: str, arguments: dict[str, Any]) -> str:
    dump = "\n".join(f"  {name} = {value}" for name, value in arguments.items())
    return (
        f"cuTensorMapEncodeTiled failed: {problem}. The arguments keep every rule known to us, so "
        "look first at the set-up: a driver for CUDA 12.0 or newer, a GPU of compute capability "
        "9.0 or newer, and a context that is current on this thread (cuda.core.Device()"
        f".set_current()). Its arguments, innermost axis first:\n{dump}"
    )


def _descriptor(source: int) -> Any:
    """Put the encoded bytes at `source` into a descriptor of exactly cuda.core's class.

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
