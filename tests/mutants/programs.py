"""The correct programs, one for each pipeline: each adds a matrix's two halves, tile by tile."""

from __future__ import annotations

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from tests.mutants.table import COLUMNS, NBYTES, POISON, ROWS, SIZE, TILE, TILES, Program

SLICE = tma.Tile((ROWS // 2, COLUMNS), "u32")


def ring():
    ROLES = tma.Roles(add=tma.Warps(2), load=tma.Warps(1))
    PIPE = tma.TilePipeline(2, a=TILE, b=TILE, producer=ROLES.load, consumer=ROLES.add)

    @cuda.jit
    def kernel(x, y, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n):
                x.load(stage.a, (t * ROWS, 0), stage.barrier)
                x.load(stage.b, (t * ROWS, COLUMNS), stage.barrier)
        else:
            consumer = pipe.consumer()
            for t in range(n):
                stage = consumer.wait()
                for i in range(pipe.consumer_thread(), SIZE, pipe.num_consumers()):
                    stage.a[i // COLUMNS, i % COLUMNS] += stage.b[i // COLUMNS, i % COLUMNS]
                pipe.store(y, stage.a, (t * ROWS, 0))
                consumer.release()

    return kernel, 1, ROLES.threads


def cp_async_ring():
    ROLES = tma.Roles(add=tma.Warps(2), load=tma.Warps(1))
    PIPE = tma.TilePipeline(
        2, a=TILE, b=TILE, producer=ROLES.load, consumer=ROLES.add, filled_by="cp_async"
    )

    @cuda.jit
    def kernel(x, y, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            producer = pipe.producer()
            row, column = ROLES.load.thread() // 8, ROLES.load.thread() % 8 * 4
            for t in range(n):
                stage = producer.acquire()
                left, right = x[t * ROWS + row, column:], x[t * ROWS + row, COLUMNS + column :]
                ptx.cp_async_cg(stage.a.address_of((row, column)), left, 16)
                ptx.cp_async_cg(stage.b.address_of((row, column)), right, 16)
                producer.commit()
            producer.close()
        else:
            consumer = pipe.consumer()
            for t in range(n):
                stage = consumer.wait()
                for i in range(pipe.consumer_thread(), SIZE, pipe.num_consumers()):
                    stage.a[i // COLUMNS, i % COLUMNS] += stage.b[i // COLUMNS, i % COLUMNS]
                pipe.store(y, stage.a, (t * ROWS, 0))
                consumer.release()

    return kernel, 1, ROLES.threads


def thread_ring():
    ROLES = tma.Roles(add=tma.Warps(2), fill=tma.Warps(1))
    PIPE = tma.TilePipeline(
        2, a=TILE, b=TILE, producer=ROLES.fill, consumer=ROLES.add, filled_by="threads"
    )

    @cuda.jit
    def kernel(x, y, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            producer, column = pipe.producer(), ROLES.fill.thread()
            for t in range(n):
                stage = producer.acquire()
                for row in range(ROWS):
                    stage.a[row, column] = x[t * ROWS + row, column]
                    stage.b[row, column] = x[t * ROWS + row, COLUMNS + column]
                producer.commit()
            producer.close()
        else:
            consumer = pipe.consumer()
            for t in range(n):
                stage = consumer.wait()
                for i in range(pipe.consumer_thread(), SIZE, pipe.num_consumers()):
                    stage.a[i // COLUMNS, i % COLUMNS] += stage.b[i // COLUMNS, i % COLUMNS]
                pipe.store(y, stage.a, (t * ROWS, 0))
                consumer.release()

    return kernel, 1, ROLES.threads


def several_consumers():
    ROLES = tma.Roles(top=tma.Warps(1), bottom=tma.Warps(1), load=tma.Warps(1))
    BOTH = (ROLES.top, ROLES.bottom)
    PIPE = tma.TilePipeline(2, a=TILE, b=TILE, producer=ROLES.load, consumer=BOTH)
    HALF = ROWS // 2

    @cuda.jit
    def kernel(x, y, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n):
                x.load(stage.a, (t * ROWS, 0), stage.barrier)
                x.load(stage.b, (t * ROWS, COLUMNS), stage.barrier)
        else:
            consumer, column = pipe.consumer(), pipe.consumer_thread()
            first = HALF if ROLES.bottom.is_member() else 0
            for t in range(n):
                stage = consumer.wait()
                for row in range(first, first + HALF):
                    stage.a[row, column] += stage.b[row, column]
                    y[t * ROWS + row, column] = stage.a[row, column]
                consumer.release()

    return kernel, 1, ROLES.threads


def alternate():
    ROLES = tma.Roles(even=tma.Warps(1), odd=tma.Warps(1), load=tma.Warps(1))
    BOTH = (ROLES.even, ROLES.odd)
    PIPE = tma.TilePipeline(2, a=TILE, b=TILE, producer=ROLES.load, consumer=BOTH, alternate=True)

    @cuda.jit
    def kernel(x, y, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n):
                x.load(stage.a, (t * ROWS, 0), stage.barrier)
                x.load(stage.b, (t * ROWS, COLUMNS), stage.barrier)
        else:
            consumer, column = pipe.consumer(), pipe.consumer_thread()
            turn = 1 if ROLES.odd.is_member() else 0
            consumer.skip(turn)
            for t in range(turn, n, 2):
                stage = consumer.wait()
                for row in range(ROWS):
                    stage.a[row, column] += stage.b[row, column]
                    y[t * ROWS + row, column] = stage.a[row, column]
                consumer.release()
                consumer.skip(1)

    return kernel, 1, ROLES.threads


def multicast():
    ROLES = tma.Roles(add=tma.Warps(1), load=tma.Warps(1))
    PIPE = tma.TilePipeline(
        2, a=TILE, b=TILE, producer=ROLES.load, consumer=ROLES.add, cluster=2, multicast={"a": "x"}
    )

    @cuda.jit
    @tma.cluster(2)
    def kernel(half, x, y, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            group, first = pipe.multicast_group("a"), cuda.blockIdx.x * n
            for t, stage in pipe.produce(0, n):
                tma.load_partitioned(
                    half, stage.a, (t * ROWS, 0), stage.barrier, group.rank, multicast=group.mask
                )
                x.load(stage.b, ((first + t) * ROWS, COLUMNS), stage.barrier)
        else:
            consumer, column = pipe.consumer(), pipe.consumer_thread()
            first = cuda.blockIdx.x * n
            for t in range(n):
                stage = consumer.wait()
                for row in range(ROWS):
                    stage.a[row, column] += stage.b[row, column]
                    y[(first + t) * ROWS + row, column] = stage.a[row, column]
                consumer.release()
        pipe.close()

    return kernel, 2, ROLES.threads


def k_group():
    ROLES = tma.Roles(add=tma.Warps(2), load=tma.Warps(1))
    PIPE = tma.TilePipeline(2, a=TILE, b=TILE, k_group=2, producer=ROLES.load, consumer=ROLES.add)

    @cuda.jit
    def kernel(x, y, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n // 2):
                for j in range(2):
                    part, row = stage.tile(j), (2 * t + j) * ROWS
                    x.load(part.a, (row, 0), stage.barrier)
                    x.load(part.b, (row, COLUMNS), stage.barrier)
        else:
            consumer = pipe.consumer()
            for t in range(n // 2):
                stage = consumer.wait()
                for j in range(2):
                    a, b = stage.get_tile(j)
                    for i in range(pipe.consumer_thread(), SIZE, pipe.num_consumers()):
                        a[i // COLUMNS, i % COLUMNS] += b[i // COLUMNS, i % COLUMNS]
                    pipe.store(y, a, ((2 * t + j) * ROWS, 0))
                consumer.release()

    return kernel, 1, ROLES.threads


def scopes():
    ROLES = tma.Roles(add=tma.Warps(2), load=tma.Warps(1))
    PIPE = tma.TilePipeline(2, a=TILE, b=TILE, producer=ROLES.load, consumer=ROLES.add)

    @cuda.jit
    @tma.scopes
    def kernel(x, y, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            with pipe.producer() as producer:
                for t in range(n):
                    with producer.acquire() as stage:
                        x.load(stage.a, (t * ROWS, 0), stage.barrier)
                        x.load(stage.b, (t * ROWS, COLUMNS), stage.barrier)
        else:
            with pipe.consumer() as consumer:
                for t in range(n):
                    with consumer.acquire() as stage:
                        for i in range(pipe.consumer_thread(), SIZE, pipe.num_consumers()):
                            stage.a[i // COLUMNS, i % COLUMNS] += stage.b[i // COLUMNS, i % COLUMNS]
                        pipe.store(y, stage.a, (t * ROWS, 0))

    return kernel, 1, ROLES.threads


def store():
    OUT = tma.StorePipeline(2, s=TILE)

    @cuda.jit
    def kernel(x, y, n):
        out, column = OUT.start(), cuda.threadIdx.x % COLUMNS
        first = cuda.threadIdx.x // COLUMNS * 2
        for t in range(n):
            stage = out.acquire()
            for row in range(first, first + 2):
                left, right = x[t * ROWS + row, column], x[t * ROWS + row, COLUMNS + column]
                stage.s[row, column] = left + right
            out.store(y, stage.s, (t * ROWS, 0))
            out.commit()
        out.tail()

    return kernel, 1, 64


def reduce_store():
    ROLES = tma.Roles(left=tma.Warps(2), other=tma.Warps(1))
    OUT = tma.StorePipeline(2, s=TILE, role=ROLES.left)

    @cuda.jit
    def kernel(x, y, n):
        out = OUT.start()
        if ROLES.left.is_member():
            column, first = out.thread % COLUMNS, out.thread // COLUMNS * 2
            for t in range(n):
                for side in range(2):
                    stage = out.acquire()
                    for row in range(first, first + 2):
                        stage.s[row, column] = x[t * ROWS + row, side * COLUMNS + column]
                    out.reduce(y, stage.s, (t * ROWS, 0), "add")
                    out.commit()
            out.tail()

    return kernel, 1, ROLES.threads


def ordered():
    ROLES = tma.Roles(even=tma.Warps(1), odd=tma.Warps(1))
    ORDER = tma.OrderedSequenceBarrier(1, (ROLES.even, ROLES.odd))

    @cuda.jit
    def kernel(x, y, n):
        tile = tma.shared_tile(TILE)
        order, column = ORDER.start(), cuda.threadIdx.x % COLUMNS
        for t in range(1 if ROLES.odd.is_member() else 0, n, 2):
            order.wait()
            for row in range(ROWS):
                left, right = x[t * ROWS + row, column], x[t * ROWS + row, COLUMNS + column]
                tile[row, column] = left + right
            tma.fence_proxy_async()
            cuda.syncwarp()
            if column == 0:
                y.store(tile, (t * ROWS, 0))
                ptx.cp_async_bulk_commit_group()
                ptx.cp_async_bulk_wait_group_read(0)
            order.arrive()

    return kernel, 1, ROLES.threads


def by_hand():
    @cuda.jit
    def kernel(x, y, n):
        left, right = tma.shared_tile(TILE), tma.shared_tile(TILE)
        full, empty = tma.shared_barrier(), tma.shared_barrier()
        thread = cuda.threadIdx.x
        if thread == 0:
            full.init(1)
            empty.init(32)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if thread == 32:
            for t in range(n):
                empty.wait(t & 1 ^ 1)
                full.arrive_expect_tx(2 * NBYTES)
                x.load(left, (t * ROWS, 0), full)
                x.load(right, (t * ROWS, COLUMNS), full)
        elif thread < 32:
            for t in range(n):
                full.wait(t & 1)
                for row in range(ROWS):
                    left[row, thread] += right[row, thread]
                    y[t * ROWS + row, thread] = left[row, thread]
                tma.fence_proxy_async()
                empty.arrive()

    return kernel, 1, 64


def _shared_left(x):
    rows = TILES * ROWS
    left = x[:rows, :COLUMNS]
    halves = [left + x[block * rows : (block + 1) * rows, COLUMNS:] for block in range(2)]
    return np.concatenate(halves)


def _added(x):
    return np.uint32(POISON) + x[:, :COLUMNS] + x[:, COLUMNS:]


RING = Program("TilePipeline", ring, output=TILE)
CP_ASYNC = Program("TilePipeline, filled_by='cp_async'", cp_async_ring, (None,), TILE)
THREADS = Program("TilePipeline, filled_by='threads'", thread_ring, (None,), TILE)
SEVERAL = Program("TilePipeline, several consumers", several_consumers)
ALTERNATE = Program("TilePipeline, alternate=True", alternate)
MULTICAST = Program(
    "TilePipeline, multicast", multicast, (SLICE, TILE), reference=_shared_left, blocks=2
)
K_GROUP = Program("TilePipeline, k_group", k_group, output=TILE)
SCOPES = Program("TilePipeline in scopes", scopes, output=TILE)
STORE = Program("StorePipeline", store, (None,), TILE)
REDUCE = Program("StorePipeline.reduce", reduce_store, (None,), TILE, reference=_added)
ORDERED = Program("OrderedSequenceBarrier", ordered, (None,), TILE)
BY_HAND = Program("barriers by hand", by_hand)
