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
- Tiles: the grid has a block for each tile, in the scheduler's order. A block that has computed its
  tile takes the next block's, which the load warp has requested before its loads (`LaunchControl`).
- Epilogue: a thread has one row, the lane of tensor memory that its warp reaches. It holds 32
  columns at once and writes 16 bytes at a time to an epilogue tile, which the copy engine stores.

Words are those of `kernel`. `tcgen05_epilogue` has the epilogue.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda

import numba_tma as tma
from numba_tma.host.annotations import Kernel
from numba_tma.kernels.matmul.tcgen05_epilogue import tile_store
from numba_tma.kernels.matmul.tcgen05_plan import Tcgen05Plan


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
    WORK, SCHEDULER = plan.work, tma.GroupedScheduler(plan.config.group)
    store_tile = tile_store(plan)

    def matmul(a, b, out, old, residual, extents, terms):  # type: ignore[no-untyped-def]
        results, work = RESULTS.start(), WORK.start(sync=False)
        sums, pipe = SUMS.start(), PIPE.start()  # both synchronise the block
        schedule = SCHEDULER.over(extents.tile_rows, extents.tile_columns, extents.batch)
        if LOAD.is_member():
            for tile in work.tiles(schedule):
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
            for _ in work.tiles(schedule):
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
            for tile in work.tiles(schedule):
                acc = finished.acquire()
                origin = (tile.batch, tile.row * M, tile.column * N)
                store_tile(acc, results, origin, lane, out, sources, extents, terms)
                finished.release()
        results.close(read=True)
        pipe.close()
        sums.close()

    return cuda.jit(launch_bounds=plan.roles.launch_bounds)(matmul)
