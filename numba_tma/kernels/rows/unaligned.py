"""Rows that begin and end between two multiples of 16 B: places of threads, and staging.

The accesses of such a row are the 16-byte units of memory that it touches. A `RowPlace` then counts
elements from the start of the row, and its `begin` is 0 (`Share.aligned`). In all arrays of a call,
a row has as many bytes before it in its first unit.

Bulk copies move whole units. What the row has of its first and its last unit is copied by threads,
so that nothing outside of the row is read. The rest of the two kernels is that of kernel.py.
"""

from __future__ import annotations

import functools

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i32, u32
from numba_tma.device.combine import Exchange
from numba_tma.device.row_share import load_shared, to_float
from numba_tma.device.share import Share
from numba_tma.host.annotations import (
    Address,
    BarrierLike,
    DeviceFunction,
    Integer,
    Kernel,
    Registers,
    SharedMemory,
)
from numba_tma.host.dtypes import DType
from numba_tma.kernels.rows import kernel
from numba_tma.kernels.rows.kernel import RowOperation, StagedSteps, place_in_registers
from numba_tma.kernels.rows.plan import (
    RowArrays,
    RowMemory,
    RowOptions,
    RowPlan,
    RowSizes,
    bytes_per_block,
)
from numba_tma.kernels.rows.steps import CACHE_HINTS, RowPlace, Steps, plus, row_of, unchanged


def in_elements(place: DeviceFunction, share: Share) -> DeviceFunction:
    """Return ``place(sizes, x)`` of `rows_in_registers`, from the one that counts accesses."""
    LANES, NBYTES = share.lanes, share.dtype.itemsize

    @device_function
    def placed(sizes: RowSizes, x: RowMemory) -> RowPlace:
        at = place(sizes, x)
        before = (row_of(x, at.row) & 15) // NBYTES
        first = i32(at.first * LANES - before)
        return RowPlace(at.row, at.rank, at.thread, 0, first, at.limit)

    return placed


