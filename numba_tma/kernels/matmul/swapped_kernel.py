"""The matmul kernel for few rows: a and b change places (swap A/B), so that no row is padding.

For few columns they need not: then a is the first operand, and all else is the same.

Cost model: a result of few rows takes as long as DRAM takes to deliver b, the weights of a layer.
So nearly all of a stage is weights, and as many stages as fit are in flight on every SM.

wgmma takes at least 64 rows of its first operand, which is b here: 64 columns of the result for
each MMA warpgroup. The rows of the result, as few as 8, are the columns of the accumulator.

    producer warp                       MMA warpgroups, 64 columns of the result each
    for each output tile:               for each output tile:
        for each k:                         for each k: wait, acc += b.T @ a.T (wgmma), release
            acquire a stage                 in a cluster: send acc to block 0, which adds all
            load b and a into it            scale, bias, activation, store

A cluster computes one tile, and each of its blocks a part of K. The other blocks send their sums
to the shared memory of block 0 (st.async), which adds them in a fixed order: equal calls give equal
bits.
"""

from __future__ import annotations

import functools

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.device.waiting import wait_for
from numba_tma.host.annotations import DeviceFunction, Kernel
from numba_tma.host.debug import Site
from numba_tma.kernels.matmul.epilogue import (
    TileOrigin,
    epilogue_function,
    no_source,
    source_element,
)
from numba_tma.kernels.matmul.kernel import IN_FLIGHT, warpgroup_row
from numba_tma.kernels.matmul.mma_kernel import sum_epilogue
from numba_tma.kernels.matmul.plan import SwappedPlan
from numba_tma.kernels.matmul.unaligned_plan import UnalignedPlan

PIECE = 32  #: columns of an accumulator that are finished together
SUMS = Site("matmul(): sums of the cluster's other blocks", in_cluster=True)


# --------------------------------------------------- multiply: the operands of a stage


def stage_product(plan: SwappedPlan | UnalignedPlan) -> DeviceFunction:
    """Return the function that adds the product of a stage to a warpgroup's accumulator.

    `mma_row` is the first row of the warpgroup in the first operand.
    """
    A_MAJOR, B_MAJOR = plan.a_major, plan.b_major

    @cuda.jit(device=True)
    def a_first(acc, stage, mma_row):  # type: ignore[no-untyped-def]
        a_rows = stage.a.matrix_descriptor(A_MAJOR).advance(row=mma_row)
        return tma.wgmma(acc, a_rows, stage.b.matrix_descriptor(B_MAJOR))

    @cuda.jit(device=True)
    def b_first(acc, stage, mma_row):  # type: ignore[no-untyped-def]
        b_columns = stage.b.matrix_descriptor(B_MAJOR).advance(row=mma_row)
        return tma.wgmma(acc, b_columns, stage.a.matrix_descriptor(A_MAJOR))

    return a_first if plan.config.first == "a" else b_first


# ----------------------------------------------- reduce: the sums of a cluster's blocks


@cuda.jit(device=True)
def send(value, column, row, to, pitch, barrier):  # type: ignore[no-untyped-def]
    """Send a sum to the first block of the cluster; `map_coords` calls it for each."""
    ptx.st_async_f32(to + row * pitch + 4 * column, value, barrier)
    return value


def add_parts(plan: SwappedPlan | UnalignedPlan) -> DeviceFunction:
    """Return the function that adds to a sum what the other blocks have sent."""
    OTHERS, PARTS = plan.config.cluster - 1, plan.parts_tile
    PART_NBYTES, PITCH = PARTS.nbytes // PARTS.shape[0], 4 * PARTS.shape[2]

    @cuda.jit(device=True)
    def add(value, column, row, start):  # type: ignore[no-untyped-def]
        for part in range(OTHERS):
            value = value + ptx.ld_shared_f32(start + part * PART_NBYTES + row * PITCH + 4 * column)
        return value

    return add


# ---------------------------------------------------------- store: epilogue, by threads


