"""Pipelines on the GPU: every tile once, in order, whole, for any stages and loops."""

import functools
import itertools

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from tests.gpu.folds import COLUMNS, MULTIPLIER, ROWS, TILE, fold_tile, folded, words
from tests.gpu.worker import on_gpu

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


@pytest.mark.parametrize("stages", range(1, 9))
@on_gpu
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
                    stage = pipe.producer().acquire()
                    x.load(stage.x, (t * ROWS, 0), stage.barrier)
                    pipe.producer().commit()
                pipe.producer().tail()
                released_at_tail[0] = released[0]
        else:
            fold = np.uint64(0)
            for t in range(num_tiles):
                stage = pipe.consumer().wait()
                fold = fold_tile(fold, t, stage.x, COLUMNS, TILE.size, pipe.num_consumers())
                cuda.nanosleep(1000)
                if thread % 32 == 0:
                    cuda.atomic.add(released, 0, 1)
                pipe.consumer().release()
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
            stage = pipe.consumer().wait()
            fold = fold_tile(fold, t, stage.x, COLUMNS, TILE.size, pipe.num_consumers())
            pipe.consumer().release()
        pipe.close()
        folds[cuda.threadIdx.x] = fold


@on_gpu
def test_what_a_break_leaves_unreleased_the_next_step_releases():
    x = tma.tensor_map(words(12), TILE)
    folds = cuda.to_device(np.zeros(64, np.uint64))
    for leave in (0, 1, 2, 5, 10, 11):
        fold_after_break[1, 96](x, 12, leave, folds)
        np.testing.assert_array_equal(folds.copy_to_host(), folded(range(12), 64))


# ------------------------------------------------------------------------ PipelineState


@cuda.jit
def walk(first_phase, steps):
    state = tma.PipelineState(3, 0, first_phase)
    for i in range(steps.shape[0]):
        steps[i, 0], steps[i, 1], steps[i, 2] = state.index, state.phase, state.count
        state.step()


@cuda.jit
def walk_by_next(first_phase, steps):
    state = tma.PipelineState(3, 0, first_phase)
    for i in range(steps.shape[0]):
        steps[i, 0], steps[i, 1], steps[i, 2] = state.index, state.phase, state.count
        state = state.next()


@on_gpu
def test_pipeline_state_walks_round_the_stages():
    for phase, kernel in itertools.product((0, 1), (walk, walk_by_next)):
        steps = cuda.to_device(np.zeros((10, 3), np.int64))
        kernel[1, 1](np.uint32(phase), steps)
        expected = [(i % 3, (i // 3 + phase) % 2, i) for i in range(10)]
        np.testing.assert_array_equal(steps.copy_to_host(), expected)
