"""Names for annotations: what Python's own types cannot say about the arguments of this library.

Each name is an alias. A type checker sees what the alias stands for; a reader sees what is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

#: An array on the device: torch, CuPy, Numba, cuda.core, or any object with
#: ``__cuda_array_interface__`` or ``__dlpack__``.
DeviceArray: TypeAlias = Any
#: A Numba, torch, CuPy or cuda.core stream, or None for the default stream.
StreamLike: TypeAlias = Any
#: An element type: a NumPy dtype, a `DType`, or a name such as ``"bf16"``.
DTypeLike: TypeAlias = Any
#: Extents, coordinates or strides in the array's axis order.
Shape: TypeAlias = Sequence[int]
#: A kernel made by ``@cuda.jit``.
Kernel: TypeAlias = Any
#: A device function, as a kernel calls it.
DeviceFunction: TypeAlias = Any

# In kernels:

#: An integer of a kernel, of any width.
Integer: TypeAlias = int
#: A floating-point number of a kernel, of any width.
Real: TypeAlias = float
#: An address in global memory, in bytes.
Address: TypeAlias = int
#: A tuple of integers, in the array's axis order.
Coordinates: TypeAlias = Any
#: A vector of registers: what loads return, and arithmetic takes element by element.
Registers: TypeAlias = Any
