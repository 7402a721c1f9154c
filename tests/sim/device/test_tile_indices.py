"""Loops over the elements of a tile: each element once, whatever the threads and the axes."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from numba_tma.device.tile_indices import TileIndices

# The loop itself, without a launch: what a thread of a kernel executes.


def walked(tile, thread, threads, width=1):
    return list(TileIndices(tile, width, (thread - threads) % 2**32, threads))


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    threads=st.integers(1, 70),
)
@settings(max_examples=25, deadline=None)
def test_the_threads_have_each_element_once_and_neighbours_are_neighbours(shape, threads):
    tile = tma.Tile(shape, "f32")
    shares = [walked(tile, thread, threads) for thread in range(threads)]
    in_order = list(np.ndindex(*shape))
    for thread, share in enumerate(shares):
        assert share == in_order[thread::threads]


@given(shape=st.lists(st.integers(1, 5), max_size=4), chunks=st.integers(1, 5))
@settings(max_examples=15, deadline=None)
def test_vectors_cover_each_element_once(shape, chunks):
    for dtype in ("f32", "bf16", "f64"):
        lanes = tma.Tile(1, dtype).dtype.chunk
        tile = tma.Tile((*shape, chunks * lanes), dtype)
        seen = np.zeros(tile.shape, int)
        for thread in range(3):
            for index in walked(tile, thread, 3, lanes):
                seen[(*index[:-1], slice(index[-1], index[-1] + lanes))] += 1
        assert (seen == 1).all()


# ------------------------------------------------------------------------------ kernels


@functools.cache
def counting(shape, swizzle=tma.Swizzle.NONE, vectors=False):
    """Return the kernel that doubles tiles in place and counts who came where."""
    TILE = tma.Tile(shape, np.float32, swizzle)
    PIPE, ROWS, OTHERS = tma.TilePipeline(2, x=TILE), shape[0], (0,) * (len(shape) - 1)

    @cuda.jit
    def kernel(x, y, visits, num_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, num_tiles):
                x.load(stage.x, (tile * ROWS, *OTHERS), stage.barrier)
        else:
            for tile, stage in pipe.consume(0, num_tiles):
                if vectors:
                    for index in pipe.vectors(stage.x):
                        stage.x.write_vector(index, stage.x.read_vector(index) * np.float32(2))
                else:
                    for index in pipe.indices(stage.x):
                        stage.x[index] *= np.float32(2)
                        cuda.atomic.add(visits, 0, 1)
                pipe.store(y, stage.x, (tile * ROWS, *OTHERS))

    return kernel, TILE


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize(
    ("shape", "swizzle", "consumers"),
    [
        ((8,), tma.Swizzle.NONE, 64),  # fewer elements than threads
        ((5, 12), tma.Swizzle.NONE, 32),
        ((4, 32), tma.Swizzle.B128, 96),
        ((4, 8), tma.Swizzle.B64, 32),  # padded to 64 B a row
        ((2, 3, 4), tma.Swizzle.NONE, 32),
        ((2, 1, 3, 4), tma.Swizzle.NONE, 32),
        ((2, 1, 2, 3, 4), tma.Swizzle.NONE, 32),
    ],
)
def test_a_pipeline_s_consumers_work_on_each_element_once(shape, swizzle, consumers, vectors):
    kernel, tile = counting(shape, swizzle, vectors)
    tiles = 3
    x = np.arange(tiles * math.prod(shape), dtype=np.float32).reshape(-1, *shape[1:])
    y, visits = np.zeros_like(x), np.zeros(1, np.int64)
    maps = tma.tensor_map(x, tile), tma.tensor_map(y, tile)
    kernel[1, consumers + 32](*maps, visits, tiles)
    np.testing.assert_array_equal(y, 2 * x)
    assert vectors or visits[0] == x.size


ROLES = tma.Roles(load=tma.Warps(1), a=tma.Warps(1), b=tma.Warps(2))
BOX = tma.Tile((4, 16), "f32")
SHARED = tma.TilePipeline(2, x=BOX, producer=ROLES.load, consumer=(ROLES.a, ROLES.b))


@cuda.jit
def two_roles(x, sums):
    pipe = SHARED.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, 2):
            x.load(stage.x, (tile * 4, 0), stage.barrier)
    elif pipe.is_consumer():
        for _, stage in pipe.consume(0, 2):
            for i, j in pipe.indices(BOX):
                cuda.atomic.add(sums, int(ROLES.b.is_member()), stage.x[i, j])


def test_each_role_has_all_elements_and_a_tile_stands_for_its_shape():
    x, sums = np.arange(128, dtype=np.float32).reshape(8, 16), np.zeros(2, np.float32)
    two_roles[1, ROLES.threads](tma.tensor_map(x, BOX), sums)
    assert sums.tolist() == [x.sum(), x.sum()]


# -------------------------------------------------------------------------------- wrong


@cuda.jit
def in_the_wrong_role(x, everywhere):
    pipe = SHARED.start()
    if pipe.is_producer():
        for _, stage in pipe.produce(0, 1):
            x.load(stage.x, (0, 0), stage.barrier)
            for _ in pipe.indices(stage.x):
                pass
    elif pipe.is_consumer():
        for _ in pipe.consume(0, 1):
            pass


@cuda.jit
def of_something_else(which):
    tile = tma.shared_tile(BOX)
    pipe = SHARED.start()
    if pipe.is_consumer():
        if which == "a number":
            pipe.indices(3)
        elif which == "a stage":
            pipe.vectors(pipe)
        elif which == "a thread too many":
            tile.indices(cuda.threadIdx.x, 32)
        elif which == "no thread":
            tile.indices(0, 0)
        elif which == "half a thread":
            tile.indices(0.5, 2)
        else:
            for _ in tile:
                pass


def test_the_producer_s_threads_have_no_elements():
    x = tma.tensor_map(np.zeros((8, 16), np.float32), BOX)
    rule = "indices of TilePipeline.*is executed by a thread that is no consumer"
    with pytest.raises(sim.BarrierMisuse, match=rule):
        in_the_wrong_role[1, ROLES.threads](x, False)


@pytest.mark.parametrize(
    ("which", "error", "rule"),
    [
        ("a number", sim.BadOperand, r"indices\(tile=...\) takes a tile of a stage, .*not 3"),
        ("a stage", sim.BadOperand, r"vectors\(tile=...\) takes a tile of a stage"),
        ("a thread too many", sim.BadOperand, r"indices\(thread=\d+, threads=32\): .*0 to"),
        ("no thread", sim.BadOperand, r"indices\(threads=0\): at least 1 thread"),
        ("half a thread", sim.BadOperand, r"indices\(thread=...\) takes an integer, not 0.5"),
        ("a tile itself", TypeError, "cannot be iterated over"),
    ],
)
def test_what_cannot_be_shared_is_an_error(which, error, rule):
    with pytest.raises(error, match=rule):
        of_something_else[1, ROLES.threads](which)
