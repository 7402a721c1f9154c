"""Loops over the elements of a tile in compiled kernels: what an element costs; refused uses."""

import functools
import re

import pytest
from numba import cuda, types
from numba.core.errors import NumbaError

import numba_tma as tma
from numba_tma.tools.bench import readme
from numba_tma.tools.testing import compile_ptx
from tests.machine_code import all_in_registers, shortest_loop
from tests.tiers import quick

F32 = types.float32


@functools.cache
def scaling(tile, vectors=False):
    """Return the PTX of a kernel that multiplies tiles of two axes in place."""
    PIPE, ROWS = tma.TilePipeline(3, x=tile), tile.shape[0]

    @cuda.jit
    def by_elements(x, y, factor, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, n_tiles):
                x.load(stage.x, (tile * ROWS, 0), stage.barrier)
        else:
            for tile, stage in pipe.consume(0, n_tiles):
                for i, j in pipe.indices(stage.x):
                    stage.x[i, j] *= factor
                pipe.store(y, stage.x, (tile * ROWS, 0))

    @cuda.jit
    def by_vectors(x, y, factor, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, n_tiles):
                x.load(stage.x, (tile * ROWS, 0), stage.barrier)
        else:
            for tile, stage in pipe.consume(0, n_tiles):
                for index in pipe.vectors(stage.x):
                    stage.x.write_vector(index, stage.x.read_vector(index) * factor)
                pipe.store(y, stage.x, (tile * ROWS, 0))

    tiles = tma.TensorMapType(2, tile)
    return compile_ptx(by_vectors if vectors else by_elements, (tiles, tiles, F32, types.int64))


def loop_of(ptx):
    """Return the operations of the loop over a tile's elements."""
    return [operation for operation, _ in shortest_loop(ptx, lambda code: "FMUL" in code)]


SWIZZLED = tma.Tile((64, 32), "f32", tma.Swizzle.B128)


@pytest.mark.parametrize("tile", quick([readme.TILE], [readme.TILE, SWIZZLED]), ids=repr)
def test_an_element_costs_at_most_12_instructions(tile):
    ptx = scaling(tile)
    all_in_registers(ptx)
    assert not re.search(r"\b(div|rem)\.[su]64", ptx)
    loop = loop_of(ptx)
    assert loop.count("FMUL") == 1 and len(loop) <= 12, loop


@pytest.mark.slow
def test_the_rows_of_a_tile_may_have_any_length():
    loop = loop_of(scaling(tma.Tile((40, 100), "f32")))
    assert "CALL" not in loop and len(loop) <= 30, loop  # a division is a multiplication


def test_a_vector_costs_little_more_than_an_element():
    ptx = scaling(readme.TILE, vectors=True)
    all_in_registers(ptx)
    loop = loop_of(ptx)
    assert loop.count("FMUL") == 4 and len(loop) <= 15, loop


# ------------------------------------------------------------------------------ refused

TILE, PACKED = tma.Tile((4, 32), "f32"), tma.Tile((4, 128), "e2m1")
ROWS_OF_6 = tma.Tile((4, 6), "f32")
PIPE = tma.TilePipeline(2, x=TILE)
ROLES = tma.Roles(mma=tma.Warps(1), load=tma.Warps(1))
COMMITTED = tma.TilePipeline(
    2, x=TILE, producer=ROLES.load, consumer=ROLES.mma, released_by="tcgen05"
)


def of_a_number():
    for _ in PIPE.start().indices(7):
        pass


def of_vectors_of_a_stage(x):
    pipe = PIPE.start()
    for _, stage in pipe.consume(0, 1):
        for _ in pipe.vectors(stage):
            pass


def of_committed_stages():
    pipe = COMMITTED.start()
    for _, stage in pipe.consume(0, 1):
        for _ in pipe.indices(stage.x):
            pass


def of_packed_elements():
    for _ in tma.shared_tile(PACKED).indices(0, 32):
        pass


def of_short_rows():
    for _ in tma.shared_tile(ROWS_OF_6).vectors(0, 32):
        pass


def of_half_a_thread():
    for _ in tma.shared_tile(TILE).indices(0.5, 32):
        pass


def of_no_thread():
    for _ in tma.shared_tile(TILE).indices(cuda.threadIdx.x, 0):
        pass


def of_a_thread_too_many():
    for _ in tma.shared_tile(TILE).indices(32, 32):
        pass


def of_a_tile_itself():
    for _ in tma.shared_tile(TILE):
        pass


WRONG = [
    (of_a_number, r"indices\(tile=...\) takes a tile of a stage, such as stage.x, .*not 7"),
    (of_vectors_of_a_stage, r"vectors\(tile=...\) takes a tile of a stage, .*not ConsumerStage"),
    (of_committed_stages, r"one thread consumes.*use tile.indices\(thread, threads\)"),
    (of_packed_elements, "has elements of 4 bits, which kernels neither read nor write"),
    (of_short_rows, "its rows of 6 elements are no multiple of the 4 in 16 B: use indices"),
    (of_half_a_thread, r"indices\(thread=...\) takes an integer, not float64"),
    (of_no_thread, r"indices\(threads=0\): at least 1 thread shares the elements"),
    (of_a_thread_too_many, r"indices\(thread=32, threads=32\): .* 0 to threads - 1"),
    (of_a_tile_itself, r"cannot be iterated over: .*for index in tile.indices\(thread, threads\)"),
]


@pytest.mark.parametrize(("kernel", "rule"), WRONG, ids=[k.__name__ for k, _ in WRONG])
def test_a_loop_over_nothing_to_share_is_refused(kernel, rule):
    cc = (10, 0, "a") if kernel is of_committed_stages else (9, 0, "a")
    arguments = (types.int64,) * kernel.__code__.co_argcount
    with pytest.raises(NumbaError, match=rule):
        compile_ptx(kernel, arguments, cc)


def test_the_loop_releases_no_stage():
    def unreleased(tiles):
        pipe = PIPE.start()
        consumer = pipe.consumer()
        for _ in range(tiles):
            here = consumer.wait().x
            for index in pipe.indices(here):
                here[index] *= 2
            for index in pipe.vectors(here):
                here.write_vector(index, here.read_vector(index))
            for index in here.indices(cuda.threadIdx.x, 32):
                here[index] *= 2

    with pytest.raises(NumbaError, match="acquires a stage that no consumer.release"):
        compile_ptx(unreleased, (types.int64,))


def test_coordinates_are_signed_and_of_32_bits():
    @cuda.jit
    def kernel(out):
        for i, j in tma.shared_tile(TILE).indices(cuda.threadIdx.x, 32):
            out[i, j] = i - j  # as numbers without a sign it would be 2**64 - 1

    ptx = compile_ptx(kernel, (types.float32[:, ::1],))
    assert re.search(r"cvt\.rn\.f32\.s(32|64)", ptx)
