"""Kernels that hold every kind of pipeline by ``with PIPE.start() as pipe``.

Each copies the tiles of `x` to `out`, and leaves its scopes by their end, by `break`, by `continue`
or by `return`. A tile has 4 rows of 32 words.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx

ROWS, COLUMNS = 4, 32
TILE = tma.Tile((ROWS, COLUMNS), "u32")
HALF = tma.Tile((ROWS // 2, COLUMNS), "u32")
W = tma.Warps
ROLES = tma.Roles(even=W(1), odd=W(1), load=W(1))
ALONE = {"producer": ROLES.load, "consumer": ROLES.even}
TURNS = {"producer": ROLES.load, "consumer": (ROLES.even, ROLES.odd), "alternate": True}
RING = tma.TilePipeline(2, a=TILE, **ALONE)
NO_ROLES = tma.TilePipeline(2, a=TILE)
TAKING_TURNS = tma.TilePipeline(2, a=TILE, **TURNS)
SHARED = tma.TilePipeline(2, a=TILE, cluster=2, multicast={"a": "x"}, **ALONE)
PAIR = tma.TilePipeline(2, a=TILE, cta_group=2, released_by="tcgen05", **ALONE)
KV = tma.KVPipeline(2, 16, 64, "bf16", 1, producer=ROLES.load, consumer=ROLES.even)
STORE = tma.StorePipeline(2, y=TILE, role=ROLES.even)
WORKERS = tma.Roles(work=W(2), other=W(1))
BUFFERS = {
    f"{war}, {barriers}": tma.CircularBuffer(3, 1, war=war, barriers=barriers, x=TILE)
    for war in ("sync", "mbarrier")
    for barriers in ("one", "each")
}
BUFFER_OF_A_ROLE = tma.CircularBuffer(3, 1, role=WORKERS.work, x=TILE)
TMEM = tma.TensorMemory(32)


def words(tiles):
    """Return the tiles' words: all different."""
    return np.arange(tiles * ROWS * COLUMNS, dtype=np.uint32).reshape(-1, COLUMNS)


@cuda.jit(device=True)
def copy_out(out, t, tile):
    """Write a tile out, by one warp."""
    column = cuda.threadIdx.x % COLUMNS
    for row in range(ROWS):
        out[t * ROWS + row, column] = tile[row, column]


def ring(PIPE):
    """Return a kernel whose consumer leaves three scopes by return, at tile `last`."""

    @cuda.jit
    @tma.scopes
    def kernel(x, out, n, last):
        with PIPE.start() as pipe:
            if pipe.is_producer():
                with pipe.producer() as producer:
                    for t in range(n):
                        with producer.acquire() as stage:
                            x.load(stage.a, (t * ROWS, 0), stage.barrier)
            elif pipe.is_consumer():
                with pipe.consumer() as consumer:
                    for t in range(n):
                        with consumer.acquire() as stage:
                            copy_out(out, t, stage.a)
                            if t == last:
                                return

    return kernel


@cuda.jit
@tma.scopes
def taking_turns(x, out, n, last):
    """Each of two consumers takes every second stage; stage `last` is left by continue."""
    with TAKING_TURNS.start() as pipe:
        if pipe.is_producer():
            with pipe.producer() as producer:
                for t in range(n):
                    with producer.acquire() as stage:
                        x.load(stage.a, (t * ROWS, 0), stage.barrier)
        elif pipe.is_consumer():
            with pipe.consumer() as consumer:
                mine = 1 if ROLES.odd.is_member() else 0
                consumer.skip(mine)
                for t in range(mine, n, 2):
                    if t > mine:
                        consumer.skip(1)
                    with consumer.acquire() as stage:
                        copy_out(out, t, stage.a)
                        if t == last:
                            continue


@cuda.jit
@tma.cluster(2)
@tma.scopes
def in_cluster(x, out, n, last):
    """Both blocks get every tile; block r writes the tiles t % 2 == r."""
    with SHARED.start() as pipe:
        if pipe.is_producer():
            group = pipe.multicast_group("a")
            with pipe.producer() as producer:
                for t in range(n):
                    with producer.acquire() as stage:
                        tma.load_partitioned(
                            x, stage.a, (t * ROWS, 0), stage.barrier, group.rank,
                            multicast=group.mask,
                        )  # fmt: skip
        elif pipe.is_consumer():
            with pipe.consumer() as consumer:
                for t in range(n):
                    with consumer.acquire() as stage:
                        if t % 2 != cuda.blockIdx.x:
                            continue
                        copy_out(out, t, stage.a)


