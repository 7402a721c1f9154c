"""The matmul kernel for few rows: a and b change places (swap A/B), so that no row is padding.

For few columns they need not: then a is the first operand, and all else is the same.

Cost model: a result of few rows takes as long as DRAM takes to deliver b, the weights of a layer.
So nearly all of a stage is weights, and as many stages as fit are in flight on every SM.

wgmma takes at least 64 rows of its first operand, which is b here: 64 columns of the result for
each MMA warpgroup. The rows of the result, as few as 8, are the columns of the accumulator.

    producer warp                       MMA warpgroups, 64 columns of the result each
    for each output tile:               for each output tile:
        for each k:                         for each k: wait, acc += b.T @ a.T (wgmma), release
            acquire a stage                 in a cluster: exchange sums, and keep a share
            load b and a into it            scale, bias, activation, store

A cluster computes one tile, and each of its blocks a part of K and of the result
(`narrow_end.py`).
"""

from __future__ import annotations

import functools

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.host.annotations import DeviceFunction, Kernel
from numba_tma.kernels.matmul.kernel import IN_FLIGHT, warpgroup_row
from numba_tma.kernels.matmul.narrow_end import sums_start, tile_end
from numba_tma.kernels.matmul.plan import SwappedPlan
from numba_tma.kernels.matmul.unaligned_plan import UnalignedPlan

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


# ------------------------------------------------------------------------------ the kernel


@functools.cache
def swapped_kernel(plan: SwappedPlan) -> Kernel:
    """Return the kernel of a plan. Its blocks have ``plan.roles.threads`` threads.

    `out` is an array as in `tile_store`; `old` and `residual` are `MatrixBytes`. A cluster computes
    one tile.
    """
    ROWS, COLUMNS, STAGE_K, BLOCKS = plan.rows, plan.columns, plan.k, plan.config.cluster
    N, multiply, end_tile = plan.n, stage_product(plan), tile_end(plan)
    PIPE = tma.TilePipeline(
        plan.stages,
        a=plan.a_tile,
        b=plan.b_tile,
        producer=plan.roles.load,
        consumer=plan.consumers,
    )
    SCHEDULER = tma.GroupedScheduler(16)
    A_MAJOR, B_MAJOR = plan.a_major, plan.b_major
    start_sums, first_row = sums_start(plan), warpgroup_row(plan)

    def swapped(a, b, out, old, residual, extents, terms):  # type: ignore[no-untyped-def]
        thread, rank = ptx.tid_x(), ptx.cluster_ctarank()
        if thread == 0:
            b.prefetch()
            a.prefetch()
        sums = start_sums(thread, rank)
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
                place = tile.batch, tile.row * ROWS, tile.column * COLUMNS
                end_tile(acc, sums, rank, mma_row, place, (out, old, residual), extents, terms)
        pipe.close()

    return cuda.jit(tma.cluster(BLOCKS)(swapped) if BLOCKS > 1 else swapped)
