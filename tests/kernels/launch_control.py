"""Kernels whose blocks take tiles by launch control: one role, a ring and its roles, a cluster."""

import numpy as np
from numba import cuda, types

import numba_tma as tma

ALONE = tma.LaunchControl()

ROLES = tma.Roles(work=tma.Warps(2), load=tma.Warps(1))
BY_ROLES = tma.LaunchControl(ROLES, asks=ROLES.load)
TILE = tma.Tile((2, 16), np.float32)
PIPE = tma.TilePipeline(2, x=TILE, producer=ROLES.load, consumer=ROLES.work)
SCHEDULER = tma.GroupedScheduler(2)

MIXED_ROLES = tma.Roles(work=tma.Threads(40), ask=tma.Threads(1))
BY_THREADS = tma.LaunchControl(MIXED_ROLES, slots=1)
IN_CLUSTER = tma.LaunchControl(ROLES, asks=ROLES.load, slots=2, cluster=(2, 1))


@cuda.jit
def count(tiles, rows, columns):
    """Add 1 to the place of each tile, by thread 0, and to `tiles[-1]` for each block."""
    work = ALONE.start()
    schedule = SCHEDULER.over(rows, columns)
    for tile in work.tiles(schedule):
        if cuda.threadIdx.x == 0:
            tiles[tile.row, tile.column] += 1


@cuda.jit
def copy(x, y, rows, columns):
    """Copy an array tile by tile: the loads run ahead of the stores by the stages of the ring."""
    work = BY_ROLES.start(sync=False)
    pipe = PIPE.start()
    schedule = SCHEDULER.over(rows, columns)
    if ROLES.load.is_member():
        for tile in work.tiles(schedule):
            for _, stage in pipe.produce(0, 1):
                x.load(stage.x, (tile.row * 2, tile.column * 16), stage.barrier)
    else:
        for tile in work.tiles(schedule):
            for _, stage in pipe.consume(0, 1):
                pipe.store(y, stage.x, (tile.row * 2, tile.column * 16), written=False)


@cuda.jit
def count_by_threads(tiles, rows, columns):
    """Count each tile by roles of single threads."""
    work = BY_THREADS.start()
    schedule = SCHEDULER.over(rows, columns)
    if MIXED_ROLES.work.is_member():
        for tile in work.tiles(schedule):
            if cuda.threadIdx.x == 0:
                tiles[tile.row, tile.column] += 1
    elif MIXED_ROLES.ask.is_member():
        for _ in work.tiles(schedule):
            pass


@cuda.jit
@tma.cluster((2, 1))
def count_in_cluster(tiles, rows, columns):
    """Count each tile once by each block of a cluster, which takes it as a whole."""
    work = IN_CLUSTER.start()
    schedule = SCHEDULER.over(rows, columns)
    rank = cuda.blockIdx.x % 2
    if ROLES.work.is_member():
        for tile in work.tiles(schedule):
            if cuda.threadIdx.x == 0:
                tiles[tile.row, tile.column, rank] += 1
    else:
        for _ in work.tiles(schedule):
            pass


def golden():
    """Return the kernel of `ptx/kernels`, and the types of its arguments."""
    tile_map = tma.TensorMapType(2, TILE)
    return copy, (tile_map, tile_map, types.int64, types.int64)
