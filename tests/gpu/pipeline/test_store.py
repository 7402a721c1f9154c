"""Store pipelines, reductions and ping-pong on the GPU, bit for bit against NumPy."""

import functools

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from tests.gpu.worker import on_gpu
from tests.kernels.pipeline_kernels import (
    COLUMNS,
    OUTPUT,
    PARTS,
    ROWS,
    THREADS,
    ping_pong,
    ping_pong_reference,
    reduce_store,
    store_pipeline,
)

STAGES = range(1, 9)


def counts(stages):
    return sorted({0, 1, stages - 1, stages, 2 * stages + 1, 1000})


def numbered(tiles, start):
    words = np.arange(tiles * OUTPUT.size, dtype=np.uint32) + np.uint32(start)
    return words.reshape(-1, COLUMNS)


def poisoned(tiles):
    return cuda.to_device(np.full(((tiles + 1) * ROWS, COLUMNS), 0xDEADBEEF, np.uint32))


def expect(out, tiles, want):
    found = out.copy_to_host()
    np.testing.assert_array_equal(found[: tiles * ROWS], want)
    assert (found[tiles * ROWS :] == 0xDEADBEEF).all()


@pytest.mark.parametrize("stages", STAGES)
@on_gpu
def test_stores(stages):
    kernel, _ = store_pipeline(stages)
    for tiles in counts(stages):
        for blocks in (1, 3):
            out, start = poisoned(tiles), 1 + 977 * tiles
            kernel[blocks, THREADS](tma.tensor_map(out, OUTPUT), start, tiles)
            expect(out, tiles, numbered(tiles, start))


@pytest.mark.parametrize("stages", STAGES)
@on_gpu
def test_stores_and_reductions_of_one_group(stages):
    kernel, _ = reduce_store(stages)
    random = np.random.default_rng(stages)
    for tiles in counts(stages):
        for blocks in (1, 3):
            before = random.integers(0, 2**32, OUTPUT.shape, np.uint32)
            out, total, start = poisoned(tiles), cuda.to_device(before), 1 + 977 * tiles
            maps = tma.tensor_map(out, OUTPUT), tma.tensor_map(total, OUTPUT)
            kernel[blocks, THREADS + 32](*maps, start, tiles)
            words = numbered(tiles, start)
            expect(out, tiles, words)
            added = words.reshape(-1, *OUTPUT.shape).sum(axis=0, dtype=np.uint32)
            np.testing.assert_array_equal(total.copy_to_host(), before + added)


@pytest.mark.parametrize("stages", STAGES)
@on_gpu
def test_ping_pong(stages):
    tile = tma.Tile((ROWS, COLUMNS), "u32")
    random = np.random.default_rng(stages)
    kernel, _ = ping_pong(stages, store_stages=1 + stages % 3)
    for tiles in counts(stages):
        for blocks in (1, 2):
            shape = max(1, blocks * tiles) * PARTS * ROWS, COLUMNS
            x = random.integers(0, 2**32, shape, np.uint32)
            out, source = poisoned(blocks * tiles), cuda.to_device(x)
            maps = tma.tensor_map(source, tile), tma.tensor_map(out, tile)
            kernel[blocks, 2 * THREADS + 32](*maps, tiles)
            want = ping_pong_reference(x, blocks) if tiles else x[:0]
            expect(out, blocks * tiles, want)


# ------------------------------------------------------------------------ forms of use


