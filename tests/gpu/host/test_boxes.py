"""Tiles larger than a box, bit for bit: loads, stores and pipelines, box by box and folded."""

import functools
import math

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import Swizzle, Tile, ptx
from numba_tma.host.boxes import Copies
from numba_tma.host.dtypes import as_dtype, byte_names
from numba_tma.tools.pytest_plugin.worker import WorkerLost
from tests.gpu import copies
from tests.gpu.copies import THREADS, Tensor, finish_load, prepare_load, prepare_store
from tests.gpu.worker import on_gpu

SPACE_BYTES = 160 * 1024
SPACE = Tile((SPACE_BYTES // 128, 128), "u8", Swizzle.B128)  # aligned for any swizzle
GUARD_BYTES = 2048
PLACES = 12  # copies of one tile, from arrays of other shapes


@cuda.jit
def load_tile(x, coords, nbytes, image, completed):
    """Load one tile over canaries and copy out the words of shared memory."""
    space, barrier = tma.shared_tile(SPACE), tma.shared_barrier()
    thread = cuda.threadIdx.x
    prepare_load(space.address, barrier, image.size)
    if thread == 0:
        barrier.arrive_expect_tx(nbytes)
        x.load(space.address, coords, barrier)
    finish_load(space.address, barrier, image, completed)


@cuda.jit
def store_tile(x, coords, image):
    """Fill shared memory with the words of `image` and store one tile from it."""
    space = tma.shared_tile(SPACE)
    thread = cuda.threadIdx.x
    prepare_store(space.address, image)
    if thread == 0:
        x.store(space.address, coords)
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)


# ---------------------------------------------------------------------- places of a tile


def tensor_around(tile, steps, unit, rng, *, whole_rows):
    """Return a tensor with gaps between its rows, about as large as the tile or smaller.

    Rows are a multiple of `unit` elements, which a fold needs; with `whole_rows`, of 16 bytes.
    """
    chunk = 16 // tile.itemsize
    unit = math.lcm(unit, chunk) if whole_rows else unit
    inner = unit * int(rng.integers(1, max(2, 2 * tile.shape[-1] // unit + 1)))
    shape = [
        int(rng.integers(1, min(2 * extent * step, 600) + 1))
        for extent, step in zip(tile.shape[:-1], steps)
    ]
    strides, stride = [tile.itemsize], inner * tile.itemsize
    for extent in reversed(shape):
        stride = -(-stride // 16) * 16 + 16 * int(rng.integers(0, 3))
        strides.insert(0, stride)
        stride *= extent
    return Tensor((*shape, inner), tuple(strides), tile.itemsize, 16 * int(rng.integers(0, 9)))


def place_in(tensor, tile, steps, unit, rng, *, negative):
    """Return coordinates at which the tile meets the tensor, or just does not."""
    coords = []
    for extent, step, length in zip(tile.shape, steps, tensor.shape):
        lowest = -extent * step if negative else 0
        coords.append(int(rng.integers(lowest, length + 2)))
    coords[-1] = coords[-1] // unit * unit
    return tuple(coords)


def units(tile, fold):
    """Return what the inner extent and the innermost coordinate must be multiples of."""
    if not fold:
        return 1, 16 // tile.itemsize
    part = Copies(tile, (1,) * tile.ndim, fold=True).part
    return part, part


@on_gpu
def check_loads(tile, fold, steps, oob_fill, seed):
    rng = np.random.default_rng(seed)
    extent_unit, unit = units(tile, fold)
    for _ in range(PLACES):
        tensor = tensor_around(tile, steps, extent_unit, rng, whole_rows=False)
        memory = rng.integers(0, 256, tensor.nbytes, np.uint8)
        coords = place_in(tensor, tile, steps, unit, rng, negative=True)
        expected = copies.canaries(tile.shared_nbytes + GUARD_BYTES)
        brought = written_bytes(tile)
        expected[: brought.size][brought] = tma.reference_tile(
            tensor.of(memory), tile, coords, oob_fill=oob_fill, element_strides=steps
        )[brought]
        image = cuda.device_array(expected.size // 4, np.uint32)
        completed = cuda.to_device(np.zeros(1, np.uint32))
        x = tma.tensor_map(
            tensor.on_device(cuda.to_device(memory)),
            tile,
            dtype=tile.dtype,
            fold=fold,
            element_strides=steps,
            oob_fill=oob_fill,
        )
        load_tile[1, THREADS](x, coords, tile.nbytes, image, completed)
        assert completed.copy_to_host()[0], f"{x}: not {tile.nbytes} B at {coords}"
        np.testing.assert_array_equal(
            image.copy_to_host().view(np.uint8), expected, err_msg=f"{x} at {coords}"
        )


@on_gpu
def check_stores(tile, fold, steps, seed):
    rng = np.random.default_rng(seed)
    extent_unit, unit = units(tile, fold)
    for _ in range(PLACES):
        tensor = tensor_around(tile, steps, extent_unit, rng, whole_rows=True)
        if tile.shape[-1] < tile.num_slabs * tile.slab and tensor.shape[-1] > tile.shape[-1]:
            continue  # no kernel may store whole slabs there
        memory = rng.integers(0, 256, tensor.nbytes, np.uint8)
        coords = place_in(tensor, tile, steps, unit, rng, negative=False)
        image = rng.integers(0, 256, tile.shared_nbytes, np.uint8)
        device = cuda.to_device(memory)
        x = tma.tensor_map(
            tensor.on_device(device), tile, dtype=tile.dtype, fold=fold, element_strides=steps
        )
        store_tile[1, THREADS](x, coords, cuda.to_device(image.view(np.uint32)))
        cuda.synchronize()
        tma.reference_store(tensor.of(memory), image, tile, coords, steps)
        np.testing.assert_array_equal(device.copy_to_host(), memory, err_msg=f"{x} at {coords}")


def written_bytes(tile):
    """Return for each byte of the tile's image whether a load writes it."""
    whole = (*tile.shape[:-1], tile.num_slabs * tile.slab)
    plain = Tile(tile.shape, f"u{8 * tile.itemsize}", tile.swizzle)
    ones = np.full(whole, -1).astype(f"u{tile.itemsize}")
    return tma.reference_tile(ones, plain, (0,) * tile.ndim) != 0


# ------------------------------------------------------------------------- box by box

LOOPED = [
    Tile((128, 256), "bf16", Swizzle.B128),
    Tile((64, 512), "u8", Swizzle.B128),
    Tile((3, 80), "bf16", Swizzle.B128),  # slabs that are padded, rows that are not a multiple of 8
    Tile((5, 7, 100), "f32", Swizzle.B64),
    Tile((40, 72), "u16", Swizzle.B32),
    Tile((512, 32), "f32", Swizzle.B128),
    Tile((2, 320, 48), "f16", Swizzle.B64),
    Tile((2, 3, 4, 5, 20), "i64", Swizzle.B128),
    Tile(4096, "f32"),
    Tile((6, 1024), "f32"),
    Tile((2, 300, 8), "i32"),
    Tile((1, 2, 272, 16), "u8"),
]


@pytest.mark.parametrize("tile", LOOPED, ids=str)
def test_loads_of_several_boxes(tile):
    check_loads(tile, False, (1,) * tile.ndim, "zeros", 1)


@pytest.mark.parametrize("tile", LOOPED, ids=str)
def test_stores_of_several_boxes(tile):
    check_stores(tile, False, (1,) * tile.ndim, 2)


@pytest.mark.parametrize("dtype", byte_names)
def test_every_type_in_several_boxes(dtype):
    tile = Tile((9, 300 // as_dtype(dtype).itemsize // 16 * 16 + 16), dtype, Swizzle.B128)
    fill = "nan" if tile.dtype.is_float else "zeros"
    check_loads(tile, False, (1, 1), fill, 3)
    check_stores(tile, False, (1, 1), 4)


@pytest.mark.parametrize("step", [2, 3, 8])
def test_element_strides_go_on_from_box_to_box(step):
    tile = Tile((96, 80), "bf16", Swizzle.B128)
    check_loads(tile, False, (step, 1), "zeros", 5)
    check_stores(tile, False, (step, 1), 6)


# ----------------------------------------------------------------------------- folded

FOLDED = [
    Tile((128, 256), "bf16", Swizzle.B128),
    Tile((64, 512), "u8", Swizzle.B128),
    Tile((16, 80), "bf16", Swizzle.B128),  # the last slab is padded
    Tile((2, 4, 100), "f32", Swizzle.B64),
    Tile((40, 72), "u16", Swizzle.B32),
    Tile((2, 2, 2, 48), "i64", Swizzle.B128),
    Tile(4096, "f32"),
    Tile((6, 1024), "f32"),
    Tile((12, 1000), "f16"),
    Tile((3, 2, 1024), "u8"),
]


@pytest.mark.parametrize("tile", FOLDED, ids=str)
def test_folded_loads(tile):
    check_loads(tile, True, (1,) * tile.ndim, "zeros", 7)


@pytest.mark.parametrize("tile", FOLDED, ids=str)
def test_folded_stores(tile):
    check_stores(tile, True, (1,) * tile.ndim, 8)


def test_folded_element_strides_and_fill():
    tile = Tile((16, 256), "f32", Swizzle.B128)
    check_loads(tile, True, (3, 1), "nan", 9)
    check_stores(tile, True, (3, 1), 10)


@on_gpu
def load_inside_a_part(column):
    x = cuda.to_device(np.ones((64, 256), np.float32))
    image, done = cuda.device_array(8192 // 4, np.uint32), cuda.to_device(np.zeros(1, np.uint32))
    tile = Tile((8, 256), "f32", Swizzle.B128)
    x_map = tma.tensor_map(x, tile, fold=True)
    load_tile[1, THREADS](x_map, (0, column), tile.nbytes, image, done)
    cuda.synchronize()
    return bool(done.copy_to_host()[0])


def test_a_folded_copy_from_inside_a_part_is_an_illegal_instruction():
    assert load_inside_a_part(32)
    with pytest.raises(WorkerLost, match=r"(?is)illegal.?instruction"):
        load_inside_a_part(4)


# -------------------------------------------------------------------------- pipelines


@functools.cache
def scale_kernel(tile):
    PIPE = tma.TilePipeline(2, x=tile)
    rows, columns = tile.shape
    lanes = 16 // tile.itemsize
    vectors, per_row = tile.size // lanes, columns // lanes

    @cuda.jit
    def scale(x, y, n_tiles, across):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(cuda.blockIdx.x, n_tiles, cuda.gridDim.x):
                x.load(stage.x, (t // across * rows, t % across * columns), stage.barrier)
        elif pipe.is_consumer():
            for t, stage in pipe.consume(cuda.blockIdx.x, n_tiles, cuda.gridDim.x):
                for i in range(cuda.threadIdx.x, vectors, pipe.num_consumers()):
                    place = (i // per_row, i % per_row * lanes)
                    stage.x.write_vector(place, stage.x.read_vector(place) * 2)
                pipe.store(y, stage.x, (t // across * rows, t % across * columns))

    return scale


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize(
    ("tile", "shape"),
    [
        (Tile((64, 256), "f16", Swizzle.B128), (1000, 1024)),
        (Tile((64, 256), "f16", Swizzle.B128), (129, 320)),
        (Tile((320, 32), "f32"), (1000, 96)),
        (Tile((8, 1024), "f32"), (100, 2048)),
        (Tile((24, 96), "f32", Swizzle.B64), (100, 96)),
    ],
    ids=str,
)
def test_a_pipeline_of_wide_tiles(tile, shape, fold):
    check_pipeline(tile, shape, fold and tile.shape[0] <= 256)  # a fold moves all rows at once


@on_gpu
def check_pipeline(tile, shape, fold):
    rng = np.random.default_rng(sum(shape))
    x = rng.standard_normal(shape).astype(tile.dtype.numpy)
    y = cuda.to_device(np.full_like(x, np.nan))
    maps = [tma.tensor_map(a, tile, fold=fold) for a in (cuda.to_device(x), y)]
    assert maps[0].copies.fold == fold
    across = -(-shape[1] // tile.shape[1])
    n_tiles = -(-shape[0] // tile.shape[0]) * across
    scale_kernel(tile)[3, 160](*maps, n_tiles, across)
    np.testing.assert_array_equal(y.copy_to_host(), 2 * x)


def test_a_pipeline_is_the_same_box_by_box_and_folded():
    tile = Tile((64, 256), "bf16", Swizzle.B128)
    for fold in (False, True):
        check_pipeline_bits(tile, fold)


@on_gpu
def check_pipeline_bits(tile, fold):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((512, 512)).astype(tile.dtype.numpy)
    bits = cuda.to_device(x.view(np.uint16))
    y = cuda.to_device(np.zeros_like(x.view(np.uint16)))
    maps = [tma.tensor_map(a, tile, dtype="bf16", fold=fold) for a in (bits, y)]
    scale_kernel(tile)[5, 160](*maps, 16, 2)
    expected = (x.astype(np.float32) * 2).astype(tile.dtype.numpy)
    np.testing.assert_array_equal(y.copy_to_host(), expected.view(np.uint16))
