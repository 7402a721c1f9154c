"""Configurations of the matmul kernels, and the tiles, roles and stages that follow from them.

A configuration (`Config`, `StreamKConfig`, `SwappedConfig`, `UnalignedConfig`, `Tcgen05Config`,
`MmaConfig`) is what a user may choose. A plan (`MatmulPlan`, `SwappedPlan`; `unaligned_plan`,
`tcgen05_plan` and `mma_plan` have the others) adds types, layouts and epilogue, and is all that a
kernel is compiled for. `choice` says which configuration is fast.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self, get_args

from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.values import check_fields, one_of, whole
from numba_tma.kernels._host.limits import SHARED_BYTES
from numba_tma.kernels.matmul.arguments import Epilogue

if TYPE_CHECKING:
    from numba_tma.pipeline import Role, Roles, Warpgroups

WGMMA_ROWS = 64  #: rows of a wgmma, and so of a consumer warpgroup
SOURCE_STAGES = 2  #: stages of the epilogue's inputs (old output, residual)
STAGES = whole(2, 64)._replace(
    text="a whole number from 2 to 64: one is read while another is filled"
)
SLAB_ROWS = 64  #: MN-major rows of 16 bits in a slab: a cache line, and the widest swizzle span
_SWIZZLES = {128: Swizzle.B128, 64: Swizzle.B64, 32: Swizzle.B32}


# -------------------------------------------------------------------------- configurations


@dataclass(frozen=True)
class Config:
    """Tile shape, cluster, split-K and stages of a matmul."""

    m: int = 128  #: rows of an output tile, 64 for each consumer warpgroup
    n: int = 256  #: columns of an output tile, a multiple of 32
    cluster: int = 1  #: blocks of a cluster below each other, which share b by multicast
    across: int = 1  #: blocks of a cluster beside each other, which share a by multicast
    splits: int = 1  #: split-K: splits of K, whose sums a second kernel adds
    k: int = 128  #: bytes along K per stage: one or more 128-byte swizzle spans
    group: int = 16  #: tile rows that the scheduler walks together, for L2 reuse
    stages: int = 8  #: pipeline stages at most; fewer if shared memory is full
    out_bytes: int = 128  #: bytes per row of an epilogue tile
    out_stages: int = 2  #: epilogue tiles in flight per consumer warpgroup

    HEIGHTS: ClassVar[tuple[int, ...]] = (64, 128, 192)

    def __post_init__(self) -> None:
        check_fields(
            self,
            m=one_of(*self.HEIGHTS),
            n=whole(32, 256, step=32),
            cluster=one_of(1, 2, 4, 8),
            across=one_of(1, 2, 4, 8),
            splits=whole(1, 4096),
            k=one_of(128, 256, 512, unit="bytes"),
            group=whole(1, 1 << 16),
            stages=STAGES,
            out_bytes=one_of(32, 64, 128),
            out_stages=whole(1, 16),
        )
        if self.blocks > 8:
            raise ValueError(
                f"Config(cluster={self.cluster}, across={self.across}): a cluster has "
                f"{self.blocks} blocks, and may have 8: use a smaller cluster or across"
            )
        if self.blocks > 1 and self.k > 128:
            raise ValueError(
                f"Config(cluster={self.cluster}, across={self.across}, k={self.k}): blocks share "
                "tiles that are 128 bytes wide: use k=128"
            )
        if self.n % self.cluster or self.n // self.cluster % 16:
            raise ValueError(
                f"Config(n={self.n}, cluster={self.cluster}): each block loads {self.n} / "
                f"{self.cluster} columns of b for the cluster, which must be a multiple of 16: use "
                "another n"
            )

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return self.cluster * self.across

    def refuse_across(self) -> None:
        """Raise for a configuration of a kernel whose blocks do not share a."""
        if self.across != 1:
            raise ValueError(
                f"{type(self).__name__}(across={self.across}): the blocks of this kernel share no "
                "tiles of a: use across=1"
            )


@dataclass(frozen=True)
class StreamKConfig(Config):
    """Tile shape, cluster and stages of a stream-K matmul; fields as in `Config`.

    Tiles that do not fill a wave are divided along K, so that all clusters compute equally long.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_across()
        if self.splits != 1:
            raise ValueError(
                f"StreamKConfig(splits={self.splits}): the kernel divides K by itself: use splits=1"
            )


