"""The configuration of the matmul kernel of Blackwell's tensor cores, and the plan that follows.

A `Tcgen05Config` is what a user may choose. A `Tcgen05Plan` adds types, layouts and epilogue, and
is all that the kernel is compiled for.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.layout import Tile
from numba_tma.host.matrix_layout import MatrixLayout
from numba_tma.host.tcgen05_rules import TensorProduct, check_product
from numba_tma.host.tensor_tiles import COLUMNS, LANES
from numba_tma.kernels._host.limits import SHARED_BYTES
from numba_tma.kernels.matmul.epilogue import Epilogue
from numba_tma.kernels.matmul.plan import Tcgen05Config, operand_tile, row_tile
from numba_tma.pipeline import Roles, Warpgroups, Warps

#: Columns of an accumulator that a thread of the epilogue holds at once.
LOADED_COLUMNS = 32
#: Bytes along K of a stage: one swizzle span.
STAGE_BYTES = 128
#: Bytes that a thread of the epilogue writes to shared memory at once.
CHUNK_BYTES = 16


@dataclass(frozen=True)
class Tcgen05Plan:
    """All that the matmul kernel of tcgen05 is compiled for; fields as in `MatmulPlan`."""

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
        return STAGE_BYTES // self.a.itemsize

    @property
    def a_tile(self) -> Tile:
        """The tile of a in a stage: a row for each lane of tensor memory."""
        return operand_tile(LANES, self.k, self.a, self.a_major)

    @property
    def b_tile(self) -> Tile:
        """The tile of b in a stage."""
        return operand_tile(self.config.n, self.k, self.b, self.b_major)

    @property
    def a_layout(self) -> MatrixLayout:
        """The tile of a as the tensor cores read it."""
        return MatrixLayout(self.a_tile, self.a_major, "tcgen05")

    @property
    def b_layout(self) -> MatrixLayout:
        """The tile of b as the tensor cores read it."""
        return MatrixLayout(self.b_tile, self.b_major, "tcgen05")

    @property
    def product(self) -> TensorProduct:
        """The instructions that multiply the tiles of a stage."""
        return check_product(as_dtype("f32"), LANES, self.config.n, self.a_layout, self.b_layout)

    @property
    def accumulator(self) -> Tile:
        """An accumulator in tensor memory."""
        return Tile((LANES, self.config.n), "f32")

    @property
    def accumulators(self) -> int:
        """Accumulators: with two the next product begins while the epilogue reads the last."""
        return min(2, COLUMNS // self.config.n)

    @property
    def out_columns(self) -> int:
        """Columns of an epilogue tile."""
        return math.gcd(self.config.n, 128 // self.out.itemsize)

    @property
    def out_tile(self) -> Tile:
        """An epilogue tile, through which rows of the result go to memory."""
        return row_tile(LANES, self.out_columns, self.out)

    @property
    def stages(self) -> int:
        """Pipeline stages: as many as the configuration asks for and shared memory holds."""
        free = SHARED_BYTES - self.config.out_stages * self.out_tile.nbytes
        return min(self.config.stages, free // (self.a_tile.nbytes + self.b_tile.nbytes))

    @functools.cached_property
    def roles(self) -> Roles:
        """Four warps that reach all of tensor memory, one that loads, one that multiplies."""
        return Roles(epilogue=Warpgroups(1), load=Warps(1), mma=Warps(1))
