"""Gradients of RMSNorm and LayerNorm: dx row by row, dweight and dbias column by column.

Cost model: x and dy are read once and dx is written once. The blocks are persistent and stride over
the rows, so each thread adds dweight and dbias of its columns in registers. A second kernel adds
the sums of the blocks in a fixed order, so that equal inputs give equal bits.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import device_function
from numba_tma.device.combine import Exchange, combine_in_turns, exchange_tiles, lanes_sum
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
from numba_tma.host.annotations import (
    Address,
    DeviceArray,
    DeviceFunction,
    DTypeLike,
    Integer,
    Kernel,
    Real,
    Registers,
    StreamLike,
)
from numba_tma.host.arrays import Array, check_same
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.values import checked
from numba_tma.kernels._host import device
from numba_tma.kernels._host.fill import fill
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.memo import launched_again
from numba_tma.kernels._host.outputs import check_outputs, empty_like
from numba_tma.kernels._host.workspace import float_workspace
from numba_tma.kernels.rows import columns as _columns
from numba_tma.kernels.rows.kernel import compiled
from numba_tma.kernels.rows.launching import (
    FLOATS,
    PLAN,
    access_width,
    address_of,
    check_statistics,
    check_vector,
    read,
    read_optional,
    read_rows,
    rows_of,
)
from numba_tma.kernels.rows.plan import RowPlan, share_of
from numba_tma.kernels.rows.steps import RowMemory, RowSizes, no_store, nothing, row_of


class BackwardArrays(NamedTuple):
    """The arrays of a gradient's kernel, as in `RowArrays`: address 0 is no array."""

    dy: RowMemory
    x: RowMemory
    weight: Address
    mean: Address  #: One float32 per row.
    rstd: Address  #: One float32 per row.
    dx: RowMemory  #: The result.
    weight_sums: Address  #: A row of float32 per block, or per cluster: its sum for dweight.
    bias_sums: Address  #: The same for dbias.


@device_function
def add_two_sums(part: Registers, lanes: int, scalar: Real) -> Registers:
    """Add the two sums of neighbouring lanes."""
    zero = np.float32(0)
    return four(lanes_sum(part[0], lanes), lanes_sum(part[1], lanes), zero, zero)


@device_function
def two_sums(gradient: Registers, normal: Registers) -> Registers:
    """Return the thread's part, (sum of gradient * normal, sum of gradient, 0, 0)."""
    zero = np.float32(0)
    return four(total(gradient * normal), total(gradient), zero, zero)


@device_function
def load_row(
    share: Share, memory: RowMemory, row: Integer, first: Integer, limit: Integer
) -> Registers:
    """Load a thread's share of a row, in float32."""
    return to_float(share, load_global(share, row_of(memory, row), first, limit))


@device_function
def store_row(
    share: Share,
    memory: RowMemory,
    row: Integer,
    first: Integer,
    limit: Integer,
    values: Registers,
) -> None:
    """Round a thread's share of a row and store it."""
    store_global(share, row_of(memory, row), first, limit, from_float(share, values))


# ------------------------------------------------- features, and the functions without them

STATISTIC = Share(as_dtype("f32"), 4, 1, 1, True)


@device_function
def statistic(address: Address, row: Integer) -> Real:
    """Load the row's element of a float32 array, `mean` or `rstd`."""
    return to_float(STATISTIC, load_cached(STATISTIC, address + 4 * row, 0, 1))[0]


@device_function
def minus_mean(values: Registers, mean: Address, row: Integer) -> Registers:
    """Subtract the row's mean: LayerNorm."""
    return values - statistic(mean, row)


@device_function
def as_loaded(values: Registers, mean: Address, row: Integer) -> Registers:
    """Return the values unchanged: RMSNorm."""
    return values


@device_function
def project_off_rms(
    gradient: Registers, normal: Registers, row_stats: Registers, columns: Integer
) -> Registers:
    """Subtract normal * mean(gradient * normal): the gradient of the division by the rms."""
    return gradient - normal * (row_stats[0] / np.float32(columns))


@device_function
def project_off_moments(
    gradient: Registers, normal: Registers, row_stats: Registers, columns: Integer
) -> Registers:
    """Subtract as well mean(gradient): the gradient of LayerNorm's subtraction of the mean."""
    gradient = project_off_rms(gradient, normal, row_stats, columns)
    return gradient - row_stats[1] / np.float32(columns)


@device_function
def load_floats(share: Share, location: Address, first: Integer, limit: Integer) -> Registers:
    """Load a thread's share of the weight, in float32."""
    return to_float(share, load_cached(share, location, first, limit))


@device_function
def scaled(gradient: Registers, weight: Registers) -> Registers:
    """Multiply by the weight."""
    return gradient * weight


@device_function
def unscaled(gradient: Registers, weight: Registers) -> Registers:
    """Return the gradient, where there is no weight."""
    return gradient


