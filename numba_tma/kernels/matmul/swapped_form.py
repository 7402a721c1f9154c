"""What a matmul kernel for few rows is compiled for: types, layouts, tiles, and who does what."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile
from numba_tma.kernels._host.limits import SHARED_BYTES
from numba_tma.kernels.matmul.epilogue import Epilogue
from numba_tma.kernels.matmul.form import ROWS, factor_tile
from numba_tma.kernels.matmul.plan import SwappedConfig
from numba_tma.pipeline import Roles, Warpgroups, Warps


@dataclass(frozen=True)
class SwappedForm:
    """All that a matmul kernel whose factors change places is compiled for, as `Form` has it."""

    a: DType
    b: DType
    a_major: str
    b_major: str
    out: DType
    config: SwappedConfig
    epilogue: Epilogue = Epilogue()

    def __post_init__(self) -> None:
        if self.stages < 2:
            raise ValueError(
                f"matmul(): {self.config} has stages of {self.stage_nbytes:,} B, of which two do "
                f"not fit into the {max(0, self._free):,} B that a block has for them: use a "
                "smaller k, m or n, or fewer blocks, or a smaller cluster"
            )

    @property
    def k(self) -> int:
        """Elements of K in a stage."""
        return self.config.k // self.a.itemsize

    @property
    def a_tile(self) -> Tile:
        """What a stage holds of a: rows of the result."""
        return factor_tile(self.config.n, self.k, self.a, self.a_major)

    @property
    def b_tile(self) -> Tile:
        """What a stage holds of b: columns of the result."""
        return factor_tile(self.config.m, self.k, self.b, self.b_major)

    @property
    def parts_tile(self) -> Tile:
        """The sums that other blocks send; 4 more in a row let a warp use all banks at once."""
        return Tile((max(1, self.config.cluster - 1), self.config.n, self.config.m + 4), "f32")

    @property
    def stage_nbytes(self) -> int:
        """Bytes of a stage: a tile of a and one of b."""
        return self.a_tile.nbytes + self.b_tile.nbytes

    @property
    def _free(self) -> int:
        """Bytes that a block has for stages."""
        blocks, parts = self.config.blocks, self.parts_tile.nbytes * (self.config.cluster > 1)
        if blocks > 1:
            parts += 1024  # of each, which CUDA keeps for itself
        return SHARED_BYTES // blocks - parts

    @property
    def stages(self) -> int:
        """As many as the configuration has, or fewer, if no more fit."""
        return min(self.config.stages, self._free // self.stage_nbytes)

    @functools.cached_property
    def roles(self) -> Roles:
        """One warp loads, the others multiply."""
        math_ = {f"math{i}": Warpgroups(1) for i in range(self.config.m // ROWS)}
        return Roles(**math_, load=Warps(1))
