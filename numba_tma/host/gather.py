"""Tensor maps for rows by number: gather4 and scatter4, and the NumPy model of what they move."""

import functools
from dataclasses import dataclass, replace
from functools import cached_property

from numba_tma.host.annotations import (
    BarrierLike,
    BlockMask,
    CacheHint,
    DeviceArray,
    DTypeLike,
    Integer,
    RowNumbers,
    SharedMemory,
)
from numba_tma.host.array_interface import reading_of
from numba_tma.host.backend import in_kernels
from numba_tma.host.boxes import Copies, padding_store
from numba_tma.host.driver import current_device
from numba_tma.host.encoding import (
    SIMULATED,
    Encoding,
    L2Promotion,
    MapOptions,
    OobFill,
    check_kinds,
    encode,
    option_dtype,
    resolve_dtype,
    say_broken,
)
from numba_tma.host.environment import simulated
from numba_tma.host.host_only import host_only
from numba_tma.host.layout import MAX_BOX, Swizzle, Tile
from numba_tma.host.tensor_map import TensorMap

GROUP = 4  #: rows of one instruction
_UNIT = 128  # alignment of a tensor copy in shared memory, in bytes


@host_only
def gather_map(
    array: DeviceArray,
    tile: Tile,
    *,
    l2_promotion: L2Promotion = 128,
    oob_fill: OobFill = "zeros",
    dtype: DTypeLike | None = None,
    overwrite_padding: bool = False,
) -> "GatherMap":
    """Describe a matrix whose rows are copied by their numbers, in any order.

    A kernel names the rows of a tile one by one: ``x.gather(tile, rows, column, barrier)`` loads
    them, and ``x.scatter(tile, rows, column)`` stores them. On Blackwell an instruction moves 4
    rows (gather4, scatter4), on Hopper one.

    Parameters
    ----------
    array
        A matrix in GPU memory, as for `tensor_map`.
    tile
        Rows x columns in shared memory. The rows are a multiple of 4. A row takes a multiple of 32
        B there, and on Hopper of 128 B: with swizzle B128 every row does.
    l2_promotion, oob_fill, dtype, overwrite_padding
        As for `tensor_map`.

    Raises
    ------
    ValueError
        With all the rules that the arguments break, and the repairs.
    TypeError
        When `array` is not in GPU memory, or `tile` is no `Tile`.
    """
    what = "gather_map"
    if not isinstance(tile, Tile):
        raise TypeError(
            f"{what}: tile is {tile!r}; give a Tile of (rows, columns), such as "
            "Tile((32, 64), 'bf16', Swizzle.B128)"
        )
    view, array, owner = reading_of(array, f"{what}: array")
    address, shape, strides, stored, in_elements = view[:5]
    options = MapOptions(
        tile,
        tile.swizzle,
        l2_promotion,
        oob_fill,
        element_strides=None,
        interleave=None,
        dtype=option_dtype(what, dtype),
        overwrite_padding=overwrite_padding,
        function=what,
    )
    check_kinds(options)
    found, _, wrong = resolve_dtype(stored, options)
    if wrong := wrong + tile_violations(tuple(shape), tile):
        raise ValueError(say_broken(what, wrong))
    options = options._replace(tile_or_box=(1, tile.slab), dtype=found)
    device = SIMULATED if simulated() else current_device()
    place = address, tuple(shape), strides and tuple(strides), stored, in_elements
    return GatherMap(array, owner, _of_rows(encode(device, *place, *options), tile))


