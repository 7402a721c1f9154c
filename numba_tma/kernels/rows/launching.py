"""How the host runs kernels over rows: what it checks, the plan it takes, and the launch."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numba_tma.device.row_share import Share
from numba_tma.host.dtypes import DType
from numba_tma.kernels._host import launching as _host
from numba_tma.kernels._host.launching import Matrix
from numba_tma.kernels._host.limits import SHARED_BYTES
from numba_tma.kernels.rows.at_once import at_once
from numba_tma.kernels.rows.operation import Operation, Options, Plan, block_part
from numba_tma.kernels.rows.ring import row_per_stage
from numba_tma.kernels.rows.staged import staged_rows


def access_width(*matrices: Matrix | None) -> int:
    """Return by how many bytes, up to 16, all rows can be accessed."""
    width = 16
    for m in matrices:
        if m is None:
            continue
        row = m.columns * m.dtype.itemsize
        stride = m.row_stride if m.rows > 1 else 0
        while m.address % width or row % width or stride % width:
            width //= 2
    return width


def share_of(columns: int, rows: int, element: Any, width: int, plan: Plan) -> Share:
    """Return what a thread holds of rows of `columns`."""
    accesses = columns * element.itemsize // width
    sharing = plan.threads * plan.cluster
    count = -(-accesses // sharing)
    whole = accesses == count * sharing and rows % plan.rows == 0
    return Share(element, width, count, plan.threads, whole, plan.cache)


PLAIN = Options()


def _kept(threads: int, **how: Any) -> Plan:
    """Return a plan whose rows the L2 cache keeps longest: what is written leaves it first."""
    return Plan(threads, cache="evict_last", **how)


def _staged(cluster: int, **how: Any) -> Plan:
    return _kept(512, cluster=cluster, bulk=True, slot=16384, **how)


_SHORT = {
    2048: Plan(32, 2),
    4096: Plan(128),
    8192: _kept(256),
    16384: _kept(512),
    32768: _kept(512, blocks=2),
}
_SOFTMAX = {
    **_SHORT,
    16384: _kept(256, bulk=True),
    32768: _kept(256, bulk=True),
    65536: _staged(1),
    131072: _staged(2, blocks=3),
    262144: _staged(4, blocks=3),
    524288: _staged(8, blocks=3),
}

#: What is fastest for rows of so many bytes, and for more than half of that.
PLANS: dict[str, dict[int, Plan]] = {
    "rmsnorm": {
        **_SHORT,
        65536: _staged(1, early=True),
        131072: _staged(2, blocks=3, early=True),
        262144: _staged(4, blocks=3, early=True),
        524288: _staged(8, blocks=3, early=True),
    },
    "layernorm": {
        **_SHORT,
        16384: _kept(256),
        32768: _kept(512),
        65536: _staged(1),
        131072: _staged(2, blocks=3, early=True),
        262144: _staged(4, blocks=3),
        524288: _staged(8, blocks=3),
    },
    "softmax": _SOFTMAX,
    "log_softmax": _SOFTMAX,
}


#: Elements of the longest row: 2,048 for each thread of 8 blocks.
LONGEST = 1 << 24


def plan_for(
    name: str, columns: int, itemsize: int, width: int = 16, options: Options = PLAIN
) -> Plan:
    """Return how the operation `name` cuts up rows of this length, accessed by `width` bytes.

    It is what `PLANS` has for it; else rows above 32 KB wait in shared memory, if they fit into
    that of 8 blocks, and of others a thread has about 32 elements.
    """
    nbytes, copies = columns * itemsize, 1 + options.residual
    full = 1 << (nbytes - 1).bit_length()
    plan = PLANS.get(name, {}).get(full)
    if width == 16:
        if plan and options.output and not options.residual and not options.residual_out:
            return plan
        blocks = min(8, max(1, copies * full // 65536))
        if nbytes > 32768 and copies * block_part(nbytes, blocks) <= SHARED_BYTES:
            return _staged(blocks)
    if columns > LONGEST:
        raise ValueError(
            f"{name}(): x has rows of {columns:,} elements; they are of up to {LONGEST:,}: cut "
            "them into shorter ones"
        )
    threads = 1 << max(0, -(-columns // 32) - 1).bit_length()
    if threads <= 32:
        return Plan(threads, 128 // threads)
    if threads <= 1024:
        return Plan(threads)
    blocks = min(8, threads // 512)
    return Plan(min(1024, threads // blocks), 1, blocks)


def kernel_for(
    op: Operation, rows: int, columns: int, dtype: DType, width: int, plan: Plan, options: Options
) -> Any:
    """Return the kernel that goes with a plan."""
    if plan.stages:
        return row_per_stage(op, dtype, columns * dtype.itemsize, plan, options)
    if plan.slot:
        return staged_rows(op, dtype, columns * dtype.itemsize, plan, options)
    return at_once(op, share_of(columns, rows, dtype, width, plan), plan, options)


def check(function: str, x: Matrix, **others: Matrix | None) -> None:
    """Raise unless `x` is of a type for rows, and the others have its shape and type."""
    if x.dtype.name not in ("f32", "f16", "bf16"):
        raise ValueError(f"{function}(): x is {x.dtype}; it works on f32, f16 and bf16")
    given = {name: matrix for name, matrix in others.items() if matrix is not None}
    _host.check_same(function, x=x, **given)


def check_vector(function: str, name: str, vector: Matrix | None, x: Matrix) -> None:
    """Raise unless an array has one element of the type of `x` for each of its columns."""
    if vector is not None and (vector.shape != (x.columns,) or vector.dtype is not x.dtype):
        raise ValueError(
            f"{function}(): {name} has shape {vector.shape} of {vector.dtype}, but x has "
            f"{x.columns} columns of {x.dtype}; pass a {name} of shape ({x.columns},) of {x.dtype}"
        )


def check_statistics(function: str, x: Matrix, **arrays: Matrix | None) -> None:
    """Raise unless an array has one float32 for each row of `x`, without gaps."""
    for name, array in arrays.items():
        if array is None:
            continue
        gaps = array.rows > 1 and array.row_stride != 4 * array.columns
        if array.shape != x.shape[:-1] or array.dtype.name != "f32" or gaps:
            raise ValueError(
                f"{function}(): {name} has shape {array.shape} of {array.dtype}"
                f"{' with gaps' if gaps else ''}; it takes one f32 for each row of x: pass a "
                f"contiguous float32 array of shape {x.shape[:-1]}"
            )


def optional(name: str, array: Any, dtype: object = None) -> Matrix | None:
    """Return where an array that may be absent lies."""
    return None if array is None else Matrix(name, array, dtype)


def normalise(
    op: Operation,
    stream: Any,
    numbers: tuple[float],
    dtype: object,
    plan: Plan | None,
    *,
    x: Any,
    out: Any,
    weight: Any = None,
    bias: Any = None,
    residual: Any = None,
    residual_out: Any = None,
    **statistics: Any,
) -> None:
    """Check the arrays that the function `op.name` was given, and launch it.

    `statistics` are the arrays for those of `op`, by the names of the parameters and in its order.
    """
    source, target = Matrix("x", x, dtype), Matrix("out", out, dtype)
    scale, shift = optional("weight", weight, dtype), optional("bias", bias, dtype)
    added = optional("residual", residual, dtype)
    summed = optional("residual_out", residual_out, dtype)
    kept = {name: optional(name, array) for name, array in statistics.items()}
    check(op.name, source, out=target, residual=added, residual_out=summed)
    check_vector(op.name, "weight", scale, source)
    check_vector(op.name, "bias", shift, source)
    check_statistics(op.name, source, **kept)
    first, second, *_ = *kept.values(), None, None
    run(
        op,
        source,
        target,
        residual=added,
        residual_out=summed,
        weight=scale,
        bias=shift,
        statistics=(first, second),
        scalar=numbers[0],
        stream=stream,
        plan=plan,
    )


def run(
    op: Operation,
    x: Matrix,
    y: Matrix | None,
    *,
    residual: Matrix | None = None,
    residual_out: Matrix | None = None,
    weight: Matrix | None = None,
    bias: Matrix | None = None,
    statistics: tuple[Matrix | None, Matrix | None] = (None, None),
    scalar: float = 0.0,
    stream: Any = None,
    plan: Plan | None = None,
) -> None:
    """Launch an operation on the rows of `x`."""
    if x.nbytes == 0:
        return
    width = access_width(x, y, residual, residual_out, weight, bias)
    flags = (
        weight is not None,
        bias is not None,
        residual is not None,
        residual_out is not None,
        (statistics[0] is not None, statistics[1] is not None),
        y is not None,
        statistics[1] is not None and statistics[1].dtype.name == "i64",
    )
    kernel, blocks, threads, draws = prepared(op, x.rows, x.columns, x.dtype, width, plan, flags)
    _host.launch(
        kernel,
        blocks,
        threads,
        stream,
        *(_counter(stream) if draws else ()),
        *_place(x),
        *_place(residual),
        weight.address if weight is not None else 0,
        bias.address if bias is not None else 0,
        *_place(y),
        *_place(residual_out),
        statistics[0].address if statistics[0] is not None else 0,
        statistics[1].address if statistics[1] is not None else 0,
        x.rows,
        x.columns * x.dtype.itemsize // width,
        x.columns,
        np.float32(scalar),
    )


@functools.lru_cache(4096)
def prepared(
    op: Operation, rows: int, columns: int, dtype: DType, width: int, plan: Plan | None, flags: Any
) -> tuple[Any, int, int, bool]:
    """Return the kernel, its blocks and threads, and whether it draws rows from a queue."""
    options = Options(*flags)
    if plan is None or (width < 16 and (plan.bulk or plan.stages)):  # bulk copies move 16 B
        plan = plan_for(op.name, columns, dtype.itemsize, width, options)
    kernel = kernel_for(op, rows, columns, dtype, width, plan, options)
    if plan.stages:
        return kernel, min(rows, plan.blocks * _host.multiprocessors()), plan.threads + 32, True
    return kernel, -(-rows // plan.rows) * plan.cluster, plan.threads * plan.rows, False


def _counter(stream: Any) -> tuple[Any]:
    return (_host.queue_counter(_host.current_device(), _host.stream_key(stream)),)


def _place(matrix: Matrix | None) -> tuple[int, int]:
    return (0, 0) if matrix is None else (matrix.address, matrix.row_stride)
