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
                                                    wait for the product before, release its stage
        load tiles of the sources               scale, bias, activation, store (TMA)

- Warpgroups: one producer with 40 registers a thread (32 beside three consumers), and m / 64
  consumers. Two consumers get 232 registers a thread (setmaxnreg), three 160. A single one has 255,
  the most that a thread can have.
- Producer: one elected thread waits for the stage to be empty, arms its full barrier with the bytes
  of the tiles of a and b, and starts the copies.
- Overlap: all consumers share a tile, and each stores its own 64 rows of it. Meanwhile the producer
  fills the stages of the next tile. With sources, it first starts the loads of this tile's sources,
  for which it has `SOURCE_STAGES` stages, so it gets to the next tile during the epilogue.
- Stages: as many as fit into shared memory beside the epilogue's tiles, up to ``config.stages``.
- Cluster: blocks that compute tiles below each other need the same tile of b, blocks beside each
  other the same tile of a. Each loads its share of such a tile and multicasts it to the others. So
  a stage is empty only when the consumers of all blocks that load into it have released it.
- Split-K: each split of K gives a float32 matrix of its own. `epilogue.split_k_kernel` adds them
  and applies the epilogue.

Words: `matrix` is the index of a matrix of the result, `split` that of a split of K. `batch` is the
index of a matrix that this kernel writes: ``matrix * splits + split``. A *source* is a matrix that
the epilogue reads: the old output, the residual. `at` is (batch, row, column), in elements, and
`mma_row` the first row of a warpgroup in the block's tile.

The page: loads, epilogue stores, the kernel. Variants of a step (layouts, multicast, sources,
narrow outputs) are functions of the same signature; `matmul_kernel` picks one of each.
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
from numba_tma.host.warpgroup import ALL_LANES
from numba_tma.kernels.matmul.arguments import MatmulExtents
from numba_tma.kernels.matmul.epilogue import TileOrigin, epilogue_function
from numba_tma.kernels.matmul.mma_plan import MmaPlan
from numba_tma.kernels.matmul.plan import SOURCE_STAGES, WGMMA_ROWS, MatmulPlan, SwappedPlan

#: Products that still run when an iteration of a consumer's loop ends; the loop holds their stages.
IN_FLIGHT = 1


# ---------------------------------------------------- load: tiles of a and b, by one elected thread
#
# Each function loads a tile of an operand; `at` is (matrix, first row, first k). Blocks that share
# the tile load a share of it each: `rank` is the block's number among them, `mask` has their bits.


@cuda.jit(device=True)
def load_k_major(operand, tile, at, barrier, rank, mask):  # type: ignore[no-untyped-def]
    """Load the tile of an operand that is contiguous along K."""
    operand.load(tile, at, barrier)


@cuda.jit(device=True)
def load_mn_major(operand, tile, at, barrier, rank, mask):  # type: ignore[no-untyped-def]
    """Load the tile of an operand that is contiguous along M or N."""
    operand.load(tile, (at[0], at[2], at[1]), barrier)


LOAD = {"K": load_k_major, "MN": load_mn_major}


def multicast_load(tile: tma.Tile, major: str, blocks: int) -> DeviceFunction:
    """Return the load of this block's share of a tile, for all blocks of `mask`.

    Each block copies equally many lines, in each slab: rows, or elements of K if MN-major.
    """
    LINES, SLAB, SLABS = tile.shape[1] // blocks, tile.slab, tile.num_slabs
    NBYTES, SLAB_NBYTES = LINES * tile.pitch, tile.slab_nbytes

    @cuda.jit(device=True)
    def load_rows(operand, tile, at, barrier, rank, mask):  # type: ignore[no-untyped-def]
        to, coords = tile.address + rank * NBYTES, (at[0], at[1] + rank * LINES, at[2])
        ptx.cp_async_bulk_tensor_load(to, operand, coords, barrier, multicast=mask)

    @cuda.jit(device=True)
    def load_slabs(operand, tile, at, barrier, rank, mask):  # type: ignore[no-untyped-def]
        for i in range(SLABS):
            to = tile.address + i * SLAB_NBYTES + rank * NBYTES
            coords = at[0], at[2] + rank * LINES, at[1] + i * SLAB
            ptx.cp_async_bulk_tensor_load(to, operand, coords, barrier, multicast=mask)

    return load_rows if major == "K" else load_slabs


