"""Interleaved maps on the hardware: slices of channels, bit for bit."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.host.dtypes import as_dtype
from tests.gpu import copies
from tests.gpu.worker import on_gpu

KINDS = [(16, tma.Swizzle.NONE), (32, tma.Swizzle.B32)]
DTYPES = ("u8", "i16", "bf16", "f32", "u64")


def drawn(rng, interleave, swizzle, dtype):
    """Return an array of slices with padded outer axes, a tile, where it starts, and steps."""
    dtype = as_dtype(dtype)
    extent, unit = interleave // dtype.itemsize, max(1, 16 // dtype.itemsize)
    rows = [int(rng.integers(1, 9))] if rng.random() < 0.7 else []
    shape = (int(rng.integers(1, 4)), int(rng.integers(1, 5)), *rows, int(rng.integers(1, 70)))
    padded = (*shape[:-1], shape[-1] + int(rng.integers(0, 4)) * 2, extent)
    memory = rng.integers(1, 250, padded).astype(f"u{dtype.itemsize}")
    array = memory[..., : shape[-1], :]
    high = [int(rng.integers(1, 4)) for _ in rows]
    box = (int(rng.integers(1, 3)), 1, *high, unit * int(rng.integers(1, 3)), extent)
    steps = (1, 1, *(int(rng.integers(1, 3)) for _ in box[2:-1]), 1)
    if rng.random() < 0.6 or box[-2] * steps[-2] > 256:
        steps = (1,) * len(box)
    coords = tuple(int(rng.integers(-2, extent + 3)) for extent in shape)
    return memory, array, tma.Tile(box, dtype, swizzle), coords, steps


@pytest.mark.parametrize("interleave, swizzle", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@on_gpu
def test_loads_and_stores(dtype, interleave, swizzle):
    rng = np.random.default_rng([interleave, DTYPES.index(dtype)])
    for _ in range(40):
        memory, array, tile, coords, steps = drawn(rng, interleave, swizzle, dtype)
        options = {"interleave": interleave, "element_strides": steps, "dtype": dtype}
        device = cuda.to_device(memory)
        tensor = copies.Tensor(array.shape, array.strides, array.itemsize)
        x = tma.tensor_map(tensor.on_device(device), tile, **options)
        image, completed = copies.load(x, coords, tile.nbytes, tile.nbytes + 128)
        expected = tma.reference_tile(array, tile, (*coords, 0), element_strides=steps)
        assert completed, f"{tile.nbytes} B of {tile} never came"
        np.testing.assert_array_equal(image[: tile.nbytes], expected)
        np.testing.assert_array_equal(image[tile.nbytes :], copies.canaries(128))
        coords = tuple(abs(c) for c in coords)
        image = rng.integers(0, 256, tile.shared_nbytes).astype(np.uint8)
        copies.store(x, coords, image)
        tma.reference_store(array, image, tile, (*coords, 0), element_strides=steps)
        np.testing.assert_array_equal(device.copy_to_host(), memory)


TILE = tma.Tile((1, 1, 4, 8, 8), "f16")
PIPE = tma.TilePipeline(3, x=TILE)


@cuda.jit
def double(x, y, rows, pixels):
    """Each block doubles one slice of the channels of one image."""
    pipe = PIPE.start()
    n, c = cuda.blockIdx.x, cuda.blockIdx.y
    across = pixels // 8
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, rows // 4 * across):
            h, w = tile // across * 4, tile % across * 8
            x.load(stage.x, (n, c, h, w), stage.barrier)
    else:
        for tile, stage in pipe.consume(0, rows // 4 * across):
            h, w = tile // across * 4, tile % across * 8
            for i in range(cuda.threadIdx.x, TILE.size, pipe.num_consumers()):
                stage.x[0, 0, i // 64, i // 8 % 8, i % 8] *= 2
            pipe.store(y, stage.x, (n, c, h, w))


@on_gpu
def test_a_pipeline_of_interleaved_tiles():
    x = np.random.default_rng(0).standard_normal((3, 5, 16, 24, 8)).astype(np.float16)
    y = cuda.to_device(np.zeros_like(x))
    maps = [tma.tensor_map(a, TILE, interleave=16) for a in (cuda.to_device(x), y)]
    double[(3, 5), 96](*maps, 16, 24)
    np.testing.assert_array_equal(y.copy_to_host(), 2 * x)
