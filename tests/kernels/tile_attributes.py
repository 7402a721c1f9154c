"""What kernels read of tiles and maps, for the compiler and the simulator."""

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import Swizzle, Tile

TILES = [
    *(Tile((4, 8, 32), "bf16", Swizzle.B64), Tile((16, 20), "c64"), Tile(256, "u8")),
    Tile((8, 96), "f32", Swizzle.B128),
]


def reading(tile):
    """Return a kernel of (map of the tile, numbers, one number of the tile's type)."""

    @cuda.jit
    def kernel(x, out, one):
        held = tma.shared_tile(tile)
        out[0], out[1], out[2] = held.ndim, held.size, held.nbytes
        out[3], out[4], out[5] = held.itemsize, len(held.shape), held.shape[0]
        out[6] = held.shape[-1]
        out[7], out[8], out[9] = x.ndim, x.rank, x.tile.nbytes
        out[10], out[11] = x.tile.shape[0], x.tile.shape[-1]
        total = 0
        for axis in range(held.ndim):
            total += held.shape[axis]
        out[12] = total
        if held.ndim == 1:
            out[13] = 1
        own = cuda.local.array(held.ndim, held.dtype)
        own[0] = held.dtype.type(5)
        one[0] = own[0] * x.dtype.type(3)

    return kernel


def expected(tile):
    shape = [tile.shape[0], tile.shape[-1]]
    found = [tile.ndim, tile.size, tile.nbytes, tile.itemsize, tile.ndim, *shape]
    found += [tile.ndim, tile.ndim, tile.nbytes, *shape, sum(tile.shape), tile.ndim == 1]
    return np.array(found, np.int64), np.array([15], tile.dtype.held)
