"""What a block-scaled matmul is compiled for: the tiles of a matmul, and those of scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Tile
from numba_tma.kernels.matmul.form import ROWS, Form
from numba_tma.kernels.matmul.plan import Config

BLOCK = 128  #: elements of K, and columns of b, that share a scale


@dataclass(frozen=True)
class ScaledConfig(Config):
    """How a block-scaled matmul is cut up: as `Config` says, with tiles that leave room.

    A warpgroup keeps the sums of up to 128 rows in registers, and beside them the products of the
    64 rows and one block of K that it is at.
    """

    n: int = 128  #: columns of a tile, a multiple of 32

    HEIGHTS: ClassVar[tuple[int, ...]] = (64, 128, 256)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Sums of 64 or 128 rows, and products of 64.
        most = 128 if self.m == 256 else 192
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


@dataclass(frozen=True)
class ScaledForm(Form):
    """All that a block-scaled matmul kernel is compiled for; both factors lie along K."""

    config: ScaledConfig

    @property
    def warpgroups(self) -> int:
        """How many multiply: two have 128 rows each if a tile has 256."""
        return min(2, self.config.m // ROWS)

    @property
    def products(self) -> int:
        """How many products a warpgroup has of a stage, of 64 rows each."""
        return self.config.m // ROWS // self.warpgroups

    @property
    def pieces(self) -> int:
        """Pieces in which a result is stored, and sums are kept."""
        return self.config.n // self.out_columns

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