def a_load(plan: MatmulPlan) -> DeviceFunction:
    """Return the load of a: the whole tile, or the block's share of it, which is multicast."""
    blocks = plan.config.across
    return multicast_load(plan.a_tile, plan.a_major, blocks) if blocks > 1 else LOAD[plan.a_major]


def b_load(plan: MatmulPlan) -> DeviceFunction:
    """Return the load of b: the whole tile, or the block's share of it, which is multicast."""
    blocks = plan.config.cluster
    return multicast_load(plan.b_tile, plan.b_major, blocks) if blocks > 1 else LOAD[plan.b_major]


def operands_load(plan: MatmulPlan) -> DeviceFunction:
    """Return the load of a stage: the tiles of a and b, of a block at a `ClusterPlace`."""
    load_a, load_b = a_load(plan), b_load(plan)

    @cuda.jit(device=True)
    def load(a, b, stage, a_at, b_at, place):  # type: ignore[no-untyped-def]
        load_a(a, stage.a, a_at, stage.barrier, place.right, place.beside)
        load_b(b, stage.b, b_at, stage.barrier, place.down, place.below)

    return load


# ----------------------------------------- load: sources, one tile at a time, by one elected thread


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
    """Return the load of tile `i` of the sources."""
    if plan.epilogue.sources == 2:
        return load_in_turn
    return load_old if plan.epilogue.beta else load_residual


# ----------------------------- store: one epilogue tile after the other, by each consumer warpgroup


def tile_store(plan: MatmulPlan, index: int) -> DeviceFunction:
    """Return the function that finishes and stores a warpgroup's epilogue tiles 0 to `index`.

    This is an unrolled loop: a fragment's columns must be compile-time constants, so each epilogue
    tile has its own function, which first calls that of tile ``index - 1``. `top` and `left` are
    the first row and column of an epilogue tile in the matrix that is written.
    """
    store_previous = tile_store(plan, index - 1) if index else nothing_to_store
    COLUMNS, START = plan.out_columns, index * plan.out_columns
    finish, write = tile_epilogue(plan), tile_write(plan)

    @cuda.jit(device=True)
    def store(acc, results, sources, out, at, mma_row, extents, terms):  # type: ignore[no-untyped-def]
        store_previous(acc, results, sources, out, at, mma_row, extents, terms)
        batch, top, left = at[0], at[1], at[2] + START
        fragment = acc.columns(START, COLUMNS)
        fragment = finish(fragment, sources, batch, top, left, mma_row, extents, terms)
        write(fragment, results, out, batch, top, left)

    return store


@cuda.jit(device=True)
def nothing_to_store(acc, results, sources, out, at, mma_row, extents, terms):  # type: ignore[no-untyped-def]
    """Store nothing: there is no epilogue tile to the left of the first."""


@functools.cache  # the tiles of a kernel share it
def tile_epilogue(plan: MatmulPlan) -> DeviceFunction:
    """Return the function that applies the epilogue to a fragment."""
    to_epilogue_type = conversion("i32" if plan.out.name == "i32" else "f32")
    if not plan.epilogue.changes:

        @cuda.jit(device=True)
        def unchanged(fragment, sources, batch, top, left, mma_row, extents, terms):  # type: ignore[no-untyped-def]
            return to_epilogue_type(fragment)

        return unchanged
    element = epilogue_function(plan.epilogue, plan.out)
    read = source_read(plan)
    read_old = read if plan.epilogue.beta else zero
    read_residual = read if plan.epilogue.residual else zero

    @cuda.jit(device=True)
    def finish(fragment, sources, batch, top, left, mma_row, extents, terms):  # type: ignore[no-untyped-def]
        fragment = to_epilogue_type(fragment)
        old, residual = read_old(sources, mma_row), read_residual(sources, mma_row)
        # Rows count through all matrices. Here `splits` is 1: with split-K, the second kernel
        # applies the epilogue.
        first_row, last_row = batch * extents.rows, (batch + 1) * extents.rows - 1
        row, column = np.int32(first_row + top), np.int32(left)
        origin = TileOrigin(row, column, np.int32(last_row), np.int32(extents.columns - 1))
        return fragment.map_coords(element, old, residual, origin, terms)

    return finish


