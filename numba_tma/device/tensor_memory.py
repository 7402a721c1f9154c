"""`TensorMemory`: a block's columns of tensor memory, and their allocation."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Protocol

from numba_tma.backend.interface import (
    Constant,
    Unknown,
    compile_target,
    compile_time,
    constant_class,
    device_class,
    device_function,
    u32,
)
from numba_tma.backend.primitives import add32, allocate_shared, require_cluster
from numba_tma.device.clusters import cluster_sync
from numba_tma.device.tensor_columns import claim_columns
from numba_tma.device.tensor_tile import TensorTile
from numba_tma.host import tensor_tiles
from numba_tma.host.annotations import DTypeLike
from numba_tma.host.architectures import TCGEN05, product_refusal
from numba_tma.host.cluster_rules import check_group, pair_cluster
from numba_tma.host.layout import Tile
from numba_tma.host.tensor_tiles import (
    COLUMNS,
    Accumulator,
    ColumnClaim,
    TensorLayout,
    TensorMetadata,
    TensorOperand,
    TensorScales,
    allocated_columns,
)
from numba_tma.ptx import (
    bar_warp_sync,
    barrier_sync,
    ld_shared_u32,
    ntid_x,
    tcgen05_alloc,
    tcgen05_dealloc,
    tcgen05_fence_after_thread_sync,
    tcgen05_fence_before_thread_sync,
    tcgen05_relinquish_alloc_permit,
    tid_x,
)
from numba_tma.simulator import BadOperand

WARP = 32


class HasThreads(Protocol):
    """A role of a kernel's `Roles`."""

    @property
    def first(self) -> int:
        """threadIdx.x of its first thread."""

    @property
    def sync_threads(self) -> int:
        """Threads of its warps."""