def tile_violations(shape: tuple[int, ...], tile: Tile) -> list[str]:
    """List the rules that a tile of rows by number breaks, each with a repair."""
    violations = []
    if len(shape) != 2:
        violations.append(
            f"array has rank {len(shape)}; rows are numbered in a matrix: pass "
            "array.reshape(-1, columns)"
        )
    if tile.ndim != 2:
        return [*violations, f"tile {tile} has {tile.ndim} axes; it is (rows, columns)"]
    if tile.dtype.is_packed:
        return [
            f"tile {tile} has elements of {tile.dtype.bits} bits; rows by number have whole bytes: "
            "use a tile of u8, with the bytes of the rows"
        ]
    rows, _ = tile.shape
    if rows % GROUP:
        violations.append(
            f"tile.shape[0] is {rows} rows; an instruction moves {GROUP}: use "
            f"{-(-rows // GROUP) * GROUP}, and give rows that are not needed a number outside of "
            "the array, -1 for a load"
        )
    if tile.pitch * GROUP % _UNIT:
        unit = _UNIT // GROUP
        violations.append(
            f"a row of {tile} takes {tile.pitch} B in shared memory; {GROUP} rows must start at a "
            f"multiple of {_UNIT} B: use rows of a multiple of {unit} B, which are "
            f"{unit // tile.itemsize} {tile.dtype}, or a swizzle"
        )
    if tile.slab > (most := MAX_BOX // tile.dtype.words):
        violations.append(
            f"tile.shape[1] is {tile.shape[1]} columns; a copy takes 1 to {most} next to each "
            f"other: use {most} or fewer, or a swizzle, whose slabs are narrower"
        )
    return violations


@dataclass(frozen=True)
class RowCopies(Copies):
    """The copies of a tile of rows by number: 4 rows of a slab each."""

    @cached_property
    def cut(self) -> tuple[int, ...]:
        """Extents of what one copy moves."""
        return GROUP, self.tile.slab

    @cached_property
    def starts(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Each copy's byte offset in shared memory, its first row and its first column."""
        return tuple(row_starts(self.tile, GROUP))

    @property
    def count(self) -> int:
        """Number of copies."""
        return len(self.starts)


def row_starts(tile: Tile, together: int) -> list[tuple[int, tuple[int, int]]]:
    """List the copies of a tile, `together` rows of a slab each, as `RowCopies.starts` does."""
    return [
        (slab * tile.slab_nbytes + row * tile.pitch, (row, slab * tile.slab))
        for row in range(0, tile.shape[0], together)
        for slab in range(tile.num_slabs)
    ]


@functools.lru_cache(maxsize=1024)
def _of_rows(plain: Encoding, tile: Tile) -> Encoding:
    """Return the encoding of a map whose box is one row, with the tile that kernels fill."""
    partial = padding_store(tile, plain.shape) or plain.partial_rows
    copies = RowCopies(tile, (1, 1))
    return replace(
        plain, tile=tile, copies=copies, partial_rows=partial, mode="gather", numba_type=None
    )


class GatherMap(TensorMap):
    """A matrix in global memory, and a tile of rows by number; see `gather_map`.

    `box` is one row of a slab, and `copies` are those of Blackwell.
    """

    __slots__ = ()

    def gather(
        self,
        tile: SharedMemory,
        rows: RowNumbers,
        column: Integer,
        barrier: BarrierLike,
        cache_hint: CacheHint = None,
        multicast: BlockMask = None,
        cta_group: int = 1,
    ) -> None:
        """Start the copies of rows of the matrix into a tile in shared memory.

        For kernels. Executed by one thread: each thread that executes it starts its own copies. The
        call returns at once. A thread sees the bytes after it has waited for the phase of `barrier`
        in which they were expected. The copies together count ``tile.nbytes`` on `barrier`.

        Parameters
        ----------
        tile
            Where in shared memory, of the map's own tile type.
        rows
            The numbers of the tile's rows in the matrix: a tuple with an integer for each, or an
            array of integers in global or shared memory that begins with them, which the thread
            reads. A row that is not in the matrix becomes `oob_fill`; -1 is such a row. A row may
            be named twice.
        column
            First column of the tile. It may be negative or past the end, and times the element
            size is a multiple of 16 bytes.
        barrier
            The barrier that gets the bytes; it must expect them in its current phase.
        cache_hint
            How long the data should stay in the L2 cache, if it matters.
        multicast
            The blocks of the cluster that get the tile, as for `TensorMap.load`.
        cta_group
            2 if the bytes count on the barrier of the even block of a CTA pair, as for
            `TensorMap.load`.

        Notes
        -----
        On Blackwell PTX ``cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4
        .mbarrier::complete_tx::bytes``, for 4 rows of a slab; with `multicast` or
        `cta_group` 2, on GPUs with tensor memory, ``.shared::cluster``. On all others the load of a
        tensor map, for each row.
        """
        in_kernels("gather")(self, tile, rows, column, barrier, cache_hint, multicast, cta_group)

    def scatter(
        self, tile: SharedMemory, rows: RowNumbers, column: Integer, cache_hint: CacheHint = None
    ) -> None:
        """Start the copies of a tile in shared memory into rows of the matrix.

        For kernels. To be executed by one thread, under the rules of `TensorMap.store`: after
        `fence_proxy_async` by the writers and a barrier, and it joins the thread's bulk group. A
        row past the matrix's end is not stored. If two rows of the tile have one number, either is
        stored last.

        Parameters
        ----------
        tile, rows, column, cache_hint
            Those of `gather`, but no row and no column is negative: on a GPU that is an illegal
            instruction, which loses the context.

        Notes
        -----
        On GPUs with tensor memory PTX ``cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4
        .bulk_group``, for 4 rows of a slab. On all others the store of a tensor map, for each row.
        """
        in_kernels("scatter")(self, tile, rows, column, cache_hint)

    def prefetch_rows(
        self, rows: RowNumbers, column: Integer, cache_hint: CacheHint = None
    ) -> None:
        """Start to bring rows of the matrix into the L2 cache, ahead of their `gather`.

        For kernels. Executed by one thread. The prefetch is a hint; nothing waits for it.

        Parameters
        ----------
        rows, column, cache_hint
            Those of `gather`.

        Notes
        -----
        On GPUs with tensor memory PTX ``cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4``.
        On all others ``cp.async.bulk.prefetch.tensor``, for each row.
        """
        in_kernels("prefetch_rows")(self, rows, column, cache_hint)

    def __repr__(self) -> str:
        return (
            f"GatherMap({self.dtype}, shape {self.shape}, strides {self.strides} B, address "
            f"{self.address:#x}, tile {self.tile}, rows by number, oob_fill {self.oob_fill!r})"
        )


def row_pitch_violation(tile: Tile) -> str:
    """Say why single rows of a tile cannot be copied by tensor copies; "" if they can."""
    if tile.pitch % _UNIT == 0:
        return ""
    wide = _UNIT // tile.itemsize
    return (
        f"this GPU copies rows by number one by one, and a row of {tile} takes {tile.pitch} B in "
        f"shared memory, where a tensor copy starts at a multiple of {_UNIT} B: use "
        f"Swizzle.{Swizzle.B128.name}, or unswizzled rows of a multiple of {wide} {tile.dtype}; or "
        "gather_rows with the array in place of the map, which copies bytes of unswizzled rows"
    )
