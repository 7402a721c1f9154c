"""The matmul kernel by mma.sync: persistent, with operands and sums in registers.

It is the kernel of compute capability 12.x, whose tensor cores have neither wgmma nor tcgen05, and
99 KiB of shared memory a block. It runs on every GPU with TMA. For sm_120a and 121a it has been
assembled and simulated, and has run on no such GPU.

Cost model: an m x n output tile takes ``m * n * K`` multiply-adds and moves ``(m + n) * K``
elements from the L2 cache into shared memory. Unlike wgmma, mma.sync reads registers, so each warp
loads its ``m / 4`` rows of a and its ``n / warpgroups`` columns of b by itself. A warp's part of
the tile is therefore as square and as large as registers allow.

    load warp                               consumer warpgroups, 4 warps each
    for each output tile:                   for each output tile:
        for each k:                             for each k:
            acquire a stage                         wait for the stage
            load a and b into it (TMA)              for each 32 bytes along K:
                                                        load the operands (ldmatrix)
                                                        sums += those of the step before (mma.sync)
                                                    release the stage
                                                sums += the last step
                                                scale, bias, activation, store (TMA)

- Roles: one warp of a warpgroup of 40 registers a thread loads; the consumers get 232, or 255 if
  there is one warpgroup of them. Each role starts its scheduler and its output pipeline by itself:
  what lives across both roles would be kept in the registers of the smaller.
- Double buffering: a warp loads the operands of a step while the tensor cores multiply those of the
  step before. That holds across stages too: a stage is released with its last operands in
  registers. A tile's first step multiplies zeros.
- Persistent: a block fills the shared memory of an SM, so that no second block computes while its
  warps are in the epilogue. But the load warp goes on to the next tile, whose first stages are full
  when the epilogue ends. Without that each tile would begin with the latency of a load.
- Bank conflicts: none. A stage's rows are one swizzle span, so the 8 rows of a matrix that ldmatrix
  reads lie in different banks; so do the 8 x 16 bytes of a transposed one.
- Epilogue: a warpgroup holds fragments of 64 rows, one below the other. It applies the chain to
  registers, and writes 64 rows of an epilogue tile at a time, which the copy engine stores.
- Shared memory is small, so the old output (beta) and the residual are read by threads.

Words are those of `kernel`; `right` is the first column of a warpgroup in the block's tile.
"""

from __future__ import annotations

import functools

from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.device.warp_products import load_part, mma_sync, zero_part
from numba_tma.host.annotations import DeviceFunction, Kernel
from numba_tma.host.warpgroup import ALL_LANES, ROWS
from numba_tma.kernels.matmul.epilogue import element_epilogue
from numba_tma.kernels.matmul.kernel import conversion, tile_write
from numba_tma.kernels.matmul.mma_plan import MmaPlan
from numba_tma.kernels.matmul.plan import SwappedPlan
from numba_tma.kernels.matmul.unaligned_plan import UnalignedPlan

# ------------------------------------------------------------ multiply: by a consumer warpgroup


def zero_sums(plan: MmaPlan) -> DeviceFunction:
    """Return the function that returns sums to start from, a fragment for each 64 rows."""
    N, ACC = plan.columns, plan.accumulator.name

    @cuda.jit(device=True)
    def one():  # type: ignore[no-untyped-def]
        return (tma.fragment(N, ACC),)

    @cuda.jit(device=True)
    def two():  # type: ignore[no-untyped-def]
        return tma.fragment(N, ACC), tma.fragment(N, ACC)

    @cuda.jit(device=True)
    def four():  # type: ignore[no-untyped-def]
        return (
            tma.fragment(N, ACC),
            tma.fragment(N, ACC),
            tma.fragment(N, ACC),
            tma.fragment(N, ACC),
        )

    return {1: one, 2: two, 4: four}[plan.blocks]


def zero_operands(plan: MmaPlan) -> DeviceFunction:
    """Return the function that returns operands of zeros: those of the step before the first."""
    A, B, M, N = plan.a.name, plan.b.name, plan.config.m, plan.columns

    @cuda.jit(device=True)
    def zeros():  # type: ignore[no-untyped-def]
        return zero_part("a", A, M), zero_part("b", B, N)

    return zeros


def stage_product(plan: MmaPlan, k_step: int) -> DeviceFunction:
    """Return the function that loads steps 0 to `k_step` of a stage, and multiplies those before.

    It takes the operands of the step before, and returns the sums and the operands of `k_step`.
    This is an unrolled loop, since the place of a step is a compile-time constant.
    """
    multiply_previous = stage_product(plan, k_step - 1) if k_step else nothing_loaded
    M, N, A_MAJOR, B_MAJOR = plan.config.m, plan.columns, plan.a_major, plan.b_major
    STEP = k_step

    @cuda.jit(device=True)
    def multiply(sums, held, stage, right):  # type: ignore[no-untyped-def]
        sums, held = multiply_previous(sums, held, stage, right)
        a = load_part("a", stage.a, 0, M, STEP, A_MAJOR)
        b = load_part("b", stage.b, right, N, STEP, B_MAJOR)
        return mma_sync(sums, held[0], held[1]), (a, b)

    return multiply


@cuda.jit(device=True)
def nothing_loaded(sums, held, stage, right):  # type: ignore[no-untyped-def]
    """Return sums and operands as they are: there is no step before the first."""
    return sums, held


