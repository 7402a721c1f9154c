"""The matmul kernel for few rows: the factors change places, so that nothing is padded.

A result of few rows is a stream of b, the weights of a layer, past a few rows of a. The tensor
cores take 64 rows of their first factor at least, which is b here: 64 columns of the result for
each warpgroup, and its rows, as few as 8, are the columns of the products. So nearly all of a stage
is weights. Each block of a cluster adds up a part of K; the others send their sums to the first,
into its shared memory, and it adds them up in order.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.device.clusters import cluster
from numba_tma.device.mma import fragment, wgmma, wgmma_wait
from numba_tma.device.scheduler import GroupedScheduler
from numba_tma.device.shared import shared_barrier, shared_tile
from numba_tma.device.vectors import load_vector
from numba_tma.device.waiting import wait_for
from numba_tma.host.debug import Site
from numba_tma.host.layout import Tile
from numba_tma.kernels.matmul.epilogue import Place, finishing
from numba_tma.kernels.matmul.form import ROWS
from numba_tma.kernels.matmul.swapped_form import SwappedForm
from numba_tma.pipeline import TilePipeline

SUMS = Site("matmul(): sums of the cluster's other blocks", in_cluster=True)


@functools.cache
def swapped_kernel(form: SwappedForm) -> Any:
    """Return the kernel of a form. Its blocks have ``form.roles.threads`` threads.

    `out` is (batch, columns, rows), the transposes of the result; `old` and `residual` are `Rows`.
    With a cluster there is one for each tile.
    """
    config, ROLES = form.config, form.roles
    M, N, K, BLOCKS = config.m, config.n, form.k, config.cluster
    LOAD, MATH = ROLES.load, tuple(role for role in ROLES.roles if role.name != "load")
    PIPE = TilePipeline(form.stages, a=form.a_tile, b=form.b_tile, producer=LOAD, consumer=MATH)
    SCHEDULER, PARTS = GroupedScheduler(16), form.parts_tile
    A_MAJOR, B_MAJOR, A_BY_K, B_BY_K = (
        *(form.a_major, form.b_major),
        *(form.a_major == "K", form.b_major == "K"),
    )
    OUT, NARROW, CHANGES = form.out.name, form.out.name != "f32", form.epilogue.changes
    ONE_WARPGROUP, SENT = len(MATH) == 1, 4 * M * N * (BLOCKS - 1)
    PART, PITCH = PARTS.nbytes // PARTS.shape[0], 4 * PARTS.shape[2]
    finish = finishing_swapped(form)

    @cuda.jit(device=True)
    def send(value, column, row, to, barrier):  # type: ignore[no-untyped-def]
        ptx.st_async_f32(to + row * PITCH + 4 * column, value, barrier)
        return value

    @cuda.jit(device=True)
    def add(value, column, row, start):  # type: ignore[no-untyped-def]
        for part in range(BLOCKS - 1):
            value = value + ptx.ld_shared_f32(start + part * PART + row * PITCH + 4 * column)
        return value

    def swapped(a, b, out, old, residual, sizes, terms):  # type: ignore[no-untyped-def]
        thread, rank = ptx.tid_x(), ptx.cluster_ctarank()
        if thread == 0:
            b.prefetch()
            a.prefetch()
        if BLOCKS > 1:
            parts, sent = shared_tile(PARTS), shared_barrier()
            if thread == 0:
                sent.init(1)
                ptx.fence_mbarrier_init()
                if rank == 0:
                    sent.arrive_expect_tx(SENT)
            ptx.barrier_cluster_arrive("relaxed")
        pipe = PIPE.start()
        schedule = SCHEDULER.over(sizes.tile_rows, sizes.tile_columns, sizes.batch)
        first, step = ptx.clusterid_x(), ptx.nclusterid_x()
        begin = np.uint32(np.uint32(rank * sizes.steps) // np.uint32(BLOCKS))
        end = np.uint32(np.uint32((rank + 1) * sizes.steps) // np.uint32(BLOCKS))
        if pipe.is_producer():
            for tile in schedule.tiles(first, step):
                row, column = tile.row * N, tile.column * M
                of_a, of_b = tile.batch * sizes.a_batch, tile.batch * sizes.b_batch
                for k, stage in pipe.produce(begin, end):
                    if B_BY_K:
                        b.load(stage.b, (of_b, column, k * K), stage.barrier)
                    else:
                        b.load(stage.b, (of_b, k * K, column), stage.barrier)
                    if A_BY_K:
                        a.load(stage.a, (of_a, row, k * K), stage.barrier)
                    else:
                        a.load(stage.a, (of_a, k * K, row), stage.barrier)
            if BLOCKS > 1:
                ptx.barrier_cluster_wait()
        else:
            mine = 0
            if not ONE_WARPGROUP:  # the same register for a warp: descriptors are computed once
                mine = cuda.shfl_sync(0xFFFFFFFF, thread // 128, 0) * ROWS
            for tile in schedule.tiles(first, step):
                sums = fragment(N)
                for _, stage in pipe.consume(begin, end, in_flight=1):
                    of_b = stage.b.matrix_descriptor(B_MAJOR).advance(row=mine)
                    sums = wgmma(sums, of_b, stage.a.matrix_descriptor(A_MAJOR))
                    sums = wgmma_wait(sums, 1)
                sums = wgmma_wait(sums)
                pipe.release_pending()
                if BLOCKS > 1:
                    ptx.barrier_cluster_wait()  # the first block has initialised its barrier
                    if rank > 0:
                        to = parts.address_of((rank - 1, 0, mine))
                        sums.map_coords(send, ptx.mapa(to, 0), ptx.mapa(sent, 0))
                    else:
                        wait_for(sent, 0, SUMS)
                        sums = sums.map_coords(add, parts.address_of((0, 0, mine)))
                if rank == 0:
                    top, left = tile.row * N, tile.column * M + mine
                    if CHANGES:
                        given = (tile.batch, top, left, sizes)
                        sums = sums.map_coords(finish, old, residual, given, terms)
                    if NARROW:
                        sums.to(OUT).store_global(out[tile.batch], left, top)
                    else:
                        sums.store_global(out[tile.batch], left, top)
        pipe.close()

    kernel = cluster(BLOCKS)(swapped) if BLOCKS > 1 else swapped
    return cuda.jit(kernel)


def finishing_swapped(form: SwappedForm) -> Any:
    """Return the device function of an element, which `Fragment.map_coords` takes.

    Its rows are columns of the result. What is read of places outside is that of the last ones.
    """
    epilogue, ELEMENT, SIZE = form.epilogue, Tile(1, form.out), form.out.itemsize
    BETA, RESIDUAL, ZERO = epilogue.beta, epilogue.residual, np.float32(0)
    finish = finishing(epilogue, form.out)

    @cuda.jit(device=True)
    def element(value, down, right, old, residual, given, terms):  # type: ignore[no-untyped-def]
        batch, top, left, sizes = given
        row = min(np.int32(top + right), np.int32(sizes.rows - 1))
        column = min(np.int32(left + down), np.int32(sizes.columns - 1))
        before: Any = ZERO
        added: Any = ZERO
        if BETA:
            at = batch * old.matrix + row * old.row + SIZE * column
            before = load_vector(old.memory, at, ELEMENT)[0]
        if RESIDUAL:
            at = batch * residual.matrix + row * residual.row + SIZE * column
            added = load_vector(residual.memory, at, ELEMENT)[0]
        of_all = np.int32(batch * sizes.rows + row)
        place = Place(of_all, column, of_all, column)
        return finish(value, np.int32(0), np.int32(0), before, added, place, terms)

    return element
