"""The matmul kernel of block-scaled operands on Blackwell's tensor cores: mxfp8, mxfp4, nvfp4.

Assembled for sm_100a, 103a and 110a and simulated; it has run on no GPU.

Cost model: as `tcgen05_kernel`, or with pairs as `tcgen05_pair_kernel`, but the tensor cores
multiply 8-bit elements at twice the rate of bf16, and 4-bit elements at four times. A stage has the
same bytes of a and b. Its scale factors are 1/32 (8 bits), 1/16 (mxfp4) or 1/8 (nvfp4) more bytes;
those of b are of all n columns, so that a pair loads them twice.

    load warp, each block             multiply warp, even block     epilogue, each block
    for each output tile:             for each output tile:         for each output tile:
        for each k:                       acquire an accumulator        (as in tcgen05_kernel)
            acquire a stage               for each k:
            load 128 rows of a                wait for the stage
            and this block's b                copy the scales to
            load both scales (TMA)              tensor memory (tcgen05.cp)
                                              acc += (a * sa) @ (b * sb)
                                              commit: release the stage
                                          commit the accumulator

- Scales: atoms of 128 rows x 4 scales, 512 contiguous bytes, as the tensor cores read them. A copy
  writes an atom to 4 columns of tensor memory. One thread starts copies and products, so a product
  finds the scales of its stage. A copy overwrites those of the stage before, whose products were
  started earlier: the tensor cores execute both in the order of their start.
- The commit behind a stage's products also covers its copies, which have read the stage by then.
- Tiles of 64 and 192 columns begin in the middle of an atom: the stage has the whole atom, and the
  products begin at its third column.
- Pairs: each block loads and holds the scales of its own rows of a and of all of b's columns. The
  even block's thread starts the copies and products of both blocks.

Words are those of `kernel`. `tcgen05_epilogue` has the epilogue.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda

import numba_tma as tma
from numba_tma.host.annotations import Kernel
from numba_tma.host.scale_factors import ATOM_ROWS
from numba_tma.kernels.matmul.tcgen05_epilogue import tile_store
from numba_tma.kernels.matmul.tcgen05_plan import Tcgen05ScaledPlan, scale_columns_of


@functools.cache
def tcgen05_scaled_kernel(plan: Tcgen05ScaledPlan) -> Kernel:
    """Return the kernel of a plan, for clusters of `cta_group` blocks.

    Its arguments are those of `tcgen05_kernel`, with `sfa` and `sfb`, maps of the scale factors of
    all matrices: (atoms of rows, atoms of K, 2, 256).
    """
    GROUP = plan.config.cta_group
    N, STAGE_K = plan.config.n, plan.k
    BLOCK_M, BLOCK_N = plan.accumulator.shape[0], plan.b_rows
    A_MAJOR, B_MAJOR = plan.a_major, plan.b_major
    SFA, SFB, SCALED = plan.sfa_tile, plan.sfb_tile, plan.factors.block
    K_ATOMS = SFA.shape[1]
    SFA_COLUMN = plan.accumulators * N  # behind the accumulators
    SFB_COLUMN = SFA_COLUMN + scale_columns_of(SFA)
    LOAD, MMA, EPILOGUE = plan.roles.load, plan.roles.mma, plan.roles.epilogue
    PIPE = tma.TilePipeline(
        plan.stages,
        tma.BlockScaledTilePayload(plan.a_tile, plan.b_tile, SFA, SFB),
        producer=LOAD,
        consumer=MMA,
        released_by="tcgen05",
        cta_group=GROUP,
    )
    SUMS = tma.OutputTilePipeline(
        plan.accumulators,
        plan.accumulator,
        mma=MMA,
        epilogue=EPILOGUE,
        memory="tensor",
        extra_columns=plan.scale_columns,
        cta_group=GROUP,
    )
    RESULTS = tma.StorePipeline(plan.config.out_stages, result=plan.out_tile, role=EPILOGUE)
    WORK, SCHEDULER = plan.work, tma.GroupedScheduler(plan.config.group)
    store_tile = tile_store(plan)

    def matmul(a, b, sfa, sfb, out, old, residual, extents, terms):  # type: ignore[no-untyped-def]
        results, work = RESULTS.start(), WORK.start(sync=False)
        sums, pipe = SUMS.start(), PIPE.start()  # both synchronise the block or the cluster
        schedule = SCHEDULER.over(extents.tile_rows, extents.tile_columns, extents.batch)
        rank = cuda.blockIdx.x % GROUP
        if LOAD.is_member():
            # The atoms of a matrix follow those of the one before.
            a_atoms, b_atoms = -(-extents.rows // ATOM_ROWS), -(-extents.columns // ATOM_ROWS)
            for tile in work.tiles(schedule):
                row, left = (tile.row * GROUP + rank) * BLOCK_M, tile.column * N
                column = left + rank * BLOCK_N
                a_matrix, b_matrix = tile.batch * extents.a_stride, tile.batch * extents.b_stride
                a_atom = a_matrix * a_atoms + row // ATOM_ROWS
                b_atom = b_matrix * b_atoms + left // ATOM_ROWS
                # One elected thread of each block executes the body.
                for k_tile, stage in pipe.produce(0, extents.steps):
                    k, k_atom, full = k_tile * STAGE_K, k_tile * K_ATOMS, stage.barrier
                    if A_MAJOR == "K":
                        a.load(stage.a, (a_matrix, row, k), full, cta_group=GROUP)
                    else:
                        a.load(stage.a, (a_matrix, k, row), full, cta_group=GROUP)
                    if B_MAJOR == "K":
                        b.load(stage.b, (b_matrix, column, k), full, cta_group=GROUP)
                    else:
                        b.load(stage.b, (b_matrix, k, column), full, cta_group=GROUP)
                    sfa.load(stage.sfa, (a_atom, k_atom, 0, 0), full, cta_group=GROUP)
                    sfb.load(stage.sfb, (b_atom, k_atom, 0, 0), full, cta_group=GROUP)
        elif MMA.is_member():
            products = sums.producer()
            a_scale = sums.tensor_memory.scales(SFA, SFA_COLUMN, SCALED)
            b_scale = sums.tensor_memory.scales(SFB, SFB_COLUMN, SCALED)
            for tile in work.tiles(schedule):  # in both blocks of a pair: all read the answers
                if rank == 0:
                    acc = products.acquire()
                    b_part = b_scale.scale_rows(tile.column * N % ATOM_ROWS, N)
                    # One elected thread executes the body; its commits release the stages.
                    for k_tile, stage in pipe.consume(0, extents.steps):
                        tma.tcgen05_copy(a_scale, stage.sfa)
                        tma.tcgen05_copy(b_scale, stage.sfb)
                        tma.tcgen05_mma(
                            acc.accumulator,
                            stage.a.matrix_descriptor(A_MAJOR),
                            stage.b.matrix_descriptor(B_MAJOR),
                            accumulate=k_tile > 0,
                            a_scale=a_scale,
                            b_scale=b_part,
                        )
                    products.commit()
        else:
            finished = sums.consumer()
            lane = EPILOGUE.thread()
            sources: Any = (old, residual)
            for tile in work.tiles(schedule):
                acc = finished.acquire()
                origin = (tile.batch, (tile.row * GROUP + rank) * BLOCK_M, tile.column * N)
                store_tile(acc, results, origin, lane, out, sources, extents, terms)
                finished.release()
        results.close(read=True)
        pipe.close()
        sums.close()

    jit = cuda.jit(launch_bounds=plan.roles.launch_bounds)
    return jit(tma.cluster(GROUP)(matmul) if GROUP == 2 else matmul)
