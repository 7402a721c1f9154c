"""What a block-scaled matmul is compiled for: a matmul's plan, and the tiles of scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Tile
from numba_tma.kernels.matmul.plan import WGMMA_ROWS, Config, MatmulPlan

BLOCK = 128  #: elements of K, and columns of b, that share a scale


@dataclass(frozen=True)
class ScaledConfig(Config):
    """Tile shape, cluster, split-K and stages of a block-scaled matmul; fields as in `Config`.

    An MMA warpgroup holds in registers the sums of up to 128 rows, and the products of 64 rows with
    one block of K. So tiles are narrower than those of `matmul`: up to 128 x 192, or 256 x 128.
    """

    n: int = 128  #: columns of an output tile, a multiple of 32

    HEIGHTS: ClassVar[tuple[int, ...]] = (64, 128, 256)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_across()
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
class ScaledPlan(MatmulPlan):
    """All that a block-scaled matmul kernel is compiled for; a and b are contiguous along K."""

    config: ScaledConfig

    FUNCTION: ClassVar[str] = "block_scaled_matmul()"

    @property
    def warpgroups(self) -> int:
        """Number of consumer (MMA) warpgroups: two, also for 256 rows."""
        return min(2, self.config.m // WGMMA_ROWS)

    @property
    def products(self) -> int:
        """Products of 64 rows that a warpgroup computes from each stage: one or two."""
        return self.config.m // WGMMA_ROWS // self.warpgroups

    @property
    def scales_tile(self) -> Tile:
        """The scales of a in a stage: one for each row of the tile."""
        return Tile((1, 1, self.config.m), as_dtype("f32"))

    @property
    def stage_nbytes(self) -> int:
        """Bytes of a stage: tiles of a and of b, and a's scales."""
        return super().stage_nbytes + self.scales_tile.shared_nbytes

    @property
    def has_edge(self) -> bool:
        """Whether a tile may have columns of two blocks of b, which have a scale each."""
        return BLOCK % self.config.n != 0