@dataclass(frozen=True)
class SwappedConfig:
    """Tile shape, cluster and stages of a matmul with few rows, or few columns.

    b is the first operand of wgmma (swap A/B), so that `m` counts columns of the result and `n`
    rows. For few columns a is the first operand, `m` counts rows and `n` columns.
    """

    m: int = 64  #: extent of the first operand in a tile, 64 for each consumer warpgroup
    n: int = 8  #: extent of the other operand, a multiple of 8
    cluster: int = 1  #: blocks per tile, each of which adds up a part of K
    blocks: int = 1  #: resident blocks per SM, which share its memory
    k: int = 256  #: bytes along K per stage
    stages: int = 16  #: pipeline stages at most; fewer if shared memory is full
    first: Literal["a", "b"] = "b"  #: the first operand of wgmma

    def __post_init__(self) -> None:
        check_fields(
            self,
            first=one_of("a", "b"),
            m=one_of(64, 128),
            n=whole(8, 128, step=8),
            cluster=whole(1, 8),
            blocks=whole(1, 4),
            k=one_of(128, 256, 512, unit="bytes"),
            stages=STAGES,
        )


@dataclass(frozen=True)
class Tcgen05Config:
    """Tile shape and stages of a matmul on Blackwell's tensor cores.

    An output tile has 128 rows, or 256 if a CTA pair computes it.
    """

    n: int = 256  #: columns of an output tile, a multiple of 32
    group: int = 16  #: tile rows that the scheduler walks together, for L2 reuse
    stages: int = 8  #: pipeline stages at most; fewer if shared memory is full
    out_stages: int = 2  #: epilogue tiles in flight
    cta_group: Literal[1, 2] = 1  #: blocks that compute a tile together: 1, or 2, a CTA pair
    #: "launch_control": a block or pair for each tile, and those that run take the others' tiles;
    #: "static": as many as fit on the GPU, whose tiles are fixed by the launch
    scheduler: Literal["launch_control", "static"] = "launch_control"

    def __post_init__(self) -> None:
        check_fields(
            self,
            n=whole(32, 256, step=32),
            group=whole(1, 1 << 16),
            stages=STAGES,
            out_stages=whole(1, 4),
            cta_group=one_of(1, 2)._replace(text="1, or 2 for a CTA pair"),
            scheduler=one_of("launch_control", "static")._replace(
                text="'launch_control', or 'static' for a grid that fits on the GPU",
            ),
        )


@dataclass(frozen=True)
class MmaConfig:
    """Tile shape, warps and stages of a matmul by mma.sync, which every GPU with TMA has."""

    m: int = 128  #: rows of an output tile, which every consumer warpgroup has
    n: int = 128  #: columns of an output tile, a multiple of 16 for each consumer warpgroup
    warpgroups: int = 2  #: consumer warpgroups, side by side: 4 or 8 warps
    k: int = 64  #: bytes along K per stage: one swizzle span
    group: int = 16  #: tile rows that the scheduler walks together, for L2 reuse
    stages: int = 8  #: pipeline stages at most; fewer if shared memory is full
    out_bytes: int = 128  #: bytes per row of an epilogue tile
    out_stages: int = 1  #: epilogue tiles in flight per consumer warpgroup

    SUMS: ClassVar[int] = 128  #: sums that a thread holds at most, less with two warpgroups

    def __post_init__(self) -> None:
        check_fields(self, warpgroups=one_of(1, 2))
        unit = 16 * self.warpgroups
        columns = whole(unit, 256, step=unit)
        check_fields(
            self,
            m=one_of(64, 128, 256),
            n=columns._replace(text=f"{columns.text} with {self.warpgroups} warpgroups"),
            k=one_of(64, 128, unit="bytes"),
            group=whole(1, 1 << 16),
            stages=STAGES,
            out_bytes=one_of(32, 64, 128),
            out_stages=whole(1, 4),
        )
        sums, most = self.m * self.n // (128 * self.warpgroups), self.SUMS // self.warpgroups
        if sums > most:
            raise ValueError(
                f"MmaConfig(m={self.m}, n={self.n}, warpgroups={self.warpgroups}): each thread "
                f"would hold {sums} sums, and {most} leave registers for operands and the "
                "epilogue: use a smaller m or n"
            )


