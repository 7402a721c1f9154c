"""The matmul kernel of CTA pairs: two blocks of a cluster multiply a tile of 256 rows together.

Assembled for sm_100a, 103a and 110a and simulated; it has run on no GPU.

Cost model: as `tcgen05_kernel`, but each block has half of the tile's b in its shared memory, and
the tensor cores of both SMs read both halves. A stage is 128 x 128 bytes of a and n / 2 x 128 of b:
shared memory holds more stages, TMA writes fewer bytes for the same products, and L2 delivers b
once for two blocks.

    load warp, both blocks            multiply warp, even block     epilogue, both blocks
    for each output tile:             for each output tile:         for each output tile:
        for each k:                       acquire an accumulator        wait for the accumulator
            acquire a stage               for each k:                   finish and store 128 rows
            load 128 rows of a                wait for both blocks'     release the accumulator
            and half of b (TMA)               acc += a @ b                  to the even block
            onto the even block's barrier     commit to both blocks
                                          commit to both epilogues

- Stages: the even block's barrier counts the bytes of both blocks. Its commit releases the stage in
  both.
- Accumulators: each block has 128 lanes x n columns of the tile, the even block the upper rows.
- Tiles: the pair takes the tile of the next pair of the grid, and both blocks read the answer.
- Epilogue: `tcgen05_epilogue`, in both blocks. The even block counts the releases of both.

Words are those of `kernel`.
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
def tcgen05_pair_kernel(plan: Tcgen05Plan) -> Kernel:
    """Return the kernel of a plan with `cta_group` 2, for clusters of two blocks.

    Its blocks have ``plan.roles.threads`` threads, and its arguments are those of `tcgen05_kernel`.
    """
    M, N, STAGE_K = plan.rows, plan.config.n, plan.k
    HALF_M, HALF_N = plan.accumulator.shape[0], plan.b_rows
    A_MAJOR, B_MAJOR = plan.a_major, plan.b_major
    LOAD, MMA, EPILOGUE = plan.roles.load, plan.roles.mma, plan.roles.epilogue
    PIPE = tma.TilePipeline(
        plan.stages,
        a=plan.a_tile,
        b=plan.b_tile,
        producer=LOAD,
        consumer=MMA,
        released_by="tcgen05",
        cta_group=2,
    )
    SUMS = tma.OutputTilePipeline(
        plan.accumulators,
        plan.accumulator,
        mma=MMA,
        epilogue=EPILOGUE,
        memory="tensor",
        cta_group=2,
    )
    RESULTS = tma.StorePipeline(plan.config.out_stages, result=plan.out_tile, role=EPILOGUE)
    WORK, SCHEDULER = plan.work, tma.GroupedScheduler(plan.config.group)
    store_tile = tile_store(plan)

    def matmul(a, b, out, old, residual, extents, terms):  # type: ignore[no-untyped-def]
        results, work = RESULTS.start(), WORK.start(sync=False)
        sums, pipe = SUMS.start(), PIPE.start()  # both synchronise the cluster
        schedule = SCHEDULER.over(extents.tile_rows, extents.tile_columns, extents.batch)
        rank = cuda.blockIdx.x % 2
        if LOAD.is_member():
            for tile in work.tiles(schedule):
                row, column = tile.row * M + rank * HALF_M, tile.column * N + rank * HALF_N
                a_matrix, b_matrix = tile.batch * extents.a_stride, tile.batch * extents.b_stride
                # One elected thread of each block executes the body.
                for k_tile, stage in pipe.produce(0, extents.steps):
                    k = k_tile * STAGE_K
                    if A_MAJOR == "K":
                        a.load(stage.a, (a_matrix, row, k), stage.barrier, cta_group=2)
                    else:
                        a.load(stage.a, (a_matrix, k, row), stage.barrier, cta_group=2)
                    if B_MAJOR == "K":
                        b.load(stage.b, (b_matrix, column, k), stage.barrier, cta_group=2)
                    else:
                        b.load(stage.b, (b_matrix, k, column), stage.barrier, cta_group=2)
        elif MMA.is_member():
            products = sums.producer()
            for _ in work.tiles(schedule):  # in both blocks: all read the answers
                if rank == 0:
                    acc = products.acquire()
                    # One elected thread executes the body; its commits release the stages of both.
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
                origin = (tile.batch, tile.row * M + rank * HALF_M, tile.column * N)
                store_tile(acc, results, origin, lane, out, sources, extents, terms)
                finished.release()
        results.close(read=True)
        pipe.close()
        sums.close()

    return cuda.jit(launch_bounds=plan.roles.launch_bounds)(tma.cluster(2)(matmul))
