"""The matmul kernel of Blackwell's tensor cores: persistent, with sums in tensor memory.

Assembled for sm_100a, 103a and 110a and simulated; it has run on no GPU.

Cost model: a 128 x n output tile takes ``128 * n * K`` multiply-adds, and moves ``(128 + n) * K``
elements from the L2 cache into shared memory. The tensor cores read both tiles from shared memory
by themselves, and add up in tensor memory. So no register holds a sum during the product, one
thread starts all of it, and the epilogue of a tile overlaps the products of the next.

    load warp                   multiply warp, one thread         epilogue, 4 warps
    for each output tile:       for each output tile:             for each output tile:
        for each k:                 acquire an accumulator            wait for the accumulator
            acquire a stage         for each k:                       for each 128 B of its rows:
            load a and b (TMA)          wait for the stage                load columns (tcgen05.ld)
                                        acc += a @ b (tcgen05.mma)        scale, bias, activation
                                        commit: release the stage         store (TMA)
                                    commit the accumulator            release the accumulator

- Stages: 128 bytes along K of a's and b's rows. A commit of the tensor cores releases a stage, when
  the products that read it are complete.
- Accumulators: two of 128 lanes x n columns, so that one is read while the other is written.
- Epilogue: a thread has one row, the lane of tensor memory that its warp reaches. It holds 32
  columns at once and writes 16 bytes at a time to an epilogue tile, which the copy engine stores.

Words are those of `kernel`; `at` is (batch, row, column) of the thread's next columns.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma.device.vectors import map_columns, store_vector
from numba_tma.host.annotations import DeviceFunction, Kernel
from numba_tma.kernels.matmul.epilogue import (
    TileOrigin,
    epilogue_function,
    no_source,
    source_element,
)
from numba_tma.kernels.matmul.tcgen05_plan import CHUNK_BYTES, LOADED_COLUMNS, Tcgen05Plan

#: The sums of a product whose K is 0, which no instruction writes to an accumulator.
ZEROS = (np.float32(0),) * LOADED_COLUMNS

# --------------------------------------------- store: a row of 32 columns, by each epilogue thread


def columns_write(plan: Tcgen05Plan) -> DeviceFunction:
    """Return the function that finishes and writes the columns that a thread has loaded."""
    if plan.addressable:
        return chunks_write(plan, LOADED_COLUMNS * plan.out.itemsize // CHUNK_BYTES - 1)
    return elements_write(plan)


def chunks_write(plan: Tcgen05Plan, index: int) -> DeviceFunction:
    """Return the function that writes chunks 0 to `index`, of 16 bytes, to the epilogue tile.

    This is an unrolled loop: registers are indexed by compile-time constants, so each chunk has its
    own function, which first calls that of chunk ``index - 1``. `place` is that of the columns in
    the tile.
    """
    write_previous = chunks_write(plan, index - 1) if index else nothing_to_write
    NUM = CHUNK_BYTES // plan.out.itemsize
    START, finish = index * NUM, column_epilogue(plan)
    TILE = tma.Tile(plan.out_tile.shape[1:], plan.out, plan.out_tile.swizzle)

    @cuda.jit(device=True)
    def write(values, stage, place, out, at, sources, extents, terms):  # type: ignore[no-untyped-def]
        write_previous(values, stage, place, out, at, sources, extents, terms)
        chunk = map_columns(finish, values, START, NUM, (at, sources, extents, terms))
        row, column = place
        stage.result.view(TILE).write_vector((row, column + START), chunk)

    return write


@cuda.jit(device=True)
def nothing_to_write(values, stage, place, out, at, sources, extents, terms):  # type: ignore[no-untyped-def]
    """Write nothing: there is no chunk to the left of the first."""


def elements_write(plan: Tcgen05Plan) -> DeviceFunction:
    """Return the function that writes elements to `out`, `MatrixBytes` that TMA cannot address."""
    ELEMENT, SIZE, finish = tma.Tile(1, plan.out), plan.out.itemsize, column_epilogue(plan)

    @cuda.jit(device=True)
    def store(value, right, at, out, sources, extents, terms):  # type: ignore[no-untyped-def]
        batch, row, left = at
        value = finish(value, right, at, sources, extents, terms)
        if row < extents.rows and left + right < extents.columns:
            start = batch * out.matrix + row * out.row + SIZE * (left + right)
            store_vector(out.memory, start, map_columns(same, (value,), 0, 1, ()), ELEMENT)
        return value

    @cuda.jit(device=True)
    def write(values, stage, place, out, at, sources, extents, terms):  # type: ignore[no-untyped-def]
        map_columns(store, values, 0, LOADED_COLUMNS, (at, out, sources, extents, terms))

    return write


@cuda.jit(device=True)
def same(value, column):  # type: ignore[no-untyped-def]
    """Return the value."""
    return value


def column_epilogue(plan: Tcgen05Plan) -> DeviceFunction:
    """Return the epilogue of one element, which `map_columns` calls.

    Sources are pairs of `MatrixBytes`. Elements outside the matrix read those of the last row and
    column, and are not stored.
    """
    epilogue, ELEMENT = plan.epilogue, tma.Tile(1, plan.out)
    if not epilogue.changes:

        @cuda.jit(device=True)
        def unchanged(value, right, at, sources, extents, terms):  # type: ignore[no-untyped-def]
            return value

        return unchanged
    finish = epilogue_function(epilogue, plan.out)
    load_old = source_element(ELEMENT) if epilogue.beta else no_source
    load_residual = source_element(ELEMENT) if epilogue.residual else no_source

    @cuda.jit(device=True)
    def element(value, right, at, sources, extents, terms):  # type: ignore[no-untyped-def]
        batch, row, left = at
        old, residual = sources
        row = min(np.int32(row), np.int32(extents.rows - 1))
        column = min(np.int32(left + right), np.int32(extents.columns - 1))
        before = load_old(old, batch, row, column)
        added = load_residual(residual, batch, row, column)
        of_all = np.int32(batch * extents.rows + row)
        here = TileOrigin(of_all, column, of_all, column)
        return finish(value, np.int32(0), np.int32(0), before, added, here, terms)

    return element


# ------------------------------------------------------------------------------ the kernel


@functools.cache
def tcgen05_kernel(plan: Tcgen05Plan) -> Kernel:
    """Return the kernel of a plan. Its blocks have ``plan.roles.threads`` threads.

    `out` is a tensor map, or `MatrixBytes` if TMA cannot address it; `old` and `residual` are
    `MatrixBytes`.
    """
    M, N, STAGE_K = *plan.accumulator.shape, plan.k
    A_MAJOR, B_MAJOR = plan.a_major, plan.b_major
    LOAD, MMA, EPILOGUE = plan.roles.load, plan.roles.mma, plan.roles.epilogue
    PIPE = tma.TilePipeline(
        plan.stages,
        a=plan.a_tile,
        b=plan.b_tile,
        producer=LOAD,
        consumer=MMA,
        released_by="tcgen05",
    )
    SUMS = tma.OutputTilePipeline(
        plan.accumulators, plan.accumulator, mma=MMA, epilogue=EPILOGUE, memory="tensor"
    )
    RESULTS = tma.StorePipeline(plan.config.out_stages, result=plan.out_tile, role=EPILOGUE)
    SCHEDULER = tma.GroupedScheduler(plan.config.group)
    COLUMNS, BY_TMA, EMPTY = plan.out_columns, plan.addressable, plan.empty
    write_columns = columns_write(plan)

    def matmul(a, b, out, old, residual, extents, terms):  # type: ignore[no-untyped-def]
        results = RESULTS.start()
        sums, pipe = SUMS.start(), PIPE.start()  # both synchronise the block
        schedule = SCHEDULER.over(extents.tile_rows, extents.tile_columns, extents.batch)
        # Persistent: a block computes each step-th tile of the schedule, from first on.
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        if LOAD.is_member():
            for tile in schedule.tiles(first, step):
                row, column = tile.row * M, tile.column * N
                a_matrix, b_matrix = tile.batch * extents.a_stride, tile.batch * extents.b_stride
                # One elected thread executes the body; `produce` has armed the stage's barrier.
                for k_tile, stage in pipe.produce(0, extents.steps):
                    k = k_tile * STAGE_K
                    if A_MAJOR == "K":
                        a.load(stage.a, (a_matrix, row, k), stage.barrier)
                    else:
                        a.load(stage.a, (a_matrix, k, row), stage.barrier)
                    if B_MAJOR == "K":
                        b.load(stage.b, (b_matrix, column, k), stage.barrier)
                    else:
                        b.load(stage.b, (b_matrix, k, column), stage.barrier)
        elif MMA.is_member():
            products = sums.producer()
            for _ in schedule.tiles(first, step):
                acc = products.acquire()
                # One elected thread executes the body; its commits release the stages.
                for k_tile, stage in pipe.consume(0, extents.steps):
                    a_stage = stage.a.matrix_descriptor(A_MAJOR)
                    b_stage = stage.b.matrix_descriptor(B_MAJOR)
                    tma.tcgen05_mma(acc.accumulator, a_stage, b_stage, accumulate=k_tile > 0)
                products.commit()
        else:
            finished = sums.consumer()
            lane = EPILOGUE.thread()
            sources: Any = (old, residual)
            for tile in schedule.tiles(first, step):
                acc = finished.acquire()
                row, left = tile.row * M, tile.column * N
                for piece in range(0, N, COLUMNS):
                    stage = results.acquire()
                    for i in range(0, COLUMNS, LOADED_COLUMNS):
                        if EMPTY:
                            values = ZEROS
                        else:
                            values = acc.load(piece + i, LOADED_COLUMNS)
                        at = (tile.batch, row + lane, left + piece + i)
                        write_columns(values, stage, (lane, i), out, at, sources, extents, terms)
                    if BY_TMA:
                        results.store(out, stage.result, (tile.batch, row, left + piece))
                    results.commit()
                finished.release()
        results.close()
        pipe.close()
        sums.close()

    return cuda.jit(launch_bounds=plan.roles.launch_bounds)(matmul)
