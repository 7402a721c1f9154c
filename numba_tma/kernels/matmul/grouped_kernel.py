"""The grouped matmul kernel: one matmul for each group of rows, whose sizes only the device knows.

Cost model: that of `kernel`, with each group's rows rounded up to whole tiles; a tile's cost is the
same, and finding the next group reads 4 bytes per group and warpgroup.

Rows of a are sorted by group, and each group has its own b. Tiles of all groups are numbered one
after the other, and blocks take the numbers in turn. Each warpgroup searches for its tile's group
by itself, since the sizes lie in global memory. The producer may load rows of the next group, whose
products are not stored: `out` is a ragged tensor map, whose stores end with the group.

Loads, epilogue stores and MMA warpgroups are those of `kernel`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

import numba_tma as tma
from numba_tma import ptx
from numba_tma.backend.interface import device_function, i32
from numba_tma.device.vectors import load_vector
from numba_tma.host.annotations import DeviceFunction, Kernel
from numba_tma.kernels.matmul.arguments import Terms
from numba_tma.kernels.matmul.kernel import (
    IN_FLIGHT,
    b_load,
    jitted,
    operand_pipeline,
    scheduler,
    tile_store,
    warpgroup_row,
)
from numba_tma.kernels.matmul.plan import MatmulPlan

_INT, _SCALE, _ZERO = tma.Tile(1, "i32"), tma.Tile(1, "f32"), np.float32(0)


class RowGroup(NamedTuple):
    """A group of rows and the number of its first tile; int32."""

    matrix: Any  #: of b: the index of the group
    first: Any  #: number of its first tile
    start: Any  #: its first row in a and in the result
    rows: Any  #: how many rows it has


# -------------------------------------------------------------------------------- schedule


def group_search(height: int, ends: bool, apart: bool) -> DeviceFunction:
    """Return ``group_of(group, number, groups)``, which finds the group of the tile `number`.

    The search goes on from `group`, which is that of an earlier tile. After the last tile the
    result's `matrix` is ``groups.total``. Tiles have `height` rows, those of a cluster together.
    """

    @device_function
    def group_of(group, number, groups):  # type: ignore[no-untyped-def]
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
        return RowGroup(index, first, start, rows)

    return group_of


# ----------------------------------------------------------- store: the rows of one group


def group_store(plan: MatmulPlan) -> DeviceFunction:
    """Return the function that finishes and stores a tile, whose rows end where the group ends."""
    store = tile_store(plan, plan.epilogue_tiles - 1)

    @device_function
    def store_by_tma(acc, results, out, group, at, mma_row, extents, terms):  # type: ignore[no-untyped-def]
        rows = out.sequence(group.start, group.rows)
        store(acc, results, 0, rows, at, mma_row, extents, terms)

    @device_function
    def store_by_threads(acc, results, out, group, at, mma_row, extents, terms):  # type: ignore[no-untyped-def]
        rows = out[:, group.start : group.start + group.rows]
        store(acc, results, 0, rows, at, mma_row, extents, terms)

    return store_by_tma if plan.addressable else store_by_threads


@device_function
def same_terms(group, groups, alpha):  # type: ignore[no-untyped-def]
    """Return the epilogue's terms: one factor for all groups."""
    return Terms(alpha, _ZERO, 0, 0, 0)


@device_function
def scaled_terms(group, groups, alpha):  # type: ignore[no-untyped-def]
    """Return the epilogue's terms: alpha times the group's scale."""
    scale = alpha * load_vector(groups.scales, 4 * group.matrix, _SCALE)[0]
    return Terms(scale, _ZERO, 0, 0, 0)


# ------------------------------------------------------------------------------ the kernel


@functools.cache
def grouped_kernel(plan: MatmulPlan, ends: bool, apart: bool, scaled: bool) -> Kernel:
    """Return the kernel of a plan. Its blocks have ``plan.roles.threads`` threads.

    Parameters
    ----------
    plan
        As `matmul_kernel` takes it; a is contiguous along K.
    ends
        Whether ``groups.rows`` says where groups end, instead of how many rows they have.
    apart
        Whether groups start at equal distances.
    scaled
        Whether each group has a scale.
    """
    M, N, STAGE_K, CLUSTER = plan.config.m, plan.config.n, plan.k, plan.config.cluster
    PRODUCER = plan.roles.load
    MMA = plan.consumers[0]  # all consumer warpgroups have equal registers
    PIPE, SCHEDULER = operand_pipeline(plan), scheduler(plan)
    RESULTS = tma.StorePipeline(plan.config.out_stages, result=plan.out_tile, role=plan.consumers)
    SEVERAL, EVERYONE = len(plan.consumers) > 1, (1 << CLUSTER) - 1
    B_MAJOR, ACC = plan.b_major, plan.accumulator.name
    load_b, first_row = b_load(plan), warpgroup_row(plan)
    store, group_of = group_store(plan), group_search(M * CLUSTER, ends, apart)
    terms_of: DeviceFunction = scaled_terms if scaled else same_terms

    def grouped_matmul(a, b, out, groups, extents, alpha):  # type: ignore[no-untyped-def]
        pipe, results = PIPE.start(), RESULTS.start()
        number, step = ptx.ctaid_x() // CLUSTER, ptx.nctaid_x() // CLUSTER
        rank = ptx.cluster_ctarank()
        group = group_of(RowGroup(i32(-1), i32(0), i32(0), i32(0)), number, groups)
        if pipe.is_producer():
            PRODUCER.set_registers()
            while group.matrix < groups.total:
                height = (group.rows + M * CLUSTER - 1) // (M * CLUSTER)
                schedule = SCHEDULER.over(height, groups.tile_columns, 1)
                tile = schedule.tile(number - group.first)
                row, column = (tile.row * CLUSTER + rank) * M, tile.column * N
                # One elected thread executes the body; `produce` has armed the stage's barrier.
                for k_tile, stage in pipe.produce(0, groups.steps):
                    k = k_tile * STAGE_K
                    a.load(stage.a, (0, group.start + row, k), stage.barrier)
                    at = (group.matrix, column, k)
                    load_b(b, stage.b, at, stage.barrier, rank, EVERYONE)
                number += step
                group = group_of(group, number, groups)
        else:
            MMA.set_registers()
            mma_row = 0
            if SEVERAL:
                mma_row = first_row()
            while group.matrix < groups.total:
                height = (group.rows + M * CLUSTER - 1) // (M * CLUSTER)
                schedule = SCHEDULER.over(height, groups.tile_columns, 1)
                tile = schedule.tile(number - group.first)
                row, column = (tile.row * CLUSTER + rank) * M, tile.column * N
                acc = tma.fragment(N, ACC)
                for _, stage in pipe.consume(0, groups.steps, in_flight=IN_FLIGHT):
                    a_rows = stage.a.matrix_descriptor().advance(row=mma_row)
                    acc = tma.wgmma(acc, a_rows, stage.b.matrix_descriptor(B_MAJOR))
                    # The loop's next step releases the stage before: its product is complete.
                    acc = tma.wgmma_wait(acc, IN_FLIGHT)
                acc = tma.wgmma_wait(acc)
                pipe.release_pending()  # the last stage
                at, terms = (0, row + mma_row, column), terms_of(group, groups, alpha)
                store(acc, results, out, group, at, mma_row, extents, terms)
                number += step
                group = group_of(group, number, groups)
        results.close(read=True)
        pipe.close()

    return jitted(plan, grouped_matmul)
