"""Gradients of RMSNorm and LayerNorm: dx row by row, dweight and dbias column by column.

Cost model: x and dy are read once and dx is written once. Blocks stay, and take every so many rows:
each thread adds up dweight and dbias of its columns in registers. Their sums over the blocks are
made by a second kernel in one order, so that the same input gives the same bits.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import device_function
from numba_tma.device.clusters import cluster, cluster_sync
from numba_tma.device.row_share import (
    Share,
    from_float,
    load_cached,
    load_global,
    store_global,
    store_sums,
    to_float,
    zeros,
)
from numba_tma.device.shared import shared_barriers, shared_tile
from numba_tma.device.vectors import four, total
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.environment import simulated
from numba_tma.kernels._host import launching as _host
from numba_tma.kernels._host.launching import Matrix, empty_like, launched_again
from numba_tma.kernels.rows import columns as _columns
from numba_tma.kernels.rows import launching as _row_launch
from numba_tma.kernels.rows.launching import optional
from numba_tma.kernels.rows.operation import Plan, lanes_sum, meeting, meeting_places

FLOAT = Share(as_dtype("f32"), 4, 1, 1, True)  # one statistic


@device_function
def combine_two(part: Any, lanes: Any, scalar: Any) -> Any:
    """Add the first two sums."""
    zero = np.float32(0)
    return four(lanes_sum(part[0], lanes), lanes_sum(part[1], lanes), zero, zero)


@functools.cache
def backward_kernel(share: Share, plan: Plan, centred: bool, weighted: bool, sums: int) -> Any:
    """Return the kernel for LayerNorm (`centred`) or RMSNorm.

    `sums` is 0, 1 to add up dweight, 2 for dbias as well.
    """
    SHARE, BLOCKS, STEP = share, plan.cluster, share.step * share.count
    SCRATCH, PEERS = meeting_places(plan.threads, plan.cluster, turns=2)
    meet = meeting(combine_two, plan.threads, plan.cluster)
    CENTRED, WEIGHTED, SUMS, ROW = centred, weighted, sums, FLOAT

    def norm_backward(  # type: ignore[no-untyped-def]
        dy,
        dy_stride,
        x,
        x_stride,
        weight,
        mean,
        rstd,
        dx,
        dx_stride,
        weight_sums,
        bias_sums,
        rows,
        accesses,
        columns,
    ):
        scratch, peers, heard = shared_tile(SCRATCH), shared_tile(PEERS), shared_barriers(2)
        thread = cuda.threadIdx.x
        rank = 0
        if BLOCKS > 1:
            rank = ptx.cluster_ctarank()
            if thread == 0:
                heard.init(1)
                ptx.fence_mbarrier_init()
            cluster_sync()
        first = rank * STEP + thread
        block, blocks = cuda.blockIdx.x // BLOCKS, cuda.gridDim.x // BLOCKS
        zero = np.float32(0)
        if WEIGHTED:
            scale = to_float(SHARE, load_cached(SHARE, weight, first, accesses))
        dweight, dbias = zeros(SHARE), zeros(SHARE)
        turn = 0
        phase = 0
        for row in range(block, rows, blocks):
            gradient = to_float(SHARE, load_global(SHARE, dy + row * dy_stride, first, accesses))
            values = to_float(SHARE, load_global(SHARE, x + row * x_stride, first, accesses))
            factor = to_float(ROW, load_cached(ROW, rstd + 4 * row, 0, 1))[0]
            if CENTRED:
                values = values - to_float(ROW, load_cached(ROW, mean + 4 * row, 0, 1))[0]
            values = values * factor
            if SUMS > 0:
                dweight = dweight + gradient * values
            if SUMS > 1:
                dbias = dbias + gradient
            if WEIGHTED:
                gradient = gradient * scale
            part = four(total(gradient * values), total(gradient), zero, zero)
            whole = meet(part, scratch, peers, heard, turn, phase, zero)
            turn = 1 - turn
            if turn == 0:
                phase = 1 - phase
            gradient = gradient - values * (whole[0] / np.float32(columns))
            if CENTRED:
                gradient = gradient - whole[1] / np.float32(columns)
            result = from_float(SHARE, gradient * factor)
            store_global(SHARE, dx + row * dx_stride, first, accesses, result)
        if SUMS > 0:
            store_sums(SHARE, weight_sums + block * columns * 4, first, accesses, dweight)
        if SUMS > 1:
            store_sums(SHARE, bias_sums + block * columns * 4, first, accesses, dbias)

    kernel = cluster(BLOCKS)(norm_backward) if BLOCKS > 1 else norm_backward
    return cuda.jit(kernel) if simulated() else cuda.jit(launch_bounds=plan.threads)(kernel)


def plan_for(columns: int) -> Plan:
    """Return how rows are cut up: about 16 elements to a thread, which holds four numbers each."""
    threads = max(32, 1 << (-(-columns // 16) - 1).bit_length())
    blocks = min(8, max(1, threads // 512))
    return Plan(min(1024, threads // blocks), 1, blocks)


def rmsnorm_backward(
    dy: Any,
    x: Any,
    weight: Any = None,
    *,
    rstd: Any,
    dx: Any = None,
    dweight: Any = None,
    stream: Any = None,
    dtype: object = None,
    plan: Plan | None = None,
) -> Any:
    """Return the gradient of `rmsnorm` with respect to `x`.

    Parameters
    ----------
    dy
        Gradient with respect to the output: a device array (..., columns) of f32, f16 or bf16.
    x, weight
        What `rmsnorm` was given (with a residual: its `residual_out`).
    rstd
        What `rmsnorm` wrote there: float32, one for each row.
    dx
        Where to write; a new array like `x` if None. May be `dy` or `x`.
    dweight
        Where to write the gradient with respect to the weight: (columns,) of f32, f16 or bf16.
        Not computed if None.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        What the bits of the arrays mean where their own type cannot say it: bf16 held as uint16.
    plan
        How to cut the work up; about 16 elements to a thread if None.

    Returns
    -------
    Any
        `dx`. Everything is computed in float32 and rounded once.

    Raises
    ------
    ValueError
        If shapes or types disagree.
    """
    dx = empty_like(x) if dx is None else dx
    arrays = (dy, x, dx, weight, None, rstd, dweight, None)
    _backward(arrays, stream, (), "rmsnorm_backward", dtype, plan)
    return dx


def layernorm_backward(
    dy: Any,
    x: Any,
    weight: Any = None,
    *,
    mean: Any,
    rstd: Any,
    dx: Any = None,
    dweight: Any = None,
    dbias: Any = None,
    stream: Any = None,
    dtype: object = None,
    plan: Plan | None = None,
) -> Any:
    """Return the gradient of `layernorm` with respect to `x`.

    Parameters are those of `rmsnorm_backward`, and `mean`, what `layernorm` wrote there, and
    `dbias`, where to write the gradient with respect to the bias.
    """
    dx = empty_like(x) if dx is None else dx
    arrays = (dy, x, dx, weight, mean, rstd, dweight, dbias)
    _backward(arrays, stream, (), "layernorm_backward", dtype, plan)
    return dx


@launched_again
def _backward(
    arrays: tuple[Any, ...],
    stream: Any,
    numbers: tuple[()],
    name: str,
    dtype: object,
    plan: Plan | None,
) -> list[Any]:
    """Launch, and return the workspaces."""
    centred = name == "layernorm_backward"
    *three, w, m, r, dw, db = arrays
    gradient, source, target = (Matrix(n, a, dtype) for n, a in zip(("dy", "x", "dx"), three))
    weight = optional("weight", w, dtype)
    mean, rstd = Matrix("mean", m) if centred else None, Matrix("rstd", r)
    wanted = [optional(n, a, dtype) for n, a in (("dweight", dw), ("dbias", db))]
    _row_launch.check(name, source, dy=gradient, dx=target)
    _row_launch.check_vector(name, "weight", weight, source)
    _row_launch.check_statistics(name, source, mean=mean, rstd=rstd)
    for n, array in zip(("dweight", "dbias"), wanted):
        if array is not None and array.shape != (source.columns,):
            raise ValueError(
                f"{name}(): {n} has shape {array.shape}, but x has {source.columns} columns; pass "
                f"an array of shape ({source.columns},)"
            )
    if source.nbytes == 0:
        return []
    plan = plan_for(source.columns) if plan is None else plan
    width = _row_launch.access_width(source, gradient, target, weight)
    share = _row_launch.share_of(source.columns, source.rows, source.dtype, width, plan)
    groups = min(source.rows, max(1, 2 * _host.multiprocessors() // plan.cluster))
    sums = 2 if wanted[1] is not None else int(wanted[0] is not None)
    spaces = [_columns.workspace(groups, source.columns) for _ in range(sums)]
    places = [Matrix("sums", s) for s in spaces]
    kernel = backward_kernel(share, plan, centred, weight is not None, sums)
    _host.launch(
        kernel,
        groups * plan.cluster,
        plan.threads,
        stream,
        gradient.address,
        gradient.row_stride,
        source.address,
        source.row_stride,
        weight.address if weight is not None else 0,
        mean.address if mean is not None else 0,
        rstd.address,
        target.address,
        target.row_stride,
        *(places[i].address if i < sums else 0 for i in range(2)),
        source.rows,
        source.columns * source.dtype.itemsize // width,
        source.columns,
    )
    for place, array in zip(places, wanted):
        if array is not None:
            _columns.add_rows(place, array, stream)
    return spaces
