"""Tiles of 4- and 6-bit elements and of scale factors in kernels of the simulator."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.reference import reference_tile


@cuda.jit
def load_bytes(x, tile, coords, image):
    """Load one tile by a pipeline's stage and copy out its bytes as they lie in shared memory."""
    shared, full = tma.shared_tile(tile), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        full.arrive_expect_tx(tile.nbytes)  # one byte more or less would not complete the phase
        x.load(shared, coords, full)
    full.wait(0)
    for i in range(cuda.threadIdx.x, image.size, 32):
        image[i] = tma.ptx.ld_shared_u32(shared.address + 4 * i)


def codes_of(name, *shape):
    bits = tma.Tile(128, name).dtype.bits
    return np.random.default_rng(1).integers(0, 1 << bits, shape, np.uint8)


@pytest.mark.parametrize("name", ["e2m1", "e2m1_unpacked", "e2m3", "e3m2"])
@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.B128])
def test_a_load_leaves_what_the_reference_says(name, swizzle):
    tile = Tile((8, 256), name, swizzle)
    packed = tma.pack(codes_of(name, 9, 384), name)
    image = np.zeros(tile.shared_nbytes // 4, np.uint32)
    load_bytes[1, 32](tma.tensor_map(packed, tile, dtype=name), tile, (2, 128), image)
    np.testing.assert_array_equal(image.view(np.uint8), reference_tile(packed, tile, (2, 128)))


PACKED = Tile((8, 64), "e2m1", Swizzle.B32)
PIPE = tma.TilePipeline(2, x=PACKED)


@cuda.jit
def copy_through_a_pipeline(x, y, tiles):
    pipe = PIPE.start()
    if pipe.is_producer():
        for t, stage in pipe.produce(0, tiles):
            x.load(stage.x, (8 * t, 64), stage.barrier)
    else:
        for t, stage in pipe.consume(0, tiles):
            pipe.store(y, stage.x, (8 * t, 0))
        pipe.close()


def test_a_pipeline_derives_the_bytes_and_stores_packed_tiles():
    unpacked = Tile((8, 128), "e2m3", Swizzle.B128)
    ring = tma.TilePipeline(2, x=PACKED, y=unpacked)
    assert ring.tx_bytes == 8 * 32 + 8 * 96 and ring.nbytes >= 2 * (8 * 32 + 8 * 128)
    packed, out = tma.pack(codes_of("e2m1", 24, 128), "e2m1"), np.zeros((24, 32), np.uint8)
    maps = [tma.tensor_map(a, PACKED, dtype="e2m1") for a in (packed, out)]
    copy_through_a_pipeline[1, 64](*maps, 3)
    np.testing.assert_array_equal(out, packed[:, 32:])


@cuda.jit
def read_element(x, tile, out):
    shared = tma.shared_tile(tile)
    out[0] = shared[0, 0]


@cuda.jit
def write_vector(x, tile, out):
    shared = tma.shared_tile(tile)
    shared.write_vector((0, 0), shared.read_vector((0, 0)))


@pytest.mark.parametrize("kernel", [read_element, write_vector])
def test_elements_under_a_byte_are_not_accessed(kernel):
    with pytest.raises(ValueError, match="elements of 6 bits, which kernels neither read nor"):
        kernel[1, 1](None, Tile((8, 128), "e2m3"), np.zeros(1, np.float32))


@cuda.jit
def store_unpacked(y, tile):
    shared = tma.shared_tile(tile)
    y.store(shared, (0, 0))


def test_unpacked_tiles_are_not_stored():
    tile = Tile((8, 128), "e2m1_unpacked")
    made = tma.tensor_map(np.zeros((8, 64), np.uint8), tile, dtype="e2m1_unpacked")
    with pytest.raises(simulator.SimulatorError, match="loaded and never stored"):
        store_unpacked[1, 1](made, tile)


@pytest.mark.parametrize(
    ("name", "column", "said"),
    [("e2m1", 16, "a multiple of 32 (16 bytes)"), ("e2m3", 64, "a multiple of 128 (96 bytes)")],
)
def test_coordinates_in_whole_units(name, column, said):
    tile = Tile((2, 128), name)
    made = tma.tensor_map(np.zeros((2, 192), np.uint8), tile, dtype=name)
    with pytest.raises(simulator.SimulatorError) as raised:
        load_bytes[1, 32](made, tile, (0, column), np.zeros(1, np.uint32))
    assert said in str(raised.value)
