"""What a matmul kernel is compiled for: types, layouts, tiles, and who does what.

A `Form` is made of a few choices and derives all else from them, so that another kernel of products
can begin with it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Self

from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.kernels._host.limits import SHARED_BYTES
from numba_tma.kernels.matmul.epilogue import Epilogue
from numba_tma.kernels.matmul.plan import Config
from numba_tma.pipeline import Roles, Warpgroups

ROWS = 64  # of a warpgroup, which wgmma fixes
SOURCE_STAGES = 2
_SWIZZLES = {128: Swizzle.B128, 64: Swizzle.B64, 32: Swizzle.B32}


@dataclass(frozen=True)
class Form:
    """All that a matmul kernel is compiled for.

    `a_major` and `b_major` are "K" for factors that are contiguous along K, else "MN". The type of
    the sums follows from the factors, which are products of the tensor cores (`tma.wgmma`).
    """

    a: DType
    b: DType
    a_major: str
    b_major: str
    out: DType
    config: Config
    epilogue: Epilogue = Epilogue()
    addressable: bool = True  #: TMA stores to `out`; else threads do

    def __post_init__(self) -> None:
        if self.stages < 2:
            raise ValueError(
                f"matmul(): {self.config} has stages of {self.stage_nbytes:,} B, of which two do "
                f"not fit into the {SHARED_BYTES:,} B that a block has, beside the pieces of the "
                "result: use a smaller k, m or n"
            )

    @property
    def of_any_splits(self) -> Self:
        """What the kernel is compiled for: it is the same for any number of parts of K."""
        return replace(self, config=replace(self.config, splits=1))

    @property
    def sums(self) -> DType:
        """What products are added up in."""
        return sums_of(self.a)

    @property
    def k(self) -> int:
        """Elements of K in a stage."""
        return self.config.k // self.a.itemsize

    @property
    def warpgroups(self) -> int:
        """How many multiply."""
        return self.config.m // ROWS

    @property
    def a_tile(self) -> Tile:
        """What a stage holds of a."""
        return factor_tile(self.config.m, self.k, self.a, self.a_major)

    @property
    def b_tile(self) -> Tile:
        """What a stage holds of b."""
        return factor_tile(self.config.n, self.k, self.b, self.b_major, self.b_part)

    @property
    def b_part(self) -> int:
        """Columns of b that each block of a cluster loads for all of them."""
        return self.config.n // self.config.cluster

    @property
    def b_copy(self) -> Tile:
        """What one copy loads of b where the blocks of a cluster share it; else all."""
        if self.config.cluster == 1:
            return self.b_tile
        if self.b_major == "K":
            return Tile((1, self.b_part, self.k), self.b, self.b_tile.swizzle)
        return Tile((1, self.k, self.b_tile.slab), self.b, self.b_tile.swizzle)

    @property
    def out_columns(self) -> int:
        """Columns of the pieces in which a result is stored."""
        return math.gcd(self.config.n, self.config.out_bytes // self.out.itemsize)

    @property
    def out_tile(self) -> Tile:
        """A piece of the result: the rows of one warpgroup."""
        return _rows(ROWS, self.out_columns, self.out)

    @property
    def source_tile(self) -> Tile:
        """A piece of what is added to the result: the rows of all."""
        return _rows(self.config.m, self.out_columns, self.out)

    @property
    def stages(self) -> int:
        """As many as the configuration has, or fewer, if no more fit."""
        results = self.warpgroups * self.config.out_stages * self.out_tile.nbytes
        sources = SOURCE_STAGES * self.source_tile.nbytes if self.epilogue.sources else 0
        free = SHARED_BYTES - results - sources
        return min(self.config.stages, free // self.stage_nbytes)

    @property
    def stage_nbytes(self) -> int:
        """Bytes of a stage: a tile of a and one of b."""
        return self.a_tile.nbytes + self.b_tile.nbytes

    @functools.cached_property
    def roles(self) -> Roles:
        """The first warpgroup loads, the others multiply."""
        math_ = {f"math{i}": Warpgroups(1) for i in range(self.warpgroups)}
        return Roles(load=Warpgroups(1, registers=40), **math_)


def sums_of(factor: DType) -> DType:
    """Return what products of such elements are added up in."""
    return as_dtype("i32" if factor.name in ("i8", "u8") else "f32")


def factor_tile(rows: int, k: int, dtype: DType, major: str, part: int = 0) -> Tile:
    """Return the tile of `rows` x `k` of a factor, of which copies move whole parts."""
    if major == "K":
        return _rows(rows, k, dtype)
    span = math.gcd(part or rows, 128 // dtype.itemsize) * dtype.itemsize
    return Tile((1, k, rows), dtype, _SWIZZLES[span])


def _rows(rows: int, columns: int, dtype: DType) -> Tile:
    return Tile((1, rows, columns), dtype, _SWIZZLES[min(128, columns * dtype.itemsize)])