def warpgroup_column(plan: MmaPlan) -> DeviceFunction:
    """Return the function that returns the first column of a warpgroup in a tile."""
    N, FIRST_THREAD = plan.columns, plan.consumers[0].first

    @cuda.jit(device=True)
    def first_column():  # type: ignore[no-untyped-def]
        warpgroup = (ptx.tid_x() - FIRST_THREAD) // 128
        # A shuffle tells the compiler that a warp's threads agree.
        return cuda.shfl_sync(ALL_LANES, warpgroup, 0) * N

    @cuda.jit(device=True)
    def no_column():  # type: ignore[no-untyped-def]
        return 0

    return first_column if plan.config.warpgroups > 1 else no_column


# ------------------------------------ store: one epilogue tile after the other, by each warpgroup


def sums_store(plan: MmaPlan, index: int) -> DeviceFunction:
    """Return the function that finishes and stores a warpgroup's epilogue tiles 0 to `index`.

    Tiles count along rows first: those of the first 64 rows, then those below. This is an unrolled
    loop, since fragments and their columns are compile-time constants.
    """
    store_previous = sums_store(plan, index - 1) if index else nothing_stored
    COLUMNS = plan.out_columns
    BLOCK, PART = divmod(index, plan.columns // COLUMNS)
    START, DOWN = PART * COLUMNS, BLOCK * ROWS
    finish, write = sum_epilogue(plan), tile_write(plan)

    @cuda.jit(device=True)
    def store(sums, results, sources, out, at, extents, terms):  # type: ignore[no-untyped-def]
        store_previous(sums, results, sources, out, at, extents, terms)
        batch, top, left = at[0], at[1] + DOWN, at[2] + START
        fragment = sums[BLOCK].columns(START, COLUMNS)
        fragment = finish(fragment, sources, (batch, top, left), extents, terms)
        write(fragment, results, out, batch, top, left)

    return store


@cuda.jit(device=True)
def nothing_stored(sums, results, sources, out, at, extents, terms):  # type: ignore[no-untyped-def]
    """Store nothing: there is no epilogue tile before the first."""


def sum_epilogue(plan: MmaPlan | SwappedPlan | UnalignedPlan) -> DeviceFunction:
    """Return the function that applies the epilogue to a fragment; `element_epilogue` does it."""
    to_epilogue_type = conversion("i32" if plan.out.name == "i32" else "f32")
    if not plan.epilogue.changes:

        @cuda.jit(device=True)
        def unchanged(fragment, sources, at, extents, terms):  # type: ignore[no-untyped-def]
            return to_epilogue_type(fragment)

        return unchanged
    finish = element_epilogue(plan.epilogue, plan.out)

    @cuda.jit(device=True)
    def element(value, down, right, sources, at, extents, terms):  # type: ignore[no-untyped-def]
        batch, top, left = at
        return finish(value, (batch, top + down, left + right), sources, extents, terms)

    @cuda.jit(device=True)
    def finished(fragment, sources, at, extents, terms):  # type: ignore[no-untyped-def]
        fragment = to_epilogue_type(fragment)
        return fragment.map_coords(element, sources, at, extents, terms)

    return finished


# ------------------------------------------------------------------------------ the kernel


@functools.cache
def mma_kernel(plan: MmaPlan) -> Kernel:
    """Return the kernel of a plan. Its blocks have ``plan.roles.threads`` threads.

    `out` is a tensor map, or an array if TMA cannot address it; `old` and `residual` are
    `MatrixBytes`.
    """
    M, N, STAGE_K = plan.config.m, plan.config.n, plan.k
    A_MAJOR, B_MAJOR = plan.a_major, plan.b_major
    LOAD, MMA = plan.roles.load, plan.consumers[0]  # all consumers have equal registers
    PIPE = tma.TilePipeline(
        plan.stages, a=plan.a_tile, b=plan.b_tile, producer=LOAD, consumer=plan.consumers
    )
    RESULTS = tma.StorePipeline(plan.config.out_stages, result=plan.out_tile, role=plan.consumers)
    SCHEDULER = tma.GroupedScheduler(plan.config.group)
    sums_of_nothing, no_operands = zero_sums(plan), zero_operands(plan)
    multiply, first_column = stage_product(plan, plan.k_steps - 1), warpgroup_column(plan)
    store = sums_store(plan, plan.blocks * (plan.columns // plan.out_columns) - 1)

    def matmul(a, b, out, old, residual, extents, terms):  # type: ignore[no-untyped-def]
        pipe = PIPE.start()
        if LOAD.is_member():
            LOAD.set_registers()
            # Persistent: with n blocks, each computes every n-th tile of the schedule.
            schedule = SCHEDULER.over(extents.tile_rows, extents.tile_columns, extents.batch)
            for tile in schedule.tiles():
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
        else:
            MMA.set_registers()
            results = RESULTS.start()
            # Persistent: with n blocks, each computes every n-th tile of the schedule.
            schedule = SCHEDULER.over(extents.tile_rows, extents.tile_columns, extents.batch)
            full, right = pipe.consumer(), first_column()
            for tile in schedule.tiles():
                sums, held = sums_of_nothing(), no_operands()
                for _ in range(extents.steps):
                    sums, held = multiply(sums, held, full.wait(), right)
                    full.release()  # all of the stage has been loaded
                sums = mma_sync(sums, held[0], held[1])
                at = (tile.batch, tile.row * M, tile.column * N + right)
                store(sums, results, (old, residual), out, at, extents, terms)
            results.close(read=True)
        pipe.close()

    return cuda.jit(launch_bounds=plan.roles.launch_bounds)(matmul)
