"""Names for annotations, for arguments that Python's own types cannot describe.

Each name is an alias: type checkers see the type that it stands for, readers see what is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

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
#: A device function, which kernels call.
DeviceFunction: TypeAlias = Any
#: The types of a kernel's arguments: a tuple of Numba types, a signature, or its text.
Signature: TypeAlias = Any
#: A compute capability, with "a" or "f" for the architecture- or family-specific target.
ComputeCapability: TypeAlias = tuple[int, int] | tuple[int, int, str]

# In kernels:

#: A tile in shared memory: a `SharedTile`.
SharedMemory: TypeAlias = Any
#: An mbarrier in shared memory: a `Barrier`, or the `barrier` of a stage.
BarrierLike: TypeAlias = Any
#: A `CachePolicy` or the result of a createpolicy instruction; None for the default policy.
CacheHint: TypeAlias = Any
#: A bit for each block of the cluster; None for this block alone.
BlockMask: TypeAlias = Any

#: An integer of a kernel, of any width.
Integer: TypeAlias = int | np.integer[Any]
#: A floating-point number of a kernel, of any width.
Real: TypeAlias = float | np.floating[Any]
#: An address in global memory, in bytes.
Address: TypeAlias = int | np.integer[Any]
#: A tuple of integers, in the array's axis order.
Coordinates: TypeAlias = Any
#: The numbers of rows: a tuple of integers, or an array of integers.
RowNumbers: TypeAlias = Any
#: A vector of registers: loads return it, and arithmetic takes it element by element.
Registers: TypeAlias = Any
