"""The kernel of column sums: a tile of columns and a part of the rows for each block.

A thread adds the accesses of its columns, down its part of the rows, in registers. The threads of a
block add up their sums in shared memory. If other blocks have the tile's columns in other rows,
each writes its sums to a workspace, and the last one adds these up, as it added up the rows.

A row that begins within an access is read in the accesses that it touches (`UNALIGNED`). All rows
of a part begin at one distance from a multiple of 16 B, so that a thread has the same columns in
each. What an access has of other rows, or between rows, is added up, too, and then left out; no
access goes beyond the matrix.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i32, i64, u32
from numba_tma.backend.primitives import quotient
from numba_tma.device.row_share import (
    from_float,
    load_global,
    load_shared,
    store_global,
    to_float,
    write_floats,
    zeros,
)
from numba_tma.device.share import Share
from numba_tma.device.shared import shared_tile
from numba_tma.host.annotations import Address, DeviceFunction, Integer, Kernel, Registers
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.layout import Tile
from numba_tma.kernels.rows.columns.plan import (
    BATCH,
    BLOCKS,
    FEW_BATCH,
    FEW_COLUMNS,
    FEW_THREADS,
    THREADS,
)
from numba_tma.kernels.rows.plan import UNALIGNED

FLOAT = Share(as_dtype("f32"), 4, 1, 1, False)  #: An element of a row of sums.
SUMS = Share(as_dtype("f32"), 16, 1, 1, False)  #: An access to a row of the workspace.
FAR = 1 << 30  #: Bytes, and more than an access has.


@device_function
def parts_of(number: Integer, size: Integer) -> tuple[int, int]:
    """Divide by a size: how many times it goes into the number, and what is left."""
    times, left = quotient(u32(number), u32(size))
    return i32(times), i32(left)


@device_function
def read_sum(sums: Integer, i: Integer, count: Integer) -> Registers:
    """Read the element `i` of `count` in shared memory; 0 past them."""
    return to_float(FLOAT, load_shared(FLOAT, sums, i, count))


@device_function
def read_four(sums: Integer, i: Integer, size: Integer, count: Integer) -> Registers:
    """Return the sum of the elements i, i + size, i + 2 * size and i + 3 * size."""
    low = read_sum(sums, i, count) + read_sum(sums, i32(i + size), count)
    third, fourth = i32(i + 2 * size), i32(i + 3 * size)
    return low + (read_sum(sums, third, count) + read_sum(sums, fourth, count))


@device_function
def fold_rows(sums: Integer, rows: Integer, columns: Integer) -> None:
    """Add up rows in shared memory, eight at a time; the first row becomes the sum of all.

    Executed by all threads of the block, before and after which it synchronises.
    """
    cuda.syncthreads()
    while rows > 1:
        count, fewer = i32(rows * columns), i32((rows + 7) >> 3)
        size, i = i32(fewer * columns), i32(cuda.threadIdx.x)
        rows, first = fewer, i32(0)
        while first < size:  # all threads meet in it, so that the compiler does not unroll it
            far = i32(i + 4 * size)
            total = read_four(sums, i, size, count) + read_four(sums, far, size, count)
            if i < size:
                ptx.st_shared_f32(u32(sums + 4 * i), total[0])
            i, first = i32(i + THREADS), i32(first + THREADS)
            cuda.syncthreads()


@device_function
def is_last(counter: Address, blocks: Integer, answer: int) -> bool:
    """Return whether all other blocks that share a counter have been here; it becomes 0 again.

    Executed by all threads of the block. Orders what blocks wrote before for those that read
    afterwards. `answer` is the address of a word in shared memory.
    """
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        ptx.fence_acq_rel("gpu")
        before = ptx.atom_inc(counter, u32(blocks - 1))
        ptx.fence_acq_rel("gpu")
        ptx.st_shared_u32(answer, before)
    cuda.syncthreads()
    return ptx.ld_shared_u32(answer) == u32(blocks - 1)


class Accesses(NamedTuple):
    """A thread's accesses, one for each row."""

    place: Address  #: Of row 0.
    stride: Integer  #: Bytes from one row to the next.
    low: Integer  #: What `load` takes as its second argument,
    high: Integer  #: and as its third.


def access_within(share: Share) -> DeviceFunction:
    """Return ``load(place, begin, end, is_row)``: the access at `place` within a range of memory.

    An access is 0 if the row does not exist, and so are its elements beyond the range.
    """
    SHARE, UNIT = share, share.unit

    @device_function
    def load_whole(place: Address, begin: Address, end: Address, is_row: bool) -> Registers:
        num = 1 if is_row and place < end else 0
        return to_float(SHARE, load_global(SHARE, place, i32(0), i32(num)))

    @device_function
    def load_touched(place: Address, begin: Address, end: Address, is_row: bool) -> Registers:
        location = max(place, begin)
        limit = min(end - location, FAR) // UNIT if is_row and location < end else 0
        first = (place - location) // UNIT
        return to_float(SHARE, load_global(SHARE, location, i32(first), i32(limit)))

    return load_whole if share.aligned else load_touched


