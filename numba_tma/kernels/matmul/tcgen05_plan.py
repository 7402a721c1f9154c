"""The configuration of the matmul kernels of Blackwell's tensor cores, and the plan that follows.

A `Tcgen05Config` is what a user may choose. A `Tcgen05Plan` adds types, layouts and epilogue, and
is all that the kernel is compiled for.
"""

from __future__ import annotations

import functools
import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile
from numba_tma.host.scale_factors import ATOM_BYTES, ATOM_ROWS, scale_tile
from numba_tma.host.scale_layout import ATOM_COLUMNS
from numba_tma.host.tcgen05_rules import ScaleFactors
from numba_tma.host.tensor_tiles import COLUMNS, LANES, SCALE_ROWS
from numba_tma.kernels._host.limits import SHARED_BYTES
from numba_tma.kernels.matmul.arguments import Epilogue
from numba_tma.kernels.matmul.plan import Tcgen05Config, operand_tile, row_tile

if TYPE_CHECKING:
    from numba_tma.device.persistent_grid import PersistentGrid
    from numba_tma.pipeline import LaunchControl, Roles

#: Columns of an accumulator that a thread of the epilogue holds at once.
LOADED_COLUMNS = 32
#: Bytes along K of a stage: one swizzle span.
STAGE_BYTES = 128
#: Bytes that a thread of the epilogue writes to shared memory at once.
CHUNK_BYTES = 16


def scale_columns_of(tile: Tile) -> int:
    """Return the columns of tensor memory for a tile of scale factors."""
    return tile.nbytes // ATOM_BYTES * ATOM_COLUMNS


@dataclass(frozen=True)
class Tcgen05Plan:
    """All that a matmul kernel of tcgen05 is compiled for; fields as in `MatmulPlan`.

    In a CTA pair each block has 128 rows of the tile and of a, and half of the tile's b.
    """

    a: DType
    b: DType
    a_major: str
    b_major: str
    out: DType
    config: Tcgen05Config
    epilogue: Epilogue = Epilogue()
    addressable: bool = True  #: whether TMA can store to `out`; if not, threads do
    empty: bool = False  #: whether K is 0, so that there is no product, and sums are 0

    def __post_init__(self) -> None:
        if self.a.name in ("i8", "u8"):
            raise ValueError(
                f"matmul(): config is {self.config}, whose kernel adds up float32, but a is "
                f"{self.a}: multiply bf16, f16, tf32 or 8-bit floats"
            )

    @property
    def k(self) -> int:
        """Elements of K per stage."""
        return 8 * STAGE_BYTES // self.a.shared_bits

    @property
    def rows(self) -> int:
        """Rows of an output tile, of both blocks of a pair."""
        return LANES * self.config.cta_group

    @property
    def b_rows(self) -> int:
        """Columns of the output tile whose b this block loads: in a pair half of them."""
        return self.config.n // self.config.cta_group

    @property
    def a_tile(self) -> Tile:
        """The tile of a in a stage: a row for each lane of tensor memory."""
        return operand_tile(LANES, self.k, self.a, self.a_major)

    @property
    def b_tile(self) -> Tile:
        """The tile of b in a stage."""
        return operand_tile(self.b_rows, self.k, self.b, self.b_major)

    @property
    def accumulator(self) -> Tile:
        """An accumulator in the tensor memory of this block."""
        return Tile((LANES, self.config.n), "f32")

    @property
    def accumulators(self) -> int:
        """Accumulators: with two the next product begins while the epilogue reads the last."""
        return min(2, (COLUMNS - self.scale_columns) // self.config.n)

    @property
    def out_columns(self) -> int:
        """Columns of an epilogue tile."""
        return math.gcd(self.config.n, 128 // self.out.itemsize)

    @property
    def out_tile(self) -> Tile:
        """An epilogue tile, through which rows of the result go to memory."""
        return row_tile(LANES, self.out_columns, self.out)

    @property
    def scale_tiles(self) -> tuple[Tile, ...]:
        """The tiles of scale factors in a stage: none."""
        return ()

    @property
    def scale_columns(self) -> int:
        """Columns of tensor memory for the scale factors of a stage."""
        return sum(scale_columns_of(tile) for tile in self.scale_tiles)

    @property
    def stage_nbytes(self) -> int:
        """Bytes of a stage."""
        tiles = (self.a_tile, self.b_tile, *self.scale_tiles)
        return sum(tile.shared_nbytes for tile in tiles)

    @property
    def stages(self) -> int:
        """Pipeline stages: as many as the configuration asks for and shared memory holds."""
        free = SHARED_BYTES - self.config.out_stages * self.out_tile.nbytes
        return min(self.config.stages, free // self.stage_nbytes)

    @property
    def threads(self) -> int:
        """Threads of a block: those of `roles`."""
        return 32 * (4 + 1 + 1)

    @functools.cached_property
    def roles(self) -> Roles:
        """Four warps that reach all of tensor memory, one that loads, one that multiplies."""
        from numba_tma.pipeline import Roles, Warpgroups, Warps

        return Roles(epilogue=Warpgroups(1), load=Warps(1), mma=Warps(1))

    @property
    def work(self) -> LaunchControl | PersistentGrid:
        """How a block, or a CTA pair, gets its tiles."""
        from numba_tma.device.persistent_grid import PersistentGrid
        from numba_tma.pipeline import LaunchControl

        cluster = (self.config.cta_group, 1)
        if self.config.scheduler == "static":
            return PersistentGrid(cluster=cluster)
        return LaunchControl(self.roles, asks=self.roles.load, cluster=cluster)


@dataclass(frozen=True)
class Tcgen05ScaledPlan(Tcgen05Plan):
    """All that a matmul kernel of block-scaled operands is compiled for.

    A stage also has the scale factors of its tiles. Those of b are of all columns of the output
    tile, in both blocks of a pair.
    """

    _: KW_ONLY
    factors: ScaleFactors  #: type of the scale factors, and elements along K of each

    def __post_init__(self) -> None:
        if self.config.n % SCALE_ROWS:
            raise ValueError(
                f"matmul(): config is {self.config}, and a tile of block-scaled operands begins at "
                f"a multiple of {SCALE_ROWS} columns, since scale factors lie in atoms of "
                f"{ATOM_ROWS}: use n=64, 128, 192 or 256"
            )

    @property
    def sfa_tile(self) -> Tile:
        """The scale factors of a in a stage."""
        return self._scale_tile(LANES)

    @property
    def sfb_tile(self) -> Tile:
        """The scale factors of b in a stage: the atoms that have some of the tile's columns."""
        return self._scale_tile(self.config.n)

    @property
    def scale_tiles(self) -> tuple[Tile, ...]:
        """The tiles of scale factors in a stage: of a, of b."""
        return self.sfa_tile, self.sfb_tile

    def _scale_tile(self, rows: int) -> Tile:
        return scale_tile(rows, self.k, dtype=self.factors.dtype, block=self.factors.block)
