"""What a block-scaled matmul is compiled for: the tiles of a matmul, and those of scales."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from numba_tma.dtypes import as_dtype
from numba_tma.kernels._matmul_form import ROWS, Form
from numba_tma.kernels._matmul_plan import Config
from numba_tma.layout import Tile

BLOCK = 128  #: elements of K, and columns of b, that share a scale


@dataclass(frozen=True)
class ScaledConfig(Config):
    """How a block-scaled matmul is cut up: as `Config` says, with tiles that leave room.

    A warpgroup keeps the sums of up to 128 rows in registers, and beside them the products of the
    64 rows and one block of K that it is at.
    """

    n: int = 128  #: columns of a tile, a multiple of 32
    share: str = "b"  #: what the blocks of a cluster share: "a" if they lie side by side
    turns: int | None = None  #: steps of 32 B along K before the other warpgroup may start its own
    ahead: bool = False  #: whether a product is under way while the one before it is added

    HEIGHTS: ClassVar[tuple[int, ...]] = (64, 128, 256)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Registers for sums of 64 or 128 rows, and products of 64, or of 128 to be ahead.
        most = 192 if self.m < 256 else 96 if self.ahead else 128
        if self.n > most:
            raise ValueError(
                f"ScaledConfig(m={self.m}, n={self.n}): sums and products of a step do not fit "
                f"into registers: use n={most} or less"
            )
        if self.k != BLOCK:
            raise ValueError(
                f"ScaledConfig(k={self.k}): a stage has the {BLOCK} elements of K that share a "
                f"scale: use k={BLOCK}"
            )
        if self.share not in ("a", "b"):
            raise ValueError(f"ScaledConfig(share={self.share!r}): clusters share 'a' or 'b'")
        if self.turns is not None and (self.m == ROWS or self.turns not in (0, 1, 2, 3)):
            raise ValueError(
                f"ScaledConfig(m={self.m}, turns={self.turns}): two warpgroups take turns, after "
                "0 to 3 steps along K: use m=128 or m=256, or turns=None"
            )
        if self.ahead and self.m < 256 and self.n % 64:
            raise ValueError(
                f"ScaledConfig(m={self.m}, n={self.n}, ahead=True): halves of the columns are "
                "multiplied in turn: use an n that is a multiple of 64"
            )


@dataclass(frozen=True)
class ScaledForm(Form):
    """All that a block-scaled matmul kernel is compiled for; both factors lie along K."""

    config: ScaledConfig

    @property
    def warpgroups(self) -> int:
        """How many multiply: two have 128 rows each if a tile has 256."""
        return min(2, self.config.m // ROWS)

    @property
    def across(self) -> int:
        """How many blocks of a cluster lie side by side, and share a."""
        return self.config.cluster if self.config.share == "a" else 1

    @property
    def down(self) -> int:
        """How many blocks of a cluster lie one below the other, and share b."""
        return self.config.cluster // self.across

    @property
    def a_copy(self) -> Tile:
        """What one copy loads of a: the part of this block, of what a cluster shares."""
        return Tile((1, self.config.m // self.across, self.k), self.a, self.a_tile.swizzle)

    @property
    def b_copy(self) -> Tile:
        """What one copy loads of b: the part of this block, of what a cluster shares."""
        return Tile((1, self.config.n // self.down, self.k), self.b, self.b_tile.swizzle)

    @property
    def products(self) -> int:
        """How many products a warpgroup has of a stage."""
        return 2 if self.config.m == 256 or self.config.ahead else 1

    @property
    def second(self) -> tuple[int, int]:
        """How many rows below, and columns right of the first, the second product begins."""
        return (ROWS, 0) if self.config.m == 256 else (0, self.config.n // 2)

    @property
    def columns(self) -> int:
        """Columns of a product."""
        return self.second[1] if self.config.ahead and self.config.m < 256 else self.config.n

    @property
    def out_columns(self) -> int:
        """Columns of the pieces in which a result is stored, and sums are kept."""
        return math.gcd(self.columns, self.config.out_bytes // self.out.itemsize)

    @property
    def pieces(self) -> int:
        """Pieces of the sums of a product."""
        return self.columns // self.out_columns

    @property
    def scales_tile(self) -> Tile:
        """What a stage holds of a's scales: those of all rows for one block of K."""
        return Tile((1, 1, self.config.m), as_dtype("f32"))

    @property
    def stage_nbytes(self) -> int:
        """Bytes of a stage: tiles of a and of b, and a's scales."""
        return super().stage_nbytes + self.scales_tile.shared_nbytes

    @property
    def has_edge(self) -> bool:
        """Whether a tile may have columns of two blocks of b, which have a scale each."""
        return BLOCK % self.config.n != 0
