"""Circular buffers on the GPU: every tile once, in order, whole, in each form and loop."""

import functools

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from tests.gpu.folds import COLUMNS, MULTIPLIER, fold_tile, folded, words
from tests.gpu.folds import ROWS as FOLD_ROWS
from tests.gpu.folds import TILE as FOLD_TILE
from tests.gpu.worker import on_gpu
from tests.kernels.circular_kernels import (
    PREFETCH,
    ROWS,
    STAGES,
    THREADS,
    TILE,
    add_by_hand,
    circular_add,
)

OTHER = tma.Tile((16, 64), "bf16", tma.Swizzle.B128)


@functools.cache
def fold_kernel(stages, prefetch, war, in_flight=0):
    """Return the kernel that folds range(first + block, stop, step), with jitter."""
    BUFFER = tma.CircularBuffer(stages, prefetch, war=war, x=FOLD_TILE)

    @cuda.jit
    def fold_range(x, first, stop, step, jitter, folds):
        ring = BUFFER.start()
        fold = np.uint64(0)
        for t, stage in ring.tiles(first + cuda.blockIdx.x, stop, step, in_flight):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * FOLD_ROWS, 0), slot.barrier)
            full = stage.wait()
            cuda.nanosleep(jitter * ((t * 3 + cuda.threadIdx.x // 32) % 5))
            fold = fold_tile(fold, t, full.x, COLUMNS, FOLD_TILE.size, ring.num_threads())
        ring.close()
        folds[cuda.blockIdx.x, cuda.threadIdx.x] = fold

    return fold_range


def check_folds(kernel, x, first, stop, blocks, threads, jitter):
    folds = cuda.to_device(np.full((blocks, threads), 7, np.uint64))
    kernel[blocks, threads](x, first, stop, blocks, jitter, folds)
    expected = [folded(range(first + b, stop, blocks), threads) for b in range(blocks)]
    np.testing.assert_array_equal(folds.copy_to_host(), expected)


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
@pytest.mark.parametrize("stages", range(1, 9))
@on_gpu(limit=120)
def test_every_prefetch_distance_and_any_number_of_tiles(stages, war):
    x = tma.tensor_map(words(1001), FOLD_TILE)
    for prefetch in range(stages):
        kernel = fold_kernel(stages, prefetch, war)
        for tiles in (0, 1, stages - 1, stages, 2 * stages + 1):
            check_folds(kernel, x, 0, tiles, 1, 96, 200)
            check_folds(kernel, x, 1, 1 + tiles, 3, 64, 0)
        check_folds(kernel, x, 0, 1000, 1, 128, 0)


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
@pytest.mark.parametrize(("stages", "prefetch"), [(2, 0), (4, 1), (4, 2), (8, 3)])
@on_gpu
def test_stages_handed_back_late(stages, prefetch, war):
    x = tma.tensor_map(words(200), FOLD_TILE)
    for in_flight in range(1, stages - prefetch):
        kernel = fold_kernel(stages, prefetch, war, in_flight)
        for tiles in (1, stages, 2 * stages + 1, 200):
            check_folds(kernel, x, 0, tiles, 1, 128, 100)


# ---------------------------------------------------------------- several tiles and barriers


@functools.cache
def pair_kernel(stages, prefetch, war, barriers):
    BUFFER = tma.CircularBuffer(
        stages, prefetch, war=war, barriers=barriers, x=FOLD_TILE, other=OTHER
    )
    each = barriers == "each"

    @cuda.jit
    def fold_pairs(x, other, tiles, folds):
        ring = BUFFER.start()
        thread, fold = cuda.threadIdx.x, np.uint64(0)
        for t, stage in ring.tiles(0, tiles):
            for ahead, slot in ring.loads():
                other.load(slot.other, (ahead * 16, 0), slot.barrier_of("other"))
                x.load(slot.x, (ahead * FOLD_ROWS, 0), slot.barrier_of("x"))
            if each:
                x_tile = stage.wait("x")
                fold = fold_tile(fold, t, x_tile, COLUMNS, FOLD_TILE.size, ring.num_threads())
                other_tile = stage.wait("other")
            else:
                full = stage.wait()
                fold = fold_tile(fold, t, full.x, COLUMNS, FOLD_TILE.size, ring.num_threads())
                other_tile = full.other
            for i in range(thread, OTHER.size, cuda.blockDim.x):
                value = np.int64(other_tile[i // 64, i % 64])
                fold = fold * np.uint64(MULTIPLIER) + np.uint64(value)
        ring.close()
        folds[thread] = fold

    return fold_pairs


def folded_pairs(other, tiles, threads):
    """Return what `fold_pairs` makes of x's words and of `other`."""
    folds = np.zeros(threads, np.uint64)
    with np.errstate(over="ignore"):
        for t in range(tiles):
            folds = folds * np.uint64(MULTIPLIER) + np.uint64(t)
            size = FOLD_TILE.size
            values = np.arange(t * size + 1, (t + 1) * size + 1, dtype=np.uint64)
            for part in (values, other[t * 16 : (t + 1) * 16].ravel().astype(np.uint64)):
                for start in range(0, part.size, threads):
                    folds = folds * np.uint64(MULTIPLIER) + part[start : start + threads]
    return folds


@pytest.mark.parametrize("barriers", ["one", "each"])
@pytest.mark.parametrize("war", ["sync", "mbarrier"])
@on_gpu
def test_two_tiles_of_different_type_and_swizzle(war, barriers):
    tiles, threads = 41, 64
    other = np.random.default_rng(0).integers(0, 256, (tiles * 16, 64)).astype(OTHER.dtype.numpy)
    x = tma.tensor_map(words(tiles), FOLD_TILE)
    other_map = tma.tensor_map(cuda.to_device(other.view(np.uint16)), OTHER, dtype="bf16")
    for stages, prefetch in ((1, 0), (2, 1), (3, 1), (5, 4)):
        for count in (0, 1, stages, tiles):
            folds = cuda.to_device(np.zeros(threads, np.uint64))
            pair_kernel(stages, prefetch, war, barriers)[1, threads](x, other_map, count, folds)
            expected = folded_pairs(other, count, threads)
            np.testing.assert_array_equal(folds.copy_to_host(), expected)


# ------------------------------------------------------------------- loops and their ends


@functools.cache
def visits_kernel(stages, prefetch, war, leave):
    """Return the kernel that walks over groups of tiles, and leaves each as `leave` says."""
    BUFFER = tma.CircularBuffer(stages, prefetch, war=war, x=FOLD_TILE)

    @cuda.jit
    def visits(x, firsts, groups, length):
        ring = BUFFER.start()
        for group in range(groups):
            for t, stage in ring.tiles(group * length, (group + 1) * length):
                if leave == 1 and t == group * length + 2:
                    break
                if leave == 2 and t % 2 == group % 2:
                    continue
                for ahead, slot in ring.loads():
                    x.load(slot.x, (ahead * FOLD_ROWS, 0), slot.barrier)
                if leave == 3 and t == group * length + 2:
                    break
                if leave == 4 and t % 3 == 0:
                    continue
                full = stage.wait()
                if ring.thread() == ring.num_threads() - 1:
                    firsts[t] = full.x[0, 0]
        ring.close()

    return visits


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
@on_gpu
def test_loops_follow_each_other_however_they_were_left(war):
    groups, length = 7, 6
    t = np.arange(groups * length)
    group = t // length
    visited = {
        0: t >= 0,
        1: t - group * length < 2,
        2: t % 2 != group % 2,
        3: t - group * length < 2,
        4: t % 3 != 0,
    }
    x = tma.tensor_map(words(t.size), FOLD_TILE)
    for leave, seen in visited.items():
        for stages, prefetch in ((1, 0), (2, 0), (2, 1), (4, 2)):
            firsts = cuda.to_device(np.zeros(t.size, np.uint32))
            kernel = visits_kernel(stages, prefetch, war, leave)
            kernel[1, 96](x, firsts, groups, length)
            expected = np.where(seen, t * FOLD_TILE.size + 1, 0)
            np.testing.assert_array_equal(firsts.copy_to_host(), expected)


ROLES = tma.Roles(other=tma.Warps(1), compute=tma.Warps(2))


@functools.cache
def role_kernel(war):
    BUFFER = tma.CircularBuffer(3, 1, war=war, role=ROLES.compute, x=FOLD_TILE)

    @cuda.jit
    def scale_in_place(x, out, tiles):
        ring = BUFFER.start()
        if ROLES.compute.is_member():
            for t, stage in ring.tiles(0, tiles):
                for ahead, slot in ring.loads():
                    x.load(slot.x, (ahead * FOLD_ROWS, 0), slot.barrier)
                tile = stage.wait().x
                for i in range(ring.thread(), FOLD_TILE.size, ring.num_threads()):
                    row, column = i // COLUMNS, i % COLUMNS
                    tile[row, column] *= 3  # fenced before the stage is loaded again
                    out[t * FOLD_ROWS + row, column] = tile[row, column]
            ring.close()

    return scale_in_place


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
@on_gpu
def test_a_role_does_it_and_writes_in_place(war):
    source = words(300)
    out = cuda.to_device(np.zeros(source.shape, np.uint32))
    role_kernel(war)[1, ROLES.threads](tma.tensor_map(source, FOLD_TILE), out, 300)
    np.testing.assert_array_equal(out.copy_to_host(), source.copy_to_host() * np.uint32(3))


TURN = tma.CircularBuffer(2, war="mbarrier", x=FOLD_TILE)
TURNS = tma.Tile((2 * FOLD_ROWS, COLUMNS), "u32")


@cuda.jit
def two_turns(x, out, tiles):
    memory, barriers = tma.shared_tile(TURNS), tma.shared_barriers(4)
    for turn in range(3):
        ring = TURN.start(memory, barriers)
        for t, stage in ring.tiles(0, tiles):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * FOLD_ROWS, 0), slot.barrier)
            full = stage.wait()
            out[turn, t, ring.thread()] = full.x[1, ring.thread()]
        ring.close()
        cuda.syncthreads()


@on_gpu
def test_the_memory_serves_again_after_the_end():
    tiles = 9
    source = words(tiles)
    out = cuda.to_device(np.zeros((3, tiles, 32), np.uint32))
    two_turns[1, 32](tma.tensor_map(source, FOLD_TILE), out, tiles)
    expected = source.copy_to_host()[1::FOLD_ROWS]
    np.testing.assert_array_equal(out.copy_to_host(), [expected] * 3)


# ------------------------------------------------------------------------ the whole kernel


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
@on_gpu
def test_the_sum_of_two_matrices_is_that_of_three_parts_by_hand(war):
    rng = np.random.default_rng(0)
    for tiles, blocks in ((0, 1), (1, 2), (STAGES, 1), (PREFETCH + 1, 1), (1000, 132), (1000, 1)):
        shape = (max(1, tiles) * ROWS, TILE.shape[1])
        x, y = (rng.standard_normal(shape, np.float32) for _ in range(2))
        maps = [tma.tensor_map(cuda.to_device(a), TILE) for a in (x, y)]
        for make in (circular_add, add_by_hand):
            kernel, _ = make(war)
            out = cuda.to_device(np.full(shape, np.nan, np.float32))
            kernel[blocks, THREADS](*maps, out, tiles)
            if tiles:
                np.testing.assert_array_equal(out.copy_to_host(), x + y)


@pytest.mark.parametrize("block", [16, 48, (32, 2)])
@on_gpu
def test_a_block_has_whole_warps_in_one_dimension(block):
    x = tma.tensor_map(words(1), FOLD_TILE)
    folds = cuda.to_device(np.zeros((1, 1024), np.uint64))
    with pytest.raises(ValueError, match="a CircularBuffer that names no role has one-dimensional"):
        fold_kernel(2, 1, "sync")[1, block](x, 0, 1, 1, 0, folds)
