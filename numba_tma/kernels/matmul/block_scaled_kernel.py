"""The block-scaled matmul kernel: products of 128 elements of K, each scaled before it is added.

As in `_matmul_kernel` one warpgroup loads, and the others multiply and store tile after tile. But
products of fp8 are added up by the tensor cores over one block of K alone, into a fragment of their
own. Threads multiply it by the scales of its rows and columns and add it to the sums in float32:
that is what scales need, and what keeps all bits that the tensor cores would drop in a long sum.
Two warpgroups work side by side, so that the tensor cores have one's product while the other adds.

The scales of a come with its tile, in the stage. Those of b are one number for a block of columns,
or two; each lane of a warp reads one of 32 blocks of K from global memory, and they are passed
round.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import i32
from numba_tma.device.clusters import cluster
from numba_tma.device.scheduler import GroupedScheduler
from numba_tma.host.environment import simulated
from numba_tma.kernels.matmul.block_scaled_form import BLOCK, ScaledForm
from numba_tma.kernels.matmul.block_scaled_sums import Columns, holding, multiplying
from numba_tma.kernels.matmul.form import ROWS
from numba_tma.kernels.matmul.kernel import loading, part_of, writing
from numba_tma.pipeline import StorePipeline, TilePipeline


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
    HEIGHT, TWO = form.products * ROWS, form.products == 2
    load_b, prepare = loading(form), preparing(form)
    multiply, store = multiplying(form), storing(form, form.pieces)

    def block_scaled(a, b, sfa, scales, out, sizes):  # type: ignore[no-untyped-def]
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
                    load_b(b, stage, 0, column, k * K, rank)
                    sfa.load(stage.sfa, (0, k, row), stage.barrier)
        else:
            FIRST.set_registers()
            works = pipe.consumer()
            mine = 0
            if not ONE_WARPGROUP:  # the same register for a warp: descriptors are computed once
                warpgroup = (ptx.tid_x() - FIRST.first) // 128
                mine = cuda.shfl_sync(0xFFFFFFFF, warpgroup, 0) * HEIGHT
            number, tiles = i32(first), i32(schedule.num_tiles)
            work, lanes = prepare(schedule.tile(number), rank, sizes, scales)
            while number < tiles:
                batch, top, column = work.batch, work.row + mine, work.column
                sums, more = multiply(works, mine, work.steps, scales, work.scales, lanes)
                pipe.release_pending()
                number = i32(number + step)
                if number < tiles:  # its scales are under way while this one is stored
                    work, lanes = prepare(schedule.tile(number), rank, sizes, scales)
                store(sums, results, out, batch, top, column)
                if TWO:
                    store(more, results, out, batch, top + ROWS, column)
        results.close()
        pipe.close()

    kernel = cluster(CLUSTER)(block_scaled) if CLUSTER > 1 else block_scaled
    return cuda.jit(kernel) if simulated() else cuda.jit(launch_bounds=ROLES.launch_bounds)(kernel)


class Work(NamedTuple):
    """Where a block's tile is in the result, and what of a and b it is made of."""

    batch: Any
    row: Any
    column: Any
    steps: Any  #: blocks of K; int32
    scales: Columns


def preparing(form: ScaledForm) -> Any:
    """Return the device function that finds a tile's `Work`, and loads the first scales of b."""
    config, hold = form.config, holding(form)
    M, N, CLUSTER = config.m, config.n, config.cluster

    @cuda.jit(device=True)
    def prepare(tile, rank, sizes, scales):  # type: ignore[no-untyped-def]
        row, column = (tile.row * CLUSTER + rank) * M, tile.column * N
        _, begin, end = part_of(tile.batch, sizes)
        block, steps = i32(column // BLOCK), i32(end - begin)
        edge = i32((block + 1) * BLOCK - column)
        left = i32(block * scales.column + begin * scales.k)
        right = i32(min(block + 1, scales.last) * scales.column + begin * scales.k)
        columns = Columns(left, right, edge)
        return Work(tile.batch, row, column, steps, columns), hold(scales, columns, 0, steps)

    return prepare


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
