"""Kernels of tiles of records, checked in the simulator and on a GPU."""

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import Swizzle, Tile

POINT = np.dtype([("x", "f4"), ("y", "f4"), ("id", "i4")])
#: Fields of many types, a gap, and a record inside, all where compilers align them.
WHOLE = np.dtype(
    [("small", "i2"), ("at", POINT), ("half", "f2"), ("on", "?"), ("wide", "f8"), ("z", "c8")],
    align=True,
)
PACKED = np.dtype([("small", "u1"), ("wide", "f8"), ("at", POINT), ("pad", "u1"), ("z", "u2")])
PAIR = np.dtype([("x", "f4"), ("id", "u4")])
TILES = [
    *(Tile((8, 16), POINT), Tile((8, 16), WHOLE), Tile((8, 16), PACKED)),
    *(Tile((8, 16), PAIR, Swizzle.B128), Tile((8, 48), PAIR, Swizzle.B128), Tile((8, 256), POINT)),
]


def records(shape, dtype, seed=0):
    """Return records of random bits, numbers that are no NaN, and true or false."""
    made = np.zeros(shape, dtype)
    random = np.random.default_rng(seed)
    for name in dtype.names:
        kept = dtype[name]
        made[name] = records(shape, kept, seed + 1) if kept.names else random.integers(
            0, 2 if kept.kind == "b" else 100, shape
        )  # fmt: skip
    return made


def bytes_of(array):
    return np.ascontiguousarray(array).view(np.uint8)


def changing(tile, change):
    """Return a kernel that loads a tile, changes it, stores it, and copies a row of records."""

    @cuda.jit
    def kernel(x, y, row, start):
        held, full = tma.shared_tile(tile), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
            full.arrive_expect_tx(tile.nbytes)
            x.load(held, start, full)
        cuda.syncthreads()
        full.wait(0)
        if cuda.threadIdx.x < 8:
            change(held, row, cuda.threadIdx.x)
        tma.fence_proxy_async()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            y.store(held, (0, 0))
            tma.ptx.cp_async_bulk_commit_group()
            tma.ptx.cp_async_bulk_wait_group(0)

    return kernel


def points(held, row, i):
    held[i, 0].x += held[i, 1].y * 2
    held[i, 1].id = -7
    row[i] = held[i, 2]  # whole records, to an array, to the tile, and from the tile
    held[i, 3] = row[i]
    held[i, 4] = held[i, 5]
    first = held[i, 6]
    first.y = first.x


def expected_points(tile):
    tile["x"][:, 0] += tile["y"][:, 1] * 2
    tile["id"][:, 1] = -7
    row = tile[:, 2].copy()
    tile[:, 3], tile[:, 4] = row, tile[:, 5]
    tile["y"][:, 6] = tile["x"][:, 6]
    return row


def wholes(held, row, i):
    held[i, 0].at.x = held[i, 1].at.y + held[i, 1].wide
    held[i, 1].small = held[i, 2].at.id
    held[i, 2].wide = 0.5
    held[i, 3] = held[i, 4]
    row[i] = held[i, 5]


def expected_wholes(tile):
    tile["at"]["x"][:, 0] = tile["at"]["y"][:, 1] + tile["wide"][:, 1]
    tile["small"][:, 1] = tile["at"]["id"][:, 2]
    tile["wide"][:, 2] = 0.5
    tile[:, 3] = tile[:, 4]
    return tile[:, 5].copy()


def pairs(held, row, i):
    held[i, 0].x, held[i, 2].id = held[i, 1].x, held[i, 3].id
    row[i] = held[i, 5]


def expected_pairs(tile):
    tile["x"][:, 0], tile["id"][:, 2] = tile["x"][:, 1], tile["id"][:, 3]
    return tile[:, 5].copy()


def bodies(dtype):
    """Return the change of a kernel, and the same of an array."""
    both = {POINT: (points, expected_points), PAIR: (pairs, expected_pairs)}
    return both.get(dtype, (wholes, expected_wholes))


def check_records(tile):
    dtype, width = tile.dtype.numpy, tile.shape[1]
    change, expected = bodies(dtype)
    x = records((6, 2 * width), dtype)
    arrays = cuda.to_device(x), cuda.to_device(np.zeros((8, width), dtype))
    row = cuda.to_device(np.zeros(8, dtype))
    maps = [tma.tensor_map(array, tile) for array in arrays]
    kernel = changing(tile, cuda.jit(device=True)(change))
    kernel[1, 32](*maps, row, (-2, width))
    want = np.zeros((8, width), dtype)
    want[2:] = x[:, width:]
    copied = expected(want)
    stored = arrays[1].copy_to_host()
    for name in dtype.names:
        np.testing.assert_array_equal(stored[name], want[name], name)
        np.testing.assert_array_equal(row.copy_to_host()[name], copied[name], name)