@device_function
def add_product(sums: Registers, gradient: Registers, normal: Registers) -> Registers:
    """Add one row's gradient * normal to the sums for dweight."""
    return sums + gradient * normal


@device_function
def add_gradient(sums: Registers, gradient: Registers, normal: Registers) -> Registers:
    """Add one row's gradient to the sums for dbias."""
    return sums + gradient


@device_function
def no_sums(sums: Registers, gradient: Registers, normal: Registers) -> Registers:
    """Return the sums unchanged, where the call does not ask for them."""
    return sums


# ------------------------------------------------------------------------------- the kernel


def first_accesses(share: Share, cluster: int) -> tuple[DeviceFunction, DeviceFunction]:
    """Return ``rank_of_block()`` and ``first_of(rank, thread)``, the thread's first access."""
    BLOCK_ACCESSES = share.step * share.count

    @device_function
    def rank_in_cluster() -> Integer:
        return ptx.cluster_ctarank()

    @device_function
    def first_in_cluster(rank: Integer, thread: Integer) -> Integer:
        return rank * BLOCK_ACCESSES + thread

    @device_function
    def rank_alone() -> Integer:
        return 0

    @device_function
    def first_alone(rank: Integer, thread: Integer) -> Integer:
        return thread

    return (rank_in_cluster, first_in_cluster) if cluster > 1 else (rank_alone, first_alone)


@functools.cache
def backward_kernel(
    share: Share, plan: RowPlan, *, centred: bool, weighted: bool, sums: int
) -> Kernel:
    """Return the kernel of LayerNorm's gradient (`centred`) or RMSNorm's.

    `weighted`: there is a weight. `sums`: 1 adds up dweight, 2 dweight and dbias, 0 neither.
    """
    SHARE, (SCRATCH, PEERS) = share, exchange_tiles(plan.threads, plan.cluster, turns=2)
    start_exchange, combine_row = combine_in_turns(add_two_sums, plan.threads, plan.cluster)
    BLOCKS = plan.cluster
    rank_of_block, first_of = first_accesses(share, plan.cluster)
    centre = minus_mean if centred else as_loaded
    project = project_off_moments if centred else project_off_rms
    load_weight, scale = (load_floats, scaled) if weighted else (nothing, unscaled)
    add_weight, store_weight = (add_product, store_sums) if sums > 0 else (no_sums, no_store)
    add_bias, store_bias = (add_gradient, store_sums) if sums > 1 else (no_sums, no_store)

    def norm_backward(arrays, sizes):  # type: ignore[no-untyped-def]
        exchange = Exchange(shared_tile(SCRATCH), shared_tile(PEERS), shared_barriers(2))
        thread, rank = cuda.threadIdx.x, rank_of_block()
        start_exchange(exchange, thread)
        first = first_of(rank, thread)
        block, blocks = cuda.blockIdx.x // BLOCKS, cuda.gridDim.x // BLOCKS
        limit, columns = sizes.accesses, sizes.columns
        weight = load_weight(SHARE, arrays.weight, first, limit)
        dweight, dbias = zeros(SHARE), zeros(SHARE)
        turn = 0
        phase = 0
        for row in range(block, sizes.rows, blocks):
            gradient = load_row(SHARE, arrays.dy, row, first, limit)
            values = load_row(SHARE, arrays.x, row, first, limit)
            rstd = statistic(arrays.rstd, row)
            normal = centre(values, arrays.mean, row) * rstd
            dweight = add_weight(dweight, gradient, normal)
            dbias = add_bias(dbias, gradient, normal)
            gradient = scale(gradient, weight)
            row_stats = combine_row(two_sums(gradient, normal), exchange, turn, phase, 0)
            turn = 1 - turn
            if turn == 0:
                phase = 1 - phase
            gradient = project(gradient, normal, row_stats, columns)
            store_row(SHARE, arrays.dx, row, first, limit, gradient * rstd)
        store_weight(SHARE, arrays.weight_sums + block * columns * 4, first, limit, dweight)
        store_bias(SHARE, arrays.bias_sums + block * columns * 4, first, limit, dbias)

    return compiled(norm_backward, plan)


