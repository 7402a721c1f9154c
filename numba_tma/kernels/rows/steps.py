"""The steps of kernels over rows: a function for each feature, and one for its absence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i64
from numba_tma.device.row_share import (
    Share,
    from_float,
    load_cached,
    load_global,
    load_shared,
    store_global,
    to_float,
)
from numba_tma.kernels.rows.plan import RowOptions, RowPlan

Steps = tuple[Callable[..., Any], Callable[..., Any]]


@device_function
def row_of(memory: Any, row: Any) -> Any:
    """Return the address of a row."""
    return memory.address + row * memory.stride


# -------------------------------------------------------------------------------- loads


#: What bulk copies take for `RowPlan.cache`.
CACHE_HINTS = {
    "allocate": None,
    "no_allocate": None,
    "evict_first": int(ptx.CachePolicy.EVICT_FIRST),
    "evict_last": int(ptx.CachePolicy.EVICT_LAST),
}


def residual_to_registers(share: Share, options: RowOptions) -> Steps:
    """Return ``load_residual(arrays, at)`` and ``add_residual(share, values, residual)``."""
    SHARE = share

    @device_function
    def load(arrays: Any, at: Any) -> Any:
        return load_global(SHARE, row_of(arrays.residual, at.row), at.first, at.limit)

    @device_function
    def load_none(arrays: Any, at: Any) -> Any:
        return ()

    return (load, plus) if options.residual else (load_none, unchanged)


def copies_to_shared(nbytes: int, part: int, plan: RowPlan, options: RowOptions) -> Any:
    """Return the function in which one thread initialises the barriers and starts the copies."""
    NBYTES, PART, HINT, COPIES = nbytes, part, CACHE_HINTS[plan.cache], 1 + options.residual

    @device_function
    def copy(staged: Any, loaded: Any, memory: Any, index: Any, at: Any, size: Any) -> None:
        source = row_of(memory, at.row) + at.begin
        ptx.cp_async_bulk_load(staged.address_of((index, 0)), source, size, loaded, HINT)

    @device_function
    def copy_nothing(staged: Any, loaded: Any, memory: Any, index: Any, at: Any, size: Any) -> None:
        pass

    copy_residual = copy if options.residual else copy_nothing

    @device_function
    def start(staged: Any, loaded: Any, exchange: Any, arrays: Any, at: Any) -> None:
        if at.thread == 0:
            loaded.init(1)
            exchange.full.init(1)
            ptx.fence_mbarrier_init()
            size = max(0, min(PART, NBYTES - at.begin))
            loaded.arrive_expect_tx(COPIES * size)
            if size > 0:
                copy(staged, loaded, arrays.x, 0, at, size)
                copy_residual(staged, loaded, arrays.residual, 1, at, size)

    return start


def load_slots(share: Share, slot: int, options: RowOptions) -> Callable[..., Any]:
    """Return ``load(staged, at, slot)``: a slot in float32, with its residual."""
    SHARE, SLOT, EACH = share, slot, slot // 16
    add_residual = plus if options.residual else unchanged

    @device_function
    def residual_of(staged: Any, slot: Any, thread: Any, here: Any) -> Any:
        return load_shared(SHARE, staged.address_of((1, slot * SLOT)), thread, here)

    @device_function
    def no_residual(staged: Any, slot: Any, thread: Any, here: Any) -> Any:
        return ()

    load_residual = residual_of if options.residual else no_residual

    @device_function
    def load(staged: Any, at: Any, slot: Any) -> Any:
        here = at.limit - slot * EACH
        packed = load_shared(SHARE, staged.address_of((0, slot * SLOT)), at.first, here)
        values = to_float(SHARE, packed)
        return add_residual(SHARE, values, load_residual(staged, slot, at.first, here))

    return load


def first_access(options: RowOptions) -> Callable[..., Any]:
    """Return ``first_access(here)``: the number that access 0 of a slot has in the row."""

    @device_function
    def in_row(here: Any) -> Any:
        return here.begin // 16

    @device_function
    def in_slot(here: Any) -> Any:
        return 0

    return in_row if options.index else in_slot


# ---------------------------------------------------------------------- weights and biases


@device_function
def nothing(share: Any, location: Any, first: Any, limit: Any) -> Any:
    """Load nothing, in the place of `load_global` or `load_cached`."""
    return ()


@device_function
def plus(share: Any, values: Any, packed: Any) -> Any:
    """Add what was loaded: a residual or a bias."""
    return values + to_float(share, packed)


@device_function
def times(share: Any, values: Any, packed: Any) -> Any:
    """Multiply by what was loaded: a weight."""
    return values * to_float(share, packed)


@device_function
def unchanged(share: Any, values: Any, packed: Any) -> Any:
    """Return the values, in the place of `plus` or `times`."""
    return values


@device_function
def load_late(share: Any, location: Any, first: Any, limit: Any, early: Any) -> Any:
    """Load a weight or bias after the reduction."""
    return load_cached(share, location, first, limit)


@device_function
def loaded_early(share: Any, location: Any, first: Any, limit: Any, early: Any) -> Any:
    """Return the weight or bias that was loaded before the reduction, or nothing."""
    return early


def affine(present: bool, early: bool) -> tuple[Any, Any]:
    """Return how a weight or bias is loaded before the reduction, and how after it."""
    if present and early:
        return load_cached, loaded_early
    return nothing, load_late if present else loaded_early


def affine_steps(share: Share, options: RowOptions, plan: RowPlan) -> Steps:
    """Return ``load_early(arrays, at)`` and ``scale_and_shift(values, arrays, at, early)``.

    A slot's weight is used before its bias is loaded, which takes fewer registers.
    """
    SHARE = share
    early_weight, load_weight = affine(options.weight, plan.early)
    early_bias, load_bias = affine(options.bias, plan.early)
    scale, shift = times if options.weight else unchanged, plus if options.bias else unchanged

    @device_function
    def load_early(arrays: Any, at: Any) -> Any:
        weight = early_weight(SHARE, arrays.weight + at.begin, at.first, at.limit)
        return weight, early_bias(SHARE, arrays.bias + at.begin, at.first, at.limit)

    @device_function
    def scale_and_shift(values: Any, arrays: Any, at: Any, early: Any) -> Any:
        weight = load_weight(SHARE, arrays.weight + at.begin, at.first, at.limit, early[0])
        bias = load_bias(SHARE, arrays.bias + at.begin, at.first, at.limit, early[1])
        return shift(SHARE, scale(SHARE, values, weight), bias)

    @device_function
    def scale_then_shift(values: Any, arrays: Any, at: Any, early: Any) -> Any:
        weight = load_weight(SHARE, arrays.weight + at.begin, at.first, at.limit, early[0])
        values = scale(SHARE, values, weight)
        bias = load_bias(SHARE, arrays.bias + at.begin, at.first, at.limit, early[1])
        return shift(SHARE, values, bias)

    return load_early, scale_then_shift if plan.slot else scale_and_shift


# ------------------------------------------------------------------------------- stores


@device_function
def no_store(share: Any, location: Any, first: Any, limit: Any, packed: Any) -> None:
    """Store nothing, in the place of `store_global`."""


def store_step(share: Share, wanted: bool) -> Callable[..., Any]:
    """Return ``store(row, at, values)``, which rounds float32 and stores them to a row."""
    SHARE, store_packed = share, store_global if wanted else no_store

    @device_function
    def store(row: Any, at: Any, values: Any) -> None:
        store_packed(SHARE, row + at.begin, at.first, at.limit, from_float(SHARE, values))

    return store


@device_function
def store_column(location: Any, column: Any) -> None:
    """Store a column, held as a float32, as an int64."""
    ptx.st_global_u64(location, i64(column))


def store_statistics(statistics: Callable[..., Any], options: RowOptions) -> Callable[..., Any]:
    """Return the function in which one thread per row writes the statistics of the row."""
    FIRST, SECOND = options.statistics
    store_second, SIZE = (store_column, 8) if options.index else (ptx.st_global_f32, 4)

    @device_function
    def store_some(
        exists: Any, whole: Any, at: Any, arrays: Any, columns: Any, scalar: Any
    ) -> None:
        if at.thread == 0 and at.rank == 0 and exists:
            of_row = statistics(whole, columns, scalar)
            if FIRST:
                ptx.st_global_f32(arrays.statistics[0] + 4 * at.row, of_row[0])
            if SECOND:
                store_second(arrays.statistics[1] + SIZE * at.row, of_row[1])

    @device_function
    def store_none(
        exists: Any, whole: Any, at: Any, arrays: Any, columns: Any, scalar: Any
    ) -> None:
        pass

    return store_some if FIRST or SECOND else store_none
