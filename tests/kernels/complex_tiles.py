"""Kernels of complex tiles, checked in the simulator and on a GPU."""

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import Swizzle, Tile

B128 = Swizzle.B128
NAN = complex(np.nan, np.nan)


def numbers(shape, dtype, seed=0):
    parts = np.random.default_rng(seed).integers(-9, 10, (*shape, 2))
    return (parts[..., 0] + 1j * parts[..., 1]).astype(dtype)


def copying(tile, body):
    """Return a kernel that loads a tile at `start`, runs `body`, then stores and adds it."""

    @cuda.jit
    def kernel(x, y, total, start, to):
        held, full = tma.shared_tile(tile), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
            full.arrive_expect_tx(tile.nbytes)
            x.load(held, start, full)
        cuda.syncthreads()
        full.wait(0)
        if cuda.threadIdx.x < 8:
            body(held, cuda.threadIdx.x)
        tma.fence_proxy_async()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            y.store(held, to)
            total.reduce(held, to, "add")
            tma.ptx.cp_async_bulk_commit_group()
            tma.ptx.cp_async_bulk_wait_group(0)

    return kernel


TILES = [
    *(Tile((8, 16), name, swizzle) for name in ("c64", "c128") for swizzle in (0, B128)),
    *(Tile((8, 256), "c64"), Tile((8, 48), "c64", B128), Tile((8, 24), "c128", Swizzle.B32)),
]


def check_copies(tile, fold):
    """Load a tile from above the array, change elements, store it, and add it to another."""
    width, dtype = tile.num_slabs * tile.slab, tile.dtype.numpy
    x = numbers((6, 2 * width), dtype)
    before = x, np.zeros((8, 2 * width), dtype), np.ones((8, 2 * width), dtype)
    arrays = [cuda.to_device(array) for array in before]
    maps = [tma.tensor_map(a, tile, fold=fold, oob_fill="nan") for a in arrays]
    step = dtype.type(1 + 2j)

    @cuda.jit(device=True)
    def body(held, i):
        if i > 1:  # the rows before are filled
            held[i, 1] += held[i, 2] * step
        held[i, 3] = held[i, 4].conjugate()
        held[i, 5] = abs(held[i, 6].real)

    copying(tile, body)[1, 32](*maps, (-2, width), (0, width))
    want = np.full((8, width), NAN, dtype)
    want[2:] = x[:, width:]
    want[2:, 1] += want[2:, 2] * (1 + 2j)
    want[:, 3], want[:, 5] = want[:, 4].conj(), abs(want[:, 6].real)
    y, total = (array.copy_to_host() for array in arrays[1:])
    np.testing.assert_array_equal(y[:, width:], want)
    np.testing.assert_array_equal(total[:, width:], want + 1)
    assert not y[:, :width].any() and (total[:, :width] == 1).all()


STARTS = [(0, 0), (-3, 2), (5, 62), (3, -4), (60, 8)]


def check_model(start):
    """Load a tile that may lie outside of the array; compare it with the model."""
    tile = Tile((8, 16), "c64", B128)
    x = numbers((40, 64), "c8")
    stored, added = (cuda.to_device(np.zeros(tile.shape, "c8")) for _ in range(2))
    maps = [tma.tensor_map(cuda.to_device(x), tile, oob_fill="nan")]

    @cuda.jit(device=True)
    def body(held, i):
        pass

    maps += [tma.tensor_map(array, tile) for array in (stored, added)]
    copying(tile, body)[1, 32](*maps, start, (0, 0))
    image = tma.reference_tile(x, tile, start, oob_fill="nan")
    want = image.view("c8")[tile.offset(*np.indices(tile.shape)) // 8]
    np.testing.assert_array_equal(stored.copy_to_host(), want)
    np.testing.assert_array_equal(added.copy_to_host(), want)