def plan_for(columns: int) -> RowPlan:
    """Return the default plan: about 16 elements per thread.

    A thread holds four float32 for each of its columns: x, dy and the sums for dweight and dbias.
    """
    threads = max(32, 1 << (-(-columns // 16) - 1).bit_length())
    blocks = min(8, max(1, threads // 512))
    return RowPlan(min(1024, threads // blocks), 1, blocks)


def rmsnorm_backward(
    dy: DeviceArray,
    x: DeviceArray,
    weight: DeviceArray | None = None,
    *,
    rstd: DeviceArray,
    dx: DeviceArray | None = None,
    dweight: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: RowPlan | None = None,
) -> DeviceArray:
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
        Element type of arrays whose own type cannot say it, such as bf16 held as uint16.
    plan
        How rows are shared among threads; about 16 elements per thread if None.

    Returns
    -------
    DeviceArray
        `dx`. Everything is computed in float32 and rounded once.

    Raises
    ------
    ValueError
        If shapes or types disagree.
    """
    dx = empty_like("rmsnorm_backward", "x", x, "dx") if dx is None else dx
    arrays = (dy, x, dx, weight, None, rstd, dweight, None)
    _LAUNCHES["rmsnorm_backward"](arrays, stream, (), "rmsnorm_backward", dtype, plan)
    return dx


def layernorm_backward(
    dy: DeviceArray,
    x: DeviceArray,
    weight: DeviceArray | None = None,
    *,
    mean: DeviceArray,
    rstd: DeviceArray,
    dx: DeviceArray | None = None,
    dweight: DeviceArray | None = None,
    dbias: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: RowPlan | None = None,
) -> DeviceArray:
    """Return the gradient of `layernorm` with respect to `x`.

    Parameters are those of `rmsnorm_backward`, and `mean`, what `layernorm` wrote there, and
    `dbias`, where to write the gradient with respect to the bias.
    """
    dx = empty_like("layernorm_backward", "x", x, "dx") if dx is None else dx
    arrays = (dy, x, dx, weight, mean, rstd, dweight, dbias)
    _LAUNCHES["layernorm_backward"](arrays, stream, (), "layernorm_backward", dtype, plan)
    return dx


_NAMES = ("dy", "x", "dx", "weight", "mean", "rstd", "dweight", "dbias")


def _read_sums(function: str, name: str, array: DeviceArray | None, x: Array) -> Array | None:
    """Read a gradient of the weights, of any float type; integers like those of x mean the same."""
    sums = read_optional(function, name, array)
    return None if sums is None else sums.with_bits_of(x)


def _prepare(
    arrays: tuple[DeviceArray | None, ...],
    stream: StreamLike,
    numbers: tuple[()],
    name: str,
    dtype: DTypeLike | None,
    plan: RowPlan | None,
) -> list[DeviceArray]:
    """Launch, and return the workspaces."""
    given = dict(zip(_NAMES, arrays))
    centred = name == "layernorm_backward"
    rstd = read(name, "rstd", given["rstd"])
    mean = read(name, "mean", given["mean"]) if centred else None
    x = read_rows(name, "x", given["x"], dtype)
    dy, dx = (read(name, n, given[n], dtype) for n in ("dy", "dx"))
    weight = read_optional(name, "weight", given["weight"], dtype)
    dweight, dbias = (_read_sums(name, n, given[n], x) for n in ("dweight", "dbias"))
    check_same(x, dy, dx)
    check_vector(weight, x)
    check_statistics((mean, rstd), x)
    checked(name, "plan", plan, PLAN)
    rows, columns = x.as_rows().shape
    for sums in (dweight, dbias):
        if sums is not None and (sums.shape != (columns,) or sums.dtype.name not in FLOATS):
            raise sums.error(
                f"has shape {sums.shape} of {sums.dtype}, but x has {columns} columns; pass an "
                f"array of shape ({columns},) of f32, f16 or bf16"
            )
    check_outputs([dx, dweight, dbias], [dy, x, weight, mean, rstd], in_place=[dy, x])
    if x.size == 0:
        for sums in (dweight, dbias):
            fill(sums, 0, stream)
        return []
    plan = plan_for(columns) if plan is None else plan
    width = access_width(x, dy, dx, weight)
    groups = min(rows, max(1, 2 * device.sm_count() // plan.cluster))
    num_sums = 2 if dbias is not None else int(dweight is not None)
    spaces = [float_workspace(groups, columns) for _ in range(num_sums)]
    sums_of = [Array.read(name, "workspace", space) for space in spaces]
    kernel = backward_kernel(
        share_of(columns, rows, x.dtype, width, plan),
        plan,
        centred=centred,
        weighted=weight is not None,
        sums=num_sums,
    )
    places = BackwardArrays(
        dy=rows_of(dy),
        x=rows_of(x),
        weight=address_of(weight),
        mean=address_of(mean),
        rstd=address_of(rstd),
        dx=rows_of(dx),
        weight_sums=address_of(sums_of[0] if num_sums > 0 else None),
        bias_sums=address_of(sums_of[1] if num_sums > 1 else None),
    )
    sizes = RowSizes(rows, columns * x.itemsize // width, columns)
    launch(kernel, groups * plan.cluster, plan.threads, stream, places, sizes)
    for space, out in zip(sums_of, (dweight, dbias)):
        if out is not None:
            _columns.add_rows(space, out, stream)
    return spaces


_LAUNCHES = {
    name: launched_again(name, *_NAMES)(_prepare)
    for name in ("rmsnorm_backward", "layernorm_backward")
}
