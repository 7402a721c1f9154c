"""Elements and vectors of a stage, read and written in kernels, agree with NumPy in every type."""

import functools

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.host.dtypes import as_dtype, byte_names
from tests.gpu.worker import on_gpu

ROWS, CONSUMERS = 8, 64

# So that every item size meets every swizzle, or nearly.
SWIZZLES = {
    "u8": 0, "i8": 1, "e4m3": 2, "e5m2": 3, "ue8m0": 1, "ue4m3": 2,
    "u16": 0, "i16": 1, "f16": 2, "bf16": 3,
    "u32": 0, "i32": 1, "f32": 2, "tf32": 3, "f32_ftz": 1, "tf32_ftz": 2,
    "u64": 1, "i64": 2, "f64": 3,
}  # fmt: skip


# Bytes of a row; of the others 128, or the swizzle's whole span.
NARROW = {"u32": 48, "bf16": 80, "f32": 48, "f64": 96, "e4m3": 48, "i16": 16}


def tile_of(name):
    """Return the tile of the test of a type."""
    dtype, swizzle = as_dtype(name), tma.Swizzle(SWIZZLES[name])
    width = NARROW.get(name, swizzle.span if swizzle else 128)
    return tma.Tile((ROWS, width // dtype.itemsize), dtype, swizzle)


@functools.cache
def spread(lanes):
    """Return a device function that writes a vector's elements, which only literals can index."""
    lines = [f"    out[at + {i}] = v[{i}]" for i in range(lanes)]
    names: dict = {}
    exec("\n".join(["def spread(out, at, v):", *lines]), names)
    return cuda.jit(device=True)(names["spread"])


@functools.cache
def element_kernel(tile):
    """Return the kernel that reads each tile of x twice and stores it once with changes each."""
    PIPE = tma.TilePipeline(3, x=tile)
    columns, size, nbytes = tile.shape[1], tile.size, tile.nbytes
    lanes, width = 16 // tile.itemsize, tile.shape[1] * tile.itemsize
    BYTES = tma.Tile((ROWS, width), "u8", tile.swizzle)
    write_lanes = spread(lanes)

    @cuda.jit
    def read_and_write(x, y, z, tiles, values, factor, bits, elements, vectors):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, 2 * tiles):
                x.load(stage.x, (t % tiles * ROWS, 0), stage.barrier)
        else:
            thread = cuda.threadIdx.x
            for t, stage in pipe.consume(0, tiles):
                view = stage.x.view(BYTES)
                for i in range(thread, nbytes, CONSUMERS):
                    bits[t * nbytes + i] = view[i // width, i % width]
                for i in range(thread, size, CONSUMERS):
                    elements[t * size + i] = stage.x[i // columns, i % columns]
                pipe.sync_consumers()
                for i in range(thread, size, CONSUMERS):
                    stage.x[i // columns, i % columns] = values[t * size + i]
                pipe.store(y, stage.x, (t * ROWS, 0))
            for t, stage in pipe.consume(tiles, 2 * tiles):
                for i in range(thread * lanes, size, CONSUMERS * lanes):
                    at = (i // columns, i % columns)
                    v = stage.x.read_vector(at)
                    write_lanes(vectors, (t - tiles) * size + i, v)
                    stage.x.write_vector(at, v * factor)
                pipe.store(z, stage.x, ((t - tiles) * ROWS, 0))
            pipe.close()

    return read_and_write


def is_narrow_float(dtype):
    return dtype.itemsize <= 2 and dtype.compute == "float32"


def narrow_floats(dtype):
    """Return every value of an 8- or 16-bit float."""
    bits = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}")
    return bits.view(dtype.kernel_storage)


def stored(dtype, count, rng):
    """Return what to read: every bit pattern of a narrow float, random bits of the others."""
    if is_narrow_float(dtype):
        return np.resize(rng.permutation(narrow_floats(dtype)), count)
    bits = rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(f"u{dtype.itemsize}")
    if is_converted(dtype):
        # Normal numbers of 10 mantissa bits, which a load does not round.
        bits = bits & 0xBFFF_E000 | 0x2000_0000
    return bits.view(dtype.kernel_storage)


def is_converted(dtype):
    """Return whether a load changes bits."""
    return dtype.name.startswith("tf32")


def to_write(dtype, count, rng):
    """Return values to write: random ones, and those that are hard to round."""
    compute = np.dtype(dtype.compute)
    if is_converted(dtype):
        return stored(dtype, count, rng)
    if compute.kind in "ui":
        bounds = np.iinfo(compute)
        return rng.integers(bounds.min, bounds.max, count, compute, endpoint=True)
    values = (rng.standard_normal(count) * 2.0 ** rng.integers(-30, 20, count)).astype(compute)
    hard = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3e38, -3e38], compute)
    if is_narrow_float(dtype):
        wide = narrow_floats(dtype).astype(np.float64)
        wide = np.sort(wide[np.isfinite(wide)])
        ties = ((wide[1:] + wide[:-1]) / 2).astype(np.float32)
        top = np.float32(wide[-1]) * np.array([1, 1.01, 1.04, 1.07, 1.2, 2, 1000], np.float32)
        near = [np.nextafter(ties, np.float32(side)) for side in (-np.inf, np.inf)]
        many = np.concatenate([ties, *near, -top, top])
        hard = np.concatenate([hard, rng.permutation(many)[: count // 2], -top, top])
    values[: hard.size] = hard
    return rng.permutation(values)


def as_stored(values, dtype):
    """Round to nearest even as NumPy does, except that 8-bit floats saturate."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.itemsize == 1 and dtype.compute == "float32":
            top = float(ml_dtypes.finfo(dtype.numpy).max)
            values = np.clip(values, -top, top)
        return values.astype(dtype.kernel_storage)


def assert_same(actual, expected, what):
    """Compare bit by bit, but take one NaN for another."""
    assert actual.dtype == expected.dtype, what
    bits = f"u{actual.dtype.itemsize}"
    same = actual.view(bits) == expected.view(bits)
    if expected.dtype.kind not in "ui":
        same |= np.isnan(actual.astype("f8")) & np.isnan(expected.astype("f8"))
    wrong = np.flatnonzero(~same)
    assert not wrong.size, (
        f"{what}: {wrong.size} of {same.size} differ, first at {wrong[0]}: "
        f"{actual[wrong[0]]!r} and not {expected[wrong[0]]!r}"
    )


@pytest.mark.parametrize("name", byte_names)
@on_gpu
def test_elements_vectors_and_views(name):
    dtype, tile = as_dtype(name), tile_of(name)
    compute = np.dtype(dtype.compute)
    tiles = -(-65536 // tile.size) if dtype.itemsize == 2 else 64
    count = tiles * tile.size
    bits_type, shape = f"u{dtype.itemsize}", (tiles * ROWS, tile.shape[1])
    rng = np.random.default_rng(byte_names.index(name))
    data, values = stored(dtype, count, rng), to_write(dtype, count, rng)
    factor = compute.type(3 if compute.kind in "ui" else 1 / 2 if is_converted(dtype) else 1 / 3)

    arrays = [data.view(bits_type), np.zeros(count, bits_type), np.zeros(count, bits_type)]
    x, y, z = (cuda.to_device(a.reshape(shape)) for a in arrays)
    maps = [tma.tensor_map(a, tile, dtype=dtype) for a in (x, y, z)]
    bits = cuda.to_device(np.zeros(data.nbytes, np.uint8))
    elements = cuda.to_device(np.zeros(count, compute))
    vectors = cuda.to_device(np.zeros(count, compute))
    element_kernel(tile)[1, CONSUMERS + 32](
        *maps, tiles, cuda.to_device(values), factor, bits, elements, vectors
    )

    np.testing.assert_array_equal(bits.copy_to_host(), data.view(np.uint8))
    wide = data.astype(compute)
    assert_same(elements.copy_to_host(), wide, "elements read")
    assert_same(vectors.copy_to_host(), wide, "vectors read")
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        scaled = wide * factor
    for written, given, what in ((y, values, "elements"), (z, scaled, "vectors")):
        actual = written.copy_to_host().reshape(-1).view(dtype.kernel_storage)
        assert_same(actual, as_stored(given, dtype), f"{what} written")
