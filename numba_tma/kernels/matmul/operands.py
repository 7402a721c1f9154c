"""How a matmul reads its operands: where they lie, or after a copy or a transpose.

This file alone decides what is copied first. TMA loads rows of contiguous elements, of any length,
that start at multiples of 16 B. The tensor cores read tiles that are contiguous along K; 16-bit
types also along M or N, and Blackwell's tensor cores 8-bit floats, too. Operands that TMA cannot
address are copied to padded rows. Operands whose layout the tensor cores do not read are
transposed.

Matrices are `Array` of shape (batch, rows, columns) here, of any strides.
"""

from __future__ import annotations

import numpy as np

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.host.arrays import CHUNK, Array, option_dtype
from numba_tma.host.dtypes import DType
from numba_tma.kernels._host.workspace import device_memory
from numba_tma.kernels.copy.api import copy
from numba_tma.kernels.transpose.api import transpose

Workspace = list[DeviceArray]  #: device memory that launches need besides their arguments
Kinds = tuple[DType | None, DType | None]  #: element types of a and b that `dtype` names

#: Types that the tensor cores of every GPU also read along M or N.
MN_MAJOR = ("f16", "bf16")

LINE = 128  #: bytes of a cache line: a row of a box that begins inside of one takes two


def read_matrices(
    function: str, name: str, array: DeviceArray, dtype: DTypeLike | None = None
) -> Array:
    """Read an argument (..., rows, columns) of a public function; it keeps its axes.

    Raises
    ------
    ValueError
        If it has fewer than two axes, a negative stride, or no single stride for its leading axes.
    """
    given = Array.read(function, name, array, dtype)
    if any(stride < 0 for stride in given.strides):
        raise given.error(
            f"has shape {given.shape} and strides {given.strides} B; TMA takes none below 0: pass "
            "a contiguous copy"
        )
    given.as_matrices()  # raises
    return given


def operand_dtypes(function: str, dtype: DTypeLike | Kinds | None) -> Kinds:
    """Return the element types that `dtype` names for a and for b; None for None."""
    kinds = dtype if isinstance(dtype, tuple) else (dtype, dtype)
    if len(kinds) != 2:
        raise ValueError(
            f"{function}(): dtype is a tuple of {len(kinds)}; it is one type, or a pair for a and b"
        )
    a, b = (option_dtype(function, "dtype", kind) for kind in kinds)
    return a, b


def as_matrices(array: Array) -> Array:
    """Return (batch, rows, columns); matrices that are expanded from one are one."""
    found = array.as_matrices()
    if found.strides[0]:
        return found
    return found.view((1, *found.shape[1:]), found.strides)


def elements(operand: Array) -> int:
    """Return the elements along K of an operand (..., K), whose last axis may count bytes."""
    return operand.dtype.element_shape(operand.shape)[-1]


def repeats(array: Array) -> bool:
    """Return whether an axis is expanded, so that elements share memory."""
    return any(n > 1 and stride == 0 for n, stride in zip(array.shape, array.strides))


def is_one(matrices: Array) -> bool:
    """Return whether one stride leads through all rows of all matrices."""
    (batch, rows, _), (each, pitch, _) = matrices.shape, matrices.strides
    return batch == 1 or rows == 1 or each == rows * pitch


def as_one(matrices: Array) -> Array:
    """Return all rows as one matrix; see `is_one`."""
    batch, rows, columns = matrices.shape
    pitch = matrices.strides[0 if rows == 1 else 1]
    step = matrices.strides[2]
    return matrices.view((1, batch * rows, columns), (pitch * batch * rows, pitch, step))


