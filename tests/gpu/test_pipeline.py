"""Pipelines under way: every tile once, in order, whole, whatever the stages, loops and releases.

Tile t holds the words t * size + 1, t * size + 2, ..., so that no two words are equal. A consumer
folds what it reads in a way in which order and repetition count.
"""

import functools

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from tests.gpu.worker import on_gpu

TILE = tma.Tile((4, 32), "u32")
ROWS, COLUMNS = TILE.shape
MULTIPLIER = 6364136223846793005


def words(tiles, tile=TILE):
    """Return a matrix of so many tiles, on the GPU."""
    values = np.arange(1, tiles * tile.size + 1, dtype=np.uint32)
    return cuda.to_device(values.reshape(tiles * tile.shape[0], tile.shape[1]))


def folded(tiles, consumers, tile=TILE):
    """Return what each consumer thread's fold of these tiles is."""
    folds = np.zeros(consumers, np.uint64)
    for t in tiles:
        folds = folds * np.uint64(MULTIPLIER) + np.uint64(t)
        content = np.arange(t * tile.size + 1, (t + 1) * tile.size + 1, dtype=np.uint64)
        for start in range(0, tile.size, consumers):
            part = content[start : start + consumers]
            folds[: part.size] = folds[: part.size] * np.uint64(MULTIPLIER) + part
    return folds


