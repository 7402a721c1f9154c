"""The grouped matmul kernel: `_matmul_kernel` over groups of rows, which the device alone counts.

Rows of a are sorted by group, and each group has its own b. Blocks take tiles as if those of all
groups were numbered one after the other; each warpgroup goes through the groups by itself, since
their sizes lie in global memory. Loads may take rows of the next group along, whose products are
dropped: stores go through a ragged map, which writes the rows of one group and none behind it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i32
from numba_tma.device.clusters import cluster
from numba_tma.device.mma import fragment, wgmma, wgmma_wait
from numba_tma.device.scheduler import GroupedScheduler
from numba_tma.device.vectors import load_vector
from numba_tma.host.environment import simulated
from numba_tma.host.layout import Tile
from numba_tma.kernels.matmul.epilogue import Terms
from numba_tma.kernels.matmul.form import ROWS, Form
from numba_tma.kernels.matmul.kernel import loading, storing
from numba_tma.pipeline import StorePipeline, TilePipeline

_INT, _SCALE = Tile(1, "i32"), Tile(1, "f32")


class Groups(NamedTuple):
    """What the kernel knows of the groups; arrays are bytes."""

    rows: Any  #: int32 of each group: its rows, or with ENDS where they end
    scales: Any  #: float32 of each group, if there are some
    total: Any  #: how many there are
    apart: Any  #: rows from a group's start to the next, if that is always the same
    tile_columns: Any
    steps: Any  #: stages along K


class Group(NamedTuple):
    """A group of rows, and where the numbers of its tiles begin; int32."""

    matrix: Any  #: of b: the number of the group
    first: Any
    start: Any
    rows: Any


@functools.cache
def grouped_kernel(form: Form, ends: bool, apart: bool, scaled: bool) -> Any:
    """Return the kernel of a form. Its blocks have ``form.roles.threads`` threads.

    With `ends` groups are told by where they end, and with `apart` they start at equal distances.
    `scaled` says that each has a scale.
    """
    config, ROLES = form.config, form.roles
    M, N, K, CLUSTER, STAGES = config.m, config.n, form.k, config.cluster, form.stages
    LOAD, MATH = ROLES.load, tuple(role for role in ROLES.roles if role.name != "load")
    FIRST, ONE_WARPGROUP = MATH[0], len(MATH) == 1
    parties: dict[str, Any] = {"producer": LOAD, "consumer": MATH}
    shared: Any = {"cluster": (CLUSTER, 1), "multicast": {"b": "x"}} if CLUSTER > 1 else {}
    PIPE = TilePipeline(STAGES, a=form.a_tile, b=form.b_tile, **parties, **shared)
    RESULTS = StorePipeline(config.out_stages, piece=form.out_tile, role=MATH)
    SCHEDULER = GroupedScheduler(max(1, config.group // CLUSTER))
    B_MAJOR, SUMS, SCALED, THROUGH_TMA = form.b_major, form.sums.name, scaled, form.addressable
    load_b, store = loading(form), storing(form, N // form.out_columns - 1)
    seek = seeking(M * CLUSTER, ends, apart)

    def grouped_matmul(a, b, out, groups, sizes, alpha):  # type: ignore[no-untyped-def]
        pipe, results = PIPE.start(), RESULTS.start()
        number, step, rank = ptx.clusterid_x(), ptx.nclusterid_x(), ptx.cluster_ctarank()
        group = seek(Group(i32(-1), i32(0), i32(0), i32(0)), number, groups)
        if pipe.is_producer():
            LOAD.set_registers()
            while group.matrix < groups.total:
                height = (group.rows + M * CLUSTER - 1) // (M * CLUSTER)
                schedule = SCHEDULER.over(height, groups.tile_columns, 1)
                tile = schedule.tile(number - group.first)
                row, column = (tile.row * CLUSTER + rank) * M, tile.column * N
                for k, stage in pipe.produce(0, groups.steps):
                    a.load(stage.a, (0, group.start + row, k * K), stage.barrier)
                    load_b(b, stage, group.matrix, column, k * K, rank)
                number += step
                group = seek(group, number, groups)
        else:
            FIRST.set_registers()
            mine = 0
            if not ONE_WARPGROUP:  # the same register for a warp: descriptors are computed once
                warpgroup = (ptx.tid_x() - FIRST.first) // 128
                mine = cuda.shfl_sync(0xFFFFFFFF, warpgroup, 0) * ROWS
            while group.matrix < groups.total:
                height = (group.rows + M * CLUSTER - 1) // (M * CLUSTER)
                schedule = SCHEDULER.over(height, groups.tile_columns, 1)
                tile = schedule.tile(number - group.first)
                row, column = (tile.row * CLUSTER + rank) * M, tile.column * N
                sums = fragment(N, SUMS)
                for _, stage in pipe.consume(0, groups.steps, in_flight=1):
                    of_a = stage.a.matrix_descriptor().advance(row=mine)
                    sums = wgmma(sums, of_a, stage.b.matrix_descriptor(B_MAJOR))
                    sums = wgmma_wait(sums, 1)
                sums = wgmma_wait(sums)
                pipe.release_pending()
                scale = alpha
                if SCALED:
                    scale = alpha * load_vector(groups.scales, 4 * group.matrix, _SCALE)[0]
                terms = Terms(scale, np.float32(0), 0, 0, 0)
                if THROUGH_TMA:
                    theirs = out.sequence(group.start, group.rows)
                else:
                    theirs = out[:, group.start : group.start + group.rows]
                store(sums, results, 0, theirs, 0, row, mine, column, sizes, terms)
                number += step
                group = seek(group, number, groups)
        results.close()
        pipe.close()

    kernel = cluster(CLUSTER)(grouped_matmul) if CLUSTER > 1 else grouped_matmul
    return cuda.jit(kernel) if simulated() else cuda.jit(launch_bounds=ROLES.launch_bounds)(kernel)


def seeking(height: int, ends: bool, apart: bool) -> Any:
    """Return the device function ``seek(group, number, groups)`` for tiles of `height` rows.

    It returns the group of the tile `number`, going on from `group`, which comes before it or is
    the one; a matrix of ``groups.total`` says that there are no more tiles.
    """

    @device_function
    def seek(group, number, groups):  # type: ignore[no-untyped-def]
        index, first, start, rows = group
        while index < groups.total:
            tiles = i32((rows + height - 1) // height * groups.tile_columns)
            if index >= 0 and number < first + tiles:
                break
            first, start, index = i32(first + tiles), i32(start + rows), i32(index + 1)
            rows = i32(0)
            if index < groups.total:
                rows = i32(load_vector(groups.rows, 4 * index, _INT)[0])
                if ends:
                    rows = i32(rows - start)
                if apart:
                    start = i32(index * groups.apart)
        return Group(index, first, start, rows)

    return seek
