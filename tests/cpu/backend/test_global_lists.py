"""Tiles and pipelines in a tuple or a list of the kernel's globals or closure."""

import re

import pytest
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma.tools.testing import compile_ptx, instructions

WIDE, NARROW = tma.Tile((8, 64), "f32"), tma.Tile((4, 32), "f32")
TILES = [WIDE, NARROW]
PIPES = [tma.TilePipeline(2, a=WIDE), tma.TilePipeline(3, a=NARROW)]
EQUAL = (NARROW, tma.Tile((4, 32), "f32"))
OUT = (types.float32[::1],)


def code(kernel):
    """Return the instructions, with shared memory that is named alike in every kernel."""
    lines = instructions(compile_ptx(kernel, OUT))
    return [re.sub(r"numba_tma_\w+", "numba_tma", line) for line in lines]


def by_name(out):
    tile = tma.shared_tile(NARROW)
    tile[1, 2] = out[0]
    cuda.syncthreads()
    out[1] = tile[1, 2]


def of_list(out):
    tile = tma.shared_tile(TILES[1])
    tile[1, 2] = out[0]
    cuda.syncthreads()
    out[1] = tile[1, 2]


def from_the_end(out):
    tile = tma.shared_tile(TILES[-1])
    tile[1, 2] = out[0]
    cuda.syncthreads()
    out[1] = tile[1, 2]


def unpacked(out):
    _, narrow = TILES
    tile = tma.shared_tile(narrow)
    tile[1, 2] = out[0]
    cuda.syncthreads()
    out[1] = tile[1, 2]


def closing_over(tiles):
    def kernel(out):
        tile = tma.shared_tile(tiles[1])
        tile[1, 2] = out[0]
        cuda.syncthreads()
        out[1] = tile[1, 2]

    return kernel


@pytest.mark.parametrize(
    "kernel",
    [of_list, from_the_end, unpacked, closing_over([WIDE, NARROW]), closing_over((WIDE, NARROW))],
)
def test_an_element_costs_what_its_name_costs(kernel):
    assert code(kernel) == code(by_name)


def test_the_list_counts_as_it_is_when_the_kernel_is_compiled():
    tiles = [WIDE, WIDE]
    kernel = closing_over(tiles)
    tiles[1] = NARROW
    assert code(kernel) == code(by_name)


def test_a_pipeline_of_a_list_starts():
    def kernel(out):
        pipe = PIPES[1].start()
        if pipe.is_producer():
            for _, stage in pipe.produce(0, 4):
                stage.barrier.complete_tx(NARROW.nbytes)
        else:
            for tile, stage in pipe.consume(0, 4):
                out[tile] = stage.a[0, 0]

    assert any("mbarrier.init" in line for line in code(kernel))


def test_equal_tiles_take_any_index():
    def kernel(out):
        for i in range(2):
            out[i] = tma.shared_tile(EQUAL[i])[0, 0]

    assert code(kernel)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ("i", r"TILES\[i\] of TILES: 2 objects of the host, each with a type .* as in TILES\[0\]"),
        ("2", r"TILES\[2\] of TILES: 2 objects of the host: the index is 0 to 1"),
    ],
)
def test_an_index_that_is_not_known_or_too_large(index, text):
    names = {"tma": tma, "TILES": TILES}
    item = f"tma.shared_tile(TILES[{index}])"
    source = f"def kernel(out):\n  for i in range(2):\n    out[i] = {item}[0, 0]"
    exec(source, names)
    with pytest.raises((TypingError, CudaTypingError), match=text):
        compile_ptx(names["kernel"], OUT)