@cuda.jit(device=True)
def fold_tile(fold, t, tile, columns, size, consumers):
    """Fold the number and the words of a tile; a consumer takes every `consumers`-th word."""
    fold = fold * np.uint64(MULTIPLIER) + np.uint64(t)
    for i in range(cuda.threadIdx.x, size, consumers):
        fold = fold * np.uint64(MULTIPLIER) + np.uint64(tile[i // columns, i % columns])
    return fold


def each_stage_count(test):
    return pytest.mark.parametrize("stages", range(1, 9))(on_gpu(test))


# ------------------------------------------------------------------------------ ranges


@functools.cache
def fold_kernel(stages, tile=TILE):
    """Return the kernel that folds range(first + block, stop, step), with jitter on both sides."""
    PIPE = tma.TilePipeline(stages, x=tile)
    rows, columns = tile.shape
    size = tile.size

    @cuda.jit
    def fold_range(x, first, stop, step, jitter, folds):
        pipe = PIPE.start()
        first += cuda.blockIdx.x
        if pipe.is_producer():
            if tma.elect_sync():
                x.prefetch()
            for t, stage in pipe.produce(first, stop, step):
                cuda.nanosleep(jitter * (t * 5 % 7))
                x.load(stage.x, (t * rows, 0), stage.barrier)
        elif pipe.is_consumer():
            fold = np.uint64(0)
            for t, stage in pipe.consume(first, stop, step):
                cuda.nanosleep(jitter * ((t * 3 + cuda.threadIdx.x // 32) % 5))
                fold = fold_tile(fold, t, stage.x, columns, size, pipe.num_consumers())
            folds[cuda.blockIdx.x, cuda.threadIdx.x] = fold

    return fold_range


@each_stage_count
def test_ranges(stages):
    kernel, total = fold_kernel(stages), 41
    x = tma.tensor_map(words(total), TILE)
    for blocks, consumers, jitter in ((1, 32, 0), (1, 96, 200), (3, 64, 0), (7, 128, 100)):
        for count in (0, 1, stages - 1, stages, stages + 1, 2 * stages + 1, 5 * stages):
            for first in (0, 1):
                folds = cuda.to_device(np.full((blocks, consumers), 7, np.uint64))
                kernel[blocks, consumers + 32](x, first, first + count, blocks, jitter, folds)
                expected = [
                    folded(range(first + block, first + count, blocks), consumers)
                    for block in range(blocks)
                ]
                np.testing.assert_array_equal(folds.copy_to_host(), expected)


@on_gpu
def test_a_range_that_steps_over_its_end():
    x = tma.tensor_map(words(41), TILE)
    folds = cuda.to_device(np.zeros((1, 64), np.uint64))
    for first, stop, step in ((5, 41, 9), (40, 41, 100), (7, 7, 1), (9, 3, 1)):
        fold_kernel(3)[1, 96](x, first, stop, step, 0, folds)
        expected = folded(range(first, stop, step), 64)
        np.testing.assert_array_equal(folds.copy_to_host()[0], expected)


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


# ------------------------------------------------------------------------------- queue


@functools.cache
def queue_kernel(stages):
    """Return the kernel that counts the visits of each tile, and what is wrong with them."""
    PIPE = tma.TilePipeline(stages, x=TILE)

    @cuda.jit
    def draw_tiles(x, counter, num_tiles, visits, wrong):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce_from(tma.TileQueue(counter, num_tiles)):
                x.load(stage.x, (t * ROWS, 0), stage.barrier)
        else:
            thread, last = cuda.threadIdx.x, -1
            for t, stage in pipe.consume_from():
                if t <= last or t >= num_tiles:
                    cuda.atomic.add(wrong, 0, 1)
                last = t
                for i in range(thread, TILE.size, pipe.num_consumers()):
                    if stage.x[i // COLUMNS, i % COLUMNS] != t * TILE.size + i + 1:
                        cuda.atomic.add(wrong, 1, 1)
                if thread == 0:
                    cuda.atomic.add(visits, t, 1)

    return draw_tiles


@pytest.mark.parametrize("stages", [1, 2, 5])
@on_gpu
def test_a_queue_hands_out_each_tile_once_and_is_ready_again(stages):
    counter = cuda.to_device(np.zeros(1, np.uint32))
    wrong = cuda.to_device(np.zeros(2, np.int32))
    for num_tiles, blocks in ((0, 3), (1, 1), (1, 300), (7, 2), (1000, 1), (1001, 300)):
        x = tma.tensor_map(words(max(1, num_tiles)), TILE)
        visits = cuda.to_device(np.zeros(num_tiles + 1, np.int32))
        for launch in (1, 2):
            queue_kernel(stages)[blocks, 96](x, counter, num_tiles, visits, wrong)
            assert counter.copy_to_host()[0] == 0
            expected = [launch] * num_tiles + [0]
            np.testing.assert_array_equal(visits.copy_to_host(), expected)
            np.testing.assert_array_equal(wrong.copy_to_host(), [0, 0])


# ----------------------------------------------------------------------- explicit form


@functools.cache
def explicit_kernel(stages):
    """Return the kernel in the form of CUTLASS; the producer's tail ends after all releases."""
    PIPE = tma.TilePipeline(stages, x=TILE)

    @cuda.jit
    def fold_explicitly(x, num_tiles, folds, released_at_tail):
        pipe = PIPE.start()
        released = cuda.shared.array(1, np.int32)
        thread = cuda.threadIdx.x
        if thread == 0:
            released[0] = 0
        cuda.syncthreads()
        if pipe.is_producer():
            if tma.elect_sync():
                for t in range(num_tiles):
                    stage = pipe.producer.acquire()
                    x.load(stage.x, (t * ROWS, 0), stage.barrier)
                    pipe.producer.commit()
                pipe.producer.tail()
                released_at_tail[0] = released[0]
        else:
            fold = np.uint64(0)
            for t in range(num_tiles):
                stage = pipe.consumer.wait()
                fold = fold_tile(fold, t, stage.x, COLUMNS, TILE.size, pipe.num_consumers())
                cuda.nanosleep(1000)
                if thread % 32 == 0:
                    cuda.atomic.add(released, 0, 1)
                pipe.consumer.release()
            folds[thread] = fold

    return fold_explicitly


@pytest.mark.parametrize("stages", [1, 3, 4])
@on_gpu
def test_acquire_commit_wait_release_tail(stages):
    x = tma.tensor_map(words(20), TILE)
    folds = cuda.to_device(np.zeros(64, np.uint64))
    released = cuda.to_device(np.zeros(1, np.int32))
    for num_tiles in (0, 1, stages - 1, stages, stages + 1, 20):
        explicit_kernel(stages)[1, 96](x, num_tiles, folds, released)
        np.testing.assert_array_equal(folds.copy_to_host(), folded(range(num_tiles), 64))
        assert released.copy_to_host()[0] == 2 * num_tiles


# ------------------------------------------------------------------ two tiles per stage

LEFT = tma.Tile((16, 64), "bf16", tma.Swizzle.B128)
RIGHT = tma.Tile((24, 8), "i32", tma.Swizzle.B32)
PAIR = tma.TilePipeline(3, left=LEFT, right=RIGHT)


@cuda.jit
def fold_pairs(left, right, num_tiles, folds):
    pipe = PAIR.start()
    if pipe.is_producer():
        for t, stage in pipe.produce(0, num_tiles):
            right.load(stage.right, (0, t * 8), stage.barrier)
            left.load(stage.left, (t * 16, 0), stage.barrier)
    else:
        thread, fold = cuda.threadIdx.x, np.uint64(0)
        for _, stage in pipe.consume(0, num_tiles):
            for i in range(thread, LEFT.size, pipe.num_consumers()):
                value = np.int64(stage.left[i // 64, i % 64])
                fold = fold * np.uint64(MULTIPLIER) + np.uint64(value)
            for i in range(thread, RIGHT.size, pipe.num_consumers()):
                value = np.int64(stage.right[i // 8, i % 8])
                fold = fold * np.uint64(MULTIPLIER) + np.uint64(value)
        folds[thread] = fold


@on_gpu
def test_two_tiles_of_different_type_and_swizzle_share_a_stage():
    num_tiles, consumers = 11, 64
    rng = np.random.default_rng(0)
    left = rng.integers(0, 256, (num_tiles * 16, 64)).astype(LEFT.dtype.numpy)  # exact in bf16
    right = rng.integers(0, 2**31, (24, num_tiles * 8), np.int32)
    left_map = tma.tensor_map(cuda.to_device(left.view(np.uint16)), LEFT, dtype="bf16")
    right_map = tma.tensor_map(cuda.to_device(right), RIGHT)
    folds = cuda.to_device(np.zeros(consumers, np.uint64))
    fold_pairs[1, consumers + 32](left_map, right_map, num_tiles, folds)
    expected = np.zeros(consumers, np.uint64)
    for t in range(num_tiles):
        for tile in (left[t * 16 : t * 16 + 16], right[:, t * 8 : t * 8 + 8]):
            for part in tile.astype(np.uint64).reshape(-1, consumers):
                expected = expected * np.uint64(MULTIPLIER) + part
    np.testing.assert_array_equal(folds.copy_to_host(), expected)


# -------------------------------------------------------------- loops that follow loops

THREE = tma.TilePipeline(3, x=TILE)


@cuda.jit
def fold_nested(x, bounds, folds):
    pipe = THREE.start()
    if pipe.is_producer():
        for k in range(bounds.size - 1):
            for t, stage in pipe.produce(bounds[k], bounds[k + 1]):
                x.load(stage.x, (t * ROWS, 0), stage.barrier)
    else:
        fold = np.uint64(0)
        for k in range(bounds.size - 1):
            for t, stage in pipe.consume(bounds[k], bounds[k + 1]):
                fold = fold_tile(fold, t, stage.x, COLUMNS, TILE.size, pipe.num_consumers())
        folds[cuda.threadIdx.x] = fold


@on_gpu
def test_nested_loops_carry_stage_and_phase_on():
    x = tma.tensor_map(words(40), TILE)
    folds = cuda.to_device(np.zeros(64, np.uint64))
    for bounds in ([0, 1, 2, 3, 4, 5], [0, 4, 4, 5, 12, 13, 40], [3, 6, 0, 3, 3, 4], [0, 0, 0]):
        fold_nested[1, 96](x, cuda.to_device(np.array(bounds)), folds)
        tiles = [t for pair in zip(bounds, bounds[1:]) for t in range(*pair)]
        np.testing.assert_array_equal(folds.copy_to_host(), folded(tiles, 64))


@cuda.jit
def fold_after_break(x, num_tiles, leave, folds):
    pipe = THREE.start()
    if pipe.is_producer():
        for t, stage in pipe.produce(0, num_tiles):
            x.load(stage.x, (t * ROWS, 0), stage.barrier)
    else:
        fold = np.uint64(0)
        for t, stage in pipe.consume(0, num_tiles):
            fold = fold_tile(fold, t, stage.x, COLUMNS, TILE.size, pipe.num_consumers())
            if t == leave:
                break
        for t, stage in pipe.consume(leave + 1, num_tiles):
            fold = fold_tile(fold, t, stage.x, COLUMNS, TILE.size, pipe.num_consumers())
            if t == leave + 1:
                break
        pipe.release_pending()
        for t in range(leave + 2, num_tiles):
            stage = pipe.consumer.wait()
            fold = fold_tile(fold, t, stage.x, COLUMNS, TILE.size, pipe.num_consumers())
            pipe.consumer.release()
        pipe.close()
        folds[cuda.threadIdx.x] = fold


@on_gpu
def test_what_a_break_leaves_unreleased_the_next_step_releases():
    x = tma.tensor_map(words(12), TILE)
    folds = cuda.to_device(np.zeros(64, np.uint64))
    for leave in (0, 1, 2, 5, 10, 11):
        fold_after_break[1, 96](x, 12, leave, folds)
        np.testing.assert_array_equal(folds.copy_to_host(), folded(range(12), 64))


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
                        word = ptx.ld_shared_u32(pipe.consumer.base + at)
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


# ------------------------------------------------------------------------ PipelineState


@cuda.jit
def walk(first_phase, steps):
    state = tma.PipelineState(3, 0, first_phase)
    for i in range(steps.shape[0]):
        steps[i, 0], steps[i, 1], steps[i, 2] = state.index, state.phase, state.count
        state.step()


@on_gpu
def test_pipeline_state_walks_round_the_stages():
    for phase in (0, 1):
        steps = cuda.to_device(np.zeros((10, 3), np.int64))
        walk[1, 1](np.uint32(phase), steps)
        expected = [(i % 3, (i // 3 + phase) % 2, i) for i in range(10)]
        np.testing.assert_array_equal(steps.copy_to_host(), expected)