@functools.cache
def uneven_kernel(stages):
    """Return the kernel whose warps write at different times, and one of whose loops ends early."""
    OUT = tma.StorePipeline(stages, y=OUTPUT, z=tma.Tile((1, COLUMNS), "u32"))

    @cuda.jit
    def number(y, z, num_tiles, jitter):
        out = OUT.start()
        thread, half = cuda.threadIdx.x, num_tiles // 2
        for tile, stage in out.stages(0, num_tiles):
            cuda.nanosleep(jitter * ((tile + thread // 32) % 3))
            for row in range(ROWS):
                stage.y[row, thread] = (tile * ROWS + row) * COLUMNS + thread
            stage.z[0, thread] = tile
            out.store(y, stage.y, (tile * ROWS, 0))
            out.store(z, stage.z, (tile, 0))
            if tile == half:
                break
        for tile, stage in out.stages(half + 1, num_tiles):
            cuda.nanosleep(jitter * ((tile + thread // 32) % 3))
            for row in range(ROWS):
                stage.y[row, thread] = (tile * ROWS + row) * COLUMNS + thread
            stage.z[0, thread] = tile
            out.store(y, stage.y, (tile * ROWS, 0))
            out.store(z, stage.z, (tile, 0))
        out.tail(read=True)

    return number


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@on_gpu
def test_two_tiles_of_a_stage_and_warps_out_of_step(stages):
    tiles = 101
    for jitter in (0, 300):
        y, z = poisoned(tiles), cuda.to_device(np.full((tiles, COLUMNS), 77, np.uint32))
        maps = tma.tensor_map(y, OUTPUT), tma.tensor_map(z, (1, COLUMNS))
        uneven_kernel(stages)[1, THREADS](*maps, tiles, jitter)
        expect(y, tiles, numbered(tiles, 0))
        want = np.repeat(np.arange(tiles, dtype=np.uint32)[:, None], COLUMNS, axis=1)
        np.testing.assert_array_equal(z.copy_to_host(), want)


READ_BACK = tma.StorePipeline(3, y=OUTPUT)


@cuda.jit
def read_back(y, words, copy, num_tiles):
    out = READ_BACK.start()
    thread = cuda.threadIdx.x
    for tile, stage in out.stages(0, num_tiles):
        for row in range(ROWS):
            stage.y[row, thread] = (tile * ROWS + row) * COLUMNS + thread
        out.store(y, stage.y, (tile * ROWS, 0))
        out.commit()
    out.tail()
    out.sync()
    for row in range(num_tiles * ROWS):
        copy[row, COLUMNS - 1 - thread] = words[row, COLUMNS - 1 - thread]


@on_gpu
def test_after_tail_and_sync_the_block_sees_what_was_stored():
    tiles = 10
    out, copy = poisoned(tiles), poisoned(tiles)
    read_back[1, THREADS](tma.tensor_map(out, OUTPUT), out, copy, tiles)
    expect(copy, tiles, numbered(tiles, 0))


@functools.cache
def least_kernel(dtype, op):
    """Return the kernel that reduces what two roles compute by `op`."""
    ROLES = tma.Roles(one=tma.Warps(4), two=tma.Warps(4))
    TILE = tma.Tile((1, COLUMNS), dtype)
    OUT = tma.StorePipeline(2, y=TILE, role=(ROLES.one, ROLES.two))

    @cuda.jit
    def reduce(values, y, rows):
        out = OUT.start()
        for row in range(ROLES.two.is_member(), rows, 2):
            stage = out.acquire()
            stage.y[0, out.thread] = values[row, out.thread]
            out.reduce(y, stage.y, (0, 0), op)
            out.commit()
        out.tail()

    return reduce, TILE


@pytest.mark.parametrize(("dtype", "op"), [("i32", "min"), ("i64", "max"), ("u32", "xor")])
@on_gpu
def test_reductions_of_two_roles(dtype, op):
    kernel, tile = least_kernel(dtype, op)
    numpy = tile.dtype.numpy
    random = np.random.default_rng(5)
    values = random.integers(0, 2**30, (37, COLUMNS)).astype(numpy)
    start = random.integers(0, 2**30, (1, COLUMNS)).astype(numpy)
    out = cuda.to_device(start)
    kernel[1, 2 * THREADS](cuda.to_device(values), tma.tensor_map(out, tile), 37)
    fold = {"min": np.minimum, "max": np.maximum, "xor": np.bitwise_xor}[op]
    want = fold.reduce(np.concatenate([start, values]), axis=0)
    np.testing.assert_array_equal(out.copy_to_host()[0], want)


# --------------------------------------------------------------------------------- turns


@functools.cache
def turns_kernel(depth, groups):
    """Return the kernel whose roles write down, in each stage, who comes when."""
    ROLES = tma.Roles(**{f"math{i}": tma.Warps(2) for i in range(groups)})
    ORDER = tma.OrderedSequenceBarrier(depth, ROLES.roles)

    @cuda.jit
    def write_down(log, used, num_tiles, jitter):
        order = ORDER.start()
        group = cuda.threadIdx.x // 64
        for tile in range(group, num_tiles, groups):
            for stage in range(depth):
                order.wait()
                cuda.nanosleep(jitter * ((tile + stage + cuda.threadIdx.x // 32) % 3))
                if cuda.threadIdx.x % 64 == 63:
                    at = used[stage]
                    log[stage, at] = tile
                    used[stage] = at + 1
                order.arrive()

    return write_down


@pytest.mark.parametrize(("depth", "groups"), [(1, 2), (2, 2), (3, 2), (2, 3), (1, 4)])
@on_gpu
def test_the_roles_take_turns_in_order(depth, groups):
    for tiles in (0, 1, groups - 1, groups, 3 * groups + 1, 1000):
        for jitter in (0, 200):
            log = cuda.to_device(np.full((depth, tiles + 1), -1))
            used = cuda.to_device(np.zeros(depth, np.int64))
            turns_kernel(depth, groups)[1, 64 * groups](log, used, tiles, jitter)
            want = np.append(np.tile(np.arange(tiles), (depth, 1)), np.full((depth, 1), -1), 1)
            np.testing.assert_array_equal(log.copy_to_host(), want)


# ---------------------------------------------------------------------------- launches


@on_gpu
def test_a_launch_with_another_block_is_refused():
    kernel, _ = store_pipeline(2)
    out = tma.tensor_map(poisoned(1), OUTPUT)
    with pytest.raises(ValueError, match="a StorePipeline or a CircularBuffer that names no"):
        kernel[1, (32, 4)](out, 0, 1)
    kernel, _ = reduce_store(2)
    with pytest.raises(ValueError, match="the roles of the kernel's pipeline have 160 threads"):
        kernel[1, 128](out, out, 0, 1)