def source_read(plan: MatmulPlan) -> DeviceFunction:
    """Return the function that takes the warpgroup's rows of the next tile of a source."""
    TILE = tma.Tile(plan.source_tile.shape[1:], plan.out, plan.source_tile.swizzle)
    COLUMNS = plan.out_columns

    @cuda.jit(device=True)
    def read(sources, mma_row):  # type: ignore[no-untyped-def]
        stage = sources.wait()
        fragment = tma.load_fragment(stage.source.view(TILE), (mma_row, 0), COLUMNS)
        sources.release()
        return fragment

    return read


@cuda.jit(device=True)
def zero(sources, mma_row):  # type: ignore[no-untyped-def]
    """Return 0: this epilogue has no such source."""
    return np.float32(0)


@functools.cache  # the tiles of a kernel share it
def tile_write(plan: MatmulPlan | MmaPlan) -> DeviceFunction:
    """Return the function that rounds a fragment to the output's type and writes it."""
    round_to_out, store_rows = conversion(plan.out.name), rows_store(plan)
    TILE = tma.Tile(plan.out_tile.shape[1:], plan.out, plan.out_tile.swizzle)

    @cuda.jit(device=True)
    def store_by_tma(fragment, results, out, batch, top, left):  # type: ignore[no-untyped-def]
        fragment = round_to_out(fragment)
        stage = results.acquire()
        fragment.store(stage.result.view(TILE), (0, 0))
        results.store(out, stage.result, (batch, top, left))
        results.commit()

    @cuda.jit(device=True)
    def store_by_threads(fragment, results, out, batch, top, left):  # type: ignore[no-untyped-def]
        fragment = round_to_out(fragment)
        stage = results.acquire()
        fragment.store(stage.result.view(TILE), (0, 0))
        results.commit()  # of no store; all threads have written their elements
        store_rows(stage.result, out, batch, top, left)

    return store_by_tma if plan.addressable else store_by_threads


