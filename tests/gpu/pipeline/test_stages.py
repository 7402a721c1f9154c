"""Stages on the GPU: how long they are held, how they are stored, how large they may be."""

import functools

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from tests.gpu.folds import COLUMNS, ROWS, TILE, fold_tile, folded, words
from tests.gpu.pipeline.test_pipeline import fold_kernel
from tests.gpu.worker import on_gpu

# ------------------------------------------------------------------- stages in flight


@functools.cache
def in_flight_kernel(stages, in_flight):
    """Return the kernel that looks back at older stages while the producer runs ahead."""
    PIPE = tma.TilePipeline(stages, x=TILE)
    offset, stride = PIPE.tile_offset("x"), TILE.nbytes

    @cuda.jit
    def look_back(x, num_tiles, depth, folds, overwritten):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, 2 * num_tiles):
                x.load(stage.x, (t * ROWS, 0), stage.barrier)
        else:
            thread, fold = cuda.threadIdx.x, np.uint64(0)
            for half in range(2):
                start = half * num_tiles
                for t, stage in pipe.consume(start, start + num_tiles, 1, in_flight):
                    fold = fold_tile(fold, t, stage.x, COLUMNS, TILE.size, pipe.num_consumers())
                    cuda.nanosleep(5000)
                    for back in range(min(depth, t - start) + 1):
                        old = t - back
                        at = offset + old % stages * stride + thread * 4
                        word = ptx.ld_shared_u32(pipe.consumer().base + at)
                        if word != old * TILE.size + thread + 1:
                            cuda.atomic.add(overwritten, 0, 1)
                pipe.release_pending()
            folds[thread] = fold

    return look_back


@pytest.mark.parametrize(("stages", "in_flight"), [(1, 0), (2, 0), (2, 1), (3, 1), (3, 2), (8, 2)])
@on_gpu
def test_stages_in_flight_are_kept_and_no_more(stages, in_flight):
    num_tiles, consumers = 25, 64
    x = tma.tensor_map(words(2 * num_tiles), TILE)
    folds = cuda.to_device(np.zeros(consumers, np.uint64))
    for depth in (in_flight, in_flight + 1):
        overwritten = cuda.to_device(np.zeros(1, np.int32))
        kernel = in_flight_kernel(stages, in_flight)
        kernel[1, consumers + 32](x, num_tiles, depth, folds, overwritten)
        np.testing.assert_array_equal(folds.copy_to_host(), folded(range(2 * num_tiles), consumers))
        # One stage further back the producer has put a newer tile.
        assert (overwritten.copy_to_host()[0] > 0) == (depth > in_flight)


# ------------------------------------------------------------------------------ stores


@functools.cache
def store_kernel(stages, in_flight, written):
    """Return the kernel that stores each stage, changed in place or as it came."""
    PIPE = tma.TilePipeline(stages, x=TILE)

    @cuda.jit
    def store_tiles(x, y, num_tiles, jitter):
        pipe = PIPE.start()
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        if pipe.is_producer():
            for t, stage in pipe.produce(first, num_tiles, step):
                x.load(stage.x, (t * ROWS, 0), stage.barrier)
        else:
            for t, stage in pipe.consume(first, num_tiles, step, in_flight):
                cuda.nanosleep(jitter * ((t + cuda.threadIdx.x // 32) % 3))
                if written:
                    for i in range(cuda.threadIdx.x, TILE.size, pipe.num_consumers()):
                        stage.x[i // COLUMNS, i % COLUMNS] *= 3
                pipe.store(y, stage.x, (t * ROWS, 0), written)
            pipe.release_pending()

    return store_tiles


@pytest.mark.parametrize(
    ("stages", "in_flight", "written"),
    [(1, 0, True), (2, 1, True), (4, 2, True), (1, 0, False), (3, 1, False), (4, 0, False)],
)
@on_gpu
def test_stores_from_the_stage(stages, in_flight, written):
    num_tiles = 200
    source = words(num_tiles)
    x = tma.tensor_map(source, TILE)
    for blocks, consumers, jitter in ((1, 32, 0), (3, 128, 0), (2, 96, 300)):
        out = cuda.to_device(np.zeros(source.shape, np.uint32))
        kernel = store_kernel(stages, in_flight, written)
        kernel[blocks, consumers + 32](x, tma.tensor_map(out, TILE), num_tiles, jitter)
        expected = source.copy_to_host() * np.uint32(3 if written else 1)
        np.testing.assert_array_equal(out.copy_to_host(), expected)


# ----------------------------------------------------------------------- shared memory


@on_gpu
def test_static_shared_memory_up_to_the_limit():
    tile = tma.Tile((256, 32), "u32")
    assert 7 * tile.nbytes == 224 * 1024
    folds = cuda.to_device(np.zeros((1, 128), np.uint64))
    x = tma.tensor_map(words(20, tile), tile)
    fold_kernel(7, tile)[1, 160](x, 0, 20, 1, 0, folds)
    np.testing.assert_array_equal(folds.copy_to_host()[0], folded(range(20), 128, tile))


WHOLE = tma.Tile((1816, 32), "u32")


@cuda.jit
def fill_and_store(out):
    space = tma.shared_tile(WHOLE)
    for i in range(cuda.threadIdx.x, 1816 * 32, cuda.blockDim.x):
        space[i // 32, i % 32] = i * i
    tma.fence_proxy_async()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        ptx.cp_async_bulk_store(out, space, WHOLE.nbytes)
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)


@on_gpu
def test_one_tile_of_all_227_kib():
    assert WHOLE.nbytes == 227 * 1024
    out = cuda.to_device(np.zeros(WHOLE.size, np.uint32))
    fill_and_store[1, 512](out)
    expected = np.arange(WHOLE.size, dtype=np.uint32) ** 2
    np.testing.assert_array_equal(out.copy_to_host(), expected)