def tile_store(plan: SwappedPlan | UnalignedPlan) -> DeviceFunction:
    """Return the function that finishes an accumulator and stores it.

    `out` is (batch, columns, rows): accumulator rows are columns of the result. If a is the first
    operand, `out` is (batch, rows, columns).
    """
    return pieces_store(plan, -(-plan.n // PIECE) - 1)


def pieces_store(plan: SwappedPlan | UnalignedPlan, index: int) -> DeviceFunction:
    """Return the function that finishes and stores pieces 0 to `index` of an accumulator.

    A piece leaves registers to the steps of an epilogue. This is an unrolled loop, since a
    fragment's columns must be compile-time constants.
    """
    store_piece = (transposed_store if plan.config.first == "b" else straight_store)(plan)
    store_previous = pieces_store(plan, index - 1) if index else nothing_to_store
    START, SWAPPED = index * PIECE, plan.config.first == "b"
    WIDTH = min(PIECE, plan.n - START)

    @cuda.jit(device=True)
    def store(acc, out, old, residual, given, terms):  # type: ignore[no-untyped-def]
        store_previous(acc, out, old, residual, given, terms)
        batch, top, left, extents = given
        if SWAPPED:
            top = top + START
        else:
            left = left + START
        piece = acc.columns(START, WIDTH)
        store_piece(piece, out, old, residual, (batch, top, left, extents), terms)

    return store


@cuda.jit(device=True)
def nothing_to_store(acc, out, old, residual, given, terms):  # type: ignore[no-untyped-def]
    """Store nothing: there is no piece before the first."""


def straight_store(plan: SwappedPlan | UnalignedPlan) -> DeviceFunction:
    """Return the function that finishes and stores an accumulator whose rows are those of `out`."""
    OUT, finish = plan.out.name, sum_epilogue(plan)

    @cuda.jit(device=True)
    def store(acc, out, old, residual, given, terms):  # type: ignore[no-untyped-def]
        batch, top, left, extents = given
        acc = finish(acc, (old, residual), (batch, top, left), extents, terms)
        acc.to(OUT).store_global(out[batch], top, left)

    return store


def transposed_store(plan: SwappedPlan | UnalignedPlan) -> DeviceFunction:
    """Return the function that finishes a transposed accumulator and stores it."""
    OUT, finish = plan.out.name, transposed_epilogue(plan)

    @cuda.jit(device=True)
    def store(acc, out, old, residual, given, terms):  # type: ignore[no-untyped-def]
        batch, top, left, _ = given
        acc.to(OUT).store_global(out[batch], left, top)

    @cuda.jit(device=True)
    def finish_and_store(acc, out, old, residual, given, terms):  # type: ignore[no-untyped-def]
        batch, top, left, _ = given
        acc = acc.map_coords(finish, old, residual, given, terms)
        acc.to(OUT).store_global(out[batch], left, top)

    return finish_and_store if plan.epilogue.changes else store


def transposed_epilogue(plan: SwappedPlan | UnalignedPlan) -> DeviceFunction:
    """Return the epilogue of one element, which `Fragment.map_coords` calls.

    `old` and `residual` are `MatrixBytes`. Elements outside the matrix read those of the last row
    and column, and are not stored.
    """
    epilogue, ELEMENT = plan.epilogue, tma.Tile(1, plan.out)
    finish = epilogue_function(epilogue, plan.out)
    load_old = source_element(ELEMENT) if epilogue.beta else no_source
    load_residual = source_element(ELEMENT) if epilogue.residual else no_source

    @cuda.jit(device=True)
    def element(value, down, right, old, residual, given, terms):  # type: ignore[no-untyped-def]
        batch, top, left, extents = given
        row = min(np.int32(top + right), np.int32(extents.rows - 1))
        column = min(np.int32(left + down), np.int32(extents.columns - 1))
        before = load_old(old, batch, row, column)
        added = load_residual(residual, batch, row, column)
        of_all = np.int32(batch * extents.rows + row)
        here = TileOrigin(of_all, column, of_all, column)
        return finish(value, np.int32(0), np.int32(0), before, added, here, terms)

    return element


# ------------------------------------------------------------------------------ the kernel


@functools.cache
def swapped_kernel(plan: SwappedPlan) -> Kernel:
    """Return the kernel of a plan. Its blocks have ``plan.roles.threads`` threads.

    `out` is an array as in `tile_store`; `old` and `residual` are `MatrixBytes`. A cluster computes
    one tile.
    """
    ROWS, COLUMNS, STAGE_K, BLOCKS = plan.rows, plan.columns, plan.k, plan.config.cluster
    M, N, multiply = plan.config.m, plan.n, stage_product(plan)
    DOWN, RIGHT = (1, 0) if plan.config.first == "a" else (0, 1)
    PIPE = tma.TilePipeline(
        plan.stages,
        a=plan.a_tile,
        b=plan.b_tile,
        producer=plan.roles.load,
        consumer=plan.consumers,
    )
    SCHEDULER = tma.GroupedScheduler(16)
    A_MAJOR, B_MAJOR = plan.a_major, plan.b_major
    PARTS, PITCH, SENT_BYTES = (
        plan.parts_tile,
        4 * plan.parts_tile.shape[2],
        4 * M * N * (BLOCKS - 1),
    )
    add, store, first_row = add_parts(plan), tile_store(plan), warpgroup_row(plan)

    def swapped(a, b, out, old, residual, extents, terms):  # type: ignore[no-untyped-def]
        thread, rank = ptx.tid_x(), ptx.cluster_ctarank()
        if thread == 0:
            b.prefetch()
            a.prefetch()
        if BLOCKS > 1:
            parts, sent = tma.shared_tile(PARTS), tma.shared_barrier()
            if thread == 0:
                sent.init(1)
                ptx.fence_mbarrier_init()
                if rank == 0:
                    sent.arrive_expect_tx(SENT_BYTES)
            ptx.barrier_cluster_arrive("relaxed")
        pipe = PIPE.start()
        schedule = SCHEDULER.over(extents.tile_rows, extents.tile_columns, extents.batch)
        first, step = ptx.ctaid_x() // BLOCKS, ptx.nctaid_x() // BLOCKS
        begin = np.uint32(np.uint32(rank * extents.steps) // np.uint32(BLOCKS))
        end = np.uint32(np.uint32((rank + 1) * extents.steps) // np.uint32(BLOCKS))
        if pipe.is_producer():
            for tile in schedule.tiles(first, step):
                row, column = tile.row * ROWS, tile.column * COLUMNS
                a_matrix, b_matrix = tile.batch * extents.a_stride, tile.batch * extents.b_stride
                # One elected thread executes the body; `produce` has armed the stage's barrier.
                for k_tile, stage in pipe.produce(begin, end):
                    k = k_tile * STAGE_K
                    if B_MAJOR == "K":
                        b.load(stage.b, (b_matrix, column, k), stage.barrier)
                    else:
                        b.load(stage.b, (b_matrix, k, column), stage.barrier)
                    if A_MAJOR == "K":
                        a.load(stage.a, (a_matrix, row, k), stage.barrier)
                    else:
                        a.load(stage.a, (a_matrix, k, row), stage.barrier)
            if BLOCKS > 1:
                ptx.barrier_cluster_wait()
        else:
            mma_row = first_row()
            for tile in schedule.tiles(first, step):
                acc = tma.fragment(N)
                for _, stage in pipe.consume(begin, end, in_flight=IN_FLIGHT):
                    acc = multiply(acc, stage, mma_row)
                    # The loop's next step releases the stage before: its product is complete.
                    acc = tma.wgmma_wait(acc, IN_FLIGHT)
                acc = tma.wgmma_wait(acc)
                pipe.release_pending()  # the last stage
                if BLOCKS > 1:
                    ptx.barrier_cluster_wait()  # block 0 has initialised its barrier
                    if rank > 0:
                        to = parts.address_of((rank - 1, 0, mma_row))
                        acc.map_coords(send, ptx.mapa(to, 0), PITCH, ptx.mapa(sent, 0))
                    else:
                        wait_for(sent, 0, SUMS)
                        acc = acc.map_coords(add, parts.address_of((0, 0, mma_row)))
                if rank == 0:
                    top = tile.row * ROWS + mma_row * DOWN
                    left = tile.column * COLUMNS + mma_row * RIGHT
                    store(acc, out, old, residual, (tile.batch, top, left, extents), terms)
        pipe.close()

    return cuda.jit(tma.cluster(BLOCKS)(swapped) if BLOCKS > 1 else swapped)
