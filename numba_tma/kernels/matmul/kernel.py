"""The matmul kernel: persistent and warp-specialised, with the epilogue in registers.

Cost model: an m x n output tile takes ``m * n * K`` multiply-adds of the tensor cores, and moves
``(m + n) * K`` elements from the L2 cache into shared memory, which is why tiles are as large as
the accumulator registers allow. With enough tiles the tensor cores are the bound; with few, or a
short K, it is the latency of the first stage and the last wave, which `choice` weighs.

    producer warpgroup                      consumer (MMA) warpgroups, 64 rows each
    for each output tile:                   for each output tile:
        for each k:                             for each k:
            acquire a stage                         wait for the stage
            load a and b into it (TMA)              start acc += a @ b (wgmma)
        load the epilogue's inputs                  release the stage before
                                                scale, bias, activation, store (TMA)

While the consumers store a tile, the producer loads the next one. In a cluster, blocks with tiles
of one column each load a part of b and multicast it to all.

The page: loads, epilogue stores, the kernel. Variants of a step (layouts, multicast, epilogue
inputs, narrow outputs) are functions of the same signature; `matmul_kernel` picks one of each.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.backend.interface import device_function
from numba_tma.host.annotations import DeviceFunction, Integer, Kernel
from numba_tma.kernels.matmul.epilogue import TileOrigin, epilogue_function
from numba_tma.kernels.matmul.plan import SOURCE_STAGES, WGMMA_ROWS, MatmulPlan, SwappedPlan

ALL_LANES = 0xFFFFFFFF


class MatmulExtents(NamedTuple):
    """The extents of a matmul, as its kernel takes them."""

    rows: Any  #: of one matrix of the result
    columns: Any
    tile_rows: Any  #: rows of tiles, a multiple of the cluster size
    tile_columns: Any
    batch: Any  #: matrices of the result, times `splits`
    steps: Any  #: stages along K
    a_batch: Any  #: 1, or 0 if all matrices of the result have the same a
    b_batch: Any
    splits: Any  #: parts of K (split-K), each a matrix of the result


# ------------------------------------------------------------------------- load: tiles of b


@cuda.jit(device=True)
def load_b_k_major(b, stage, matrix, column, k, rank):  # type: ignore[no-untyped-def]
    """Load the tile of a b that is contiguous along K."""
    b.load(stage.b, (matrix, column, k), stage.barrier)


@cuda.jit(device=True)
def load_b_mn_major(b, stage, matrix, column, k, rank):  # type: ignore[no-untyped-def]
    """Load the tile of a b that is contiguous along N."""
    b.load(stage.b, (matrix, k, column), stage.barrier)


LOAD_B = {"K": load_b_k_major, "MN": load_b_mn_major}


def b_multicast(plan: MatmulPlan) -> DeviceFunction:
    """Return the load of this block's part of the tile of b, for all blocks of the cluster."""
    PART, EVERYONE = plan.b_part, (1 << plan.config.cluster) - 1
    WIDTH, NBYTES = plan.b_copy.shape[1 if plan.b_major == "K" else 2], plan.b_copy.shared_nbytes

    @cuda.jit(device=True)
    def load_k_major(b, stage, matrix, column, k, rank):  # type: ignore[no-untyped-def]
        for i in range(rank * PART, (rank + 1) * PART, WIDTH):
            to, at = stage.b.address + i // WIDTH * NBYTES, (matrix, column + i, k)
            ptx.cp_async_bulk_tensor_load(to, b, at, stage.barrier, None, EVERYONE)

    @cuda.jit(device=True)
    def load_mn_major(b, stage, matrix, column, k, rank):  # type: ignore[no-untyped-def]
        for i in range(rank * PART, (rank + 1) * PART, WIDTH):
            to, at = stage.b.address + i // WIDTH * NBYTES, (matrix, k, column + i)
            ptx.cp_async_bulk_tensor_load(to, b, at, stage.barrier, None, EVERYONE)

    return load_k_major if plan.b_major == "K" else load_mn_major


