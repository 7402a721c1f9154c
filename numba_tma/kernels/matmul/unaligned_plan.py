"""The plan of the matmul kernel for operands of any alignment: what follows from its configuration.

An `UnalignedConfig` is what a user may choose. An `UnalignedPlan` adds types, layouts and epilogue,
and is all that the kernel is compiled for.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile
from numba_tma.kernels._host.limits import SHARED_BYTES
from numba_tma.kernels.matmul.arguments import Epilogue
from numba_tma.kernels.matmul.plan import (
    UNALIGNED_TYPES,
    WGMMA_ROWS,
    UnalignedConfig,
    operand_tile,
    unaligned_extent,
)

if TYPE_CHECKING:
    from numba_tma.pipeline import Role, Roles

LOADERS = 256  #: threads that load: few would be bound by the latency of their instructions


@dataclass(frozen=True)
class UnalignedPlan:
    """All that the matmul kernel for operands of any alignment is compiled for.

    Fields are those of `MatmulPlan`.
    """

    a: DType
    b: DType
    a_major: str
    b_major: str
    out: DType
    config: UnalignedConfig
    epilogue: Epilogue = Epilogue()

    def __post_init__(self) -> None:
        if {self.a.name, self.b.name} - set(UNALIGNED_TYPES):
            raise ValueError(
                f"matmul(): config is {self.config}, whose kernel reads "
                f"{' and '.join(UNALIGNED_TYPES)}, but a is {self.a} and b is {self.b}: use a "
                "Config"
            )
        if self.stages < 2:
            raise ValueError(
                f"matmul(): {self.config} has stages of {self.stage_nbytes:,} B, and two of them "
                f"do not fit into the {max(0, self._free):,} B that a block has for stages: use a "
                "smaller n, k or cluster"
            )

    @property
    def k(self) -> int:
        """Elements of K per stage."""
        return self.config.k // self.a.itemsize

    @property
    def rows(self) -> int:
        """Rows of an output tile."""
        is_first = self.config.first == "a"
        return WGMMA_ROWS if is_first else unaligned_extent(self.config.n, self.a_major)

    @property
    def columns(self) -> int:
        """Columns of an output tile."""
        is_first = self.config.first == "b"
        return WGMMA_ROWS if is_first else unaligned_extent(self.config.n, self.b_major)

    @property
    def n(self) -> int:
        """Columns of the accumulator."""
        return self.columns if self.config.first == "a" else self.rows

    @property
    def a_tile(self) -> Tile:
        """The tile of a in a stage."""
        return operand_tile(self.rows, self.k, self.a, self.a_major)

    @property
    def b_tile(self) -> Tile:
        """The tile of b in a stage."""
        return operand_tile(self.columns, self.k, self.b, self.b_major)

    @property
    def blocks(self) -> int:
        """Resident blocks per SM, whose threads wait for memory in turn.

        Wide tiles leave few of two blocks' registers to the steps of an epilogue.
        """
        return 2 if self.n <= (32 if self.epilogue.changes else 64) else 1

    @property
    def parts_tile(self) -> Tile:
        """The sums of the cluster's other blocks, as in `SwappedPlan`."""
        return Tile((max(1, self.config.cluster - 1), self.n, WGMMA_ROWS + 4), "f32")

    @property
    def stage_nbytes(self) -> int:
        """Bytes of a stage: a tile of a and one of b."""
        return self.a_tile.nbytes + self.b_tile.nbytes

    @property
    def _free(self) -> int:
        """Bytes that a block has for stages; CUDA reserves 1 KiB per block."""
        parts = self.parts_tile.nbytes * (self.config.cluster > 1)
        return SHARED_BYTES // 2 - 1024 - parts

    @property
    def stages(self) -> int:
        """Pipeline stages: as many as the configuration asks for and shared memory holds."""
        return min(self.config.stages, self._free // self.stage_nbytes)

    @property
    def threads(self) -> int:
        """Threads of a block: those of `roles`."""
        return 128 + LOADERS

    @functools.cached_property
    def roles(self) -> Roles:
        """A warpgroup that multiplies, and those that load."""
        from numba_tma.pipeline import Roles, Warpgroups  # bodies, which the host does without

        return Roles(mma0=Warpgroups(1), load=Warpgroups(LOADERS // 128))

    @property
    def consumers(self) -> tuple[Role, ...]:
        """The role of the consumer (MMA) warpgroup."""
        return (self.roles.mma0,)
