"""The kernel of the gradients of norms: persistent blocks that stride over the rows."""

from __future__ import annotations

import functools

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import device_function
from numba_tma.device.combine import Exchange, combine_in_turns, exchange_tiles, lanes_sum
from numba_tma.device.row_share import (
    from_float,
    load_cached,
    load_global,
    store_global,
    store_sums,
    to_float,
    zeros,
)
from numba_tma.device.share import Share
from numba_tma.device.shared import shared_barriers, shared_tile
from numba_tma.device.vectors import four, total
from numba_tma.host.annotations import (
    Address,
    DeviceFunction,
    Integer,
    Kernel,
    Real,
    Registers,
)
from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.rows.backward import BackwardArrays
from numba_tma.kernels.rows.kernel import compiled
from numba_tma.kernels.rows.plan import RowMemory, RowPlan
from numba_tma.kernels.rows.steps import no_store, nothing, row_of


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
def no_statistic(address: Address, row: Integer) -> Real:
    """Return 0, where the kernel does not ask for the statistic."""
    return np.float32(0)


@device_function
def minus_mean(values: Registers, mean: Real) -> Registers:
    """Subtract the row's mean: LayerNorm."""
    return values - mean


@device_function
def as_loaded(values: Registers, mean: Real) -> Registers:
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


def load_ahead(share: Share, centred: bool) -> DeviceFunction:
    """Return ``load(arrays, row, step, rows, first, limit)``, which loads the row `step` further.

    It returns a thread's share of dy and of x, as packed as in memory, and the row's mean and rstd.
    Behind the last row that is `row` again: a predicate would take a register for each access.
    """
    SHARE, load_mean = share, statistic if centred else no_statistic

    @device_function
    def load(
        arrays: BackwardArrays,
        row: Integer,
        step: Integer,
        rows: Integer,
        first: Integer,
        limit: Integer,
    ) -> tuple[Registers, Registers, Real, Real]:
        place = row + step if row + step < rows else row
        dy = load_global(SHARE, row_of(arrays.dy, place), first, limit)
        x = load_global(SHARE, row_of(arrays.x, place), first, limit)
        return dy, x, load_mean(arrays.mean, place), statistic(arrays.rstd, place)

    return load


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
    load_row, centre = load_ahead(share, centred), minus_mean if centred else as_loaded
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
        dy, x, mean, rstd = load_row(arrays, block, 0, sizes.rows, first, limit)
        for row in range(block, sizes.rows, blocks):
            gradient, values, scale_of_row = to_float(SHARE, dy), to_float(SHARE, x), rstd
            normal = centre(values, mean) * scale_of_row
            # The next row is on its way while the threads meet for this one.
            dy, x, mean, rstd = load_row(arrays, row, blocks, sizes.rows, first, limit)
            dweight = add_weight(dweight, gradient, normal)
            dbias = add_bias(dbias, gradient, normal)
            gradient = scale(gradient, weight)
            row_stats = combine_row(two_sums(gradient, normal), exchange, turn, phase, 0)
            turn = 1 - turn
            if turn == 0:
                phase = 1 - phase
            gradient = project(gradient, normal, row_stats, columns)
            store_row(SHARE, arrays.dx, row, first, limit, gradient * scale_of_row)
        store_weight(SHARE, arrays.weight_sums + block * columns * 4, first, limit, dweight)
        store_bias(SHARE, arrays.bias_sums + block * columns * 4, first, limit, dbias)

    return compiled(norm_backward, plan)
