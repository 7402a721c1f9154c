"""The steps of kernels over rows: a function for each feature, and one for its absence.

The record here is the place of a thread in a row; plan.py has the arguments of a launch.
`at` and `here` are `RowPlace`s: `at` in the row, or in the block's bytes of the row; `here` in one
slot of these.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i64
from numba_tma.device.combine import Exchange
from numba_tma.device.row_share import (
    from_float,
    load_cached,
    load_global,
    load_shared,
    store_global,
    to_float,
)
from numba_tma.device.share import Share
from numba_tma.host.annotations import (
    Address,
    BarrierLike,
    DeviceFunction,
    Integer,
    Real,
    Registers,
    SharedMemory,
)
from numba_tma.kernels.rows.plan import RowArrays, RowMemory, RowOptions, RowPlan

Steps: TypeAlias = tuple[DeviceFunction, DeviceFunction]

# ------------------------------------------------------------------------- what steps are given

class RowPlace(NamedTuple):
    """A thread's row, and the accesses of the row (or of one slot) that the thread makes.

    Accesses have `Share.width` bytes and are counted from byte `begin` of the row. `first` and
    `limit` are what the functions of device/row_share.py take: elements if the share is unaligned.
    """

    row: Integer
    rank: Integer  #: Rank of the block in its cluster.
    thread: Integer  #: Index of the thread among the threads of the block that share the row.
    begin: Integer  #: 0 in `rows_in_registers`; else where the block's bytes, or the slot, begin.
    first: Integer  #: The thread's first access.
    limit: Integer  #: Accesses to the end of the row or the block's bytes; 0 or less: none.


# ----------------------------------------------------------------------------- rows


@device_function
def row_of(memory: RowMemory, row: Integer) -> Address:
    """Return the address of a row."""
    return memory.address + row * memory.stride


# -------------------------------------------------------------------------------- loads


#: Of each `RowPlan.cache`: the cache hint of bulk copies, which have no L1 policy.
CACHE_HINTS = {
    "allocate": None,
    "no_allocate": None,
    "evict_first": int(ptx.CachePolicy.EVICT_FIRST),
    "evict_last": int(ptx.CachePolicy.EVICT_LAST),
}


def residual_to_registers(share: Share, options: RowOptions) -> Steps:
    """Return ``load_residual(arrays, at)`` and ``add_residual(share, values, residual)``.

    Without a residual, the first returns () and the second returns the values.
    """
    SHARE = share

    @device_function
    def load(arrays: RowArrays, at: RowPlace) -> Registers:
        return load_global(SHARE, row_of(arrays.residual, at.row), at.first, at.limit)

    @device_function
    def load_none(arrays: RowArrays, at: RowPlace) -> Registers:
        return ()

    return (load, plus) if options.residual else (load_none, unchanged)


def copies_to_shared(
    nbytes: int, block_nbytes: int, plan: RowPlan, options: RowOptions
) -> DeviceFunction:
    """Return ``start(staged, loaded, exchange, arrays, at)``, in which thread 0 starts the copies.

    Thread 0 initialises the barriers, and starts bulk copies of the block's bytes of the row, up
    to `block_nbytes` of `nbytes`: of `x`, and of the residual if there is one.
    """
    NBYTES, BLOCK_NBYTES, HINT = nbytes, block_nbytes, CACHE_HINTS[plan.cache]
    COPIES = 1 + options.residual

    @device_function
    def copy(
        staged: SharedMemory,
        loaded: BarrierLike,
        memory: RowMemory,
        index: Integer,
        at: RowPlace,
        size: int,
    ) -> None:
        source = row_of(memory, at.row) + at.begin
        ptx.cp_async_bulk_load(staged.address_of((index, 0)), source, size, loaded, HINT)

    @device_function
    def copy_nothing(
        staged: SharedMemory,
        loaded: BarrierLike,
        memory: RowMemory,
        index: Integer,
        at: RowPlace,
        size: int,
    ) -> None:
        pass

    copy_residual = copy if options.residual else copy_nothing

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
            size = max(0, min(BLOCK_NBYTES, NBYTES - at.begin))
            loaded.arrive_expect_tx(COPIES * size)
            if size > 0:
                copy(staged, loaded, arrays.x, 0, at, size)
                copy_residual(staged, loaded, arrays.residual, 1, at, size)

    return start


def load_slots(share: Share, slot: int, options: RowOptions) -> DeviceFunction:
    """Return ``load(staged, at, slot)``: a thread's share of a slot in float32, plus the residual.

    `slot` is the size of a slot in bytes.
    """
    SHARE, SLOT, SLOT_ACCESSES = share, slot, slot // 16
    add_residual = plus if options.residual else unchanged

    @device_function
    def residual_of(
        staged: SharedMemory, slot: Integer, first: Integer, limit: Integer
    ) -> Registers:
        return load_shared(SHARE, staged.address_of((1, slot * SLOT)), first, limit)

    @device_function
    def no_residual(
        staged: SharedMemory, slot: Integer, first: Integer, limit: Integer
    ) -> Registers:
        return ()

    load_residual = residual_of if options.residual else no_residual

    @device_function
    def load(staged: SharedMemory, at: RowPlace, slot: Integer) -> Registers:
        limit = at.limit - slot * SLOT_ACCESSES
        packed = load_shared(SHARE, staged.address_of((0, slot * SLOT)), at.first, limit)
        values = to_float(SHARE, packed)
        return add_residual(SHARE, values, load_residual(staged, slot, at.first, limit))

    return load


def first_access(options: RowOptions) -> DeviceFunction:
    """Return ``first_access(here)``: the number from which a reduction counts a slot's accesses.

    With `RowOptions.index` it is the number that the slot's access 0 has in the row, because the
    reduction finds columns; otherwise 0.
    """

    @device_function
    def in_row(here: RowPlace) -> Integer:
        return here.begin // 16

    @device_function
    def in_slot(here: RowPlace) -> Integer:
        return 0

    return in_row if options.index else in_slot


# ---------------------------------------------------------------------- weights and biases


@device_function
def nothing(share: Share, location: Address, first: Integer, limit: Integer) -> Registers:
    """Load nothing, in the place of `load_global` or `load_cached`."""
    return ()


@device_function
def plus(share: Share, values: Registers, packed: Registers) -> Registers:
    """Add what was loaded: a residual or a bias."""
    return values + to_float(share, packed)


@device_function
def times(share: Share, values: Registers, packed: Registers) -> Registers:
    """Multiply by what was loaded: a weight."""
    return values * to_float(share, packed)


@device_function
def unchanged(share: Share, values: Registers, packed: Registers) -> Registers:
    """Return the values, in the place of `plus` or `times`."""
    return values


@device_function
def load_late(
    share: Share, location: Address, first: Integer, limit: Integer, early: Registers
) -> Registers:
    """Load a weight or bias after the reduction."""
    return load_cached(share, location, first, limit)


@device_function
def loaded_early(
    share: Share, location: Address, first: Integer, limit: Integer, early: Registers
) -> Registers:
    """Return the weight or bias that was loaded before the reduction; () if there is none."""
    return early


def affine(present: bool, early: bool) -> Steps:
    """Return the functions that load a weight or bias before the reduction, and after it."""
    if present and early:
        return load_cached, loaded_early
    return nothing, load_late if present else loaded_early


def affine_steps(share: Share, options: RowOptions, plan: RowPlan) -> Steps:
    """Return ``load_early(arrays, at)`` and ``scale_and_shift(values, arrays, at, early)``.

    Early loads are those of `RowPlan.early`; without it, `load_early` returns (), (). In
    `rows_in_shared`, a slot's weight is used before its bias is loaded, which takes fewer
    registers.
    """
    SHARE = share
    early_weight, load_weight = affine(options.weight, plan.early)
    early_bias, load_bias = affine(options.bias, plan.early)
    scale, shift = times if options.weight else unchanged, plus if options.bias else unchanged

    @device_function
    def load_early(arrays: RowArrays, at: RowPlace) -> tuple[Registers, Registers]:
        weight = early_weight(SHARE, arrays.weight + at.begin, at.first, at.limit)
        return weight, early_bias(SHARE, arrays.bias + at.begin, at.first, at.limit)

    @device_function
    def scale_and_shift(
        values: Registers, arrays: RowArrays, at: RowPlace, early: tuple[Registers, Registers]
    ) -> Registers:
        weight = load_weight(SHARE, arrays.weight + at.begin, at.first, at.limit, early[0])
        bias = load_bias(SHARE, arrays.bias + at.begin, at.first, at.limit, early[1])
        return shift(SHARE, scale(SHARE, values, weight), bias)

    @device_function
    def scale_then_shift(
        values: Registers, arrays: RowArrays, at: RowPlace, early: tuple[Registers, Registers]
    ) -> Registers:
        weight = load_weight(SHARE, arrays.weight + at.begin, at.first, at.limit, early[0])
        values = scale(SHARE, values, weight)
        bias = load_bias(SHARE, arrays.bias + at.begin, at.first, at.limit, early[1])
        return shift(SHARE, values, bias)

    return load_early, scale_then_shift if plan.slot else scale_and_shift


# ------------------------------------------------------------------------------- stores


@device_function
def no_store(
    share: Share, location: Address, first: Integer, limit: Integer, packed: Registers
) -> None:
    """Store nothing, in the place of `store_global` or `store_sums`."""


def store_step(share: Share, wanted: bool) -> DeviceFunction:
    """Return ``store(row, at, values)``: it rounds float32 values and stores them to a row.

    `row` is the address of the row. Unless `wanted`, nothing is stored.
    """
    SHARE, store_packed = share, store_global if wanted else no_store

    @device_function
    def store(row: Address, at: RowPlace, values: Registers) -> None:
        store_packed(SHARE, row + at.begin, at.first, at.limit, from_float(SHARE, values))

    return store


@device_function
def store_column(location: Address, column: Real) -> None:
    """Store a column, held as a float32, as an int64."""
    ptx.st_global_u64(location, i64(column))


def store_statistics(statistics: DeviceFunction, options: RowOptions) -> DeviceFunction:
    """Return ``store(exists, row_stats, at, arrays, columns, scalar)``.

    One thread per row stores those of the two numbers of `RowOperation.statistics` that `options`
    names, unless `exists` says that there is no such row.
    """
    FIRST, SECOND = options.statistics
    store_second, SIZE = (store_column, 8) if options.index else (ptx.st_global_f32, 4)

    @device_function
    def store_some(
        exists: bool,
        row_stats: Registers,
        at: RowPlace,
        arrays: RowArrays,
        columns: Integer,
        scalar: Real,
    ) -> None:
        if at.thread == 0 and at.rank == 0 and exists:
            written = statistics(row_stats, columns, scalar)
            if FIRST:
                ptx.st_global_f32(arrays.statistics[0] + 4 * at.row, written[0])
            if SECOND:
                store_second(arrays.statistics[1] + SIZE * at.row, written[1])

    @device_function
    def store_none(
        exists: bool,
        row_stats: Registers,
        at: RowPlace,
        arrays: RowArrays,
        columns: Integer,
        scalar: Real,
    ) -> None:
        pass

    return store_some if FIRST or SECOND else store_none