def b_load(plan: MatmulPlan) -> DeviceFunction:
    """Return the load of b: the whole tile, or a part of it that is multicast."""
    return b_multicast(plan) if plan.config.cluster > 1 else LOAD_B[plan.b_major]


# ------------------------------------------- load: the epilogue's inputs, one tile at a time


@cuda.jit(device=True)
def load_old(old, residual, i, stage, at):  # type: ignore[no-untyped-def]
    """Load a tile of the old output, for beta."""
    old.load(stage.source, at, stage.barrier)


@cuda.jit(device=True)
def load_residual(old, residual, i, stage, at):  # type: ignore[no-untyped-def]
    """Load a tile of the residual."""
    residual.load(stage.source, at, stage.barrier)


@cuda.jit(device=True)
def load_in_turn(old, residual, i, stage, at):  # type: ignore[no-untyped-def]
    """Load a tile of the old output, then the same tile of the residual."""
    if i % 2 == 0:
        old.load(stage.source, at, stage.barrier)
    else:
        residual.load(stage.source, at, stage.barrier)


def source_load(plan: MatmulPlan) -> DeviceFunction:
    """Return the load of the epilogue's inputs."""
    if plan.epilogue.sources == 2:
        return load_in_turn
    return load_old if plan.epilogue.beta else load_residual


# ------------------------------------------------- store: epilogue, one tile after the other


def tile_store(plan: MatmulPlan, last: int) -> DeviceFunction:
    """Return the function that finishes and stores the epilogue tiles 0 to `last` of a warpgroup.

    Columns of a fragment are compile-time constants: each epilogue tile has a function, which calls
    that of the tiles to its left.
    """
    before = tile_store(plan, last - 1) if last else nothing_to_store
    COLUMNS, START = plan.out_columns, last * plan.out_columns
    finish, write = tile_epilogue(plan), tile_write(plan)

    @cuda.jit(device=True)
    def store(acc, results, sources, out, at, mma_row, extents, terms):  # type: ignore[no-untyped-def]
        before(acc, results, sources, out, at, mma_row, extents, terms)
        batch, top, left = at[0], at[1], at[2] + START
        part = acc.columns(START, COLUMNS)
        part = finish(part, sources, batch, top, left, mma_row, extents, terms)
        write(part, results, out, batch, top, left)

    return store


@cuda.jit(device=True)
def nothing_to_store(acc, results, sources, out, at, mma_row, extents, terms):  # type: ignore[no-untyped-def]
    """Store nothing: there is no epilogue tile to the left of the first."""


def tile_epilogue(plan: MatmulPlan) -> DeviceFunction:
    """Return the function that applies the epilogue to a fragment."""
    to_float = conversion("i32" if plan.out.name == "i32" else "f32")
    if not plan.epilogue.changes:

        @cuda.jit(device=True)
        def unchanged(part, sources, batch, top, left, mma_row, extents, terms):  # type: ignore[no-untyped-def]
            return to_float(part)

        return unchanged
    element = epilogue_function(plan.epilogue, plan.out)
    read = source_read(plan)
    read_old = read if plan.epilogue.beta else zero
    read_residual = read if plan.epilogue.residual else zero

    @cuda.jit(device=True)
    def finish(part, sources, batch, top, left, mma_row, extents, terms):  # type: ignore[no-untyped-def]
        part = to_float(part)
        old, added = read_old(sources, mma_row), read_residual(sources, mma_row)
        first, last = batch * extents.rows, (batch + 1) * extents.rows - 1
        at, end = (np.int32(first + top), np.int32(left)), np.int32(extents.columns - 1)
        origin = TileOrigin(at[0], at[1], np.int32(last), end)
        return part.map_coords(element, old, added, origin, terms)

    return finish


def source_read(plan: MatmulPlan) -> DeviceFunction:
    """Return the function that takes the warpgroup's rows of the next epilogue input."""
    TILE = tma.Tile(plan.source_tile.shape[1:], plan.out, plan.source_tile.swizzle)
    COLUMNS = plan.out_columns

    @cuda.jit(device=True)
    def read(sources, mma_row):  # type: ignore[no-untyped-def]
        stage = sources.wait()
        part = tma.load_fragment(stage.source.view(TILE), (mma_row, 0), COLUMNS)
        sources.release()
        return part

    return read


