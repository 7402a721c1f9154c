"""Kernels over every kind of ring: each tile that a consumer sees is written out where it belongs.

A consumer role r writes what it found in its stage for tile t to ``out[r, t]``; the tests compare
with the tiles that were loaded. The same kernels run in the simulator and on a GPU.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx

ROWS, COLUMNS = 8, 16
A, B = tma.Tile((ROWS, COLUMNS), "u32"), tma.Tile((ROWS, 2 * COLUMNS), "u32")
SIZE = A.size


def roles(producer, *consumers):
    """Return roles named c0, c1, ... and load, in this order."""
    named = {f"c{i}": group for i, group in enumerate(consumers)}
    return tma.Roles(**named, load=producer)


@functools.cache
def payload_kernel(stages, groups, k_group, payload, in_flight=0):
    """Return roles, pipeline and kernel: TMA fills tiles a and b, each consumer copies them out."""
    ROLES = roles(*groups)
    consumers = tuple(getattr(ROLES, f"c{i}") for i in range(len(groups) - 1))
    PIPE = tma.TilePipeline(
        stages, payload(A, B), k_group=k_group, producer=ROLES.load, consumer=consumers
    )
    C0, C1 = consumers[0], consumers[min(1, len(consumers) - 1)]

    @cuda.jit
    def kernel(a, b, out_a, out_b, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n_tiles):
                for j in range(k_group):
                    tile = stage.tile(j)
                    row = (t * k_group + j) * ROWS
                    a.load(tile.a, (row, 0), stage.barrier)
                    b.load(tile.b, (row, 0), stage.barrier)
        elif pipe.is_consumer():
            role = 2
            if C1.is_member():
                role = 1
            if C0.is_member():
                role = 0
            for t, stage in pipe.consume(0, n_tiles, 1, in_flight):
                for j in range(k_group):
                    ta, tb = stage.get_tile(j)
                    k = t * k_group + j
                    for i in range(pipe.consumer_thread(), SIZE, pipe.num_consumers()):
                        r, c = i // COLUMNS, i % COLUMNS
                        out_a[role, k, i] = ta[r, c]
                        out_b[role, k, i] = tb[r, c] + tb[r, c + COLUMNS]
        pipe.close()

    return ROLES, PIPE, kernel


SCALES = tma.Tile((ROWS, 4), "u32")  # of a tile a or b: one for each group of its columns


@functools.cache
def block_scaled_kernel(stages, groups, k_group):
    """Return roles, pipeline and kernel: a stage holds a, b and the scales of both."""
    ROLES = roles(*groups)
    PIPE = tma.TilePipeline(
        stages,
        tma.BlockScaledTilePayload(A, B, SCALES, SCALES),
        k_group=k_group,
        producer=ROLES.load,
        consumer=ROLES.c0,
    )

    @cuda.jit
    def kernel(a, b, sfa, sfb, out_a, out_b, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n_tiles):
                for j in range(k_group):
                    ta, tb, tsa, tsb = stage.get_tile(j)
                    row = (t * k_group + j) * ROWS
                    a.load(ta, (row, 0), stage.barrier)
                    b.load(tb, (row, 0), stage.barrier)
                    sfa.load(tsa, (row, 0), stage.barrier)
                    sfb.load(tsb, (row, 0), stage.barrier)
        elif pipe.is_consumer():
            for t, stage in pipe.consume(0, n_tiles):
                for j in range(k_group):
                    tile = stage.tile(j)
                    k = t * k_group + j
                    for i in range(pipe.consumer_thread(), SIZE, pipe.num_consumers()):
                        r, c = i // COLUMNS, i % COLUMNS
                        out_a[0, k, i] = tile.a[r, c] ^ tile.sfa[r, c // 4]
                        both = tile.b[r, c] + tile.b[r, c + COLUMNS]
                        out_b[0, k, i] = both ^ tile.sfb[r, c // 4]
        pipe.close()

    return ROLES, PIPE, kernel


@functools.cache
def filled_kernel(stages, groups, filled_by):
    """Return roles, pipeline and kernel: threads fill the stages, by cp.async or by writing."""
    ROLES = roles(*groups)
    PIPE = tma.TilePipeline(
        stages, a=A, producer=ROLES.load, consumer=ROLES.c0, filled_by=filled_by
    )
    members, copies = ROLES.load.members, filled_by == "cp_async"
    chunks = SIZE // 4

    @cuda.jit
    def kernel(a, out_a, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            thread = ROLES.load.thread()
            for t, stage in pipe.produce(0, n_tiles):
                if copies:
                    for i in range(thread, chunks, members):
                        r, c = i // (COLUMNS // 4), i % (COLUMNS // 4) * 4
                        ptx.cp_async_cg(stage.a.address_of((r, c)), a[t * ROWS + r, c:], 16)
                else:
                    for i in range(thread, SIZE, members):
                        stage.a[i // COLUMNS, i % COLUMNS] = a[t * ROWS + i // COLUMNS, i % COLUMNS]
        elif pipe.is_consumer():
            for t, stage in pipe.consume(0, n_tiles):
                for i in range(pipe.consumer_thread(), SIZE, pipe.num_consumers()):
                    out_a[0, t, i] = stage.a[i // COLUMNS, i % COLUMNS]
        pipe.close()

    return ROLES, PIPE, kernel


@functools.cache
def alternate_kernel(stages, groups):
    """Return roles, pipeline and kernel: two consumers are dealt the stages in turn."""
    ROLES = roles(*groups)
    PIPE = tma.TilePipeline(
        stages, a=A, producer=ROLES.load, consumer=(ROLES.c0, ROLES.c1), alternate=True
    )

    @cuda.jit
    def kernel(a, out_a, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n_tiles):
                a.load(stage.a, (t * ROWS, 0), stage.barrier)
        elif pipe.is_consumer():
            consumer = pipe.consumer()
            turn = 1 if ROLES.c1.is_member() else 0
            consumer.skip(turn)
            for tile in range(turn, n_tiles, 2):
                stage = consumer.wait()
                for i in range(pipe.consumer_thread(), SIZE, pipe.num_consumers()):
                    out_a[turn, tile, i] = stage.a[i // COLUMNS, i % COLUMNS]
                consumer.release()
                consumer.skip(1)
        pipe.close()

    return ROLES, PIPE, kernel


@functools.cache
def multicast_kernel(stages, cluster, shared, groups):
    """Return roles, pipeline, slices and kernel: blocks of a cluster load their tiles together.

    Tile a of a block comes from the rows of its cluster column or row, by `shared`; out has an
    axis for the block.
    """
    ROLES = roles(*groups)
    PIPE = tma.TilePipeline(
        stages, a=A, b=B, producer=ROLES.load, consumer=ROLES.c0, cluster=cluster,
        multicast=dict(shared),
    )  # fmt: skip
    width, height = cluster
    a_blocks = {"x": width, "y": height}.get(dict(shared).get("a"), 1)
    b_blocks = {"x": width, "y": height}.get(dict(shared).get("b"), 1)
    slice_a, slice_b = (
        tma.Tile((ROWS // n, *tile.shape[1:]), "u32") for n, tile in ((a_blocks, A), (b_blocks, B))
    )
    a_axis, b_axis = dict(shared).get("a", ""), dict(shared).get("b", "")
    # Which tensor part a block reads: blocks that share a tile read the same.
    a_x, a_y = a_axis != "x", a_axis != "y"
    b_x, b_y = b_axis != "x", b_axis != "y"
    if a_axis and b_axis:

        @cuda.jit
        @tma.cluster(cluster)
        def kernel(a, b, out_a, out_b, n_tiles):
            pipe = PIPE.start()
            x, y = cuda.blockIdx.x, cuda.blockIdx.y
            block = y * cuda.gridDim.x + x
            part_a = (y * a_y * cuda.gridDim.x + x * a_x) % 4
            part_b = (y * b_y * cuda.gridDim.x + x * b_x) % 4
            if pipe.is_producer():
                ga, gb = pipe.multicast_group("a"), pipe.multicast_group("b")
                for t, stage in pipe.produce(0, n_tiles):
                    row_a, row_b = (4 * t + part_a) * ROWS, (4 * t + part_b) * ROWS
                    tma.load_partitioned(
                        a, stage.a, (row_a, 0), stage.barrier, ga.rank, multicast=ga.mask
                    )
                    tma.load_partitioned(
                        b, stage.b, (row_b, 0), stage.barrier, gb.rank, multicast=gb.mask
                    )
            elif pipe.is_consumer():
                for t, stage in pipe.consume(0, n_tiles):
                    for i in range(pipe.consumer_thread(), SIZE, pipe.num_consumers()):
                        r, c = i // COLUMNS, i % COLUMNS
                        out_a[block, t, i] = stage.a[r, c]
                        out_b[block, t, i] = stage.b[r, c] + stage.b[r, c + COLUMNS]
            pipe.close()

    else:

        @cuda.jit
        @tma.cluster(cluster)
        def kernel(a, b, out_a, out_b, n_tiles):
            pipe = PIPE.start()
            x, y = cuda.blockIdx.x, cuda.blockIdx.y
            block = y * cuda.gridDim.x + x
            part_a = (y * a_y * cuda.gridDim.x + x * a_x) % 4
            part_b = (y * cuda.gridDim.x + x) % 4
            if pipe.is_producer():
                ga = pipe.multicast_group("a")
                for t, stage in pipe.produce(0, n_tiles):
                    row_a, row_b = (4 * t + part_a) * ROWS, (4 * t + part_b) * ROWS
                    tma.load_partitioned(
                        a, stage.a, (row_a, 0), stage.barrier, ga.rank, multicast=ga.mask
                    )
                    b.load(stage.b, (row_b, 0), stage.barrier)
            elif pipe.is_consumer():
                for t, stage in pipe.consume(0, n_tiles):
                    for i in range(pipe.consumer_thread(), SIZE, pipe.num_consumers()):
                        r, c = i // COLUMNS, i % COLUMNS
                        out_a[block, t, i] = stage.a[r, c]
                        out_b[block, t, i] = stage.b[r, c] + stage.b[r, c + COLUMNS]
            pipe.close()

    def parts(x, y, grid_x):
        part_a = (y * a_y * grid_x + x * a_x) % 4
        part_b = (y * b_y * grid_x + x * b_x) % 4 if b_axis else (y * grid_x + x) % 4
        return part_a, part_b

    return ROLES, PIPE, (slice_a, slice_b), kernel, parts


@functools.cache
def try_kernel(stages, groups):
    """Return roles, pipeline and kernel: both sides ask before they wait; memory is handed in."""
    ROLES = roles(*groups)
    PIPE = tma.TilePipeline(stages, a=A, producer=ROLES.load, consumer=ROLES.c0)
    SPACE = tma.Tile((PIPE.storage_nbytes // 16, 16), "u8")

    @cuda.jit
    def kernel(a, out_a, n_tiles):
        space, barriers = tma.shared_tile(SPACE), tma.shared_barriers(PIPE.num_barriers)
        pipe = PIPE.start(tiles=space, barriers=barriers)
        if pipe.is_producer():
            producer = pipe.producer()
            if producer.enters():
                ready = False
                if n_tiles > 0:
                    ready = producer.try_acquire()
                for t in range(n_tiles):
                    stage = producer.acquire_if_needed(ready)
                    stage.expect_bytes(A.nbytes)
                    a.load(stage.a, (t * ROWS, 0), stage.barrier)
                    producer.commit()
                    if t + 1 < n_tiles:
                        ready = producer.try_acquire()
                producer.tail()
        elif pipe.is_consumer():
            consumer = pipe.consumer()
            for t in range(n_tiles):
                ready = consumer.try_wait()
                stage = consumer.wait_if_needed(ready)
                for i in range(pipe.consumer_thread(), SIZE, pipe.num_consumers()):
                    out_a[0, t, i] = stage.a[i // COLUMNS, i % COLUMNS]
                consumer.release()
            consumer.close()

    return ROLES, PIPE, kernel


@functools.cache
def register_kernel(stages, consumers, kept):
    """Return roles, pipeline and kernel: registers go from the producer to the consumers."""
    ROLES = roles(tma.Warpgroups(1, registers=kept), tma.Warpgroups(consumers))
    PIPE = tma.TilePipeline(stages, a=A, producer=ROLES.load, consumer=ROLES.c0)

    @cuda.jit
    def kernel(a, out_a, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            ROLES.load.set_registers()
            for t, stage in pipe.produce(0, n_tiles):
                a.load(stage.a, (t * ROWS, 0), stage.barrier)
        else:
            ROLES.c0.set_registers()
            for t, stage in pipe.consume(0, n_tiles):
                for i in range(ROLES.c0.thread(), SIZE, ROLES.c0.members):
                    out_a[0, t, i] = stage.a[i // COLUMNS, i % COLUMNS]
        pipe.close()

    return ROLES, PIPE, kernel


# ------------------------------------------------------------------------------- cases

PAYLOADS = {
    "standard": tma.StandardTilePayload,
    "dataclass": dataclasses.make_dataclass("Pair", [("a", tma.Tile), ("b", tma.Tile)]),
    "named tuple": NamedTuple("PairTuple", [("a", tma.Tile), ("b", tma.Tile)]),
}
POISON = 0xABABABAB


def words(rows, columns, seed):
    return np.random.default_rng(seed).integers(0, 2**31, (rows, columns), dtype=np.uint32)


def halves(b):
    """Return what the kernels write of tiles b: the sum of the halves of each row."""
    return b[:, :COLUMNS] + b[:, COLUMNS:]


def tiles_of(matrix):
    return matrix.reshape(-1, SIZE)


def outputs(*shape):
    return np.full(shape, POISON, np.uint32)


class Case:
    """Runs a kernel on arrays; the simulator takes them as they are."""

    def __init__(self, to_device=lambda array: array, to_host=lambda array: array):
        self.to_device, self.to_host = to_device, to_host

    def launch(self, kernel, grid, block, inputs, outs, *scalars):
        """Return the outputs; `inputs` are (array, tile) for a map, (array, None) as they are."""
        given = [
            tma.tensor_map(self.to_device(x), tile) if tile else self.to_device(x)
            for x, tile in inputs
        ]
        made = [self.to_device(out) for out in outs]
        kernel[grid, block](*given, *made, *scalars)
        return [self.to_host(out) for out in made]

    def payload(self, stages, groups, k_group, name, in_flight, n_tiles):
        ROLES, _, kernel = payload_kernel(stages, groups, k_group, PAYLOADS[name], in_flight)
        count, consumers = n_tiles * k_group, len(groups) - 1
        a, b = words(max(1, count) * ROWS, COLUMNS, 1), words(max(1, count) * ROWS, 2 * COLUMNS, 2)
        outs = outputs(consumers, max(1, count), SIZE), outputs(consumers, max(1, count), SIZE)
        got_a, got_b = self.launch(kernel, 1, ROLES.threads, [(a, A), (b, B)], outs, n_tiles)
        for role in range(consumers):
            np.testing.assert_array_equal(got_a[role, :count], tiles_of(a)[:count])
            np.testing.assert_array_equal(got_b[role, :count], tiles_of(halves(b))[:count])

    def block_scaled(self, stages, groups, k_group, n_tiles):
        ROLES, _, kernel = block_scaled_kernel(stages, groups, k_group)
        count = n_tiles * k_group
        rows = max(1, count) * ROWS
        a, b = words(rows, COLUMNS, 1), words(rows, 2 * COLUMNS, 2)
        sfa, sfb = words(rows, 4, 3), words(rows, 4, 4)
        outs = outputs(1, max(1, count), SIZE), outputs(1, max(1, count), SIZE)
        inputs = [(a, A), (b, B), (sfa, SCALES), (sfb, SCALES)]
        got_a, got_b = self.launch(kernel, 1, ROLES.threads, inputs, outs, n_tiles)
        expected_a = a ^ np.repeat(sfa, 4, axis=1)
        expected_b = halves(b) ^ np.repeat(sfb, 4, axis=1)
        np.testing.assert_array_equal(got_a[0, :count], tiles_of(expected_a)[:count])
        np.testing.assert_array_equal(got_b[0, :count], tiles_of(expected_b)[:count])

    def one_input(self, made, by_map, n_tiles, roles=1):
        ROLES, kernel = made[0], made[-1]
        a = words(max(1, n_tiles) * ROWS, COLUMNS, 3)
        out = outputs(roles, max(1, n_tiles), SIZE)
        (got,) = self.launch(kernel, 1, ROLES.threads, [(a, A if by_map else None)], [out], n_tiles)
        expected = tiles_of(a)[:n_tiles]
        if roles == 1:
            np.testing.assert_array_equal(got[0, :n_tiles], expected)
        else:
            for t in range(n_tiles):
                role = t % 2
                np.testing.assert_array_equal(got[role, t], expected[t])
                assert (got[1 - role, t] == POISON).all()

    def multicast(self, stages, cluster, shared, groups, grid, n_tiles):
        ROLES, _, slices, kernel, parts = multicast_kernel(stages, cluster, shared, groups)
        count, blocks = max(1, n_tiles), grid[0] * grid[1]
        a, b = words(4 * count * ROWS, COLUMNS, 4), words(4 * count * ROWS, 2 * COLUMNS, 5)
        outs = outputs(blocks, count, SIZE), outputs(blocks, count, SIZE)
        got_a, got_b = self.launch(
            kernel, grid, ROLES.threads, list(zip((a, b), slices)), outs, n_tiles
        )
        tiles_a, tiles_b = tiles_of(a), tiles_of(halves(b))
        for y in range(grid[1]):
            for x in range(grid[0]):
                part_a, part_b = parts(x, y, grid[0])
                block = y * grid[0] + x
                t = np.arange(n_tiles)
                np.testing.assert_array_equal(got_a[block, :n_tiles], tiles_a[4 * t + part_a])
                np.testing.assert_array_equal(got_b[block, :n_tiles], tiles_b[4 * t + part_b])
