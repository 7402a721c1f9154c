"""Rows by number: the methods of a `GatherMap` in kernels, and the same for rows of an array.

The methods' signatures and promises stand in `numba_tma.host.gather.GatherMap`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numba_tma.backend.interface import (
    Unknown,
    compile_time,
    device_function,
    i32,
    native,
    simulator_only,
)
from numba_tma.device.barrier import pair_barrier
from numba_tma.device.copy_rules import check_pair, check_rows, is_map
from numba_tma.device.shared import SharedTile
from numba_tma.host.annotations import DeviceArray, Integer, RowNumbers
from numba_tma.host.gather import GatherMap
from numba_tma.host.tensor_map import TensorMap
from numba_tma.ptx import (
    cp_async_bulk_load,
    cp_async_bulk_prefetch_tensor_gather4,
    cp_async_bulk_store,
    cp_async_bulk_tensor_gather4,
    cp_async_bulk_tensor_scatter4,
)
from numba_tma.ptx._instruction import BarrierAddress, CacheHint, TileAddress, tile_address
from numba_tma.ptx.blackwell import CtaGroup
from numba_tma.simulator import BadCoordinate, BadOperand

# ------------------------------------------------------------------------ methods of a map


@device_function
def _four(rows: RowNumbers, first: int) -> tuple[int, int, int, int]:
    return i32(rows[first]), i32(rows[first + 1]), i32(rows[first + 2]), i32(rows[first + 3])


@native
def gather(
    tensor_map: GatherMap,
    tile: TileAddress,
    rows: RowNumbers,
    column: Integer,
    barrier: BarrierAddress,
    cache_hint: CacheHint = None,
    multicast: int | None = None,
    cta_group: CtaGroup = 1,
) -> None:
    """Run `GatherMap.gather`."""
    check_rows("GatherMap.gather", tensor_map, tile, rows, column)
    check_pair("GatherMap.gather", barrier, cta_group)
    base = tile_address("GatherMap.gather", tile)
    home = pair_barrier(barrier) if cta_group == 2 else barrier
    group: CtaGroup | None = 2 if cta_group == 2 else None
    for offset, (first, skipped) in tensor_map.copies.starts:
        numbers = _four(rows, first)
        destination, moved = base + offset, (int(column) + skipped) * tensor_map.copies.words
        cp_async_bulk_tensor_gather4(
            destination, tensor_map, *numbers, moved, home, cache_hint, multicast, group
        )


@native
def scatter(
    tensor_map: GatherMap,
    tile: TileAddress,
    rows: RowNumbers,
    column: Integer,
    cache_hint: CacheHint = None,
) -> None:
    """Run `GatherMap.scatter`."""
    check_rows("GatherMap.scatter", tensor_map, tile, rows, column)
    for offset, (first, skipped) in tensor_map.copies.starts:
        numbers = _four(rows, first)
        moved = (int(column) + skipped) * tensor_map.copies.words
        source = tile_address("GatherMap.scatter", tile) + offset
        cp_async_bulk_tensor_scatter4(tensor_map, *numbers, moved, source, cache_hint)


@native
def prefetch_rows(
    tensor_map: GatherMap, rows: RowNumbers, column: Integer, cache_hint: CacheHint = None
) -> None:
    """Run `GatherMap.prefetch_rows`."""
    check_rows("GatherMap.prefetch_rows", tensor_map, None, rows, column)
    for _, (first, skipped) in tensor_map.copies.starts:
        numbers = _four(rows, first)
        moved = (int(column) + skipped) * tensor_map.copies.words
        cp_async_bulk_prefetch_tensor_gather4(tensor_map, *numbers, moved, cache_hint)


# Row numbers in memory are read group by group, in a loop.


@native
def gather_group(
    tensor_map: GatherMap,
    tile: TileAddress,
    rows: tuple[int, ...],
    column: Integer,
    barrier: BarrierAddress,
    cache_hint: CacheHint,
    multicast: int | None,
    cta_group: CtaGroup,
    first: Integer,
) -> None:
    """Gather 4 rows of a tile, from its row `first` on. Only lowerings call it."""
    raise NotImplementedError


@native
def scatter_group(
    tensor_map: GatherMap,
    tile: TileAddress,
    rows: tuple[int, ...],
    column: Integer,
    cache_hint: CacheHint,
    first: Integer,
) -> None:
    """Scatter 4 rows of a tile, from its row `first` on. Only lowerings call it."""
    raise NotImplementedError


@native
def prefetch_group(
    tensor_map: GatherMap, rows: tuple[int, ...], column: Integer, cache_hint: CacheHint
) -> None:
    """Prefetch 4 rows. Only lowerings call it."""
    raise NotImplementedError


@compile_time
def rows_of(tensor_map: GatherMap) -> int:
    """Return the rows of a map's tile."""
    return tensor_map.tile.shape[0]