def rows_store(plan: MatmulPlan | MmaPlan) -> DeviceFunction:
    """Return the function with which threads copy an epilogue tile to an array that TMA cannot.

    A warp copies a row at a time, neighbours beside each other, so that sectors are written whole.
    It reads four rows before it writes one, so that it waits for shared memory once.
    """
    _, ROWS, COLUMNS = plan.out_tile.shape
    kinds: dict[str, DeviceFunction] = {"f32": ptx.ld_shared_f32, "i32": ptx.ld_shared_u32}
    load = kinds.get(plan.out.name, ptx.ld_shared_u16)

    @cuda.jit(device=True)
    def store_one(out, batch, row, column, element):  # type: ignore[no-untyped-def]
        if row < out.shape[1] and column < out.shape[2]:
            out[batch, row, column] = element

    @cuda.jit(device=True)
    def store(tile, out, batch, top, left):  # type: ignore[no-untyped-def]
        warp, lane = np.uint32(ptx.tid_x() % 128 // 32), np.uint32(ptx.tid_x() % 32)
        for i in range(ROWS // 16):
            for j in range((COLUMNS + 31) // 32):
                down, right = np.uint32(warp + 16 * i), np.uint32(lane + 32 * j)
                row, column = np.uint32(top + down), np.uint32(left + right)
                if right < COLUMNS:
                    e0 = load(tile.address_of((0, down, right)))
                    e1 = load(tile.address_of((0, down + 4, right)))
                    e2 = load(tile.address_of((0, down + 8, right)))
                    e3 = load(tile.address_of((0, down + 12, right)))
                    store_one(out, batch, row, column, e0)
                    store_one(out, batch, np.uint32(row + 4), column, e1)
                    store_one(out, batch, np.uint32(row + 8), column, e2)
                    store_one(out, batch, np.uint32(row + 12), column, e3)

    return store


@functools.cache
def conversion(name: str) -> DeviceFunction:
    """Return the function that converts a fragment; integer sums that are stored stay exact."""

    @cuda.jit(device=True)
    def convert(fragment):  # type: ignore[no-untyped-def]
        return fragment.to(name)

    return keep if name == "i32" else convert


@cuda.jit(device=True)
def keep(fragment):  # type: ignore[no-untyped-def]
    """Return the fragment as it is."""
    return fragment


# -------------------------------------------------------------------- schedule, roles and pipelines


@device_function
def k_range(batch: Integer, extents: MatmulExtents) -> Any:
    """Return the matrix of the result, and the begin and the end of the split's stages along K.

    The stages go from begin up to, not including, end.
    """
    splits, steps = np.uint32(extents.splits), np.uint32(extents.steps)
    matrix, begin, end = np.uint32(batch), np.uint32(0), steps
    if splits > 1:  # most products have one, and need none of the divisions
        matrix = np.uint32(np.uint32(batch) // splits)
        split = np.uint32(np.uint32(batch) - matrix * splits)
        begin = np.uint32(np.uint32(split * steps) // splits)
        end = np.uint32(np.uint32((split + 1) * steps) // splits)
    return matrix, begin, end


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
    cluster = plan.config.cluster, plan.config.across
    shared = {name: axis for name, axis, blocks in zip("ba", "xy", cluster) if blocks > 1}
    if shared:  # "empty" then counts the consumer warps of all blocks that load into the stage
        options |= {"cluster": cluster, "multicast": shared}
    return tma.TilePipeline(plan.stages, a=plan.a_tile, b=plan.b_tile, **options)


class ClusterPlace(NamedTuple):
    """Where a block is in its cluster, and the ranks, one bit each, that share its tiles."""

    down: Integer
    right: Integer
    below: Integer  #: the blocks with its tile of b
    beside: Integer  #: the blocks with its tile of a


def cluster_place(plan: MatmulPlan) -> DeviceFunction:
    """Return the function that returns the block's `ClusterPlace`."""
    DOWN, RIGHT = plan.config.cluster, plan.config.across
    BELOW, BESIDE = (1 << DOWN) - 1, sum(1 << DOWN * i for i in range(RIGHT))

    @cuda.jit(device=True)
    def place():  # type: ignore[no-untyped-def]
        down: Any = np.uint32(0)
        right: Any = np.uint32(0)
        if DOWN > 1:
            down = ptx.cluster_ctaid_x()
        if RIGHT > 1:
            right = ptx.cluster_ctaid_y()
        return ClusterPlace(down, right, BELOW << (DOWN * right), BESIDE << down)

    return place


def cluster_walk(plan: MatmulPlan) -> tuple[DeviceFunction, DeviceFunction]:
    """Return the walk over a cluster's groups of tiles, and the origin of a block's tile in one.

    Persistent: with n clusters, each computes every n-th group of the schedule.
    """
    M, N, SCHEDULER = plan.config.m, plan.config.n, scheduler(plan)
    DOWN, RIGHT = plan.config.cluster, plan.config.across

    @cuda.jit(device=True)
    def walk(extents):  # type: ignore[no-untyped-def]
        rows, columns = extents.tile_rows // DOWN, extents.tile_columns // RIGHT
        schedule = SCHEDULER.over(rows, columns, extents.batch)
        return schedule.tiles(ptx.ctaid_x() // DOWN, ptx.nctaid_x() // DOWN)

    @cuda.jit(device=True)
    def origin(tile, place):  # type: ignore[no-untyped-def]
        return (tile.row * DOWN + place.down) * M, (tile.column * RIGHT + place.right) * N

    return walk, origin


def scheduler(plan: MatmulPlan) -> tma.GroupedScheduler:
    """Return the order of tiles: groups of rows, whose operands stay in the L2 cache."""
    return tma.GroupedScheduler(max(1, plan.config.group // plan.config.cluster))


def jitted(plan: MatmulPlan, kernel: Any) -> Kernel:
    """Return the kernel, compiled for the plan's cluster and registers."""
    if plan.config.blocks > 1:
        kernel = tma.cluster((plan.config.cluster, plan.config.across))(kernel)
    return cuda.jit(launch_bounds=plan.roles.launch_bounds)(kernel)


# ------------------------------------------------------------------------------ the kernel


@functools.cache
def matmul_kernel(plan: MatmulPlan) -> Kernel:
    """Return the kernel of a plan. Its blocks have ``plan.roles.threads`` threads.

    `out` is a tensor map, or an array if TMA cannot address it; `old` and `residual` are tensor
    maps, or 0 if the epilogue does not read them.
    """
    N, STAGE_K = plan.config.n, plan.k
    A_MAJOR, B_MAJOR = plan.a_major, plan.b_major
    PRODUCER, ACC, ADDRESSABLE = plan.roles.load, plan.accumulator.name, plan.addressable
    MMA = plan.consumers[0]  # all consumer warpgroups have equal registers
    PIPE = operand_pipeline(plan)
    SOURCES = tma.TilePipeline(
        SOURCE_STAGES, source=plan.source_tile, producer=PRODUCER, consumer=plan.consumers
    )
    RESULTS = tma.StorePipeline(plan.config.out_stages, result=plan.out_tile, role=plan.consumers)
    COLUMNS, NUM_SOURCES = plan.out_columns, plan.epilogue.sources
    SOURCE_TILES = NUM_SOURCES * plan.epilogue_tiles
    load_operands, load_source = operands_load(plan), source_load(plan)
    place_in_cluster, (walk, origin) = cluster_place(plan), cluster_walk(plan)
    first_row = warpgroup_row(plan)
    store = tile_store(plan, plan.epilogue_tiles - 1)

    def matmul(a, b, out, old, residual, extents, terms):  # type: ignore[no-untyped-def]
        if ptx.tid_x() == 0:  # the first copies would wait for their maps, small products with them
            a.prefetch()
            b.prefetch()
            if ADDRESSABLE:
                out.prefetch()
        sources: Any = 0
        if NUM_SOURCES:
            source_pipe = SOURCES.start(sync=False)  # PIPE.start() synchronises for both rings
            sources = source_pipe.consumer()
        pipe, results = PIPE.start(), RESULTS.start()  # the first synchronises block or cluster
        place = place_in_cluster()
        if pipe.is_producer():
            PRODUCER.set_registers()
            for tile in walk(extents):
                row, column = origin(tile, place)
                matrix, begin, end = k_range(tile.batch, extents)
                a_matrix, b_matrix = matrix * extents.a_stride, matrix * extents.b_stride
                # One elected thread executes the bodies of the loops below. `produce` has waited
                # until the stage is empty and armed its barrier with the bytes of all its tiles.
                for k_tile, stage in pipe.produce(begin, end):
                    k = k_tile * STAGE_K
                    a_at, b_at = (a_matrix, row, k), (b_matrix, column, k)
                    load_operands(a, b, stage, a_at, b_at, place)
                if NUM_SOURCES:
                    for i, stage in source_pipe.produce(0, SOURCE_TILES):
                        at = (tile.batch, row, column + i // NUM_SOURCES * COLUMNS)
                        load_source(old, residual, i, stage, at)
        else:
            MMA.set_registers()
            mma_row = first_row()
            for tile in walk(extents):
                row, column = origin(tile, place)
                _, begin, end = k_range(tile.batch, extents)
                acc = tma.fragment(N, ACC)
                for _, stage in pipe.consume(begin, end, in_flight=IN_FLIGHT):
                    a_rows = stage.a.matrix_descriptor(A_MAJOR).advance(row=mma_row)
                    acc = tma.wgmma(acc, a_rows, stage.b.matrix_descriptor(B_MAJOR))
                    # The next iteration begins by releasing the previous stage, whose product is
                    # complete now.
                    acc = tma.wgmma_wait(acc, IN_FLIGHT)
                acc = tma.wgmma_wait(acc)
                pipe.release_pending()  # the last stage, which no iteration followed
                at = (tile.batch, row + mma_row, column)
                store(acc, results, sources, out, at, mma_row, extents, terms)
        results.close(read=True)
        if NUM_SOURCES:
            source_pipe.close()
        pipe.close()

    return jitted(plan, matmul)
