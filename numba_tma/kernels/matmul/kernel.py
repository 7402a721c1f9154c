"""The matmul kernel: warpgroups that load, multiply and store tiles, one tile after the other.

One warpgroup loads tiles of a and b into a ring of stages. The others multiply, 64 rows each: the
sums of a tile stay in their registers until all of K is added up. Then they go, piece by piece,
through the epilogue and shared memory to where the copy engine stores them, while the first
warpgroup loads for the next tile already. Blocks of a cluster, which have tiles one below the
other, share what they need of b by multicast.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import device_function
from numba_tma.device.clusters import cluster
from numba_tma.device.mma import fragment, load_fragment, wgmma, wgmma_wait
from numba_tma.device.scheduler import GroupedScheduler
from numba_tma.host.environment import simulated
from numba_tma.host.layout import Tile
from numba_tma.kernels.matmul.epilogue import Place, finishing
from numba_tma.kernels.matmul.form import ROWS, SOURCE_STAGES, Form
from numba_tma.pipeline import StorePipeline, TilePipeline


class Sizes(NamedTuple):
    """The extents of a matmul, as the kernel needs them."""

    rows: Any  #: of one matrix of the result
    columns: Any
    tile_rows: Any  #: rows of tiles, of which a cluster takes as many as it has blocks
    tile_columns: Any
    batch: Any  #: matrices of the result, times `splits`
    steps: Any  #: stages along K
    a_batch: Any  #: 1, or 0 if all matrices of the result have the same a
    b_batch: Any
    splits: Any  #: parts of K, whose results are matrices of their own


@functools.cache
def matmul_kernel(form: Form) -> Any:
    """Return the kernel of a form. Its blocks have ``form.roles.threads`` threads."""
    config, ROLES = form.config, form.roles
    M, N, K, CLUSTER, STAGES = config.m, config.n, form.k, config.cluster, form.stages
    LOAD, MATH = ROLES.load, tuple(role for role in ROLES.roles if role.name != "load")
    FIRST, ONE_WARPGROUP = MATH[0], len(MATH) == 1
    parties: dict[str, Any] = {"producer": LOAD, "consumer": MATH}
    shared: Any = {"cluster": (CLUSTER, 1), "multicast": {"b": "x"}} if CLUSTER > 1 else {}
    PIPE = TilePipeline(STAGES, a=form.a_tile, b=form.b_tile, **parties, **shared)
    SOURCES = TilePipeline(SOURCE_STAGES, piece=form.source_tile, **parties)
    RESULTS = StorePipeline(config.out_stages, piece=form.out_tile, role=MATH)
    SCHEDULER = GroupedScheduler(max(1, config.group // CLUSTER))
    A_MAJOR, B_MAJOR, A_BY_K, SUMS = form.a_major, form.b_major, form.a_major == "K", form.sums.name
    COLUMNS, READS = form.out_columns, form.epilogue.sources
    PIECES = N // COLUMNS
    load_b, load_source, store = loading(form), reading(form), storing(form, PIECES - 1)

    def matmul(a, b, out, old, residual, sizes, terms):  # type: ignore[no-untyped-def]
        reader: Any = 0
        if READS > 0:
            sources = SOURCES.start(sync=False)
            reader = sources.consumer()
        pipe, results = PIPE.start(), RESULTS.start()
        schedule = SCHEDULER.over(sizes.tile_rows // CLUSTER, sizes.tile_columns, sizes.batch)
        first, step, rank = ptx.clusterid_x(), ptx.nclusterid_x(), ptx.cluster_ctarank()
        if pipe.is_producer():
            LOAD.set_registers()
            for tile in schedule.tiles(first, step):
                row, column = (tile.row * CLUSTER + rank) * M, tile.column * N
                matrix, begin, end = part_of(tile.batch, sizes)
                of_a, of_b = matrix * sizes.a_batch, matrix * sizes.b_batch
                for k, stage in pipe.produce(begin, end):
                    if A_BY_K:
                        a.load(stage.a, (of_a, row, k * K), stage.barrier)
                    else:
                        a.load(stage.a, (of_a, k * K, row), stage.barrier)
                    load_b(b, stage, of_b, column, k * K, rank)
                if READS > 0:
                    for i, stage in sources.produce(0, PIECES * READS):
                        at = (tile.batch, row, column + i // READS * COLUMNS)
                        load_source(old, residual, i, stage, at)
        else:
            FIRST.set_registers()
            mine = 0
            if not ONE_WARPGROUP:  # the same register for a warp: descriptors are computed once
                warpgroup = (ptx.tid_x() - FIRST.first) // 128
                mine = cuda.shfl_sync(0xFFFFFFFF, warpgroup, 0) * ROWS
            for tile in schedule.tiles(first, step):
                row, column = (tile.row * CLUSTER + rank) * M, tile.column * N
                _, begin, end = part_of(tile.batch, sizes)
                sums = fragment(N, SUMS)
                for _, stage in pipe.consume(begin, end, in_flight=1):
                    of_a = stage.a.matrix_descriptor(A_MAJOR).advance(row=mine)
                    sums = wgmma(sums, of_a, stage.b.matrix_descriptor(B_MAJOR))
                    sums = wgmma_wait(sums, 1)
                sums = wgmma_wait(sums)
                pipe.release_pending()
                store(sums, results, reader, out, tile.batch, row, mine, column, sizes, terms)
        results.close()
        if READS > 0:
            sources.close()
        pipe.close()

    kernel = cluster(CLUSTER)(matmul) if CLUSTER > 1 else matmul
    return cuda.jit(kernel) if simulated() else cuda.jit(launch_bounds=ROLES.launch_bounds)(kernel)


@device_function
def part_of(number: Any, sizes: Any) -> Any:
    """Return which matrix a part belongs to, and its first and last stage along K."""
    splits, steps = np.uint32(sizes.splits), np.uint32(sizes.steps)
    matrix = np.uint32(np.uint32(number) // splits)
    part = np.uint32(np.uint32(number) % splits)
    begin, end = np.uint32(part * steps), np.uint32((part + 1) * steps)
    return matrix, np.uint32(begin // splits), np.uint32(end // splits)


def loading(form: Form) -> Any:
    """Return the device function that loads this block's part of b, or all of it if it is alone."""
    PART, BY_K, CLUSTER = form.b_part, form.b_major == "K", form.config.cluster
    WIDTH, NBYTES = form.b_copy.shape[1 if BY_K else 2], form.b_copy.shared_nbytes
    SHARED, ALL = CLUSTER > 1, (1 << CLUSTER) - 1

    @cuda.jit(device=True)
    def load(b, stage, matrix, column, k, rank):  # type: ignore[no-untyped-def]
        if SHARED:
            for i in range(rank * PART, (rank + 1) * PART, WIDTH):
                to = stage.b.address + i // WIDTH * NBYTES
                if BY_K:
                    at = (matrix, column + i, k)
                else:
                    at = (matrix, k, column + i)
                ptx.cp_async_bulk_tensor_load(to, b, at, stage.barrier, None, ALL)
        elif BY_K:
            b.load(stage.b, (matrix, column, k), stage.barrier)
        else:
            b.load(stage.b, (matrix, k, column), stage.barrier)

    return load