@device_function
def gather_listed(
    tensor_map: GatherMap,
    tile: TileAddress,
    rows: RowNumbers,
    column: Integer,
    barrier: BarrierAddress,
    cache_hint: CacheHint,
    multicast: int | None,
    cta_group: CtaGroup,
) -> None:
    """Gather the rows whose numbers an array has."""
    for first in range(0, rows_of(tensor_map), 4):
        numbers = _four(rows, first)
        gather_group(
            tensor_map, tile, numbers, column, barrier, cache_hint, multicast, cta_group, first
        )


@device_function
def scatter_listed(
    tensor_map: GatherMap,
    tile: TileAddress,
    rows: RowNumbers,
    column: Integer,
    cache_hint: CacheHint,
) -> None:
    """Scatter to the rows whose numbers an array has."""
    for first in range(0, rows_of(tensor_map), 4):
        scatter_group(tensor_map, tile, _four(rows, first), column, cache_hint, first)


@device_function
def prefetch_listed(
    tensor_map: GatherMap, rows: RowNumbers, column: Integer, cache_hint: CacheHint
) -> None:
    """Prefetch the rows whose numbers an array has."""
    for first in range(0, rows_of(tensor_map), 4):
        prefetch_group(tensor_map, _four(rows, first), column, cache_hint)


# ------------------------------------------------------------------------ maps and arrays


@device_function
def gather_rows(
    tile: SharedTile,
    source: DeviceArray,
    rows: RowNumbers,
    barrier: BarrierAddress,
    column: Integer = 0,
    cache_hint: CacheHint = None,
) -> None:
    """Start the copies of rows of a matrix, by their numbers, into a tile in shared memory.

    Executed by one thread. The copies together count ``tile.nbytes`` on `barrier`, which must
    expect them. The call returns at once, and orders nothing.

    Parameters
    ----------
    tile
        A `SharedTile` of rows x columns.
    source
        A map of `gather_map`: then this is `GatherMap.gather`. Or the matrix itself, a Numba array
        whose rows are contiguous: then one bulk copy moves each row, on every GPU with TMA.
        Bulk copies know no swizzle and no edge of the matrix: the tile is unswizzled, its rows
        have a multiple of 16 B, and they begin at a multiple of 16 B in the matrix. All rows and
        columns of the tile lie in the matrix.
    rows
        The numbers of the tile's rows in the matrix: a tuple of integers, or an array of integers
        that begins with them. For a matrix also an integer, the first of rows in order.
    barrier
        The barrier that gets the bytes.
    column
        First column of the tile in the matrix.
    cache_hint
        How long the data should stay in the L2 cache, if it matters.

    Notes
    -----
    PTX of `GatherMap.gather`, or
    ``cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes`` for each row.
    """
    if is_gather_map("gather_rows", source):
        source.gather(tile, rows, column, barrier, cache_hint)
    else:
        nbytes = row_nbytes("gather_rows", tile, source, rows)
        for i in range(rows_in(tile)):
            number = rows + i if counts_up(rows) else rows[i]
            check_place("gather_rows", source, number, column, tile)
            part = source[number, column:]
            cp_async_bulk_load(tile.address + i * nbytes, part, nbytes, barrier, cache_hint)


