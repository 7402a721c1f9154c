"""The plan of the matmul kernel by mma.sync: what follows from an `MmaConfig`.

An `MmaConfig` is what a user may choose. An `MmaPlan` adds types, layouts and epilogue, and is all
that the kernel is compiled for. It counts with the shared memory of compute capability 12.x, so
that one form runs everywhere.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numba_tma.host.architectures import ARCHITECTURES
from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile
from numba_tma.host.warp_rules import PartLayout, WarpPart
from numba_tma.host.warpgroup import ROWS
from numba_tma.kernels.matmul.arguments import Epilogue
from numba_tma.kernels.matmul.plan import (
    MmaConfig,
    accumulator_of,
    consumer_roles,
    operand_tile,
    row_tile,
)

if TYPE_CHECKING:
    from numba_tma.pipeline import Role, Roles

#: Shared memory for a block's tiles, in bytes: 99 KiB less barriers and alignment.
TILE_BYTES = ARCHITECTURES[120].shared - (2 << 10)


@dataclass(frozen=True)
class MmaPlan:
    """All that the matmul kernel by mma.sync is compiled for; fields as in `MatmulPlan`."""

    a: DType
    b: DType
    a_major: str
    b_major: str
    out: DType
    config: MmaConfig
    epilogue: Epilogue = Epilogue()
    addressable: bool = True  #: whether TMA can store to `out`; if not, threads do

    def __post_init__(self) -> None:
        if self.stages < 2:
            raise ValueError(
                f"matmul(): {self.config} has stages of {self.stage_nbytes:,} B, and two of them "
                f"do not fit into {TILE_BYTES:,} B beside the epilogue tiles: use a smaller k, m, "
                "n or out_bytes"
            )
        assert self.a_layout.k_steps == self.b_layout.k_steps == self.k_steps

    @property
    def accumulator(self) -> DType:
        """The type in which products are added up."""
        return accumulator_of(self.a)

    @property
    def k(self) -> int:
        """Elements of K per stage."""
        return self.config.k // self.a.itemsize

    @property
    def columns(self) -> int:
        """Columns of an output tile that each warpgroup computes, of all its rows."""
        return self.config.n // self.config.warpgroups

    @property
    def a_tile(self) -> Tile:
        """The tile of a in a stage."""
        return operand_tile(self.config.m, self.k, self.a, self.a_major)

    @property
    def b_tile(self) -> Tile:
        """The tile of b in a stage; a warpgroup's columns are whole swizzle spans."""
        return operand_tile(self.config.n, self.k, self.b, self.b_major, self.columns)

    @property
    def a_layout(self) -> PartLayout:
        """How a warpgroup loads its part of a: all rows."""
        return PartLayout(WarpPart("a", self.a, self.config.m), self.a_tile, self.a_major)

    @property
    def b_layout(self) -> PartLayout:
        """How a warpgroup loads its part of b: its columns."""
        return PartLayout(WarpPart("b", self.b, self.columns), self.b_tile, self.b_major)

    @property
    def k_steps(self) -> int:
        """Steps along K of a stage, of 32 bytes: the K of one mma.sync."""
        return self.config.k // 32

    @property
    def blocks(self) -> int:
        """Fragments of 64 rows that a warpgroup adds up."""
        return self.config.m // ROWS

    @property
    def out_columns(self) -> int:
        """Columns of an epilogue tile."""
        return math.gcd(self.columns, self.config.out_bytes // self.out.itemsize)

    @property
    def out_tile(self) -> Tile:
        """The epilogue tile of one consumer warpgroup."""
        return row_tile(ROWS, self.out_columns, self.out)

    @property
    def stage_nbytes(self) -> int:
        """Bytes of a stage: a tile of a and one of b."""
        return self.a_tile.nbytes + self.b_tile.nbytes

    @property
    def stages(self) -> int:
        """Pipeline stages: as many as the configuration asks for and shared memory holds."""
        results = self.config.warpgroups * self.config.out_stages * self.out_tile.nbytes
        return min(self.config.stages, (TILE_BYTES - results) // self.stage_nbytes)

    @property
    def threads(self) -> int:
        """Threads of a block: those of `roles`."""
        return 128 * (1 + self.config.warpgroups)

    @functools.cached_property
    def roles(self) -> Roles:
        """A warpgroup of which one warp loads, and the consumers, which get its registers."""
        from numba_tma.pipeline import Roles, Warpgroups

        return Roles(load=Warpgroups(1, registers=40), **consumer_roles(self.config.warpgroups))

    @property
    def consumers(self) -> tuple[Role, ...]:
        """The roles of the consumer warpgroups."""
        return tuple(role for role in self.roles.roles if role.name != "load")
