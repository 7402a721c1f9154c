"""Tiles larger than a box in the simulator: loads, stores and pipelines, looped and folded."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.reference import reference_tile
from numba_tma.simulator import SimulatorError

ROWS, COLUMNS = 8, 96
WIDE = Tile((ROWS, COLUMNS), "f32", Swizzle.B128)
PADDED = Tile((ROWS, 40), "f32", Swizzle.B128)
TALL = Tile((320, 4), "f32")
FLAT = Tile(1024, "f32")
WORDS = Tile((4, 512), "f32")


def noise(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@cuda.jit
def load_bytes(x, tile, coords, image):
    """Load one tile and copy out its bytes as they lie in shared memory."""
    shared, full = tma.shared_tile(tile), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        full.arrive_expect_tx(tile.nbytes)
        x.load(shared, coords, full)
    full.wait(0)
    for i in range(cuda.threadIdx.x, image.size, 32):
        image[i] = tma.ptx.ld_shared_u32(shared.address + 4 * i)


@pytest.mark.parametrize(
    ("tile", "shape", "places", "fold"),
    [
        (WIDE, (20, 192), [(0, 0), (4, 32), (-3, -32), (17, 160), (30, 0)], False),
        (WIDE, (20, 192), [(0, 0), (4, 32), (-3, -32), (17, 160), (30, 0)], True),
        (WIDE, (20, 100), [(0, 4), (-1, -8), (3, 96)], False),
        (PADDED, (20, 64), [(0, 0), (16, 4), (0, 32)], False),
        (PADDED, (20, 64), [(0, 0), (16, 32), (0, -32)], True),
        (TALL, (700, 8), [(0, 0), (-100, 4), (500, 0)], False),
        (FLAT, (2048,), [(0,), (-512,), (1536,)], False),
        (FLAT, (2048,), [(0,), (-512,), (1536,)], True),
        (WORDS, (6, 768), [(0, 0), (3, 512), (-1, -256)], False),
        (WORDS, (6, 768), [(0, 0), (3, 512), (-1, -256)], True),
    ],
)
def test_a_load_brings_what_the_model_says(tile, shape, places, fold):
    x = noise(*shape)
    x_map = tma.tensor_map(x, tile, fold=fold)
    assert x_map.copies.fold == fold
    for coords in places:
        image = np.zeros(tile.shared_nbytes // 4, np.uint32)
        load_bytes[1, 32](x_map, tile, coords, image)
        expected = reference_tile(x, tile, coords)
        written = reference_tile(np.ones_like(x), tile, coords) != 0
        np.testing.assert_array_equal(image.view(np.uint8)[written], expected[written])


def scale_kernel(tile, rows):
    PIPE = tma.TilePipeline(2, x=tile)
    columns = tile.shape[-1]

    @cuda.jit
    def scale(x, y, n_tiles, across):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(cuda.blockIdx.x, n_tiles, cuda.gridDim.x):
                x.load(stage.x, (t // across * rows, t % across * columns), stage.barrier)
        elif pipe.is_consumer():
            for t, stage in pipe.consume(cuda.blockIdx.x, n_tiles, cuda.gridDim.x):
                for i in range(cuda.threadIdx.x, tile.size // 4, pipe.num_consumers()):
                    place = (4 * i // columns, 4 * i % columns)
                    stage.x.write_vector(place, stage.x.read_vector(place) * 2)
                pipe.store(y, stage.x, (t // across * rows, t % across * columns))

    return scale


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_pipeline_of_wide_tiles(fold, seed):
    simulator.seed(seed)
    x = noise(37, 192)
    y = np.full_like(x, np.nan)
    maps = [tma.tensor_map(a, WIDE, fold=fold) for a in (x, y)]
    scale_kernel(WIDE, ROWS)[2, 64](*maps, 10, 2)
    np.testing.assert_array_equal(y, 2 * x)


def test_a_pipeline_whose_last_tile_reaches_past_the_rows():
    x = noise(9, 100)  # two tiles across, the second with 4 columns of the array
    y = np.full_like(x, np.nan)
    maps = [tma.tensor_map(a, WIDE) for a in (x, y)]
    scale_kernel(WIDE, ROWS)[1, 64](*maps, 4, 2)
    np.testing.assert_array_equal(y, 2 * x)


def test_a_pipeline_with_padded_slabs():
    x = noise(19, 40)
    y = np.full_like(x, np.nan)
    maps = [tma.tensor_map(a, PADDED) for a in (x, y)]
    scale_kernel(PADDED, ROWS)[1, 64](*maps, 3, 1)
    np.testing.assert_array_equal(y, 2 * x)


# ------------------------------------------------------------------------------ misuse


def refused(kernel, *arguments):
    with pytest.raises(SimulatorError) as caught:
        kernel[1, 32](*arguments)
    return str(caught.value)


def test_a_folded_map_and_a_column_inside_a_part():
    x = noise(20, 192)
    image = np.zeros(WIDE.shared_nbytes // 4, np.uint32)
    load_bytes[1, 32](tma.tensor_map(x, WIDE), WIDE, (0, 4), image)
    text = refused(load_bytes, tma.tensor_map(x, WIDE, fold=True), WIDE, (0, 4), image)
    assert "the innermost coordinate is 4; a map with fold=True moves parts of 32 elements" in text
    assert "illegal instruction" in text


@cuda.jit
def store_padded(y):
    tile = tma.shared_tile(PADDED)
    if cuda.threadIdx.x == 0:
        y.store(tile, (0, 0))


def test_a_store_of_padded_slabs_into_a_wider_array():
    assert "columns 40 to 63 past the tile's start would be overwritten" in refused(
        store_padded, tma.tensor_map(noise(20, 64), PADDED)
    )


@cuda.jit
def expect_one_box(x):
    tile, full = tma.shared_tile(WIDE), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        full.arrive_expect_tx(ROWS * 128)
        x.load(tile, (0, 0), full)
    full.wait(0)


def test_expecting_the_bytes_of_one_box():
    text = refused(expect_one_box, tma.tensor_map(noise(20, 192), WIDE))
    assert "(1024 expected, 3072 issued): expect the bytes of every tile" in text


@cuda.jit
def one_box_by_hand(x, image):
    """The rows of the instruction table know one box, whatever the map's tile."""
    tile, full = tma.shared_tile(WIDE), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        full.arrive_expect_tx(ROWS * 128)
        tma.ptx.cp_async_bulk_tensor_load(tile.address + ROWS * 128, x, (0, 32), full)
    full.wait(0)
    for i in range(cuda.threadIdx.x, image.size, 32):
        image[i] = tile[i // 32, 32 + i % 32]


def test_an_instruction_moves_one_box():
    x, image = noise(20, 192), np.zeros(ROWS * 32, np.float32)
    one_box_by_hand[1, 32](tma.tensor_map(x, WIDE), image)
    np.testing.assert_array_equal(image.reshape(ROWS, 32), x[:ROWS, 32:64])