@cuda.jit(device=True)
def zero(sources, mma_row):  # type: ignore[no-untyped-def]
    """Return 0: this epilogue has no such input."""
    return np.float32(0)


def tile_write(plan: MatmulPlan) -> DeviceFunction:
    """Return the function that rounds a fragment to the output's type and writes it."""
    round_to_out = conversion(plan.out.name)
    TILE = tma.Tile(plan.out_tile.shape[1:], plan.out, plan.out_tile.swizzle)

    @cuda.jit(device=True)
    def store_by_tma(part, results, out, batch, top, left):  # type: ignore[no-untyped-def]
        part = round_to_out(part)
        stage = results.acquire()
        part.store(stage.result.view(TILE), (0, 0))
        results.store(out, stage.result, (batch, top, left))
        results.commit()

    @cuda.jit(device=True)
    def store_by_threads(part, results, out, batch, top, left):  # type: ignore[no-untyped-def]
        round_to_out(part).store_global(out[batch], top, left)

    return store_by_tma if plan.addressable else store_by_threads


def conversion(name: str) -> DeviceFunction:
    """Return the function that converts a fragment; integer sums that are stored stay exact."""

    @cuda.jit(device=True)
    def convert(part):  # type: ignore[no-untyped-def]
        return part.to(name)

    return keep if name == "i32" else convert


@cuda.jit(device=True)
def keep(part):  # type: ignore[no-untyped-def]
    """Return the fragment as it is."""
    return part


# ------------------------------------------------------ the schedule, and who does what of it


