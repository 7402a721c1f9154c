"""The block-scaled matmul kernel: products of 128 elements of K, each scaled before it is added.

As in `_matmul_kernel` one warpgroup loads, and the others multiply and store tile after tile. But
products of fp8 are added up by the tensor cores over one block of K alone, into a fragment of their
own. Threads multiply it by the scales of its rows and columns and add it to the sums in float32:
that is what scales need, and what keeps all bits that the tensor cores would drop in a long sum.
Two warpgroups work side by side, so that the tensor cores have one's product while the other adds.

The scales of a come with its tile, in the stage. Those of b are one number for a block of columns,
or two; threads read them from global memory while their product is under way.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numba import cuda

from numba_tma import ptx
from numba_tma._device import i32
from numba_tma._environment import simulated
from numba_tma.clusters import cluster
from numba_tma.kernels._block_scaled_form import BLOCK, ScaledForm
from numba_tma.kernels._matmul_form import ROWS
from numba_tma.kernels._matmul_kernel import loading, part_of, writing
from numba_tma.layout import Tile
from numba_tma.mma import fragment, load_rows, wgmma, wgmma_wait
from numba_tma.pipeline import OrderedSequenceBarrier, StorePipeline, TilePipeline
from numba_tma.scheduler import GroupedScheduler
from numba_tma.vectors import load_vector

_SCALE = Tile(1, "f32")


class Scales(NamedTuple):
    """The scales of b as bytes: their memory, and how far apart they are in it."""

    memory: Any
    k: Any  #: bytes from a block of K to the next
    column: Any  #: and from a block of columns
    last: Any  #: the last block of columns


@functools.cache
def block_scaled_kernel(form: ScaledForm) -> Any:
    """Return the kernel of a form. Its blocks have ``form.roles.threads`` threads."""
    config, ROLES = form.config, form.roles
    M, N, K, CLUSTER = config.m, config.n, form.k, config.cluster
    LOAD, MATH = ROLES.load, tuple(role for role in ROLES.roles if role.name != "load")
    FIRST, ONE_WARPGROUP = MATH[0], len(MATH) == 1
    given: dict[str, Any] = {"producer": LOAD, "consumer": MATH, "sfa": form.scales_tile}
    shared: Any = {"cluster": (CLUSTER, 1), "multicast": {"b": "x"}} if CLUSTER > 1 else {}
    PIPE = TilePipeline(form.stages, a=form.a_tile, b=form.b_tile, **given, **shared)
    RESULTS = StorePipeline(config.out_stages, piece=form.out_tile, role=MATH)
    SCHEDULER = GroupedScheduler(max(1, config.group // CLUSTER))
    SCALES, HEIGHT, TALL = Tile(M, "f32"), form.parts * ROWS, form.parts == 2
    COLUMNS, EDGE, TURNS = form.out_columns, form.has_edge, config.turns
    ORDER: Any = OrderedSequenceBarrier(1, MATH) if TURNS else None
    PIECES = N // COLUMNS
    load_b, zeros = loading(form), zero(COLUMNS, PIECES)
    add, store = adding(form, PIECES), storing(form, PIECES)

    def block_scaled(a, b, sfa, scales, out, sizes):  # type: ignore[no-untyped-def]
        order: Any = 0
        if TURNS:
            order = ORDER.start(sync=False)
        pipe, results = PIPE.start(), RESULTS.start()
        schedule = SCHEDULER.over(sizes.tile_rows // CLUSTER, sizes.tile_columns, sizes.batch)
        first, step, rank = ptx.clusterid_x(), ptx.nclusterid_x(), ptx.cluster_ctarank()
        if pipe.is_producer():
            LOAD.set_registers()
            for tile in schedule.tiles(first, step):
                row, column = (tile.row * CLUSTER + rank) * M, tile.column * N
                _, begin, end = part_of(tile.batch, sizes)
                for k, stage in pipe.produce(begin, end):
                    a.load(stage.a, (0, row, k * K), stage.barrier)
                    sfa.load(stage.sfa, (0, k, row), stage.barrier)
                    load_b(b, stage, 0, column, k * K, rank)
        else:
            FIRST.set_registers()
            works = pipe.consumer()
            mine = 0
            if not ONE_WARPGROUP:  # the same register for a warp: descriptors are computed once
                warpgroup = (ptx.tid_x() - FIRST.first) // 128
                mine = cuda.shfl_sync(0xFFFFFFFF, warpgroup, 0) * HEIGHT
            for tile in schedule.tiles(first, step):
                row, column = (tile.row * CLUSTER + rank) * M, tile.column * N
                _, begin, end = part_of(tile.batch, sizes)
                block = i32(column // BLOCK)
                edge = i32((block + 1) * BLOCK - column)
                left = i32(block * scales.column + begin * scales.k)
                right = i32(min(block + 1, scales.last) * scales.column + begin * scales.k)
                sums = zeros()
                more: Any = 0
                if TALL:
                    more = zeros()
                for _ in range(begin, end):
                    stage = works.wait()
                    of_a, of_b = stage.a.matrix_descriptor(), stage.b.matrix_descriptor()
                    of_rows = stage.sfa.view(SCALES)
                    if TURNS:
                        order.wait()
                    part = wgmma(fragment(N), of_a.advance(row=mine), of_b, scale_d=False)
                    if TURNS:
                        order.arrive()
                    by_row = load_rows(of_rows, mine)
                    below = by_row
                    if TALL:
                        below = load_rows(of_rows, mine + ROWS)
                    # Here it costs nothing; the release below, which others wait for, needs none.
                    ptx.fence_proxy_async()
                    works.accesses.unfenced = False
                    near = load_vector(scales.memory, left, _SCALE)[0]
                    far = near
                    if EDGE:
                        far = load_vector(scales.memory, right, _SCALE)[0]
                        right = i32(right + scales.k)
                    left = i32(left + scales.k)
                    if TALL:
                        part = wgmma_wait(part)
                        sums = add(sums, part, by_row, near, far, edge)
                        if TURNS:
                            order.wait()
                        under = of_a.advance(row=mine + ROWS)
                        part = wgmma(part, under, of_b, scale_d=False)
                        if TURNS:
                            order.arrive()
                        part = wgmma_wait(part)
                        works.release()
                        more = add(more, part, below, near, far, edge)
                    else:
                        part = wgmma_wait(part)
                        works.release()
                        sums = add(sums, part, by_row, near, far, edge)
                store(sums, results, out, tile.batch, row + mine, column)
                if TALL:
                    store(more, results, out, tile.batch, row + mine + ROWS, column)
        results.close()
        pipe.close()

    kernel = cluster(CLUSTER)(block_scaled) if CLUSTER > 1 else block_scaled
    return cuda.jit(kernel) if simulated() else cuda.jit(launch_bounds=ROLES.launch_bounds)(kernel)


# The sums are a tuple of pieces, as wide as those in which they are stored, since columns of a
# fragment are compile-time constants. A piece has columns of one block of b: tiles begin at
# multiples of n, and pieces are as wide as n and 128 have in common, or less.


def zero(columns: int, pieces: int) -> Any:
    """Return the device function that makes sums to start from."""
    before: Any = zero(columns, pieces - 1) if pieces > 1 else None

    def first():  # type: ignore[no-untyped-def]
        return (fragment(columns),)

    def all_of_them():  # type: ignore[no-untyped-def]
        return before() + (fragment(columns),)

    return cuda.jit(device=True)(all_of_them if before else first)


def adding(form: ScaledForm, pieces: int) -> Any:
    """Return the device function that adds products, times the scales of rows and columns."""
    before: Any = adding(form, pieces - 1) if pieces > 1 else None
    LAST, EDGE = pieces - 1, form.has_edge
    COLUMNS, START = form.out_columns, LAST * form.out_columns

    @cuda.jit(device=True)
    def piece(sums, part, by_row, near, far, edge):  # type: ignore[no-untyped-def]
        by_column = near
        if EDGE and START >= edge:
            by_column = far
        return sums[LAST] + part.columns(START, COLUMNS) * (by_row * by_column)

    def first(sums, part, by_row, near, far, edge):  # type: ignore[no-untyped-def]
        return (piece(sums, part, by_row, near, far, edge),)

    def all_of_them(sums, part, by_row, near, far, edge):  # type: ignore[no-untyped-def]
        added = before(sums, part, by_row, near, far, edge)
        return added + (piece(sums, part, by_row, near, far, edge),)

    return cuda.jit(device=True)(all_of_them if before else first)


def storing(form: ScaledForm, pieces: int) -> Any:
    """Return the device function that stores sums, piece by piece."""
    before: Any = storing(form, pieces - 1) if pieces > 1 else None
    LAST, MORE, START = pieces - 1, pieces > 1, (pieces - 1) * form.out_columns
    write = writing(form)

    @cuda.jit(device=True)
    def store(sums, results, out, batch, top, column):  # type: ignore[no-untyped-def]
        if MORE:
            before(sums, results, out, batch, top, column)
        write(sums[LAST], results, out, batch, top, column + START)

    return store