def reading(form: Form) -> Any:
    """Return the device function that loads a piece of what is added to the result.

    Where both are, that of `out` and that of the residual take turns.
    """
    BOTH, OLD = form.epilogue.sources == 2, form.epilogue.beta

    @cuda.jit(device=True)
    def load(old, residual, i, stage, at):  # type: ignore[no-untyped-def]
        if BOTH:
            if i % 2 == 0:
                old.load(stage.piece, at, stage.barrier)
            else:
                residual.load(stage.piece, at, stage.barrier)
        elif OLD:
            old.load(stage.piece, at, stage.barrier)
        else:
            residual.load(stage.piece, at, stage.barrier)

    return load


def storing(form: Form, piece: int) -> Any:
    """Return the device function that stores the pieces of a tile up to `piece`.

    Columns of a fragment are compile-time constants, so that each piece has a function, which calls
    that of the pieces before it.
    """
    before: Any = storing(form, piece - 1) if piece else None
    MORE, COLUMNS, START = piece > 0, form.out_columns, piece * form.out_columns
    SOURCE = Tile(form.source_tile.shape[1:], form.out, form.source_tile.swizzle)
    epilogue, TO_FLOAT = form.epilogue, form.out != form.sums and form.sums.name == "i32"
    CHANGES, BETA, RESIDUAL = epilogue.changes, epilogue.beta, epilogue.residual
    finish, write = finishing(epilogue, form.out), writing(form)

    @cuda.jit(device=True)
    def store(sums, results, reader, out, batch, row, mine, column, sizes, terms):  # type: ignore[no-untyped-def]
        if MORE:
            before(sums, results, reader, out, batch, row, mine, column, sizes, terms)
        part, top, left = sums.columns(START, COLUMNS), row + mine, column + START
        if TO_FLOAT:
            part = part.to("f32")
        if CHANGES:
            old: Any = np.float32(0)
            added: Any = old
            if BETA:
                stage = reader.wait()
                old = load_fragment(stage.piece.view(SOURCE), (mine, 0), COLUMNS)
                reader.release()
            if RESIDUAL:
                stage = reader.wait()
                added = load_fragment(stage.piece.view(SOURCE), (mine, 0), COLUMNS)
                reader.release()
            first, last = batch * sizes.rows, (batch + 1) * sizes.rows - 1
            at, end = (np.int32(first + top), np.int32(left)), np.int32(sizes.columns - 1)
            place = Place(at[0], at[1], np.int32(last), end)
            part = part.map_coords(finish, old, added, place, terms)
        write(part, results, out, batch, top, left)

    return store


def writing(form: Form) -> Any:
    """Return the device function that writes a piece of the result, which nothing else changes."""
    OUT, NARROW, THROUGH_TMA = form.out.name, form.out != form.sums, form.addressable
    PIECE = Tile(form.out_tile.shape[1:], form.out, form.out_tile.swizzle)

    @cuda.jit(device=True)
    def write(part, results, out, batch, top, left):  # type: ignore[no-untyped-def]
        if NARROW:
            part = part.to(OUT)
        if THROUGH_TMA:
            stage = results.acquire()
            part.store(stage.piece.view(PIECE), (0, 0))
            results.store(out, stage.piece, (batch, top, left))
            results.commit()
        else:
            part.store_global(out[batch], top, left)

    return write
