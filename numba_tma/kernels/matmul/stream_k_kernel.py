"""The stream-K matmul kernel: clusters divide the tiles that do not fill a wave along K.

Cost model: that of `kernel`, but all clusters compute equally many stages, where the last wave of
whole tiles leaves SMs idle. In return nearly every block writes and reads the sums of one tile,
``m * n * 4`` bytes in L2, while its tensor cores wait.

Whole waves of tiles come first in the schedule; the rest, of one to two waves, is divided. Its
stages form one sequence, tile after tile, of which each cluster has a range of equal length. A
cluster is a *worker* here, and the workers are numbered from the last cluster to the first.

    tile        0           1           2           3
    stages      |-----------|-----------|-----------|-----------|
    worker      |000000000000000|1111111111111111|22222222222222|

- Most ranges begin inside of a tile. The sums of this part go to the worker's slot in global
  memory.
- Whole tiles may follow, and then the head of a tile. The worker of the head, its *owner*, adds the
  slots of the other parts in their order, so equal calls give equal bits. It applies the epilogue.
- The worker's whole tiles come after its range.

Each worker writes its slot before all else, so an owner seldom waits. An owner waits for workers of
larger numbers, which are blocks of smaller numbers. The hardware starts blocks in the order of
their numbers, so the blocks that others wait for have started, even if not all run at once.

A warp hands over to the same warp of another block: a slot has the sums in the order of the
threads, and each warp has a flag. A reader sets the flag back to 0 for the next launch.

Loads, epilogue stores and pipelines are those of `kernel`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba_tma as tma
from numba_tma import ptx
from numba_tma.backend.interface import device_class, device_function, i64, u32
from numba_tma.backend.primitives import quotient
from numba_tma.device.fragment_moves import add_global_by_thread, store_global_by_thread
from numba_tma.device.tile_indices import Iteration
from numba_tma.device.waiting import wait_for_flag
from numba_tma.host.annotations import Address, DeviceFunction, Integer, Kernel
from numba_tma.host.debug import Site
from numba_tma.kernels.matmul.kernel import (
    IN_FLIGHT,
    a_load,
    b_load,
    jitted,
    operand_pipeline,
    scheduler,
    source_load,
    tile_store,
    warpgroup_row,
)
from numba_tma.kernels.matmul.plan import SOURCE_STAGES, WGMMA_ROWS, MatmulPlan
from numba_tma.kernels.matmul.stream_k_plan import FEWEST, StreamK, slot_nbytes

SUMS = Site("matmul(): sums of another block's part of a tile", kind="flag")


# -------------------------------------------------------------------------------- division


class Part(NamedTuple):
    """Stages of a tile, from `begin` up to, not including, `end`."""

    number: Any  #: of the tile
    begin: Any
    end: Any


@device_function
def range_begin(worker: Integer, stream: StreamK, steps: Integer) -> int:
    """Return where a worker's range begins, and that of the worker before ends.

    The result counts stages of the divided tiles, `steps` for each. A range that would begin fewer
    than `FEWEST` stages from the edge of a tile begins at the edge.
    """
    number, length = u32(worker), u32(steps)
    at = u32(number * u32(stream.share) + min(number, u32(stream.longer)))
    over = quotient(at, length)[1]
    if over < u32(FEWEST):
        at = u32(at - over)
    elif u32(length - over) < u32(FEWEST):
        at = u32(at + length - over)
    return at


@device_class()
@dataclass
class Parts(Iteration):
    """What a worker computes: the parts of its range, and then its whole tiles."""

    worker: u32  # its number
    at: u32  # where the next part begins
    stop: u32  # where the range ends
    number: u32  # of the next whole tile
    whole: u32  # tiles that are not divided
    step: u32  # workers
    steps: u32  # stages of a tile

    def has_next(self) -> bool:
        """Return whether a part is left."""
        return self.at < self.stop or self.number < self.whole

    def take(self) -> Part:
        """Return the next part."""
        number, begin, end = self.number, u32(0), self.steps
        if self.at < self.stop:
            tile, begin = quotient(self.at, self.steps)
            number = u32(self.whole + tile)
            end = min(self.steps, u32(begin + self.stop - self.at))
            self.at = u32(self.at + end - begin)
        else:
            self.number = u32(self.number + self.step)
        return Part(i64(number), i64(begin), i64(end))


@device_function
def parts_of(worker: Integer, workers: Integer, stream: StreamK, steps: Integer) -> Parts:
    """Return the parts of a worker."""
    first, length = u32(worker), u32(steps)
    at = range_begin(first, stream, length)
    stop = range_begin(u32(first + 1), stream, length)
    return Parts(first, at, stop, first, u32(stream.whole), u32(workers), length)


# --------------------------------------------------- hand over: sums of a part, by each MMA warp


def hand_over(plan: MatmulPlan) -> tuple[DeviceFunction, DeviceFunction]:
    """Return the functions that write the sums of a part, and that add those of others to a head.

    A worker has a slot for each MMA warpgroup of each block. `columns` of the tile are inside the
    matrix.
    """
    NBYTES, CLUSTER, WARPGROUPS = slot_nbytes(plan), plan.config.cluster, plan.warpgroups

    @device_function
    def slot_of(worker: Integer, rank: Integer, mma_row: Integer) -> int:
        return (i64(worker) * CLUSTER + rank) * WARPGROUPS + mma_row // WGMMA_ROWS

    @device_function
    def flag_of(stream: StreamK, slot: Integer) -> Address:
        return stream.flags + 4 * (4 * slot + ptx.tid_x() % 128 // 32)

    @device_function
    def write(acc, stream, parts, rank, mma_row, columns):  # type: ignore[no-untyped-def]
        slot = slot_of(parts.worker, rank, mma_row)
        store_global_by_thread(acc, stream.sums + slot * NBYTES, columns)
        ptx.bar_warp_sync()
        if ptx.laneid() == 0:
            ptx.fence_acq_rel("gpu")
            ptx.atom_exch_b32(flag_of(stream, slot), 1)

    @device_function
    def add(acc, part, stream, parts, rank, mma_row, columns):  # type: ignore[no-untyped-def]
        worker, end = parts.worker, parts.stop
        stop = u32(end + parts.steps - part.end)  # of a tile whose head is the last of the range
        while end < stop:
            worker = u32(worker + 1)
            slot = slot_of(worker, rank, mma_row)
            wait_for_flag(flag_of(stream, slot), SUMS)
            ptx.fence_acq_rel("gpu")
            ptx.bar_warp_sync()  # no lane reads the flag any more
            if ptx.laneid() == 0:
                ptx.atom_exch_b32(flag_of(stream, slot), 0)
            acc = add_global_by_thread(acc, stream.sums + slot * NBYTES, columns)
            end = range_begin(u32(worker + 1), stream, parts.steps)
        return acc

    return write, add


# ------------------------------------------------------------------ loads, by one elected thread


def operand_load(plan: MatmulPlan) -> DeviceFunction:
    """Return the load of the tiles of a and b of a stage; `at` is (batch, row, column)."""
    STAGE_K, EVERYONE = plan.k, (1 << plan.config.cluster) - 1
    load_a, load_b = a_load(plan), b_load(plan)

    @device_function
    def load(a, b, stage, at, k_tile, rank, extents):  # type: ignore[no-untyped-def]
        batch, row, column = at
        a_matrix, k = batch * extents.a_stride, k_tile * STAGE_K
        b_matrix = batch * extents.b_stride
        load_a(a, stage.a, (a_matrix, row, k), stage.barrier, 0, 1)
        load_b(b, stage.b, (b_matrix, column, k), stage.barrier, rank, EVERYONE)

    return load


def sources_load(plan: MatmulPlan) -> DeviceFunction:
    """Return the loads of all tiles of the sources of a tile at `at`."""
    COLUMNS, NUM_SOURCES, load = plan.out_columns, plan.epilogue.sources, source_load(plan)
    TILES = NUM_SOURCES * plan.epilogue_tiles

    @device_function
    def load_all(pipe, old, residual, at):  # type: ignore[no-untyped-def]
        batch, row, column = at
        for i, stage in pipe.produce(0, TILES):
            load(old, residual, i, stage, (batch, row, column + i // NUM_SOURCES * COLUMNS))

    return load_all


# ------------------------------------------------------------------------------ the kernel


@functools.cache
def stream_k_kernel(plan: MatmulPlan) -> Kernel:
    """Return the kernel of a plan, whose configuration is a `StreamKConfig`.

    Its arguments are those of `matmul_kernel`, and a `StreamK`. The grid has as many clusters as
    the division says.
    """
    M, N, CLUSTER, B_MAJOR = plan.config.m, plan.config.n, plan.config.cluster, plan.b_major
    A_MAJOR, ACC, ADDRESSABLE = plan.a_major, plan.accumulator.name, plan.addressable
    PRODUCER, HAS_SOURCES = plan.roles.load, plan.epilogue.sources > 0
    MMA = plan.consumers[0]  # all consumer warpgroups have equal registers
    PIPE, SCHEDULER = operand_pipeline(plan), scheduler(plan)
    SOURCES = tma.TilePipeline(
        SOURCE_STAGES, source=plan.source_tile, producer=PRODUCER, consumer=plan.consumers
    )
    RESULTS = tma.StorePipeline(plan.config.out_stages, result=plan.out_tile, role=plan.consumers)
    load, load_sources, first_row = operand_load(plan), sources_load(plan), warpgroup_row(plan)
    (write_sums, add_sums), store = hand_over(plan), tile_store(plan, plan.epilogue_tiles - 1)

    def stream_k(a, b, out, old, residual, extents, terms, stream):  # type: ignore[no-untyped-def]
        if ptx.tid_x() == 0:
            a.prefetch()
            b.prefetch()
            if ADDRESSABLE:
                out.prefetch()
        sources: Any = 0
        if HAS_SOURCES:
            source_pipe = SOURCES.start(sync=False)  # PIPE.start() synchronises for both rings
            sources = source_pipe.consumer()
        pipe, results = PIPE.start(), RESULTS.start()  # the first synchronises block or cluster
        schedule = SCHEDULER.over(extents.tile_rows // CLUSTER, extents.tile_columns, extents.batch)
        workers, rank = ptx.nctaid_x() // CLUSTER, ptx.cluster_ctarank()
        # A worker waits for those that follow it, which are the clusters of smaller numbers.
        parts = parts_of(workers - 1 - ptx.ctaid_x() // CLUSTER, workers, stream, extents.steps)
        if pipe.is_producer():
            PRODUCER.set_registers()
            for part in parts:
                tile = schedule.tile(part.number)
                at = (tile.batch, (tile.row * CLUSTER + rank) * M, tile.column * N)
                # One elected thread executes the body. `produce` has waited until the stage is
                # empty and armed its barrier with the bytes of all its tiles.
                for k_tile, stage in pipe.produce(part.begin, part.end):
                    load(a, b, stage, at, k_tile, rank, extents)
                if HAS_SOURCES and part.begin == 0:
                    load_sources(source_pipe, old, residual, at)
        else:
            MMA.set_registers()
            mma_row = first_row()
            for part in parts:
                tile = schedule.tile(part.number)
                row, column = (tile.row * CLUSTER + rank) * M + mma_row, tile.column * N
                acc = tma.fragment(N, ACC)
                for _, stage in pipe.consume(part.begin, part.end, in_flight=IN_FLIGHT):
                    a_rows = stage.a.matrix_descriptor(A_MAJOR).advance(row=mma_row)
                    acc = tma.wgmma(acc, a_rows, stage.b.matrix_descriptor(B_MAJOR))
                    # The next iteration begins by releasing the previous stage, whose product is
                    # complete now.
                    acc = tma.wgmma_wait(acc, IN_FLIGHT)
                acc = tma.wgmma_wait(acc)
                pipe.release_pending()  # the last stage, which no iteration followed
                columns = extents.columns - column
                if part.begin > 0:
                    write_sums(acc, stream, parts, rank, mma_row, columns)
                else:
                    acc = add_sums(acc, part, stream, parts, rank, mma_row, columns)
                    at = (tile.batch, row, column)
                    store(acc, results, sources, out, at, mma_row, extents, terms)
        results.close(read=True)
        if HAS_SOURCES:
            source_pipe.close()
        pipe.close()

    return jitted(plan, stream_k)