def map_source(matrices: Array, dtype: DType | None = None) -> Array:
    """Return matrices as a source of tensor maps, as `dtype`.

    Maps of no elements, and strides of axes with one element that are no multiple of 16 B, are
    refused by the driver; both are replaced.
    """
    (batch, rows, columns), (each, pitch, step) = matrices.shape, matrices.strides
    size = matrices.itemsize
    if rows <= 1:
        pitch = -(-columns * size // CHUNK) * CHUNK
    if batch == 1:
        each = max(1, rows) * pitch
    if matrices.has_contiguous_rows:
        step = size
    return matrices.view((batch, max(1, rows), max(1, columns)), (each, pitch, step), dtype=dtype)


def padded(shape: tuple[int, ...], dtype: DType, workspace: Workspace) -> Array:
    """Return new memory for (batch, rows, columns) that TMA loads, and stores with its padding.

    Rows begin at cache lines, unless they are so short that padding would be much of the memory.
    """
    *outer, columns = shape
    size = dtype.storage.itemsize
    unit = (LINE if columns * size > 8 * LINE else CHUNK) // size
    pitch = max(1, -(-columns // unit)) * unit
    memory = device_memory((*(max(1, n) for n in outer), pitch), np.dtype(f"u{size}"))
    workspace.append(memory)
    new = Array.read("matmul", "workspace", memory)
    return new.view(shape, new.strides, dtype=dtype)


def move(source: Array, target: Array, stream: StreamLike) -> None:
    """Copy matrices of contiguous rows to others of the same shape."""
    if not source.size:
        return
    if is_one(source) and is_one(target):
        copy(as_one(source).as_bits(), as_one(target).as_bits(), stream=stream)
        return
    for i in range(source.shape[0]):
        one, other = (
            m.as_bits().view(m.shape[1:], m.strides[1:], offset=i * m.strides[0])
            for m in (source, target)
        )
        copy(one, other, stream=stream)


def as_loadable(matrices: Array, stream: StreamLike, workspace: Workspace) -> Array:
    """Return matrices of contiguous rows as TMA loads them: as they are, or copied."""
    if matrices.is_loadable and matrices.size:
        return matrices
    copied = padded(matrices.shape, matrices.dtype, workspace)
    move(matrices, copied, stream)
    return copied


def contiguous_axis(operand: Array) -> tuple[Array, str]:
    """Return an operand (batch, rows, K) and "K", or it as (batch, K, rows) and "MN".

    Its last axis is then contiguous.

    Raises
    ------
    ValueError
        If neither of its last two axes is.
    """
    if operand.has_contiguous_rows:
        return operand, "K"
    turned = operand.transposed()
    if turned.has_contiguous_rows:
        return turned, "MN"
    raise operand.error(
        f"has shape {operand.shape} and strides {operand.strides[1:]} B: one of its last two axes "
        "must be contiguous; pass a contiguous copy"
    )


def loadable_axis(
    operand: Array, mn_major: tuple[str, ...] = MN_MAJOR
) -> tuple[Array, str] | None:
    """Return what `as_operand` does for an operand that TMA loads as it lies; None for others."""
    turned = operand.transposed()
    if operand.is_loadable and operand.size:
        return operand, "K"
    if operand.dtype.name in mn_major and turned.is_loadable and operand.size:
        return turned, "MN"
    return None


def major_axis(operand: Array) -> str:
    """Return the major axis that `as_operand` gives an operand: "K" or "MN"."""
    return contiguous_axis(operand)[1] if operand.dtype.name in MN_MAJOR else "K"


def as_operand(
    operand: Array,
    stream: StreamLike,
    workspace: Workspace,
    mn_major: tuple[str, ...] = MN_MAJOR,
) -> tuple[Array, str]:
    """Return an operand (batch, rows, K) as the tensor cores read it, and its major axis.

    The result is (batch, rows, K) and "K", or (batch, K, rows) and "MN". `mn_major` are the types
    that the kernel reads along M or N.

    Raises
    ------
    ValueError
        If neither of its last two axes is contiguous.
    """
    as_it_lies = loadable_axis(operand, mn_major)
    if as_it_lies is not None:
        return as_it_lies
    found, major = contiguous_axis(operand)
    if major == "K" or operand.dtype.name in mn_major:
        return as_loadable(found, stream, workspace), major
    target = padded(operand.shape, operand.dtype, workspace)
    transpose(found.as_bits(), out=target.as_bits(), stream=stream)
    return target, "K"
