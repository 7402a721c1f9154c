"""Tiles that the tensor cores can read, and the matrices in them, for the tests of descriptors."""

from dataclasses import dataclass

import numpy as np

from numba_tma import Swizzle, Tile
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.matrix_layout import LEGAL, MatrixLayout

DTYPES = ("bf16", "f16", "tf32", "e4m3", "e5m2", "i8", "u8")


@dataclass(frozen=True)
class Operand:
    """A matrix of `rows` by `k` in a tile of a dtype, major-ness and swizzle."""

    rows: int
    k: int
    dtype: str
    major: str = "K"
    swizzle: Swizzle = Swizzle.B128

    @property
    def tile(self):
        """Return the tile that holds it."""
        outer, inner = (self.rows, self.k) if self.major == "K" else (self.k, self.rows)
        if self.swizzle is Swizzle.NONE:
            chunk = 16 // as_dtype(self.dtype).itemsize
            return Tile((inner // chunk, outer, chunk), self.dtype)
        return Tile((outer, inner), self.dtype, self.swizzle)

    def layout(self, instruction="wgmma"):
        """Return how an instruction reads it."""
        return MatrixLayout(self.tile, self.major, instruction)

    def as_tensor(self, matrix):
        """Return an array in the operand's order of a (rows, k) matrix: its one tile is all."""
        tensor = np.ascontiguousarray(matrix if self.major == "K" else matrix.T)
        if self.swizzle is Swizzle.NONE:
            chunks, outer, chunk = self.tile.shape
            return tensor.reshape(outer, chunks, chunk).transpose(1, 0, 2)
        return tensor

    def __str__(self):
        return f"{self.dtype}-{self.major}-{self.swizzle.name}-{self.rows}x{self.k}"


def ways(dtype, instruction="wgmma"):
    """List the major-ness and the swizzle of the tiles of a dtype that an instruction reads."""
    sizes = LEGAL[instruction].items()
    return [(major, swizzle) for major, found in sizes for swizzle in found.get(dtype.itemsize, ())]


def shapes(itemsize, major, swizzle):
    """Return (rows, k) of one slab, of several, and, where there is, of a narrow and odd one."""
    step, span = 32 // itemsize, max(swizzle.span, 32) // itemsize
    if major == "K":
        found = [(64, span), (72, 2 * span), (8, step), (24, span + step)]
    else:
        found = [(span, 64), (2 * span, 3 * step), (32 // itemsize, step), (span + 16, 2 * step)]
    return dict.fromkeys((rows, k) for rows, k in found if rows >= 8)


def operands(instruction="wgmma", dtypes=DTYPES):
    """List every legal (dtype, major-ness, swizzle) in several shapes."""
    return [
        Operand(rows, k, name, major, swizzle)
        for name in dtypes
        for major, swizzle in ways(as_dtype(name), instruction)
        for rows, k in shapes(as_dtype(name).itemsize, major, swizzle)
    ]


def noise(dtype, shape, seed=0):
    """Return random bits as elements of a dtype."""
    dtype = as_dtype(dtype)
    bits = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return bits.view(dtype.numpy)[..., 0]
