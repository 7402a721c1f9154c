"""Kernels that hold stages by `with`, each beside the calls that it stands for.

As in `ring_kernels`, a consumer role r writes what it found in its stage for tile t to
``out[r, t]``. A builder returns roles, pipeline, the kernel with scopes and the one without.
"""

from __future__ import annotations

import functools

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from tests.kernels.ring_kernels import (
    COLUMNS,
    ROWS,
    SIZE,
    A,
    B,
    halves,
    outputs,
    roles,
    tiles_of,
    words,
)
from tests.kernels.ring_kernels import POISON as POISON
from tests.kernels.ring_kernels import Case as RingCase

CHUNKS = SIZE // 4


@cuda.jit(device=True)
def write_out(out, tile, thread, threads):
    """Write a tile to a row of `out`, by all threads of a role."""
    for i in range(thread, SIZE, threads):
        out[i] = tile[i // COLUMNS, i % COLUMNS]


@cuda.jit(device=True)
def write_halves(out, tile, thread, threads):
    """Write the sum of the halves of a tile b, likewise."""
    for i in range(thread, SIZE, threads):
        r, c = i // COLUMNS, i % COLUMNS
        out[i] = tile[r, c] + tile[r, c + COLUMNS]


@functools.cache
def payload_kernels(stages, groups, k_group_size):
    """Return the usage of Mojo's tile_pipeline: TMA fills groups of tiles a and b."""
    ROLES = roles(*groups)
    consumers = tuple(getattr(ROLES, f"c{i}") for i in range(len(groups) - 1))
    TILES = tma.TilePipeline(
        stages, tma.StandardTilePayload(A, B), k_group=k_group_size, producer=ROLES.load,
        consumer=consumers,
    )  # fmt: skip
    first, second = consumers[0], consumers[min(1, len(consumers) - 1)]
    expected_bytes = k_group_size * (A.nbytes + B.nbytes)

    @cuda.jit
    @tma.scopes
    def scoped(a, b, out_a, out_b, n_tiles):
        tile_pipeline = TILES.start()
        if tile_pipeline.is_producer():
            with tile_pipeline.producer() as producer:
                for t in range(n_tiles):
                    with producer.acquire() as tiles:
                        tiles.expect_bytes(expected_bytes)
                        for j in range(k_group_size):
                            a_tile, b_tile = tiles.get_tile(j)
                            row = (t * k_group_size + j) * ROWS
                            a.load(a_tile, (row, 0), tiles.barrier)
                            b.load(b_tile, (row, 0), tiles.barrier)
        elif tile_pipeline.is_consumer():
            thread, threads = tile_pipeline.consumer_thread(), tile_pipeline.num_consumers()
            role = 0 if first.is_member() else 1 if second.is_member() else 2
            with tile_pipeline.consumer() as consumer:
                for t in range(n_tiles):
                    with consumer.acquire() as tiles:
                        for j in range(k_group_size):
                            a_tile, b_tile = tiles.get_tile(j)
                            k = t * k_group_size + j
                            write_out(out_a[role, k], a_tile, thread, threads)
                            write_halves(out_b[role, k], b_tile, thread, threads)

    @cuda.jit
    def explicit(a, b, out_a, out_b, n_tiles):
        tile_pipeline = TILES.start()
        if tile_pipeline.is_producer():
            producer = tile_pipeline.producer()
            if producer.enters():
                for t in range(n_tiles):
                    tiles = producer.acquire()
                    for j in range(k_group_size):
                        a_tile, b_tile = tiles.get_tile(j)
                        row = (t * k_group_size + j) * ROWS
                        a.load(a_tile, (row, 0), tiles.barrier)
                        b.load(b_tile, (row, 0), tiles.barrier)
                    producer.commit()
            producer.close()
        elif tile_pipeline.is_consumer():
            thread, threads = tile_pipeline.consumer_thread(), tile_pipeline.num_consumers()
            role = 0 if first.is_member() else 1 if second.is_member() else 2
            consumer = tile_pipeline.consumer()
            for t in range(n_tiles):
                tiles = consumer.wait()
                for j in range(k_group_size):
                    a_tile, b_tile = tiles.get_tile(j)
                    k = t * k_group_size + j
                    write_out(out_a[role, k], a_tile, thread, threads)
                    write_halves(out_b[role, k], b_tile, thread, threads)
                consumer.release()
            consumer.close()

    return ROLES, TILES, scoped, explicit


@functools.cache
def cp_async_kernels(stages, groups):
    """Return kernels in which each thread's cp.async fill the stages."""
    ROLES = roles(*groups)
    PIPE = tma.TilePipeline(
        stages, a=A, producer=ROLES.load, consumer=ROLES.c0, filled_by="cp_async"
    )
    members = ROLES.load.members

    @cuda.jit(device=True)
    def fill(a, tile, t, thread):
        for i in range(thread, CHUNKS, members):
            r, c = i // (COLUMNS // 4), i % (COLUMNS // 4) * 4
            ptx.cp_async_cg(tile.address_of((r, c)), a[t * ROWS + r, c:], 16)

    return ROLES, PIPE, *_filled(PIPE, ROLES.load, fill)


@functools.cache
def thread_kernels(stages, groups):
    """Return kernels in which threads write the stages."""
    ROLES = roles(*groups)
    PIPE = tma.TilePipeline(
        stages, a=A, producer=ROLES.load, consumer=ROLES.c0, filled_by="threads"
    )
    members = ROLES.load.members

    @cuda.jit(device=True)
    def fill(a, tile, t, thread):
        for i in range(thread, SIZE, members):
            tile[i // COLUMNS, i % COLUMNS] = a[t * ROWS + i // COLUMNS, i % COLUMNS]

    return ROLES, PIPE, *_filled(PIPE, ROLES.load, fill)


def _filled(PIPE, LOAD, fill):
    """Return the two kernels of a ring that threads fill; each leaves a stage by `continue`, too.

    Tiles from `skipped` on, in steps of 3, are not written out.
    """

    @cuda.jit
    @tma.scopes
    def scoped(a, out, n_tiles, skipped):
        pipe = PIPE.start()
        if pipe.is_producer():
            with pipe.producer() as producer:
                for t in range(n_tiles):
                    with producer.acquire() as stage:
                        fill(a, stage.a, t, LOAD.thread())
        elif pipe.is_consumer():
            with pipe.consumer() as consumer:
                for t in range(n_tiles):
                    with consumer.acquire() as stage:
                        if t % 3 == skipped:
                            continue
                        write_out(out[0, t], stage.a, pipe.consumer_thread(), pipe.num_consumers())

    @cuda.jit
    def explicit(a, out, n_tiles, skipped):
        pipe = PIPE.start()
        if pipe.is_producer():
            producer = pipe.producer()
            for t in range(n_tiles):
                stage = producer.acquire()
                fill(a, stage.a, t, LOAD.thread())
                producer.commit()
            producer.close()
        elif pipe.is_consumer():
            consumer = pipe.consumer()
            for t in range(n_tiles):
                stage = consumer.wait()
                if t % 3 == skipped:
                    consumer.release()
                    continue
                write_out(out[0, t], stage.a, pipe.consumer_thread(), pipe.num_consumers())
                consumer.release()
            consumer.close()

    return scoped, explicit


@functools.cache
def cluster_kernels(stages, groups, per_tile=False):
    """Return kernels in clusters of 2 that share tile a; with `per_tile` scopes are inside loops.

    Blocks of a cluster get tiles 0, 1, ...; out has an axis for the block.
    """
    ROLES = roles(*groups)
    PIPE = tma.TilePipeline(
        stages, a=A, producer=ROLES.load, consumer=ROLES.c0, cluster=2, multicast={"a": "x"}
    )
    inner = 2 if per_tile else 0

    @cuda.jit
    @tma.cluster(2)
    @tma.scopes
    def scoped(a, out, n_tiles, skipped):
        pipe = PIPE.start()
        if pipe.is_producer():
            group = pipe.multicast_group("a")
            with pipe.producer() as producer:
                for t in range(n_tiles):
                    with producer.acquire() as stage:
                        tma.load_partitioned(
                            a, stage.a, (t * ROWS, 0), stage.barrier, group.rank,
                            multicast=group.mask,
                        )  # fmt: skip
        elif pipe.is_consumer():
            with pipe.consumer() as consumer:
                for t in range(n_tiles):
                    with consumer.acquire() as stage:
                        if t % 3 == skipped:
                            continue
                        write_out(
                            out[cuda.blockIdx.x, t], stage.a, pipe.consumer_thread(),
                            pipe.num_consumers(),
                        )  # fmt: skip

    @cuda.jit
    @tma.cluster(2)
    def explicit(a, out, n_tiles, skipped):
        pipe = PIPE.start()
        if pipe.is_producer():
            group = pipe.multicast_group("a")
            producer = pipe.producer()
            if producer.enters():
                for t in range(n_tiles):
                    stage = producer.acquire()
                    tma.load_partitioned(
                        a, stage.a, (t * ROWS, 0), stage.barrier, group.rank, multicast=group.mask
                    )
                    producer.commit()
            producer.close()
        elif pipe.is_consumer():
            consumer = pipe.consumer()
            for t in range(n_tiles):
                stage = consumer.wait()
                if t % 3 == skipped:
                    consumer.release()
                    continue
                write_out(
                    out[cuda.blockIdx.x, t], stage.a, pipe.consumer_thread(), pipe.num_consumers()
                )
                consumer.release()
            consumer.close()

    @cuda.jit
    @tma.cluster(2)
    @tma.scopes
    def persistent(a, out, n_tiles, skipped):
        pipe = PIPE.start()
        for first in range(0, n_tiles, inner):
            stop = min(first + inner, n_tiles)
            if pipe.is_producer():
                group = pipe.multicast_group("a")
                with pipe.producer() as producer:
                    for t in range(first, stop):
                        with producer.acquire() as stage:
                            tma.load_partitioned(
                                a, stage.a, (t * ROWS, 0), stage.barrier, group.rank,
                                multicast=group.mask,
                            )  # fmt: skip
            elif pipe.is_consumer():
                with pipe.consumer() as consumer:
                    for t in range(first, stop):
                        with consumer.acquire() as stage:
                            if t % 3 == skipped:
                                continue
                            write_out(
                                out[cuda.blockIdx.x, t], stage.a, pipe.consumer_thread(),
                                pipe.num_consumers(),
                            )  # fmt: skip

    return ROLES, PIPE, persistent if per_tile else scoped, explicit


@functools.cache
def early_kernels(stages, groups, cluster=1):
    """Return kernels that leave their scopes by `break` and `return`: both sides at tile `last`.

    A block that leaves by `break` says so at the end of its role, in ``out[.., -1]``.
    """
    ROLES = roles(*groups)
    shared = {"a": "x"} if cluster > 1 else None
    PIPE = tma.TilePipeline(
        stages, a=A, producer=ROLES.load, consumer=ROLES.c0, cluster=cluster, multicast=shared
    )
    by_parts = cluster > 1

    @cuda.jit(device=True)
    def load(a, pipe, stage, t):
        if by_parts:
            group = pipe.multicast_group("a")
            tma.load_partitioned(
                a, stage.a, (t * ROWS, 0), stage.barrier, group.rank, multicast=group.mask
            )
        else:
            a.load(stage.a, (t * ROWS, 0), stage.barrier)

    def scoped(a, out, last, returns):
        pipe = PIPE.start()
        if pipe.is_producer():
            with pipe.producer() as producer:
                t = 0
                while True:
                    with producer.acquire() as stage:
                        load(a, pipe, stage, t)
                        if t == last:
                            if returns:
                                return
                            break
                        t += 1
        elif pipe.is_consumer():
            thread, threads = pipe.consumer_thread(), pipe.num_consumers()
            block = cuda.blockIdx.x
            with pipe.consumer() as consumer:
                t = 0
                while True:
                    with consumer.acquire() as stage:
                        write_out(out[block, t], stage.a, thread, threads)
                        if t == last:
                            if returns:
                                return
                            break
                    t += 1
                if thread == 0:
                    out[block, t + 1, 0] = 1  # after the break, within the consumer's scope
            if thread == 0:
                out[block, t + 1, 1] = 2

    def explicit(a, out, last, returns):
        pipe = PIPE.start()
        if pipe.is_producer():
            producer = pipe.producer()
            if producer.enters():
                t = 0
                while True:
                    stage = producer.acquire()
                    load(a, pipe, stage, t)
                    if t == last:
                        if returns:
                            producer.commit()
                            producer.close()
                            return
                        producer.commit()
                        break
                    t += 1
                    producer.commit()
            producer.close()
        elif pipe.is_consumer():
            thread, threads = pipe.consumer_thread(), pipe.num_consumers()
            block = cuda.blockIdx.x
            consumer = pipe.consumer()
            t = 0
            while True:
                stage = consumer.wait()
                write_out(out[block, t], stage.a, thread, threads)
                if t == last:
                    if returns:
                        consumer.release()
                        consumer.close()
                        return
                    consumer.release()
                    break
                consumer.release()
                t += 1
            if thread == 0:
                out[block, t + 1, 0] = 1
            consumer.close()
            if thread == 0:
                out[block, t + 1, 1] = 2

    decorate = tma.cluster(cluster) if cluster > 1 else lambda function: function
    return ROLES, PIPE, cuda.jit(decorate(tma.scopes(scoped))), cuda.jit(decorate(explicit))


@functools.cache
def persistent_kernels(stages, groups, inner):
    """Return kernels that enter both scopes anew for each output tile, of `inner` stages."""
    ROLES = roles(*groups)
    PIPE = tma.TilePipeline(stages, a=A, producer=ROLES.load, consumer=ROLES.c0)

    @cuda.jit
    @tma.scopes
    def scoped(a, out, n_tiles, skipped):
        pipe = PIPE.start()
        for first in range(0, n_tiles, inner):
            stop = min(first + inner, n_tiles)
            if pipe.is_producer():
                with pipe.producer() as producer:
                    for t in range(first, stop):
                        with producer.acquire() as stage:
                            a.load(stage.a, (t * ROWS, 0), stage.barrier)
            elif pipe.is_consumer():
                with pipe.consumer() as consumer:
                    for t in range(first, stop):
                        with consumer.acquire() as stage:
                            if t % 3 == skipped:
                                continue
                            write_out(
                                out[0, t], stage.a, pipe.consumer_thread(), pipe.num_consumers()
                            )

    @cuda.jit
    def explicit(a, out, n_tiles, skipped):
        pipe = PIPE.start()
        for first in range(0, n_tiles, inner):
            stop = min(first + inner, n_tiles)
            if pipe.is_producer():
                producer = pipe.producer()
                if producer.enters():
                    for t in range(first, stop):
                        stage = producer.acquire()
                        a.load(stage.a, (t * ROWS, 0), stage.barrier)
                        producer.commit()
                producer.close()
            elif pipe.is_consumer():
                consumer = pipe.consumer()
                for t in range(first, stop):
                    stage = consumer.wait()
                    if t % 3 == skipped:
                        consumer.release()
                        continue
                    write_out(out[0, t], stage.a, pipe.consumer_thread(), pipe.num_consumers())
                    consumer.release()
                consumer.close()

    return ROLES, PIPE, scoped, explicit


@functools.cache
def store_kernels(stages, groups):
    """Return kernels that write to their stages and store them."""
    ROLES = roles(*groups)
    PIPE = tma.TilePipeline(stages, a=A, producer=ROLES.load, consumer=ROLES.c0)

    @cuda.jit
    @tma.scopes
    def scoped(a, y, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            with pipe.producer() as producer:
                for t in range(n_tiles):
                    with producer.acquire() as stage:
                        a.load(stage.a, (t * ROWS, 0), stage.barrier)
        elif pipe.is_consumer():
            with pipe.consumer() as consumer:
                for t in range(n_tiles):
                    with consumer.acquire() as stage:
                        for i in range(pipe.consumer_thread(), SIZE, pipe.num_consumers()):
                            stage.a[i // COLUMNS, i % COLUMNS] += t
                        if t % 4 != 3:
                            pipe.store(y, stage.a, (t * ROWS, 0))

    @cuda.jit
    def explicit(a, y, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            producer = pipe.producer()
            if producer.enters():
                for t in range(n_tiles):
                    stage = producer.acquire()
                    a.load(stage.a, (t * ROWS, 0), stage.barrier)
                    producer.commit()
            producer.close()
        elif pipe.is_consumer():
            consumer = pipe.consumer()
            for t in range(n_tiles):
                stage = consumer.wait()
                for i in range(pipe.consumer_thread(), SIZE, pipe.num_consumers()):
                    stage.a[i // COLUMNS, i % COLUMNS] += t
                if t % 4 != 3:
                    pipe.store(y, stage.a, (t * ROWS, 0))
                consumer.release()
            consumer.close()

    return ROLES, PIPE, scoped, explicit


@functools.cache
def held_kernels(stages, groups):
    """Return a kernel that holds one stage while it works through others, and twice that deep.

    Tile t of `out` is the sum of the tiles before it that were held, and of its own.
    """
    ROLES = roles(*groups)
    PIPE = tma.TilePipeline(stages, a=A, producer=ROLES.load, consumer=ROLES.c0)
    inner = stages - 1  # stages that go by while one is held
    deep = stages > 2

    @cuda.jit
    @tma.scopes
    def scoped(a, out, turns):
        pipe = PIPE.start()
        if pipe.is_producer():
            with pipe.producer() as producer:
                for t in range(turns * stages):
                    with producer.acquire() as stage:
                        a.load(stage.a, (t * ROWS, 0), stage.barrier)
        elif pipe.is_consumer():
            thread, threads = pipe.consumer_thread(), pipe.num_consumers()
            with pipe.consumer() as consumer:
                for turn in range(turns):
                    with consumer.acquire() as one:
                        t = turn * stages
                        write_out(out[0, t], one.a, thread, threads)
                        for k in range(inner):
                            with consumer.acquire() as other:
                                for i in range(thread, SIZE, threads):
                                    r, c = i // COLUMNS, i % COLUMNS
                                    out[0, t + 1 + k, i] = one.a[r, c] ^ other.a[r, c]
                        for i in range(thread, SIZE, threads):
                            out[1, t, i] = one.a[i // COLUMNS, i % COLUMNS]

    @cuda.jit
    @tma.scopes
    def three_deep(a, out, turns):
        pipe = PIPE.start()
        if pipe.is_producer():
            with pipe.producer() as producer:
                for t in range(turns * stages):
                    with producer.acquire() as stage:
                        a.load(stage.a, (t * ROWS, 0), stage.barrier)
        elif pipe.is_consumer():
            thread, threads = pipe.consumer_thread(), pipe.num_consumers()
            with pipe.consumer() as consumer:
                for turn in range(turns):
                    t = turn * stages
                    with consumer.acquire() as one:
                        for k in range(0, inner - 1, 2):
                            with consumer.acquire() as two, consumer.acquire() as three:
                                write_out(out[0, t + 1 + k], two.a, thread, threads)
                                write_out(out[0, t + 2 + k], three.a, thread, threads)
                        if inner % 2:
                            with consumer.acquire() as two:
                                write_out(out[0, t + inner], two.a, thread, threads)
                        write_out(out[0, t], one.a, thread, threads)

    return ROLES, PIPE, scoped, three_deep if deep else None


@functools.cache
def device_function_kernel(stages, groups):
    """Return a kernel whose scopes are in device functions, one of which returns out of a stage."""
    ROLES = roles(*groups)
    PIPE = tma.TilePipeline(stages, a=A, producer=ROLES.load, consumer=ROLES.c0)

    @cuda.jit(device=True)
    @tma.scopes
    def load_all(pipe, a, n_tiles):
        with pipe.producer() as producer:
            for t in range(n_tiles):
                with producer.acquire() as stage:
                    a.load(stage.a, (t * ROWS, 0), stage.barrier)

    @cuda.jit(device=True)
    @tma.scopes
    def write_next(consumer, row, thread, threads):
        with consumer.acquire() as stage:
            write_out(row, stage.a, thread, threads)
            return stage.a[0, 0]

    @cuda.jit
    @tma.scopes
    def kernel(a, out, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            load_all(pipe, a, n_tiles)
        else:
            thread, threads = pipe.consumer_thread(), pipe.num_consumers()
            with pipe.consumer() as consumer:
                for t in range(n_tiles):
                    corner = write_next(consumer, out[0, t], thread, threads)
                    if thread == 0:
                        out[1, t, 0] = corner

    return ROLES, PIPE, kernel


@functools.cache
def two_pipelines_kernel(stages, groups):
    """Return a kernel that holds stages of two pipelines at once, each ``with`` for both."""
    ROLES = roles(*groups)
    ONE = tma.TilePipeline(stages, a=A, producer=ROLES.load, consumer=ROLES.c0)
    TWO = tma.TilePipeline(stages + 1, a=A, producer=ROLES.load, consumer=ROLES.c0)

    @cuda.jit
    @tma.scopes
    def kernel(a, out, n_tiles):
        one, two = ONE.start(), TWO.start()
        if one.is_producer():
            with one.producer() as p, two.producer() as q:
                for t in range(n_tiles):
                    with p.acquire() as s, q.acquire() as r:
                        a.load(s.a, (t * ROWS, 0), s.barrier)
                        a.load(r.a, ((n_tiles - 1 - t) * ROWS, 0), r.barrier)
        else:
            thread, threads = one.consumer_thread(), one.num_consumers()
            with one.consumer() as c, two.consumer() as d:
                for t in range(n_tiles):
                    with c.acquire() as s, d.acquire() as r:
                        write_out(out[0, t], s.a, thread, threads)
                        write_out(out[1, t], r.a, thread, threads)

    return ROLES, ONE, kernel


# ------------------------------------------------------------------------------- cases


class Case(RingCase):
    """Runs the kernels with scopes on arrays and checks every tile."""

    def payload_scopes(self, stages, groups, k_group, n_tiles):
        ROLES, _, kernel, _ = payload_kernels(stages, groups, k_group)
        count, consumers = n_tiles * k_group, len(groups) - 1
        room = max(1, count)
        a, b = words(room * ROWS, COLUMNS, 1), words(room * ROWS, 2 * COLUMNS, 2)
        outs = outputs(consumers, room, SIZE), outputs(consumers, room, SIZE)
        got_a, got_b = self.launch(kernel, 1, ROLES.threads, [(a, A), (b, B)], outs, n_tiles)
        for role in range(consumers):
            np.testing.assert_array_equal(got_a[role, :count], tiles_of(a)[:count])
            np.testing.assert_array_equal(got_b[role, :count], tiles_of(halves(b))[:count])

    def skipping(self, made, n_tiles, by_map=True, blocks=1, skipped=1, tile=A):
        """Check a kernel that writes out all tiles but those of number `skipped` modulo 3."""
        ROLES, kernel = made[0], made[2]
        room = max(1, n_tiles)
        a = words(room * ROWS, COLUMNS, 3)
        given = [(a, tile if by_map else None)]
        (got,) = self.launch(
            kernel, blocks, ROLES.threads, given, [outputs(blocks, room, SIZE)], n_tiles, skipped
        )
        expected = tiles_of(a).copy()
        expected[skipped::3] = POISON
        for block in range(blocks):
            np.testing.assert_array_equal(got[block, :n_tiles], expected[:n_tiles])

    def early(self, stages, groups, cluster, n_tiles, returns):
        ROLES, _, kernel, _ = early_kernels(stages, groups, cluster)
        a = words(n_tiles * ROWS, COLUMNS, 4)
        part = tma.Tile((ROWS // cluster, COLUMNS), "u32")
        blocks = 2 * cluster
        (got,) = self.launch(
            *(kernel, blocks, ROLES.threads, [(a, part)], [outputs(blocks, n_tiles + 1, SIZE)]),
            *(n_tiles - 1, returns),
        )
        for block in range(blocks):
            np.testing.assert_array_equal(got[block, :n_tiles], tiles_of(a))
            ends = [POISON, POISON] if returns else [1, 2]
            assert got[block, n_tiles, :3].tolist() == [*ends, POISON]

    def stored(self, stages, groups, n_tiles):
        ROLES, _, kernel, _ = store_kernels(stages, groups)
        room = max(1, n_tiles)
        a = words(room * ROWS, COLUMNS, 5)
        source, target = self.to_device(a), self.to_device(outputs(room * ROWS, COLUMNS))
        kernel[1, ROLES.threads](tma.tensor_map(source, A), tma.tensor_map(target, A), n_tiles)
        expected = tiles_of(a) + np.arange(room, dtype=np.uint32)[:, None]
        expected[3::4] = POISON
        expected[n_tiles:] = POISON
        np.testing.assert_array_equal(tiles_of(self.to_host(target)), expected)

    def in_functions(self, stages, groups, n_tiles):
        ROLES, _, kernel = device_function_kernel(stages, groups)
        a, room = words(max(1, n_tiles) * ROWS, COLUMNS, 7), max(1, n_tiles)
        (got,) = self.launch(kernel, 1, ROLES.threads, [(a, A)], [outputs(2, room, SIZE)], n_tiles)
        np.testing.assert_array_equal(got[0, :n_tiles], tiles_of(a)[:n_tiles])
        np.testing.assert_array_equal(got[1, :n_tiles, 0], tiles_of(a)[:n_tiles, 0])

    def two_pipelines(self, stages, groups, n_tiles):
        ROLES, _, kernel = two_pipelines_kernel(stages, groups)
        a, room = words(max(1, n_tiles) * ROWS, COLUMNS, 8), max(1, n_tiles)
        (got,) = self.launch(kernel, 1, ROLES.threads, [(a, A)], [outputs(2, room, SIZE)], n_tiles)
        expected = tiles_of(a)[:n_tiles]
        np.testing.assert_array_equal(got[0, :n_tiles], expected)
        np.testing.assert_array_equal(got[1, :n_tiles], expected[::-1])

    def held(self, stages, groups, turns):
        ROLES, _, kernel, three_deep = held_kernels(stages, groups)
        a = words(turns * stages * ROWS, COLUMNS, 6)
        shape = (2, turns * stages, SIZE)
        (got,) = self.launch(kernel, 1, ROLES.threads, [(a, A)], [outputs(*shape)], turns)
        first = tiles_of(a).reshape(turns, stages, SIZE).copy()
        np.testing.assert_array_equal(got[1, ::stages], first[:, 0])
        first[:, 1:] ^= first[:, :1]
        np.testing.assert_array_equal(got[0], first.reshape(-1, SIZE))
        if three_deep is not None:
            (got,) = self.launch(three_deep, 1, ROLES.threads, [(a, A)], [outputs(*shape)], turns)
            np.testing.assert_array_equal(got[0], tiles_of(a))