def places_in_shared(
    place: DeviceFunction, block_nbytes: int, plan: RowPlan, share: Share
) -> Steps:
    """Return ``place(sizes, x)`` and ``slot_of(at, slot)``, from a `place` that counts accesses."""
    BLOCK_NBYTES, LANES, NBYTES = block_nbytes, share.lanes, share.dtype.itemsize
    SLOT_ELEMENTS = plan.slot // NBYTES

    @device_function
    def placed(sizes: RowSizes, x: RowMemory) -> RowPlace:
        at = place(sizes, x)
        start = first_byte(row_of(x, at.row), at.rank, BLOCK_NBYTES) // NBYTES
        first = i32(start + at.thread * LANES)
        limit = min(sizes.accesses, start + BLOCK_NBYTES // NBYTES)
        return RowPlace(at.row, at.rank, at.thread, 0, first, limit)

    @device_function
    def slot_of(at: RowPlace, slot: Integer) -> RowPlace:
        first = i32(at.first + slot * SLOT_ELEMENTS)
        return RowPlace(at.row, at.rank, at.thread, 0, first, at.limit)

    return placed, slot_of


@device_function
def first_byte(address: Address, rank: Integer, block_nbytes: int) -> Integer:
    """Return the byte of a row at which a block's units begin; negative before the row."""
    return i32(rank * block_nbytes - (address & 15))


def copies_to_shared(
    nbytes: int, block_nbytes: int, plan: RowPlan, options: RowOptions, share: Share
) -> DeviceFunction:
    """Return ``start(staged, loaded, exchange, arrays, at)``, as `steps.copies_to_shared` does."""
    NBYTES, BLOCK_NBYTES, HINT = nbytes, block_nbytes, CACHE_HINTS[plan.cache]
    COPIES, ITEM, LANES = 1 + options.residual, share.dtype.itemsize, share.lanes
    halves, words = (ptx.ld_global_u16, ptx.st_shared_u16), (ptx.ld_global_u32, ptx.st_shared_u32)
    load, store = halves if ITEM == 2 else words

    @device_function
    def copy_edges(staged: SharedMemory, memory: RowMemory, index: Integer, at: RowPlace) -> None:
        """Copy what the row has of the units that are not whole; what else they have becomes 0."""
        if at.thread < 2 * LANES:
            address = row_of(memory, at.row)
            start = first_byte(address, at.rank, BLOCK_NBYTES)
            last = i32(NBYTES - (address + NBYTES & 15))
            unit = start if at.thread < LANES else last
            is_partial = unit < 0 or (at.thread >= LANES and last < NBYTES)
            if is_partial and start <= unit and unit < start + BLOCK_NBYTES:
                byte = i32(unit + at.thread % LANES * ITEM)
                place = u32(staged.address_of((index, 0)) + u32(byte - start))
                store(place, load(address + byte, condition=0 <= byte and byte < NBYTES))

    @device_function
    def copy(
        staged: SharedMemory,
        loaded: BarrierLike,
        memory: RowMemory,
        index: Integer,
        at: RowPlace,
        places: tuple[Integer, Integer, int],
    ) -> None:
        start, begin, size = places
        place = u32(staged.address_of((index, 0)) + u32(begin - start))
        source = row_of(memory, at.row) + begin
        ptx.cp_async_bulk_load(place, source, size, loaded, HINT)

    @device_function
    def copy_nothing(
        staged: SharedMemory,
        loaded: BarrierLike,
        memory: RowMemory,
        index: Integer,
        at: RowPlace,
        places: tuple[Integer, Integer, int],
    ) -> None:
        pass

    @device_function
    def no_edges(staged: SharedMemory, memory: RowMemory, index: Integer, at: RowPlace) -> None:
        pass

    copy_residual, residual_edges = (
        (copy, copy_edges) if options.residual else (copy_nothing, no_edges)
    )

    @device_function
    def start(
        staged: SharedMemory,
        loaded: BarrierLike,
        exchange: Exchange,
        arrays: RowArrays,
        at: RowPlace,
    ) -> None:
        if at.thread == 0:
            loaded.init(1)
            exchange.full.init(1)
            ptx.fence_mbarrier_init()
            address = row_of(arrays.x, at.row)
            first = first_byte(address, at.rank, BLOCK_NBYTES)
            begin = first + 16 if first < 0 else first
            end = min(first + BLOCK_NBYTES, i32(NBYTES - (address + NBYTES & 15)))
            size = max(0, end - begin)
            loaded.arrive_expect_tx(COPIES * size)
            if size > 0:
                copy(staged, loaded, arrays.x, 0, at, (first, begin, size))
                copy_residual(staged, loaded, arrays.residual, 1, at, (first, begin, size))
        copy_edges(staged, arrays.x, 0, at)
        residual_edges(staged, arrays.residual, 1, at)

    return start


def load_slots(share: Share, slot: int, options: RowOptions) -> DeviceFunction:
    """Return ``load(staged, at, slot)``, as `steps.load_slots` does."""
    SHARE, SLOT_ELEMENTS, ITEM = share, slot // share.dtype.itemsize, share.dtype.itemsize
    add_residual = plus if options.residual else unchanged

    @device_function
    def load_row(staged: SharedMemory, index: Integer, at: RowPlace, slot: Integer) -> Registers:
        row = u32(staged.address_of((index, 0)) + u32(at.thread * 16 - at.first * ITEM))
        return load_shared(SHARE, row, i32(at.first + slot * SLOT_ELEMENTS), at.limit)

    @device_function
    def load_nothing(
        staged: SharedMemory, index: Integer, at: RowPlace, slot: Integer
    ) -> Registers:
        return ()

    load_residual = load_row if options.residual else load_nothing

    @device_function
    def load(staged: SharedMemory, at: RowPlace, slot: Integer) -> Registers:
        values = to_float(SHARE, load_row(staged, 0, at, slot))
        return add_residual(SHARE, values, load_residual(staged, 1, at, slot))

    return load


@functools.cache
def unaligned_in_registers(
    op: RowOperation, share: Share, plan: RowPlan, options: RowOptions
) -> Kernel:
    """Return `rows_in_registers` for unaligned shares."""
    place = in_elements(place_in_registers(share, plan), share)
    return kernel.kernel_in_registers(op, share, plan, options, place)


@functools.cache
def unaligned_in_shared(
    op: RowOperation, dtype: DType, nbytes: int, plan: RowPlan, options: RowOptions
) -> Kernel:
    """Return `rows_in_shared` for rows of `nbytes` that begin anywhere."""
    touched = -(-nbytes // 16) * 16 + 16  # bytes of the units that a row may touch
    block_nbytes = bytes_per_block(touched, plan.cluster)
    count = plan.slot // 16 // plan.threads
    share = Share(dtype, 16, count, plan.threads, whole=False, aligned=False)
    place, _ = kernel.places_in_shared(block_nbytes, plan)
    steps = StagedSteps(
        *places_in_shared(place, block_nbytes, plan, share),
        copies_to_shared(nbytes, block_nbytes, plan, options, share),
        load_slots(share, plan.slot, options),
    )
    return kernel.kernel_in_shared(op, share, block_nbytes, plan, options, steps)
