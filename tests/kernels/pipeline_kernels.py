"""A small kernel for each pipeline, and the same one written by hand without it.

Each function returns a kernel and the argument types that it is compiled for. The pair is counted
against each other (tests/cpu), the first one has a golden (ptx/kernels), and runs in the simulator
and on a GPU, which is why the sizes are parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, int64, types, uint32

import numba_tma as tma
from numba_tma import Tile, ptx
from numba_tma.host.environment import simulated

U32 = types.uint32
Kernel = tuple[Any, tuple[Any, ...]]


def map_of(tile: Tile) -> Any:
    """Return the type of a map that copies `tile`; the simulator has no types."""
    return None if simulated() else tma.TensorMapType(tile.ndim, tile)


# ------------------------------------------------------------------- stores and ping-pong

ROWS, COLUMNS = 4, 128
THREADS = 128
OUTPUT = Tile((ROWS, COLUMNS), "u32")


@functools.cache
def store_pipeline(stages: int = 3, tile: Tile = OUTPUT) -> Kernel:
    """Return the kernel that numbers the elements of a matrix, from `start` on."""
    OUT = tma.StorePipeline(stages, y=tile)
    rows, columns = tile.shape

    @cuda.jit
    def number(y, start, num_tiles):
        out = OUT.start()
        thread = ptx.tid_x()
        for tile, stage in out.stages(cuda.blockIdx.x, num_tiles, cuda.gridDim.x):
            for row in range(rows):
                stage.y[row, thread] = start + (tile * rows + row) * columns + thread
            out.store(y, stage.y, (tile * rows, 0))
            out.commit()
        out.tail()

    return number, (map_of(tile), U32, types.int64)


@functools.cache
def store_pipeline_by_hand(stages: int = 3) -> Kernel:
    """Return the shortest loop that does the same, for 2 stages or more."""
    MEMORY = Tile((stages * ROWS, COLUMNS), "u32")
    PENDING, NBYTES = stages - 2, OUTPUT.nbytes

    @cuda.jit
    def number(y, start, num_tiles):
        memory = tma.shared_tile(MEMORY)
        thread, threads = ptx.tid_x(), ptx.ntid_x()
        tile, step = int64(cuda.blockIdx.x), cuda.gridDim.x
        index = uint32(0)
        while tile < num_tiles:
            for row in range(ROWS):
                value = start + (tile * ROWS + row) * COLUMNS + thread
                memory[index * uint32(ROWS) + uint32(row), thread] = value
            ptx.fence_proxy_async()
            if thread == 0:
                ptx.cp_async_bulk_wait_group_read(PENDING)
            ptx.barrier_sync(0, threads)
            if thread == 0:
                source = memory.address + index * uint32(NBYTES)
                ptx.cp_async_bulk_tensor_store(y, (tile * ROWS, 0), source)
                ptx.cp_async_bulk_commit_group()
            tile += step
            index = uint32(index + 1)
            if index == stages:
                index = uint32(0)
        if thread == 0:
            ptx.cp_async_bulk_wait_group(0)

    return number, (map_of(OUTPUT), U32, types.int64)


@functools.cache
def reduce_store(stages: int = 3, tile: Tile = OUTPUT, warps: int = 4) -> Kernel:
    """Return the kernel that stores numbered tiles and adds all of them into one.

    One role does so, in the explicit form, with both stores of a stage in one group.
    """
    ROLES = tma.Roles(other=tma.Warps(1), epilogue=tma.Warps(warps))
    OUT = tma.StorePipeline(stages, y=tile, role=ROLES.epilogue)
    rows, columns = tile.shape

    @cuda.jit
    def number(y, total, start, num_tiles):
        out = OUT.start()
        if ROLES.epilogue.is_member():
            thread = out.thread
            tile, step = int64(cuda.blockIdx.x), cuda.gridDim.x
            while tile < num_tiles:
                stage = out.acquire()
                for row in range(rows):
                    stage.y[row, thread] = start + (tile * rows + row) * columns + thread
                out.store(y, stage.y, (tile * rows, 0))
                out.reduce(total, stage.y, (0, 0), "add")
                out.commit()
                tile += step
            out.tail()

    return number, (map_of(tile), map_of(tile), U32, types.int64)


@functools.cache
def reduce_store_by_hand(stages: int = 3) -> Kernel:
    """Return the shortest loop that does the same, for 2 stages or more."""
    MEMORY = Tile((stages * ROWS, COLUMNS), "u32")
    PENDING, NBYTES = stages - 2, OUTPUT.nbytes

    @cuda.jit
    def number(y, total, start, num_tiles):
        memory = tma.shared_tile(MEMORY)
        thread = uint32(ptx.tid_x() - 32)
        if thread < THREADS:
            tile, step = int64(cuda.blockIdx.x), cuda.gridDim.x
            index = uint32(0)
            while tile < num_tiles:
                for row in range(ROWS):
                    value = start + (tile * ROWS + row) * COLUMNS + thread
                    memory[index * uint32(ROWS) + uint32(row), thread] = value
                ptx.fence_proxy_async()
                if thread == 0:
                    ptx.cp_async_bulk_wait_group_read(PENDING)
                ptx.barrier_sync(2, THREADS)
                if thread == 0:
                    source = memory.address + index * uint32(NBYTES)
                    ptx.cp_async_bulk_tensor_store(y, (tile * ROWS, 0), source)
                    ptx.cp_reduce_async_bulk_tensor(total, (0, 0), source, "add")
                    ptx.cp_async_bulk_commit_group()
                tile += step
                index = uint32(index + 1)
                if index == stages:
                    index = uint32(0)
            if thread == 0:
                ptx.cp_async_bulk_wait_group(0)

    return number, (map_of(OUTPUT), map_of(OUTPUT), U32, types.int64)


PARTS = 2  # tiles that are folded into one


@functools.cache
def ping_pong(stages: int = 4, store_stages: int = 2, warps: int = 4) -> Kernel:
    """Return the kernel that folds every `PARTS` tiles of x into one of y.

    Two roles take every other tile of y: one works on full stages while the other stores.
    """
    ROLES = tma.Roles(math0=tma.Warps(warps), math1=tma.Warps(warps), load=tma.Warps(1))
    MATH = (ROLES.math0, ROLES.math1)
    TILE = Tile((ROWS, 32 * warps), "u32")
    PIPE = tma.TilePipeline(stages, x=TILE, producer=ROLES.load, consumer=MATH, alternate=True)
    OUT = tma.StorePipeline(store_stages, y=TILE, role=MATH)
    ORDER = tma.OrderedSequenceBarrier(2, MATH)

    @cuda.jit
    def fold_parts(x, y, num_tiles):
        pipe, out, order = PIPE.start(sync=False), OUT.start(), ORDER.start()
        base = int64(cuda.blockIdx.x) * num_tiles
        if ROLES.load.is_member():
            for part, stage in pipe.produce(base * PARTS, (base + num_tiles) * PARTS):
                x.load(stage.x, (part * ROWS, 0), stage.barrier)
        else:
            consumer, thread = pipe.consumer(), out.thread
            tile = int64(0)
            if ROLES.math1.is_member():
                tile = int64(1)
                consumer.skip(PARTS)
            while tile < num_tiles:
                order.wait()  # for the main loop
                fold = uint32(tile)
                for _ in range(PARTS):
                    stage = consumer.wait()
                    for row in range(ROWS):
                        fold = uint32(fold * 3 + stage.x[row, thread])
                    consumer.release()
                order.arrive()
                order.wait()  # for the epilogue
                stage = out.acquire()
                for row in range(ROWS):
                    stage.y[row, thread] = uint32(fold + row)
                out.store(y, stage.y, ((base + tile) * ROWS, 0))
                out.commit()
                order.arrive()
                consumer.skip(PARTS)
                tile += 2
            out.tail()

    return fold_parts, (map_of(TILE), map_of(TILE), types.int64)


@functools.cache
def ping_pong_by_hand(stages: int = 4, store_stages: int = 2) -> Kernel:
    """Return the shortest form of the same, for a number of stages that `PARTS` divides."""
    TILE = Tile((ROWS, COLUMNS), "u32")
    NBYTES, PENDING = TILE.nbytes, store_stages - 2
    INPUT = Tile((stages * ROWS, COLUMNS), "u32")
    STORED = Tile((2 * store_stages * ROWS, COLUMNS), "u32")
    BARRIERS = 2 * stages + 4

    @cuda.jit
    def fold_parts(x, y, num_tiles):
        space, stored = tma.shared_tile(INPUT), tma.shared_tile(STORED)
        full = tma.shared_barriers(BARRIERS).address
        empty, turns = uint32(full + 8 * stages), uint32(full + 16 * stages)
        thread = ptx.tid_x()
        if thread == 0:
            for stage in range(stages):
                ptx.mbarrier_init(full + 8 * stage, 1)
                ptx.mbarrier_init(empty + 8 * stage, THREADS // 32)
            for turn in range(4):
                ptx.mbarrier_init(turns + 8 * turn, THREADS // 32)
            ptx.fence_mbarrier_init()
        ptx.barrier_sync(0, 2 * THREADS + 32)

        base = int64(cuda.blockIdx.x) * num_tiles
        index, phase = uint32(0), uint32(0)
        if thread >= 2 * THREADS:
            if ptx.elect_sync():
                phase = uint32(1)
                part, last = base * PARTS, (base + num_tiles) * PARTS
                while part < last:
                    while not ptx.mbarrier_try_wait_parity(empty + index * 8, phase):
                        pass
                    barrier = full + index * 8
                    ptx.mbarrier_arrive_expect_tx(barrier, NBYTES)
                    ptx.cp_async_bulk_tensor_load(
                        space.address + index * NBYTES, x, (part * ROWS, 0), barrier
                    )
                    part += 1
                    index = uint32(index + 1)
                    if index == stages:
                        index = uint32(0)
                        phase = uint32(phase ^ 1)
        else:
            group = uint32(thread // THREADS)
            column = uint32(thread % THREADS)
            tile, turn = int64(group), uint32(group ^ 1)
            mine, next_one = uint32(turns + 8 * group), uint32(turns + 8 * (group ^ 1))
            index = uint32(PARTS * group)
            first = uint32(group * store_stages)
            slot = uint32(0)
            while tile < num_tiles:
                while not ptx.mbarrier_try_wait_parity(mine, turn):
                    pass
                fold = uint32(tile)
                for _ in range(PARTS):
                    while not ptx.mbarrier_try_wait_parity(full + index * 8, phase):
                        pass
                    for row in range(ROWS):
                        value = space[index * uint32(ROWS) + uint32(row), column]
                        fold = uint32(fold * 3 + value)
                    ptx.bar_warp_sync()
                    if ptx.elect_sync():
                        ptx.mbarrier_arrive(empty + index * 8)
                    index = uint32(index + 1)
                    if index == stages:
                        index = uint32(0)
                        phase = uint32(phase ^ 1)
                ptx.bar_warp_sync()
                if ptx.elect_sync():
                    ptx.mbarrier_arrive(next_one)

                while not ptx.mbarrier_try_wait_parity(mine + uint32(16), turn):
                    pass
                at = uint32(first + slot)
                for row in range(ROWS):
                    stored[at * uint32(ROWS) + uint32(row), column] = uint32(fold + row)
                ptx.fence_proxy_async()
                if column == 0:
                    ptx.cp_async_bulk_wait_group_read(PENDING)
                ptx.barrier_sync(1 + group, THREADS)
                if column == 0:
                    source = stored.address + at * uint32(NBYTES)
                    ptx.cp_async_bulk_tensor_store(y, ((base + tile) * ROWS, 0), source)
                    ptx.cp_async_bulk_commit_group()
                ptx.bar_warp_sync()
                if ptx.elect_sync():
                    ptx.mbarrier_arrive(next_one + uint32(16))

                turn = uint32(turn ^ 1)
                slot = uint32(slot + 1)
                if slot == store_stages:
                    slot = uint32(0)
                index = uint32(index + PARTS)
                if index >= stages:
                    index = uint32(index - stages)
                    phase = uint32(phase ^ 1)
                tile += 2
            if column == 0:
                ptx.cp_async_bulk_wait_group(0)

    return fold_parts, (map_of(TILE), map_of(TILE), types.int64)


def ping_pong_reference(x: Any, blocks: int = 1) -> Any:
    """Return what `ping_pong` makes of x, a matrix of uint32."""
    tiles = len(x) // (PARTS * ROWS)
    rows = x.reshape(tiles, PARTS * ROWS, x.shape[1])
    numbers = np.arange(tiles, dtype=np.uint32) % np.uint32(max(1, tiles // blocks))
    fold = np.repeat(numbers[:, None], x.shape[1], axis=1)
    for row in range(rows.shape[1]):
        fold = fold * np.uint32(3) + rows[:, row]
    added = np.arange(ROWS, dtype=np.uint32)[:, None]
    return (fold[:, None] + added).reshape(-1, x.shape[1])


# --------------------------------------------------------------------------------- all

#: By name of the golden: the kernel, and the same by hand.
PIPELINES: dict[str, tuple[Callable[[], Kernel], Callable[[], Kernel]]] = {
    "ping_pong": (ping_pong, ping_pong_by_hand),
    "reduce_store": (reduce_store, reduce_store_by_hand),
    "store_pipeline": (store_pipeline, store_pipeline_by_hand),
}
