"""The host's half of kernels over rows: what is read and checked, which kernel runs, the launch."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.host.arrays import Array, check_same
from numba_tma.host.cached_kernel import CachedKernel, Named, shipped
from numba_tma.host.dtypes import DType
from numba_tma.host.values import NOT_NEGATIVE, Rule, checked, instance, optional
from numba_tma.kernels._host.fill import fill
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.memo import Wrapper, launched_again
from numba_tma.kernels._host.outputs import check_outputs, empty_like
from numba_tma.kernels.rows.plan import (
    UNALIGNED,
    RowArrays,
    RowMemory,
    RowOptions,
    RowPlan,
    RowSizes,
    plan_for,
    share_of,
)

FLOATS = ("f32", "f16", "bf16")
PLAN = optional(instance(RowPlan))
L2_BYTES = 48 << 20  #: of the L2 cache of an H100 or H200, 50 MB, less a few


rows_in_shared = shipped("numba_tma.kernels.rows.kernel", "rows_in_shared")
rows_in_registers = shipped("numba_tma.kernels.rows.kernel", "rows_in_registers")
unaligned_in_shared = shipped("numba_tma.kernels.rows.unaligned", "unaligned_in_shared")
unaligned_in_registers = shipped("numba_tma.kernels.rows.unaligned", "unaligned_in_registers")


@dataclass(frozen=True, eq=False)  # one object per function, compared by identity
class RowFunction:
    """What the host knows of an operation; `RowOperation` has its device functions.

    Parameters
    ----------
    name
        The public function.
    module, attribute
        Where the `RowOperation` is, below ``numba_tma.kernels.rows``.
    scalar
        Name of the argument that is the `scalar` of its functions, and what it may be.
    of_nothing
        The statistics of a row without elements.
    """

    name: str
    module: str
    attribute: str
    scalar: tuple[str, Rule] = ("eps", NOT_NEGATIVE)
    of_nothing: tuple[float, float] = (math.nan, math.nan)

    @property
    def operation(self) -> Named:
        """The `RowOperation`, which is imported where a kernel is compiled."""
        return Named(f"numba_tma.kernels.rows.{self.module}", self.attribute)


class RowOperands(NamedTuple):
    """The arrays of a call, as they were read; None for one that is not given."""

    x: Array
    y: Array | None = None
    weight: Array | None = None
    bias: Array | None = None
    residual: Array | None = None
    residual_out: Array | None = None
    statistics: tuple[Array | None, Array | None] = (None, None)

    @property
    def options(self) -> RowOptions:
        """What the call has besides `x`."""
        first, second = self.statistics
        return RowOptions(
            weight=self.weight is not None,
            bias=self.bias is not None,
            residual=self.residual is not None,
            residual_out=self.residual_out is not None,
            statistics=(first is not None, second is not None),
            output=self.y is not None,
            index=second is not None and second.dtype.name == "i64",
        )


def read(function: str, name: str, array: DeviceArray, dtype: DTypeLike | None = None) -> Array:
    """Read an argument whose last axis must be contiguous."""
    given = Array.read(function, name, array, dtype)
    given.as_rows()  # raises for an array that is not one sequence of rows
    return given


def read_optional(
    function: str, name: str, array: DeviceArray | None, dtype: DTypeLike | None = None
) -> Array | None:
    """Read such an argument, which may be None."""
    return None if array is None else read(function, name, array, dtype)


def read_rows(
    function: str, name: str, array: DeviceArray, dtype: DTypeLike | None = None
) -> Array:
    """Read rows of f32, f16 or bf16."""
    given = Array.read(function, name, array, dtype)
    given.as_rows()  # raises for an array that is not one sequence of rows
    if given.dtype.name not in FLOATS:
        raise ValueError(f"{function}(): {name} is {given.dtype}; it works on f32, f16 and bf16")
    return given


def check_vector(vector: Array | None, x: Array) -> None:
    """Raise unless an array has one element of the type of `x` for each of its columns."""
    columns = x.shape[-1]
    if vector is not None and (vector.shape != (columns,) or vector.dtype is not x.dtype):
        raise vector.error(
            f"has shape {vector.shape} of {vector.dtype}, but x has {columns} columns of "
            f"{x.dtype}; pass a {vector.name} of shape ({columns},) of {x.dtype}"
        )


def check_statistics(statistics: tuple[Array | None, ...], x: Array) -> None:
    """Raise unless each array has one float32 for each row of `x`, without gaps."""
    for array in statistics:
        if array is None:
            continue
        gaps = "" if array.is_contiguous else " with gaps"
        if array.shape != x.shape[:-1] or array.dtype.name != "f32" or gaps:
            raise array.error(
                f"has shape {array.shape} of {array.dtype}{gaps}; it takes one f32 for each row "
                f"of x: pass a contiguous float32 array of shape {x.shape[:-1]}"
            )


def normaliser(op: RowFunction, *names: str) -> Wrapper:
    """Return the private half of the function `op.name` (`launched_again`), which returns `out`.

    Parameters
    ----------
    op
        The operation. Its functions' `scalar` is the one number of a call.
    *names
        Names of the arrays of a call, in its order: parameters of `normalise`.
    """

    def prepare(
        arrays: tuple[DeviceArray | None, ...],
        stream: StreamLike,
        numbers: tuple[float],
        dtype: DTypeLike | None,
        plan: RowPlan | None,
    ) -> None:
        normalise(op, stream, numbers[0], dtype, plan, **dict(zip(names, arrays)))

    def new(
        arrays: tuple[DeviceArray, ...], dtype: DTypeLike | None, plan: RowPlan | None
    ) -> DeviceArray:
        return empty_like(op.name, "x", arrays[names.index("x")])

    return launched_again(op.name, *names, new=new)(prepare)


def normalise(
    op: RowFunction,
    stream: StreamLike,
    scalar: float,
    dtype: DTypeLike | None,
    plan: RowPlan | None,
    *,
    x: DeviceArray,
    out: DeviceArray,
    weight: DeviceArray | None = None,
    bias: DeviceArray | None = None,
    residual: DeviceArray | None = None,
    residual_out: DeviceArray | None = None,
    **statistics: DeviceArray | None,
) -> None:
    """Read and check the arguments of the function `op.name`, and launch its kernel.

    Parameters
    ----------
    op, scalar
        The operation, and the `scalar` of its functions: eps of a norm, scale of a softmax.
    stream, dtype, plan, x, out, weight, bias, residual, residual_out
        Arguments of the public function.
    **statistics
        Up to two arguments for the statistics of `op`, in its order.
    """
    name = op.name
    scalar = checked(name, op.scalar[0], scalar, op.scalar[1])
    checked(name, "plan", plan, PLAN)
    source, target = read_rows(name, "x", x, dtype), read(name, "out", out, dtype)
    first, second, *_ = *(read_optional(name, n, a) for n, a in statistics.items()), None, None
    operands = RowOperands(
        x=source,
        y=target,
        weight=read_optional(name, "weight", weight, dtype),
        bias=read_optional(name, "bias", bias, dtype),
        residual=read_optional(name, "residual", residual, dtype),
        residual_out=read_optional(name, "residual_out", residual_out, dtype),
        statistics=(first, second),
    )
    check_same(source, target, operands.residual, operands.residual_out)
    check_vector(operands.weight, source)
    check_vector(operands.bias, source)
    check_statistics(operands.statistics, source)
    check_outputs(
        [target, operands.residual_out, first, second],
        [source, operands.weight, operands.bias, operands.residual],
        in_place=[source, operands.residual],
    )
    run(op, operands, scalar=scalar, stream=stream, plan=plan)


def run(
    op: RowFunction,
    operands: RowOperands,
    *,
    scalar: float = 0.0,
    stream: StreamLike = None,
    plan: RowPlan | None = None,
) -> None:
    """Launch the kernel of an operation on operands that have been checked."""
    x, y, weight, bias, residual, residual_out, statistics = operands
    if x.size == 0:
        for array, value in zip(statistics, op.of_nothing):
            fill(array, value, stream)
        return
    rows, columns = x.as_rows().shape
    width = row_width([x, y, residual, residual_out], [weight, bias])
    kernel, blocks, threads = prepared(op, rows, columns, x.dtype, width, plan, operands.options)
    arrays = RowArrays(
        x=rows_of(x),
        residual=rows_of(residual),
        weight=address_of(weight),
        bias=address_of(bias),
        y=rows_of(y),
        total=rows_of(residual_out),
        statistics=(address_of(statistics[0]), address_of(statistics[1])),
    )
    accesses = columns if width == UNALIGNED else columns * x.itemsize // width
    sizes = RowSizes(rows, accesses, columns)
    launch(kernel, blocks, threads, stream, arrays, sizes, np.float32(scalar))


@functools.lru_cache(4096)
def prepared(
    op: RowFunction,
    rows: int,
    columns: int,
    dtype: DType,
    width: int,
    plan: RowPlan | None,
    options: RowOptions,
) -> tuple[CachedKernel, int, int]:
    """Return the kernel, and the blocks and threads of its launch.

    Rows that the L2 cache can hold, all of them, are not to be evicted last: results would have to
    leave it for them.
    """
    narrow = width < 16 if width != UNALIGNED else plan is not None and not plan.slot
    if plan is None or (narrow and plan.bulk):  # bulk copies move multiples of 16 B
        plan = plan_for(op.name, columns, dtype.itemsize, width, options)
        if not plan.bulk and rows * columns * dtype.itemsize <= L2_BYTES:
            plan = replace(plan, cache="allocate")
    kernel = kernel_for(op, rows, columns, dtype, width, plan, options)
    return kernel, -(-rows // plan.rows) * plan.cluster, plan.block_threads


def kernel_for(
    op: RowFunction,
    rows: int,
    columns: int,
    dtype: DType,
    width: int,
    plan: RowPlan,
    options: RowOptions,
) -> CachedKernel:
    """Return the kernel of a plan: `rows_in_shared` if it has slots, or `rows_in_registers`."""
    aligned = width != UNALIGNED
    if plan.slot:
        in_shared = rows_in_shared if aligned else unaligned_in_shared
        return in_shared(op.operation, dtype, columns * dtype.itemsize, plan, options)
    in_registers = rows_in_registers if aligned else unaligned_in_registers
    return in_registers(op.operation, share_of(columns, rows, dtype, width, plan), plan, options)


def row_width(rows: list[Array | None], vectors: list[Array | None]) -> int:
    """Return in which width a call accesses its rows, and the vectors that scale and shift them.

    That is the width in which all of them can be accessed, or `UNALIGNED` if that is below 8 B and
    the rows of all arrays begin at the same distance from a multiple of 16 B. Two kinds of rows
    take too many instructions that way, and were faster in small accesses: those of up to 64
    columns that are written, since most of their accesses have an end; and short ones with both a
    weight and a bias.
    """
    width = access_width(*rows, *vectors)
    given = [array for array in rows if array is not None]
    begins = {array.address % 16 for array in given}
    steps = {array.as_rows().strides[0] % 16 for array in given if array.as_rows().shape[0] > 1}
    (_, columns), itemsize = given[0].as_rows().shape, given[0].itemsize
    many = None not in vectors and columns * itemsize <= 32768
    ends = len(given) > 1 and columns <= 64
    is_alike = len(begins) == 1 and len(steps) <= 1
    return UNALIGNED if width < 8 and is_alike and not many and not ends else width


def access_width(*arrays: Array | None) -> int:
    """Return the largest width, up to 16 B, in which all rows of all arrays can be accessed."""
    width = 16
    for array in arrays:
        if array is None:
            continue
        rows = array.as_rows()
        while rows.alignment % width or rows.shape[1] * rows.itemsize % width:
            width //= 2
    return width


def rows_of(array: Array | None) -> RowMemory:
    """Return where the rows of an array are, for a kernel."""
    return (
        RowMemory(0, 0) if array is None else RowMemory(array.address, array.as_rows().strides[0])
    )


def address_of(array: Array | None) -> int:
    """Return the address of an array, or 0."""
    return 0 if array is None else array.address