#: Types whose operands an `UnalignedConfig` takes.
UNALIGNED_TYPES = ("f16", "bf16")


@dataclass(frozen=True)
class UnalignedConfig:
    """Tile shape, cluster and stages of a matmul whose operands threads load, wherever rows begin.

    TMA cannot address rows that begin between two multiples of 16 B: other configurations copy
    such operands first.
    """

    first: Literal["a", "b"] = "a"  #: the first operand of wgmma, as in `SwappedConfig`
    n: int = 32  #: extent of the other operand in a tile, a multiple of 8; of the first it is 64
    cluster: int = 1  #: blocks per tile, each of which adds up a part of K
    k: int = 128  #: bytes along K per stage
    stages: int = 4  #: pipeline stages at most; fewer if shared memory is full

    def __post_init__(self) -> None:
        check_fields(
            self,
            first=one_of("a", "b"),
            n=whole(8, 128, step=8),
            cluster=whole(1, 8),
            k=one_of(128, 256, unit="bytes"),
            stages=STAGES,
        )


AnyConfig = Config | StreamKConfig | SwappedConfig | UnalignedConfig | Tcgen05Config | MmaConfig
CONFIG_CLASSES: tuple[type[AnyConfig], ...] = get_args(AnyConfig)


def check_config(function: str, config: object, *kinds: type) -> None:
    """Raise a TypeError unless a configuration is None or of one of these classes."""
    if config is not None and type(config) not in kinds:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(
            f"{function}(): config is {config!r}; it is a {names}, from "
            "numba_tma.kernels.matmul, or None for the one that is expected to be fastest"
        )


# ----------------------------------------------------------------------------------- plans