@device_function
def scatter_rows(
    tile: SharedTile,
    target: DeviceArray,
    rows: RowNumbers,
    column: Integer = 0,
    count: Integer | None = None,
    cache_hint: CacheHint = None,
) -> None:
    """Start the copies of a tile's rows into rows of a matrix, by their numbers.

    Executed by one thread, under the rules of `TensorMap.store`: after `fence_proxy_async` by the
    writers and a barrier, and the copies join the thread's bulk group.

    Parameters
    ----------
    tile
        A `SharedTile` of rows x columns.
    target
        A map of `gather_map`: then this is `GatherMap.scatter`. Or the matrix itself, under the
        rules of `gather_rows`.
    rows
        The numbers of the tile's rows in the matrix, as for `gather_rows`.
    column
        First column of the tile in the matrix.
    count
        Only for a matrix: how many rows are stored, the first ones; by default all. This is the row
        loop for the end of a sequence whose array no ragged map describes.
    cache_hint
        How long the data should stay in the L2 cache, if it matters.

    Notes
    -----
    PTX of `GatherMap.scatter`, or ``cp.async.bulk.global.shared::cta.bulk_group`` for each row.
    """
    if is_gather_map("scatter_rows", target):
        require_all_rows(count)
        target.scatter(tile, rows, column, cache_hint)
    else:
        nbytes = row_nbytes("scatter_rows", tile, target, rows)
        rows_stored = rows_in(tile) if count is None else min(rows_in(tile), int(count))
        for i in range(rows_stored):
            number = rows + i if counts_up(rows) else rows[i]
            check_place("scatter_rows", target, number, column, tile)
            part = target[number, column:]
            cp_async_bulk_store(part, tile.address + i * nbytes, nbytes, cache_hint)


@compile_time
def is_gather_map(what: str, given: DeviceArray) -> bool:
    """Return whether an operand is a map; raise if it is another map than that of `gather_map`."""
    if not (is_map(given) if isinstance(given, Unknown) else isinstance(given, TensorMap)):
        return False
    if given.mode != "gather":
        raise BadOperand(f"{what} takes a map of gather_map, or the array, not {given}")
    return True


@compile_time
def counts_up(rows: object) -> bool:
    """Return whether the rows are given by the first of them."""
    return rows.is_integer if isinstance(rows, Unknown) else isinstance(rows, int | np.integer)


@compile_time
def rows_in(tile: SharedTile) -> int:
    """Return the rows of a tile."""
    return tile.tile.shape[0]


@compile_time
def require_all_rows(count: object) -> None:
    """Raise if a scatter through a map has a number of rows."""
    if count is not None:
        raise BadOperand(
            "scatter_rows(count=...) is for an array; a map stores all rows of the tile but those "
            "past the matrix's end: give the others the number of such a row"
        )


@native
def row_nbytes(what: str, tile: SharedTile, array: DeviceArray, rows: RowNumbers) -> int:
    """Return the bytes of a tile's row; raise unless bulk copies can move it."""
    shape = getattr(array, "shape", ())
    listed = len(rows) if isinstance(rows, tuple) else None
    wrong = bulk_violation(what, tile.tile, len(shape), array.dtype.itemsize, listed)
    if wrong:
        raise BadOperand(wrong)
    return tile.tile.shape[1] * tile.tile.itemsize


def bulk_violation(what: str, tile: Any, rank: int, itemsize: int, listed: int | None) -> str:
    """Say why bulk copies cannot move rows between a matrix and a tile; "" if they can."""
    if tile.ndim != 2 or rank != 2:
        return f"{what}: the tile is {tile} and the array has rank {rank}; both are matrices"
    if tile.dtype.is_packed:
        return f"{what}: {tile} has elements of {tile.dtype.bits} bits: use a tile of u8"
    nbytes = tile.shape[1] * tile.itemsize
    if tile.swizzle:
        return (
            f"{what}: {tile} is swizzled, and an array's rows are moved by bulk copies, which know "
            "no swizzle: pass gather_map(array, tile) in place of the array, or use an unswizzled "
            "tile"
        )
    if itemsize != tile.itemsize:
        return f"{what}: the array has {itemsize} B an element, {tile} {tile.itemsize} B"
    if nbytes % 16:
        return (
            f"{what}: a row of {tile} has {nbytes} B; a bulk copy moves a multiple of 16 B: use "
            f"a multiple of {tile.dtype.chunk} columns"
        )
    if listed is not None and listed != tile.shape[0]:
        return f"{what}: {listed} row numbers for {tile}; give one for each of its rows"
    return ""


@simulator_only
def check_place(
    what: str, array: DeviceArray, row: Integer, column: Integer, tile: SharedTile
) -> None:
    """Raise unless a row of a tile lies in a matrix."""
    shape, wide = array.shape, tile.tile.shape[1]
    if not 0 <= row < shape[0] or not 0 <= column <= shape[1] - wide:
        raise BadCoordinate(
            f"{what}: row {row}, columns {column} to {int(column) + wide - 1}, is not in the "
            f"array, which has shape {shape}; bulk copies know no edges: use a map of gather_map, "
            "which fills what lies outside"
        )