def add_up(share: Share, load: DeviceFunction, batch: int = BATCH) -> DeviceFunction:
    """Return ``add(accesses, row, rows, step)``: the sum of a thread's accesses.

    They are those in the rows row, row + step, ... below `rows`; `load` is as `access_within` has
    it. `batch` of them, 4 or 8, are in flight at a time.
    """
    SHARE, ROWS = share, batch

    @device_function
    def load_at(at: Accesses, row: Integer, rows: Integer) -> Registers:
        return load(at.place + row * at.stride, at.low, at.high, row < rows)

    @device_function
    def add_four(at: Accesses, row: Integer, rows: Integer, step: Integer) -> Registers:
        a, b = load_at(at, row, rows), load_at(at, row + step, rows)
        c, d = load_at(at, row + 2 * step, rows), load_at(at, row + 3 * step, rows)
        return (a + b) + (c + d)

    @device_function
    def add_eight(at: Accesses, row: Integer, rows: Integer, step: Integer) -> Registers:
        return add_four(at, row, rows, step) + add_four(at, row + 4 * step, rows, step)

    add_batch = add_eight if batch == 8 else add_four

    @device_function
    def add(at: Accesses, row: Integer, rows: Integer, step: Integer) -> Registers:
        values = zeros(SHARE)
        while row < rows:
            values = values + add_batch(at, row, rows, step)
            row += ROWS * step
        return values

    return add


@functools.cache
def column_sums_kernel(dtype: DType, width: int, out: DType) -> Kernel:
    """Return the kernel for elements of `dtype`; `width` is 16 or `UNALIGNED`."""
    SHARE = Share(dtype, 16, 1, 1, False, aligned=width != UNALIGNED)
    OUT = Share(out, out.itemsize, 1, 1, False)
    ITEM, LANES = dtype.itemsize, SHARE.lanes
    SHARED, ANSWER = Tile((THREADS * LANES,), "f32"), Tile((4,), "u32")
    add_rows, add_sums = (add_up(share, access_within(share)) for share in (SHARE, SUMS))

    @cuda.jit(launch_bounds=(THREADS, BLOCKS))
    def column_sums(x, sizes, sums, counters, y):  # type: ignore[no-untyped-def]
        shared, answer = shared_tile(SHARED), shared_tile(ANSWER)
        own, thread = shared.address_of((0,)), i32(cuda.threadIdx.x)
        group, tile = parts_of(cuda.blockIdx.x, sizes.tiles)
        begin = tile * sizes.tile_columns
        columns = i32(min(sizes.tile_columns, sizes.columns - begin))
        down, across = parts_of(thread, sizes.across)
        part, parts = i64(group * sizes.down + down), i64(sizes.groups * sizes.down)
        start = x.address + part * x.stride + begin * ITEM
        before = start & 15
        column = i32(across * LANES - before // ITEM)
        if down < sizes.down and column < columns:
            place = start - before + across * 16 - part * x.stride
            accesses = Accesses(place, x.stride, sizes.begin, sizes.end)
            values = add_rows(accesses, part, sizes.rows, parts)
            write_floats(SHARE, u32(own + 4 * down * columns), column, columns, values)
        rows, columns = i32(sizes.down * sizes.packed), parts_of(columns, sizes.packed)[0]
        fold_rows(own, rows, columns)
        if sizes.groups > 1:
            padded = i32((columns + 3) // 4 * 4)
            pitch, groups = i64(4 * padded), i64(sizes.groups)
            widest = parts_of(sizes.tile_columns, sizes.packed)[0]
            place = sums + 4 * ((widest + 3) // 4 * 4) * groups * tile
            value = from_float(FLOAT, read_sum(own, thread, columns))
            store_global(FLOAT, place + group * pitch, thread, padded, value)
            if not is_last(counters + 4 * tile, sizes.groups, answer.address_of((0,))):
                return
            down, across = parts_of(thread, padded // 4)
            rows = i32(min(parts_of(THREADS, padded // 4)[0], sizes.groups))
            if down < rows:
                end = place + groups * pitch
                partial = Accesses(place + 16 * across, pitch, place, end)
                values = add_sums(partial, i64(down), groups, i64(rows))
                write_floats(SUMS, u32(own + 4 * down * padded), 4 * across, padded, values)
            fold_rows(own, rows, padded)
        while thread < columns:
            value = from_float(OUT, read_sum(own, thread, columns))
            store_global(OUT, y, i32(begin + thread), i32(begin + columns), value)
            thread = i32(thread + THREADS)

    return column_sums


@functools.cache
def few_rows_kernel(dtype: DType, out: DType) -> Kernel:
    """Return the kernel in which threads add up all rows of their columns, element by element."""
    SHARE = Share(dtype, dtype.itemsize, FEW_COLUMNS, FEW_THREADS, False)
    OUT = Share(out, out.itemsize, FEW_COLUMNS, FEW_THREADS, False)
    COLUMNS = FEW_COLUMNS * FEW_THREADS

    @device_function
    def load_row(place: Address, first: Integer, columns: Integer, is_row: bool) -> Registers:
        limit = columns if is_row else 0
        return to_float(SHARE, load_global(SHARE, place, i32(first), i32(limit)))

    add_rows = add_up(SHARE, load_row, FEW_BATCH)

    @cuda.jit(launch_bounds=FEW_THREADS)
    def add_few_rows(x, rows, columns, y):  # type: ignore[no-untyped-def]
        first = i32(cuda.blockIdx.x * COLUMNS + cuda.threadIdx.x)
        values = add_rows(Accesses(x.address, x.stride, first, columns), i64(0), rows, 1)
        store_global(OUT, y, first, i32(columns), from_float(OUT, values))

    return add_few_rows
