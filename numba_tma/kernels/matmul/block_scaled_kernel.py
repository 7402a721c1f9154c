"""The block-scaled matmul kernel: fp8 products of 128 elements of K, scaled before they are added.

Cost model: each product of the tensor cores costs one float32 multiply-add on the CUDA cores for
every 128 of its multiply-adds. Two MMA warpgroups hide that: the tensor cores multiply for one
while the other adds.

    producer warpgroup                  MMA warpgroups
    for each output tile:               for each output tile:
        for each block of K:                for each block of K:
            acquire a stage                     start product = a @ b (wgmma, from zero)
            load a, b, scales of a              release the stage before, wait for the next,
                                                    read and fence its scales
                                                wait for the product
                                                sums += product * scale_a * scale_b
                                            store the sums (TMA)

The accumulation has two levels: the tensor cores add over one block of K and keep about 13 bits;
threads add the scaled blocks in float32. The scales of a come in the stage, by TMA. Those of b are
one number per block of columns, at most two per tile: each lane of a warp loads one of 32 blocks of
K from global memory, and a shuffle broadcasts it.

Loads, stores and the schedule are those of `kernel`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.backend.interface import i32
from numba_tma.device.vectors import load_vector
from numba_tma.host.annotations import DeviceFunction, Kernel
from numba_tma.host.warpgroup import ALL_LANES
from numba_tma.kernels.matmul.block_scaled_plan import BLOCK, ScaledPlan
from numba_tma.kernels.matmul.kernel import (
    b_load,
    jitted,
    k_range,
    operand_pipeline,
    scheduler,
    tile_write,
    warpgroup_row,
)
from numba_tma.kernels.matmul.plan import WGMMA_ROWS

_SCALE = tma.Tile(1, "f32")
_ZERO = np.float32(0)


class ColumnScales(NamedTuple):
    """Where the scales of a tile's columns begin, in bytes; int32."""

    left: Any  #: of the tile's first columns
    right: Any  #: of those from `edge` on
    edge: Any  #: the column of the tile at which the next block of b begins


class ScaledWork(NamedTuple):
    """What a block computes next: an output tile, and blocks of K."""

    batch: Any  #: the matrix that is written
    row: Any
    column: Any
    steps: Any  #: blocks of K; int32
    scales: ColumnScales


# ------------------------------------------------------------------------ schedule, scales