@dataclass(frozen=True)
class TensorMemory:
    """Columns of tensor memory that a block allocates for its whole life.

    Made on the host, used from a kernel's globals. A block starts one allocation: a `TensorMemory`,
    or that of an `OutputTilePipeline`, whose `extra_columns` are for other tiles of the kernel.

    Parameters
    ----------
    columns
        Columns of 128 cells of 32 bits, at most 512. A power of two from 32 on is allocated.
    role
        The role whose first warp allocates and frees the columns; by default warp 0.
    cta_group
        2 if two blocks of a cluster multiply as a CTA pair: each allocates the same columns.
    cluster
        Blocks of the kernel's cluster along x and y; with `cta_group` 2 a pair by default.

    Examples
    --------
    >>> TensorMemory(192).num_columns
    256
    """

    device_methods = ("start", "_allocates")
    launch_kind = "line"
    cluster_feature = "a CTA pair"
    columns: int
    first: int
    threads: int  #: of the block; 0 if no role says it
    cta_group: int
    cluster: tuple[int, int]

    def __init__(
        self,
        columns: int = COLUMNS,
        *,
        role: HasThreads | None = None,
        cta_group: int = 1,
        cluster: int | tuple[int, int] | None = None,
    ) -> None:
        try:
            used = operator.index(columns)
        except TypeError:
            used = 0
        if not 1 <= used <= COLUMNS:
            raise ValueError(
                f"TensorMemory(columns={columns!r}): a block has {COLUMNS} columns of tensor "
                f"memory: use 1 to {COLUMNS}"
            )
        first = getattr(role, "first", 0 if role is None else None)
        if first is None or (role is not None and role.sync_threads % WARP):
            raise TypeError(
                f"TensorMemory(role=...) takes a role of warps, as ROLES.mma with ROLES = "
                f"Roles(mma=Warps(1), epilogue=Warpgroups(1)), not {role!r}"
            )
        check_group("TensorMemory", cta_group)
        object.__setattr__(self, "columns", used)
        object.__setattr__(self, "first", first // WARP * WARP)
        object.__setattr__(self, "threads", getattr(role, "block", 0))
        object.__setattr__(self, "cta_group", cta_group)
        object.__setattr__(self, "cluster", pair_cluster("TensorMemory", cta_group, cluster))

    def __repr__(self) -> str:
        pair = f", cta_group=2, cluster={self.cluster}" if self.cta_group == 2 else ""
        return f"TensorMemory({self.columns}{pair})"

    @property
    def num_columns(self) -> int:
        """Columns that are allocated: a power of two from 32 on."""
        return allocated_columns(self.columns)

    def shared_parts(self, what: str) -> dict[str, int]:
        """Return the bytes by part, for the error of too much shared memory."""
        return {what: 4}

    def cluster_rule(self, given: tuple[int, ...]) -> str:
        """Return the error of a kernel that runs in clusters of another size."""
        return (
            f"{self} is for clusters of {self.cluster}, but the kernel runs in clusters of "
            f"{given}: put @tma.cluster({self.cluster}) below @cuda.jit"
        )

    def start(self) -> TensorMemoryHandle:
        """Allocate the columns and return the handle.

        Executed once by every thread of the block, converged warps, so not inside a loop. One warp
        allocates (tcgen05.alloc) and gives up the permit to allocate more
        (tcgen05.relinquish_alloc_permit), so that other blocks of the SM can allocate. The call
        synchronises the block, or with `cta_group` 2 the cluster. It waits while other blocks have
        the columns.
        """
        check_target(self, "TensorMemory.start()")
        if self.cta_group == 2:
            require_cluster(self)
        destination = allocate_shared(self, 4, 4, "address", self.launch_kind)
        allocate(self, destination)
        tcgen05_fence_before_thread_sync()
        if self.cta_group == 2:
            cluster_sync()
        else:
            barrier_sync(0, self.threads or ntid_x())
        tcgen05_fence_after_thread_sync()
        return TensorMemoryHandle(self, ld_shared_u32(destination))

    def _allocates(self) -> bool:
        """Return whether the thread is in the warp that allocates and frees."""
        return tid_x() // u32(WARP) == self.first // WARP


@device_function
def allocate(memory: TensorMemory, destination: int) -> None:
    """Allocate the columns by one warp, which writes their address to shared memory."""
    if memory._allocates():
        tcgen05_alloc(destination, memory.num_columns, memory.cta_group)  # type: ignore[arg-type]
        tcgen05_relinquish_alloc_permit(memory.cta_group)  # type: ignore[arg-type]


@device_function
def free(memory: TensorMemory, address: int) -> None:
    """Free the columns by the warp that has allocated them, after every access."""
    if memory._allocates():
        tcgen05_dealloc(address, memory.num_columns, memory.cta_group)  # type: ignore[arg-type]


@device_class(static=("memory",))
@dataclass(frozen=True)
class TensorMemoryHandle:
    """A started `TensorMemory`: ``handle.address`` is that of its first column."""

    memory: TensorMemory
    address: u32

    def tile(
        self,
        m: Constant[int],
        n: Constant[int],
        dtype: Constant[DTypeLike] = "f32",
        column: Constant[int] = 0,
        ws: Constant[bool] = False,
    ) -> TensorTile:
        """Return an accumulator of m x n elements, from `column` on.

        It takes n columns, or half of them if both blocks of a pair together have 128 rows. Making
        one emits no instruction, and initialises nothing. Tiles that share columns, or do not fit
        into the allocation, are an error when the kernel is compiled.

        Parameters
        ----------
        m, n
            Literals. m is 64 or 128; with `cta_group` 2 it is that of both blocks, 128 or 256.
        dtype
            ``"f32"``, ``"f16"`` or ``"i32"``.
        column
            First column of the allocation. A run-time value is not checked.
        ws
            Whether it is that of `tcgen05_mma_ws`: m 32, 64 or 128, and n 64, 128 or 256. With m 64
            and 32 it takes n / 2 and n / 4 columns, and all lanes: column j of D is column
            j mod (n / 2) or (n / 4) of the lanes 64 (j // (n / 2)) or 32 (j // (n / 4)) on.
        """
        layout = accumulator_of(self.memory, m, n, dtype, ws)
        return TensorTile(layout, self._claimed(layout, column))

    def operand(
        self,
        m: Constant[int],
        k: Constant[int],
        dtype: Constant[DTypeLike],
        column: Constant[int] = 0,
        ws: Constant[bool] = False,
    ) -> TensorTile:
        """Return an operand A of m x k elements, from `column` on.

        Types are f16, bf16, e4m3, e5m2, i8, u8 and f32; integers keep their low 8 bits. A cell has
        as many elements as fit, so that k elements of 16 bits take k / 2 columns.
        `TensorTile.operand` returns one in an accumulator's columns. `ws` is that of `tile`: all
        threads then store A, those of several lanes the same row.
        """
        layout = operand_of(self.memory, m, k, dtype, ws)
        return TensorTile(layout, self._claimed(layout, column))

    def metadata(
        self,
        m: Constant[int],
        k: Constant[int],
        dtype: Constant[DTypeLike],
        column: Constant[int] = 0,
        ws: Constant[bool] = False,
    ) -> TensorTile:
        """Return the columns for the metadata of a sparse A, from `column` on; see `tcgen05_copy`.

        They take 4 columns for each 128 elements along K, 64 of 32 bits: the words that
        `sparse_compress` returns.

        Parameters
        ----------
        m
            Rows of A, of both blocks of a pair: 128 in each. With `ws` also 64 or 32.
        k
            Elements of A along K, those that are not stored included.
        dtype
            Type of A: f16, bf16, f32, tf32, i8, u8, e4m3, e5m2, e3m2, e2m3 or e2m1_unpacked.
        column
            First column of the allocation, a multiple of 2.
        ws
            Whether it is for `tcgen05_mma_ws`.
        """
        layout = metadata_of(self.memory, m, k, dtype, ws)
        return TensorTile(layout, self._claimed(layout, column))

    def scales(
        self,
        tile: Constant[Tile],
        column: Constant[int] = 0,
        block: Constant[int | None] = None,
    ) -> TensorTile:
        """Return the columns for the scale factors of a tile, from `column` on; see `tcgen05_copy`.

        Each atom of 128 rows x 4 factors, 512 B, takes 4 columns.

        Parameters
        ----------
        tile
            The tile of scale factors in shared memory: ``(atoms of rows, atoms of K, 2, 256)`` of
            ``"ue8m0"`` or ``"ue4m3"``, as `scale_tile` makes it. Its rows are those of A that the
            block has, or all N columns of B, also in each block of a pair.
        column
            First column of the allocation.
        block
            Elements along K that share a factor: 32, or 16. By default 16 for ue4m3, else 32.
        """
        layout = scales_of(self.memory, tile, block)
        return TensorTile(layout, self._claimed(layout, column))

    def enters(self) -> bool:
        """Return True: every thread of the block executes the scope."""
        return True

    def close(self) -> None:
        """Synchronise the block, or with `cta_group` 2 the cluster, and free the columns.

        Executed once by every thread of the block, after its last access to tensor memory: no
        product may be under way, so a thread has waited for the last commit.
        """
        tcgen05_fence_before_thread_sync()
        if self.memory.cta_group == 2:
            cluster_sync()
        else:
            barrier_sync(0, self.memory.threads or ntid_x())
        tcgen05_fence_after_thread_sync()
        bar_warp_sync()
        free(self.memory, self.address)

    def _claimed(self, layout: Constant[TensorLayout], column: Constant[int]) -> int:
        """Return the address of `column`, whose columns no other matrix has."""
        claim = claim_of(self.memory, layout, column)
        if claim is not None:
            claim_columns(claim)
        return add32(self.address, column)


constant_class(TensorMemory)


# ------------------------------------------------------------------- when a kernel is compiled


@compile_time
def check_target(owner: object, what: str) -> None:
    """Raise if the target of the compile has no tensor memory."""
    target = compile_target()
    if target and not TCGEN05.allow(target):
        raise BadOperand(product_refusal(f"{what} of {owner}", TCGEN05, target))


@compile_time
def accumulator_of(memory: TensorMemory, m: int, n: int, dtype: DTypeLike, ws: bool) -> Accumulator:
    """Return the layout of an accumulator, or raise."""
    return tensor_tiles.accumulator(m, n, dtype, memory.cta_group, ws)


@compile_time
def operand_of(memory: TensorMemory, m: int, k: int, dtype: DTypeLike, ws: bool) -> TensorOperand:
    """Return the layout of an operand A, or raise."""
    return tensor_tiles.tensor_operand(m, k, dtype, memory.cta_group, ws)


@compile_time
def metadata_of(memory: TensorMemory, m: int, k: int, dtype: DTypeLike, ws: bool) -> TensorMetadata:
    """Return the layout of the metadata of a sparse A, or raise."""
    return tensor_tiles.tensor_metadata(m, k, dtype, memory.cta_group, ws)


@compile_time
def scales_of(memory: TensorMemory, tile: Tile, block: int | None) -> TensorScales:
    """Return the layout of scale factors, or raise."""
    return tensor_tiles.tensor_scales(tile, block, memory.cta_group)


@compile_time
def claim_of(memory: TensorMemory, layout: TensorLayout, column: int) -> ColumnClaim | None:
    """Return the columns that a matrix takes, or None for a run-time column; raise if too many."""
    if isinstance(column, Unknown):
        if not column.is_integer:
            raise BadOperand(f"{layout}: column takes an integer, not {column}")
        tensor_tiles.check_columns(layout, 0, memory.num_columns, repr(memory))
        return None
    tensor_tiles.check_columns(layout, column, memory.num_columns, repr(memory))
    return ColumnClaim(repr(memory), column, layout.columns, str(layout))