@device_function
def k_range(batch: Integer, extents: MatmulExtents) -> Any:
    """Return the matrix that a part of K belongs to (split-K), and its first and last stage."""
    splits, steps = np.uint32(extents.splits), np.uint32(extents.steps)
    matrix = np.uint32(np.uint32(batch) // splits)
    part = np.uint32(np.uint32(batch) % splits)
    begin, end = np.uint32(part * steps), np.uint32((part + 1) * steps)
    return matrix, np.uint32(begin // splits), np.uint32(end // splits)


def warpgroup_row(plan: MatmulPlan | SwappedPlan, rows: int = WGMMA_ROWS) -> DeviceFunction:
    """Return the function that returns the first of the `rows` of an MMA warpgroup in a tile."""
    FIRST_THREAD = plan.consumers[0].first

    @cuda.jit(device=True)
    def first_row():  # type: ignore[no-untyped-def]
        warpgroup = (ptx.tid_x() - FIRST_THREAD) // 128
        # A shuffle puts it into a uniform register: descriptors are then computed once per warp.
        return cuda.shfl_sync(ALL_LANES, warpgroup, 0) * rows

    @cuda.jit(device=True)
    def no_row():  # type: ignore[no-untyped-def]
        return 0

    return first_row if len(plan.consumers) > 1 else no_row


def operand_pipeline(plan: MatmulPlan, **more: tma.Tile) -> tma.TilePipeline:
    """Return the pipeline whose stages hold a tile of a, one of b, and what else is given."""
    options: dict[str, Any] = {**more, "producer": plan.roles.load, "consumer": plan.consumers}
    if plan.config.cluster > 1:
        options |= {"cluster": (plan.config.cluster, 1), "multicast": {"b": "x"}}
    return tma.TilePipeline(plan.stages, a=plan.a_tile, b=plan.b_tile, **options)


def scheduler(plan: MatmulPlan) -> tma.GroupedScheduler:
    """Return the order of tiles: groups of rows, whose operands stay in the L2 cache."""
    return tma.GroupedScheduler(max(1, plan.config.group // plan.config.cluster))


def jitted(plan: MatmulPlan, kernel: Any) -> Kernel:
    """Return the kernel, compiled for the plan's cluster and registers."""
    if plan.config.cluster > 1:
        kernel = tma.cluster(plan.config.cluster)(kernel)
    return cuda.jit(launch_bounds=plan.roles.launch_bounds)(kernel)


# ------------------------------------------------------------------------------ the kernel


@functools.cache
def matmul_kernel(plan: MatmulPlan) -> Kernel:
    """Return the kernel of a plan. Its blocks have ``plan.roles.threads`` threads.

    `out` is a tensor map, or an array if TMA cannot address it; `old` and `residual` are tensor
    maps, or 0 if the epilogue does not read them.
    """
    M, N, K, CLUSTER = plan.config.m, plan.config.n, plan.k, plan.config.cluster
    A_MAJOR, A_IS_K_MAJOR, B_MAJOR = plan.a_major, plan.a_major == "K", plan.b_major
    PRODUCER, MMA, ACC = plan.roles.load, plan.consumers[0], plan.accumulator.name
    PIPE, SCHEDULER = operand_pipeline(plan), scheduler(plan)
    SOURCES = tma.TilePipeline(
        SOURCE_STAGES, source=plan.source_tile, producer=PRODUCER, consumer=plan.consumers
    )
    RESULTS = tma.StorePipeline(plan.config.out_stages, result=plan.out_tile, role=plan.consumers)
    HAS_SOURCES, LOADS = plan.epilogue.sources > 0, plan.epilogue.sources * plan.epilogue_tiles
    COLUMNS, READS = plan.out_columns, plan.epilogue.sources
    load_b, load_source, first_row = b_load(plan), source_load(plan), warpgroup_row(plan)
    store = tile_store(plan, plan.epilogue_tiles - 1)

    def matmul(a, b, out, old, residual, extents, terms):  # type: ignore[no-untyped-def]
        reader: Any = 0
        if HAS_SOURCES:
            sources = SOURCES.start(sync=False)  # the next start synchronises the block
            reader = sources.consumer()
        pipe, results = PIPE.start(), RESULTS.start()
        schedule = SCHEDULER.over(extents.tile_rows // CLUSTER, extents.tile_columns, extents.batch)
        first, step, rank = ptx.clusterid_x(), ptx.nclusterid_x(), ptx.cluster_ctarank()
        if pipe.is_producer():
            PRODUCER.set_registers()
            for tile in schedule.tiles(first, step):
                row, column = (tile.row * CLUSTER + rank) * M, tile.column * N
                matrix, begin, end = k_range(tile.batch, extents)
                of_a, of_b = matrix * extents.a_batch, matrix * extents.b_batch
                for k, stage in pipe.produce(begin, end):
                    if A_IS_K_MAJOR:
                        a.load(stage.a, (of_a, row, k * K), stage.barrier)
                    else:
                        a.load(stage.a, (of_a, k * K, row), stage.barrier)
                    load_b(b, stage, of_b, column, k * K, rank)
                if HAS_SOURCES:
                    for i, stage in sources.produce(0, LOADS):
                        at = (tile.batch, row, column + i // READS * COLUMNS)
                        load_source(old, residual, i, stage, at)
        else:
            MMA.set_registers()
            mma_row = first_row()
            for tile in schedule.tiles(first, step):
                row, column = (tile.row * CLUSTER + rank) * M, tile.column * N
                _, begin, end = k_range(tile.batch, extents)
                acc = tma.fragment(N, ACC)
                for _, stage in pipe.consume(begin, end, in_flight=1):
                    a_rows = stage.a.matrix_descriptor(A_MAJOR).advance(row=mma_row)
                    acc = tma.wgmma(acc, a_rows, stage.b.matrix_descriptor(B_MAJOR))
                    acc = tma.wgmma_wait(acc, 1)  # the product before has read its stage
                acc = tma.wgmma_wait(acc)
                pipe.release_pending()
                at = (tile.batch, row + mma_row, column)
                store(acc, results, reader, out, at, mma_row, extents, terms)
        results.close()
        if HAS_SOURCES:
            sources.close()
        pipe.close()

    return jitted(plan, matmul)