def work_of(plan: ScaledPlan) -> DeviceFunction:
    """Return the function that returns a tile's `ScaledWork` and loads its first scales of b."""
    M, N, CLUSTER = plan.config.m, plan.config.n, plan.config.cluster
    load_b_scales = b_scales_load(plan)

    @cuda.jit(device=True)
    def prepare(tile, rank, extents, scales):  # type: ignore[no-untyped-def]
        row, column = (tile.row * CLUSTER + rank) * M, tile.column * N
        _, begin, end = k_range(tile.batch, extents)
        block, steps = i32(column // BLOCK), i32(end - begin)
        edge = i32((block + 1) * BLOCK - column)
        left = i32(block * scales.column + begin * scales.k)
        right = i32(min(block + 1, scales.last) * scales.column + begin * scales.k)
        columns = ColumnScales(left, right, edge)
        work = ScaledWork(tile.batch, row, column, steps, columns)
        return work, load_b_scales(scales, columns, 0, steps)

    return prepare


def b_scales_load(plan: ScaledPlan) -> DeviceFunction:
    """Return the function that loads b's scales of 32 blocks of K from `first` on, one per lane.

    A load for each block would wait for global memory each time.
    """
    EDGE = plan.has_edge

    @cuda.jit(device=True)
    def load(scales, columns, first, steps):  # type: ignore[no-untyped-def]
        block = min(i32(first + ptx.laneid()), i32(steps - 1))
        near, far = _ZERO, _ZERO
        if block >= 0:  # always true, but with it ptxas counts the loop in uniform registers
            near = load_vector(scales.memory, i32(columns.left + block * scales.k), _SCALE)[0]
            if EDGE:
                far = load_vector(scales.memory, i32(columns.right + block * scales.k), _SCALE)[0]
        return near, far

    return load


def stage_scales(plan: ScaledPlan) -> DeviceFunction:
    """Return the function that reads the scales of a stage, block `i` of a tile's `steps`.

    It returns b's scales in the lanes, for the next call, and a pair of scales for the first and
    for the second product of the stage: one for columns left of the edge, one for those right of
    it. The caller fences the reads (`fence_proxy_async`) before it releases the stage.
    """
    SCALES, TWO, EDGE = tma.Tile(plan.config.m, "f32"), plan.products == 2, plan.has_edge
    load_b_scales = b_scales_load(plan)

    @cuda.jit(device=True, forceinline=True)
    def read(consumer, stage, mma_row, scales, columns, i, steps, lanes):  # type: ignore[no-untyped-def]
        of_rows = stage.sfa.view(SCALES)
        upper = tma.load_rows(of_rows, mma_row)
        lower = upper
        if TWO:
            lower = tma.load_rows(of_rows, mma_row + WGMMA_ROWS)
        consumer.accesses.unfenced = False  # the caller fences while a product is under way
        lane = i32(i32(i) & 31)
        left = cuda.shfl_sync(ALL_LANES, lanes[0], lane)
        right = left
        if EDGE:
            right = cuda.shfl_sync(ALL_LANES, lanes[1], lane)
        if lane == 31:
            lanes = load_b_scales(scales, columns, i + 1, steps)
        return lanes, (upper * left, upper * right), (lower * left, lower * right)

    return read


# ------------------------------------------------------------------------------------ sums
#
# Columns of a fragment are compile-time constants, so the sums are a tuple of epilogue tiles. All
# columns of an epilogue tile belong to one block of b: tiles begin at multiples of n, and an
# epilogue tile is no wider than gcd(n, 128).


def zero_sums(columns: int, tiles: int) -> DeviceFunction:
    """Return the function that returns sums of zero, by a recursion over the tiles."""

    @cuda.jit(device=True)
    def one():  # type: ignore[no-untyped-def]
        return (tma.fragment(columns),)

    if tiles == 1:
        return one
    before = zero_sums(columns, tiles - 1)

    @cuda.jit(device=True)
    def zeros():  # type: ignore[no-untyped-def]
        return before() + (tma.fragment(columns),)

    return zeros


def scaled_sum(plan: ScaledPlan, tiles: int) -> DeviceFunction:
    """Return ``add(sums, product, by, edge)``, which adds a product times its pair of scales.

    A recursion over the epilogue tiles, of which the functions here add the last.
    """
    LAST, EDGE, COLUMNS = tiles - 1, plan.has_edge, plan.out_columns
    START = LAST * COLUMNS

    @cuda.jit(device=True)
    def add_tile(sums, product, by, edge):  # type: ignore[no-untyped-def]
        scale = by[0]
        if EDGE and START >= edge:
            scale = by[1]
        return sums[LAST] + product.columns(START, COLUMNS) * scale

    @cuda.jit(device=True)
    def add_one(sums, product, by, edge):  # type: ignore[no-untyped-def]
        return (add_tile(sums, product, by, edge),)

    if tiles == 1:
        return add_one
    before = scaled_sum(plan, tiles - 1)

    @cuda.jit(device=True)
    def add(sums, product, by, edge):  # type: ignore[no-untyped-def]
        return before(sums, product, by, edge) + (add_tile(sums, product, by, edge),)

    return add


# -------------------------------------------------------------------------------- mainloop
#
# ``multiply(consumer, mma_row, steps, scales, columns, lanes)`` returns a warpgroup's sums of a
# tile: those of its first 64 rows, and of its second 64 rows or 0. `steps` is at least 1. The
# caller has loaded the first scales of b into `lanes`, and releases the last stage.
#
# Between two products there is nothing but the addition of the first. What the next stage needs is
# done while a product is under way.
#
# No product is under way from one iteration to the next. ptxas lets the multiply-adds of one
# warpgroup yield to the products of another (every second one does), but only where it sees, within
# an iteration, that they add what a product has left.


def one_product(plan: ScaledPlan) -> DeviceFunction:
    """Return `multiply` for a warpgroup of 64 rows: one product per stage."""
    N, ZEROS = plan.config.n, zero_sums(plan.out_columns, plan.epilogue_tiles)
    scales_of, add = stage_scales(plan), scaled_sum(plan, plan.epilogue_tiles)

    @cuda.jit(device=True, forceinline=True)
    def multiply(consumer, mma_row, steps, scales, columns, lanes):  # type: ignore[no-untyped-def]
        sums, product = ZEROS(), tma.fragment(N)
        stage = consumer.wait()
        consumer.release_older()  # there is none; it tells the compiler that one stage is held
        a, b = stage.a.matrix_descriptor().advance(row=mma_row), stage.b.matrix_descriptor()
        lanes, by, _ = scales_of(consumer, stage, mma_row, scales, columns, 0, steps, lanes)
        for i in range(1, steps):
            product = tma.wgmma(product, a, b, scale_d=False)
            consumer.release_older()
            stage = consumer.wait()
            a, b = stage.a.matrix_descriptor().advance(row=mma_row), stage.b.matrix_descriptor()
            now = by
            lanes, by, _ = scales_of(consumer, stage, mma_row, scales, columns, i, steps, lanes)
            ptx.fence_proxy_async()
            product = tma.wgmma_wait(product)
            sums = add(sums, product, now, columns.edge)
        product = tma.wgmma(product, a, b, scale_d=False)
        consumer.release_older()
        ptx.fence_proxy_async()
        sums = add(sums, tma.wgmma_wait(product), by, columns.edge)
        return sums, 0

    return multiply


def two_products(plan: ScaledPlan) -> DeviceFunction:
    """Return `multiply` for a warpgroup of 128 rows: two products per stage, one after the other.

    They share one fragment: there are no registers for two.
    """
    N, ZEROS = plan.config.n, zero_sums(plan.out_columns, plan.epilogue_tiles)
    scales_of, add = stage_scales(plan), scaled_sum(plan, plan.epilogue_tiles)
    SECOND = WGMMA_ROWS

    @cuda.jit(device=True, forceinline=True)
    def multiply(consumer, mma_row, steps, scales, columns, lanes):  # type: ignore[no-untyped-def]
        sums, more, product = ZEROS(), ZEROS(), tma.fragment(N)
        stage = consumer.wait()
        consumer.release_older()  # there is none; it tells the compiler that one stage is held
        a, b = stage.a.matrix_descriptor(), stage.b.matrix_descriptor()
        lanes, upper, lower = scales_of(consumer, stage, mma_row, scales, columns, 0, steps, lanes)
        for i in range(1, steps):
            product = tma.wgmma(product, a.advance(row=mma_row), b, scale_d=False)
            consumer.release_older()
            by, by_more, a_more, b_more = upper, lower, a.advance(row=mma_row + SECOND), b
            stage = consumer.wait()
            a, b = stage.a.matrix_descriptor(), stage.b.matrix_descriptor()
            lanes, upper, lower = scales_of(
                consumer, stage, mma_row, scales, columns, i, steps, lanes
            )
            product = tma.wgmma_wait(product)
            sums = add(sums, product, by, columns.edge)
            product = tma.wgmma(product, a_more, b_more, scale_d=False)
            ptx.fence_proxy_async()
            product = tma.wgmma_wait(product)
            more = add(more, product, by_more, columns.edge)
        product = tma.wgmma(product, a.advance(row=mma_row), b, scale_d=False)
        consumer.release_older()
        product = tma.wgmma_wait(product)
        sums = add(sums, product, upper, columns.edge)
        product = tma.wgmma(product, a.advance(row=mma_row + SECOND), b, scale_d=False)
        ptx.fence_proxy_async()
        product = tma.wgmma_wait(product)
        more = add(more, product, lower, columns.edge)
        return sums, more

    return multiply


# ----------------------------------------------------------------------------------- store


def sums_store(plan: ScaledPlan, index: int) -> DeviceFunction:
    """Return the function that stores the epilogue tiles 0 to `index` of a warpgroup's sums.

    An unrolled loop: each tile has its own function, which first calls that of the tile before.
    """
    INDEX, START, write = index, index * plan.out_columns, tile_write(plan)
    store_previous = sums_store(plan, index - 1) if index else no_sums

    @cuda.jit(device=True)
    def store(sums, results, out, batch, top, column):  # type: ignore[no-untyped-def]
        store_previous(sums, results, out, batch, top, column)
        write(sums[INDEX], results, out, batch, top, column + START)

    return store


@cuda.jit(device=True)
def no_sums(sums, results, out, batch, top, column):  # type: ignore[no-untyped-def]
    """Store nothing: there is no epilogue tile, or no second product."""


# ------------------------------------------------------------------------------ the kernel


@functools.cache
def block_scaled_kernel(plan: ScaledPlan) -> Kernel:
    """Return the kernel of a plan. Its blocks have ``plan.roles.threads`` threads.

    `sfa` is a tensor map of the scales of a, (1, blocks of K, rows).
    """
    M, N, STAGE_K, CLUSTER = plan.config.m, plan.config.n, plan.k, plan.config.cluster
    PRODUCER, EVERYONE = plan.roles.load, (1 << CLUSTER) - 1
    MMA = plan.consumers[0]  # all consumer warpgroups have equal registers
    PIPE, SCHEDULER = operand_pipeline(plan, sfa=plan.scales_tile), scheduler(plan)
    RESULTS = tma.StorePipeline(plan.config.out_stages, result=plan.out_tile, role=plan.consumers)
    load_b, prepare = b_load(plan), work_of(plan)
    first_row = warpgroup_row(plan, plan.products * WGMMA_ROWS)
    multiply = two_products(plan) if plan.products == 2 else one_product(plan)
    store = sums_store(plan, plan.epilogue_tiles - 1)
    store_second = store if plan.products == 2 else no_sums

    def block_scaled(a, b, sfa, scales, out, extents):  # type: ignore[no-untyped-def]
        pipe, results = PIPE.start(), RESULTS.start()
        schedule = SCHEDULER.over(extents.tile_rows // CLUSTER, extents.tile_columns, extents.batch)
        first, step = ptx.ctaid_x() // CLUSTER, ptx.nctaid_x() // CLUSTER
        rank = ptx.cluster_ctarank()
        if pipe.is_producer():
            PRODUCER.set_registers()
            for tile in schedule.tiles(first, step):
                row, column = (tile.row * CLUSTER + rank) * M, tile.column * N
                _, begin, end = k_range(tile.batch, extents)
                # One elected thread executes the body; `produce` has armed the stage's barrier.
                for k_tile, stage in pipe.produce(begin, end):
                    k = k_tile * STAGE_K
                    a.load(stage.a, (0, row, k), stage.barrier)
                    load_b(b, stage.b, (0, column, k), stage.barrier, rank, EVERYONE)
                    sfa.load(stage.sfa, (0, k_tile, row), stage.barrier)
        else:
            MMA.set_registers()
            consumer = pipe.consumer()
            mma_row = first_row()
            number, tiles = i32(first), i32(schedule.num_tiles)
            work, lanes = prepare(schedule.tile(number), rank, extents, scales)
            while number < tiles:
                batch, top, column = work.batch, work.row + mma_row, work.column
                sums, more = multiply(consumer, mma_row, work.steps, scales, work.scales, lanes)
                pipe.release_pending()
                number = i32(number + step)
                if number < tiles:  # the next tile's scales are loaded while this one is stored
                    work, lanes = prepare(schedule.tile(number), rank, extents, scales)
                store(sums, results, out, batch, top, column)
                store_second(more, results, out, batch, top + WGMMA_ROWS, column)
        results.close(read=True)
        pipe.close()

    return jitted(plan, block_scaled)