@dataclass(frozen=True)
class MatmulPlan:
    """All that a matmul kernel is compiled for: types, layouts, configuration and epilogue.

    `a_major` and `b_major` are "K" for an operand that is contiguous along K, else "MN".
    """

    a: DType
    b: DType
    a_major: str
    b_major: str
    out: DType
    config: Config
    epilogue: Epilogue = Epilogue()
    addressable: bool = True  #: whether TMA can store to `out`; if not, threads do

    FUNCTION: ClassVar[str] = "matmul()"  #: whose errors these are

    def __post_init__(self) -> None:
        if self.stages < 2:
            raise ValueError(
                f"{self.FUNCTION}: {self.config} has stages of {self.stage_nbytes:,} B, and two of "
                f"them do not fit into the {SHARED_BYTES:,} B of a block's shared memory beside "
                "the epilogue tiles: use a smaller k, m or n"
            )

    @property
    def of_any_splits(self) -> Self:
        """The plan with one split: the kernel takes the number of splits as an argument."""
        return replace(self, config=replace(self.config, splits=1))

    @property
    def accumulator(self) -> DType:
        """The type in which products are added up."""
        return accumulator_of(self.a)

    @property
    def k(self) -> int:
        """Elements of K per stage."""
        return self.config.k // self.a.itemsize

    @property
    def warpgroups(self) -> int:
        """Number of consumer (MMA) warpgroups."""
        return self.config.m // WGMMA_ROWS

    @property
    def a_tile(self) -> Tile:
        """The tile of a in a stage."""
        return operand_tile(self.config.m, self.k, self.a, self.a_major)

    @property
    def b_tile(self) -> Tile:
        """The tile of b in a stage."""
        return operand_tile(self.config.n, self.k, self.b, self.b_major)

    @property
    def a_copy(self) -> Tile:
        """The box of one TMA copy of a: the tile, or what each block beside others copies of it."""
        return copy_tile(self.a_tile, self.config.across)

    @property
    def b_copy(self) -> Tile:
        """The box of one TMA copy of b: the tile, or what each block below others copies of it."""
        return copy_tile(self.b_tile, self.config.cluster)

    @property
    def out_columns(self) -> int:
        """Columns of an epilogue tile."""
        return math.gcd(self.config.n, self.config.out_bytes // self.out.itemsize)

    @property
    def epilogue_tiles(self) -> int:
        """Epilogue tiles, side by side, in which a warpgroup stores its rows of an output tile."""
        return self.config.n // self.out_columns

    @property
    def out_tile(self) -> Tile:
        """The epilogue tile of one consumer warpgroup."""
        return row_tile(WGMMA_ROWS, self.out_columns, self.out)

    @property
    def source_tile(self) -> Tile:
        """The tile of an epilogue's input (old output, residual): the rows of all warpgroups."""
        return row_tile(self.config.m, self.out_columns, self.out)

    @property
    def stages(self) -> int:
        """Pipeline stages: as many as the configuration asks for and shared memory holds."""
        results = self.warpgroups * self.config.out_stages * self.out_tile.nbytes
        sources = SOURCE_STAGES * self.source_tile.nbytes if self.epilogue.sources else 0
        free = SHARED_BYTES - results - sources
        return min(self.config.stages, free // self.stage_nbytes)

    @property
    def stage_nbytes(self) -> int:
        """Bytes of a stage: a tile of a and one of b."""
        return self.a_tile.shared_nbytes + self.b_tile.shared_nbytes

    @property
    def threads(self) -> int:
        """Threads of a block: those of `roles`."""
        return 128 * (1 + self.warpgroups)

    @functools.cached_property
    def roles(self) -> Roles:
        """One producer warpgroup (`load`), which gives its registers to the consumers."""
        from numba_tma.pipeline import Roles, Warpgroups  # bodies, which the host does without

        registers = 40 if self.warpgroups < 3 else 32  # three consumers then have 160 each
        return Roles(load=Warpgroups(1, registers=registers), **consumer_roles(self.warpgroups))

    @property
    def consumers(self) -> tuple[Role, ...]:
        """The roles of the consumer (MMA) warpgroups."""
        return tuple(role for role in self.roles.roles if role.name != "load")


@dataclass(frozen=True)
class NarrowPlan(ABC):
    """What `SwappedPlan` and `UnalignedPlan` share: `config.first` is the first operand of wgmma.

    Fields are those of `MatmulPlan`.
    """

    a: DType
    b: DType
    a_major: str
    b_major: str
    out: DType
    config: SwappedConfig | UnalignedConfig
    epilogue: Epilogue = Epilogue()

    REPAIR: ClassVar[str]  #: what to use where two stages do not fit

    def __post_init__(self) -> None:
        if self.stages < 2:
            raise ValueError(
                f"matmul(): {self.config} has stages of {self.stage_nbytes:,} B, and two of them "
                f"do not fit into the {max(0, self._free):,} B that a block has for stages: use a "
                f"{self.REPAIR}"
            )

    @property
    def k(self) -> int:
        """Elements of K per stage."""
        return self.config.k // self.a.itemsize

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows of an output tile."""

    @property
    @abstractmethod
    def columns(self) -> int:
        """Columns of an output tile."""

    @property
    def n(self) -> int:
        """Columns of the accumulator."""
        return self.columns if self.config.first == "a" else self.rows

    @property
    def a_tile(self) -> Tile:
        """The tile of a in a stage: rows of the result."""
        return operand_tile(self.rows, self.k, self.a, self.a_major)

    @property
    def b_tile(self) -> Tile:
        """The tile of b in a stage: columns of the result."""
        return operand_tile(self.columns, self.k, self.b, self.b_major)

    @property
    def m(self) -> int:
        """Rows of the accumulator, of all MMA warpgroups."""
        return self.rows if self.config.first == "a" else self.columns

    @property
    def shares(self) -> int:
        """Blocks of a cluster that store a share of a tile, of equally many columns."""
        return shares_of(self.n, self.config.cluster)

    @property
    def share(self) -> int:
        """Columns of the accumulator in a share."""
        return self.n // self.shares

    @property
    def parts_tile(self) -> Tile:
        """The sums of a share that the blocks of a cluster send.

        Rows are padded by 4 floats, so that a warp's accesses spread over all banks.
        """
        return Tile((self.config.cluster, self.share, self.m + 4), "f32")

    @property
    def stage_nbytes(self) -> int:
        """Bytes of a stage: a tile of a and one of b."""
        return self.a_tile.shared_nbytes + self.b_tile.shared_nbytes

    @property
    def _free(self) -> int:
        """Bytes that a block has for stages."""
        parts = self.parts_tile.nbytes * (self.config.cluster > 1)
        if self._blocks > 1:
            parts += 1024  # CUDA reserves 1 KiB per block
        return SHARED_BYTES // self._blocks - parts

    @property
    @abstractmethod
    def _blocks(self) -> int:
        """Blocks that share the memory of an SM."""

    @property
    def stages(self) -> int:
        """Pipeline stages: as many as the configuration asks for and shared memory holds."""
        return min(self.config.stages, self._free // self.stage_nbytes)


@dataclass(frozen=True)
class SwappedPlan(NarrowPlan):
    """All that a matmul kernel with swapped operands is compiled for."""

    config: SwappedConfig

    REPAIR: ClassVar[str] = "smaller k, m or n, or fewer blocks, or a smaller cluster"

    @property
    def rows(self) -> int:
        """Rows of an output tile."""
        return self.config.m if self.config.first == "a" else self.config.n

    @property
    def columns(self) -> int:
        """Columns of an output tile."""
        return self.config.m if self.config.first == "b" else self.config.n

    @property
    def _blocks(self) -> int:
        return self.config.blocks

    @property
    def threads(self) -> int:
        """Threads of a block: those of `roles`."""
        return 128 * (self.config.m // WGMMA_ROWS) + 32

    @functools.cached_property
    def roles(self) -> Roles:
        """One producer warp (`load`), behind the consumer warpgroups."""
        from numba_tma.pipeline import Roles, Warps

        return Roles(**consumer_roles(self.config.m // WGMMA_ROWS), load=Warps(1))

    @property
    def consumers(self) -> tuple[Role, ...]:
        """The roles of the consumer (MMA) warpgroups."""
        return tuple(role for role in self.roles.roles if role.name != "load")


def consumer_roles(warpgroups: int) -> dict[str, Warpgroups]:
    """Return the roles of consumer warpgroups, each of which stores its rows by itself."""
    from numba_tma.pipeline import Warpgroups

    return {f"mma{i}": Warpgroups(1) for i in range(warpgroups)}


def accumulator_of(operand: DType) -> DType:
    """Return the type in which the tensor cores add up products of this type."""
    return as_dtype("i32" if operand.name in ("i8", "u8") else "f32")


def stored(n: int, major: str) -> int:
    """Return how many rows of shared memory `n` rows of a 16-bit operand occupy.

    MN-major rows occupy the whole of their swizzle span, or whole slabs of 128 bytes.
    """
    if major == "MN" and n > SLAB_ROWS:
        return -(-n // SLAB_ROWS) * SLAB_ROWS
    return unaligned_extent(n, major)


@functools.cache
def shares_of(n: int, cluster: int) -> int:
    """Return how many blocks of a cluster have a share of `n` columns, each a multiple of 8."""
    return max(count for count in range(1, cluster + 1) if n // 8 % count == 0)


def unaligned_extent(n: int, major: str) -> int:
    """Return the extent of an operand that has to be `n` at least, and that threads load.

    A line of a tile has a power of two of 16-byte chunks: along K 8 or 16, along M or N 2 or more.
    """
    return n if major == "K" else max(16, 1 << (n - 1).bit_length())


def operand_tile(rows: int, k: int, dtype: DType, major: str, part: int = 0) -> Tile:
    """Return the tile of `rows` x `k` of an operand.

    MN-major rows lie in one swizzle span, or in slabs of 128 bytes, of which the last may be cut.
    Copies of narrower slabs would request halves of cache lines. If each warpgroup multiplies
    `part` of the rows, these are whole spans.
    """
    if major == "K":
        return row_tile(rows, k, dtype)
    span = max(32, 1 << (rows * dtype.itemsize - 1).bit_length())
    if part:
        span = math.gcd(part * dtype.itemsize, 128)
    return Tile((1, k, rows), dtype, _SWIZZLES[min(128, span)])


def copy_tile(tile: Tile, blocks: int) -> Tile:
    """Return the box of one copy of an operand's tile, whose lines `blocks` share evenly.

    Lines are rows of a K-major operand, and elements of K of an MN-major one, slab by slab.
    """
    if blocks == 1:
        return tile
    return Tile((1, tile.shape[1] // blocks, tile.slab), tile.dtype, tile.swizzle)


def row_tile(rows: int, columns: int, dtype: DType) -> Tile:
    """Return the tile of `rows` x `columns` whose swizzle spans a row, or 128 bytes of it."""
    return Tile((1, rows, columns), dtype, _SWIZZLES[min(128, dtype.shared_nbytes(columns))])