@cuda.jit
@tma.cluster(2)
@tma.scopes
def in_pair(x, out, n, last):
    """Block r loads the tiles 2 k + r. The elected thread notes the stage of tile pair k."""
    with PAIR.start() as pipe:
        if pipe.is_producer():
            with pipe.producer() as producer:
                for k in range(n):
                    with producer.acquire() as stage:
                        t = 2 * k + ptx.cluster_ctarank()
                        x.load(stage.a, (t * ROWS, 0), stage.barrier, cta_group=2)
        elif pipe.is_consumer():
            with pipe.consumer() as consumer:
                for k in range(n):
                    with consumer.acquire() as stage:
                        out[ptx.cluster_ctarank(), k] = stage.index + 1
                        if k == last:
                            break


@cuda.jit
@tma.scopes
def keys_and_values(k, v, out, n):
    """The first words of K and V, tile by tile, in two rings that are ended together."""
    with KV.start() as kv:
        if ROLES.load.is_member():
            with kv.producer() as producer:
                for t in range(n):
                    producer.acquire_k()
                    barrier, tile = producer.get_k()
                    k.load(tile, (16 * t, 0), barrier)
                    producer.commit_step()
                    producer.acquire_v()
                    barrier, tile = producer.get_v()
                    v.load(tile, (16 * t, 0), barrier)
                    producer.commit_step()
        elif ROLES.even.is_member():
            with kv.consumer() as consumer:
                for t in range(n):
                    consumer.wait_k()
                    out[t, 0] = consumer.get_k_tile()[0, 0]
                    consumer.release_k()
                    consumer.wait_v()
                    out[t, 1] = consumer.get_v_tile()[0, 0]
                    consumer.release_v()


@cuda.jit
@tma.scopes
def with_stores(x, y, n, last):
    """A ring and the stores of its consumer: two started pipelines, one `with`."""
    out = STORE.start()
    with RING.start() as pipe:
        if pipe.is_producer():
            with pipe.producer() as producer:
                for t in range(n):
                    with producer.acquire() as stage:
                        x.load(stage.a, (t * ROWS, 0), stage.barrier)
        with out:
            with pipe.consumer() as consumer:
                for t in range(n):
                    with consumer.acquire() as stage, out.acquire() as written:
                        column = cuda.threadIdx.x % COLUMNS
                        for row in range(ROWS):
                            written.y[row, column] = stage.a[row, column]
                        out.store(y, written.y, (t * ROWS, 0))
                        if t == last:
                            break


def buffered(BUFFER, each):
    """Return a kernel over a circular buffer, which the whole block leaves by return at `last`."""

    @cuda.jit
    @tma.scopes
    def one_barrier(x, out, n, last):
        with BUFFER.start() as ring:
            for t, stage in ring.tiles(0, n):
                for ahead, slot in ring.loads():
                    x.load(slot.x, (ahead * ROWS, 0), slot.barrier)
                copy_out(out, t, stage.wait().x)
                if t == last:
                    return

    @cuda.jit
    @tma.scopes
    def barrier_of_each(x, out, n, last):
        with BUFFER.start() as ring:
            for t, stage in ring.tiles(0, n):
                for ahead, slot in ring.loads():
                    x.load(slot.x, (ahead * ROWS, 0), slot.barrier_of("x"))
                copy_out(out, t, stage.wait("x"))
                if t == last:
                    return

    return barrier_of_each if each else one_barrier


@cuda.jit
@tma.scopes
def buffer_of_a_role(x, out, n, last):
    """The threads of one role load and work; those of the other pass the scope's end as well."""
    with BUFFER_OF_A_ROLE.start() as ring:
        if WORKERS.work.is_member():
            for t, stage in ring.tiles(0, n):
                for ahead, slot in ring.loads():
                    x.load(slot.x, (ahead * ROWS, 0), slot.barrier)
                copy_out(out, t, stage.wait().x)
                if t == last:
                    break


@cuda.jit
@tma.scopes
def columns_of_tensor_memory(x, out, n, last):
    """A block that ends its use of tensor memory early, by return."""
    with TMEM.start() as tmem:
        tile = tmem.tile(128, 32)
        for t in range(n):
            tile.store(t, (x[t, tile.row],))
            (value,) = tile.load(t, 1)
            out[t, tile.row] = value
            if t == last:
                return
