"""The kernels over rows: norms, softmax and reductions are five steps on each row.

    load      a thread's share of the row
    reduce    the share to a part of the statistics: a vector of four float32
    combine   the parts of all threads that share the row, so that each thread has the whole
    apply     the whole to the share
    store     the result, scaled by the weight and shifted by the bias

An operation (`RowOperation`, one page each: rmsnorm.py, layernorm.py, softmax.py, reductions.py) is
the functions reduce, combine and apply. `rows_in_registers` holds a row in registers between load
and store; `rows_in_shared` keeps a longer row in shared memory and goes through it twice. A feature
is a function in its place: a kernel without a residual calls `nothing` where another loads it.

Neither kernel uses a `TilePipeline`: each block takes its rows and ends, and the other blocks of
the SM keep loads in flight meanwhile. `pipelined.py` is the same RMSNorm with a pipeline.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i64
from numba_tma.device.clusters import cluster
from numba_tma.device.combine import Exchange, combine_parts, exchange_tiles
from numba_tma.device.row_share import (
    Share,
    from_float,
    load_cached,
    load_global,
    load_shared,
    store_global,
    to_float,
)
from numba_tma.device.shared import shared_barrier, shared_barriers, shared_tile
from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile
from numba_tma.kernels.rows.plan import RowOptions, RowPlan, block_part, require_room

# ------------------------------------------------------------------------- what a kernel is given


class RowMemory(NamedTuple):
    """Rows in global memory; zeros for an array that is not given."""

    address: Any = 0  #: of the first row
    stride: Any = 0  #: bytes from one row to the next


class RowArrays(NamedTuple):
    """The arrays of a kernel; a number is an address, 0 for an array that is not given."""

    x: RowMemory
    residual: RowMemory  #: added to x
    weight: Any
    bias: Any
    y: RowMemory  #: the result
    total: RowMemory  #: where to write x plus the residual
    statistics: tuple[Any, Any]  #: each one number per row


class RowSizes(NamedTuple):
    """The sizes of a kernel's rows."""

    rows: Any
    accesses: Any  #: per row, each of `Share.width` bytes
    columns: Any


@dataclass(frozen=True, eq=False)  # one object per operation, compared by identity
class RowOperation:
    """What a kernel computes, as device functions; a part is a vector of four float32.

    Parameters
    ----------
    name
        The public function, for errors and kernels' names.
    reduce
        ``(share, values, first, limit, scalar)`` returns the thread's part, and the values that
        `apply` gets. The thread holds the accesses from `first` on that are below `limit`.
    combine
        ``(part, lanes, scalar)`` returns the part of `lanes` neighbouring lanes, in each of them.
    merge
        ``(part, other, scalar)`` returns the part of both.
    apply
        ``(values, own, whole, columns, scalar)`` returns the result: `values` and the thread's
        `own` part are those of `reduce`, `whole` is the row's part.
    statistics
        ``(whole, columns, scalar)`` returns a vector whose first two elements can be written out.
    finish
        As `apply`, for values as they were loaded; `apply` if None.
    combine_equal
        As `combine`, where all parts are of equally many elements; `combine` if None.
    """

    name: str
    reduce: Callable[..., Any]
    combine: Callable[..., Any]
    merge: Callable[..., Any]
    apply: Callable[..., Any]
    statistics: Callable[..., Any]
    finish: Callable[..., Any] | None = None
    combine_equal: Callable[..., Any] | None = None

    def combination(self, share: Share) -> Callable[..., Any]:
        """Return how the parts of threads with such shares are combined."""
        return self.combine_equal if share.whole and self.combine_equal else self.combine


# --------------------------------------------------------------- features, and what stands for none


@device_function
def row_of(memory: Any, row: Any) -> Any:
    """Return the address of a row."""
    return memory.address + row * memory.stride


@device_function
def nothing(share: Any, location: Any, first: Any, limit: Any) -> Any:
    """Load nothing, in the place of `load_global` or `load_cached`."""
    return ()


@device_function
def no_store(share: Any, location: Any, first: Any, limit: Any, packed: Any) -> None:
    """Store nothing, in the place of `store_global`."""


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


@device_function
def store_column(location: Any, column: Any) -> None:
    """Store a column, held as a float32, as an int64."""
    ptx.st_global_u64(location, i64(column))


def store_statistics(op: RowOperation, options: RowOptions) -> Any:
    """Return the function in which one thread per row writes the statistics of the row."""
    (FIRST, SECOND), statistics = options.statistics, op.statistics
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


# ------------------------------------------------------------------- a row in registers


class RowPlace(NamedTuple):
    """The row that a thread works on, and where its share of the row begins."""

    row: Any
    rank: Any  #: of the block in its cluster
    thread: Any  #: of the threads that share the row in this block
    first: Any  #: the thread's first access
    limit: Any  #: accesses of the row; 0 for a row behind the last


def place_in_registers(share: Share, plan: RowPlan) -> Any:
    """Return the function that finds a thread's `RowPlace`."""
    THREADS, ROWS, BLOCKS, ACCESSES = (
        plan.threads,
        plan.rows,
        plan.cluster,
        share.step * share.count,
    )

    @device_function
    def row_of_a_block(sizes: Any) -> Any:
        thread = cuda.threadIdx.x
        return RowPlace(i64(cuda.blockIdx.x), 0, thread, thread, sizes.accesses)

    @device_function
    def row_of_some_threads(sizes: Any) -> Any:
        thread = cuda.threadIdx.x % THREADS
        row = i64(cuda.blockIdx.x) * ROWS + cuda.threadIdx.x // THREADS
        return RowPlace(row, 0, thread, thread, sizes.accesses if row < sizes.rows else 0)

    @device_function
    def row_of_a_cluster(sizes: Any) -> Any:
        row, rank, thread = cuda.blockIdx.x // BLOCKS, ptx.cluster_ctarank(), cuda.threadIdx.x
        return RowPlace(row, rank, thread, rank * ACCESSES + thread, sizes.accesses)

    if plan.cluster > 1:
        return row_of_a_cluster
    return row_of_some_threads if plan.rows > 1 else row_of_a_block


def load_to_registers(name: str, share: Share, plan: RowPlan) -> tuple[Any, Any, Tile]:
    """Return the two halves of a load and the shared tile between them.

    The first half starts a bulk copy, the second waits for it and reads shared memory; without
    `RowPlan.bulk`, the second half alone loads from global memory.
    """
    SHARE, THREADS, ROWS, BLOCKS = share, plan.threads, plan.rows, plan.cluster
    ACCESSES, WIDTH, HINT = share.step * share.count, share.width, CACHE_HINTS[plan.cache]

    @device_function
    def start_nothing(staged: Any, loaded: Any, x: Any, at: Any, sizes: Any) -> None:
        pass

    @device_function
    def load_from_global(staged: Any, loaded: Any, x: Any, at: Any) -> Any:
        return load_global(SHARE, row_of(x, at.row), at.first, at.limit)

    @device_function
    def start_bulk_copy(staged: Any, loaded: Any, x: Any, at: Any, sizes: Any) -> None:
        if cuda.threadIdx.x == 0:
            loaded.init(1)
            ptx.fence_mbarrier_init()
            begin = cuda.blockIdx.x // BLOCKS * ROWS
            here = min(ROWS, sizes.rows - begin)
            nbytes = max(0, min(ACCESSES, sizes.accesses - at.rank * ACCESSES)) * WIDTH
            loaded.arrive_expect_tx(here * nbytes)
            for k in range(ROWS):
                if k < here and nbytes > 0:
                    source = row_of(x, begin + k) + at.rank * ACCESSES * WIDTH
                    ptx.cp_async_bulk_load(staged.address_of((k, 0)), source, nbytes, loaded, HINT)

    @device_function
    def load_from_shared(staged: Any, loaded: Any, x: Any, at: Any) -> Any:
        cuda.syncthreads()  # the barrier is initialised
        loaded.wait(0)
        place = staged.address_of((cuda.threadIdx.x // THREADS, 0))
        return load_shared(SHARE, place, at.thread, at.limit - at.rank * ACCESSES)

    if not plan.bulk:
        return start_nothing, load_from_global, Tile(16, "u8")
    require_room(name, plan, ROWS * ACCESSES * WIDTH)
    return start_bulk_copy, load_from_shared, Tile((ROWS, ACCESSES * WIDTH), "u8")


@functools.cache
def rows_in_registers(op: RowOperation, share: Share, plan: RowPlan, options: RowOptions) -> Any:
    """Return the kernel whose blocks take `plan.rows` rows each and end."""
    SHARE, (SCRATCH, PEERS) = share, exchange_tiles(plan.threads, plan.cluster)
    place = place_in_registers(share, plan)
    start_load, load, STAGED = load_to_registers(op.name, share, plan)
    start_exchange, combine = combine_parts(op.combination(share), plan.threads, plan.cluster)
    reduce, apply = op.reduce, op.apply
    load_residual, add_residual = (load_global, plus) if options.residual else (nothing, unchanged)
    early_weight, load_weight = affine(options.weight, plan.early)
    early_bias, load_bias = affine(options.bias, plan.early)
    scale, shift = times if options.weight else unchanged, plus if options.bias else unchanged
    store_total = store_global if options.residual_out else no_store
    store = store_global if options.output else no_store
    store_numbers = store_statistics(op, options)

    def in_registers(arrays, sizes, scalar):  # type: ignore[no-untyped-def]
        exchange = Exchange(shared_tile(SCRATCH), shared_tile(PEERS), shared_barriers(1))
        staged, loaded = shared_tile(STAGED), shared_barrier()
        at = place(sizes)
        start_load(staged, loaded, arrays.x, at, sizes)
        start_exchange(exchange, at.thread)
        packed = load(staged, loaded, arrays.x, at)
        added = load_residual(SHARE, row_of(arrays.residual, at.row), at.first, at.limit)
        weight = early_weight(SHARE, arrays.weight, at.first, at.limit)
        bias = early_bias(SHARE, arrays.bias, at.first, at.limit)
        values = add_residual(SHARE, to_float(SHARE, packed), added)
        total = from_float(SHARE, values)
        store_total(SHARE, row_of(arrays.total, at.row), at.first, at.limit, total)
        own, values = reduce(SHARE, values, at.first, at.limit, scalar)
        whole = combine(own, exchange, scalar)
        values = apply(values, own, whole, sizes.columns, scalar)
        weight = load_weight(SHARE, arrays.weight, at.first, at.limit, weight)
        bias = load_bias(SHARE, arrays.bias, at.first, at.limit, bias)
        values = shift(SHARE, scale(SHARE, values, weight), bias)
        store(SHARE, row_of(arrays.y, at.row), at.first, at.limit, from_float(SHARE, values))
        store_numbers(at.row < sizes.rows, whole, at, arrays, sizes.columns, scalar)

    in_registers.__name__ = f"{op.name}_in_registers"
    return compiled(in_registers, plan)


def compiled(kernel: Any, plan: RowPlan) -> Any:
    """Return the `cuda.jit` kernel of a plan."""
    if plan.cluster > 1:
        kernel = cluster(plan.cluster)(kernel)
    return cuda.jit(launch_bounds=plan.launch_bounds)(kernel)


#: What bulk copies take for `RowPlan.cache`.
CACHE_HINTS = {
    "allocate": None,
    "no_allocate": None,
    "evict_first": int(ptx.CachePolicy.EVICT_FIRST),
    "evict_last": int(ptx.CachePolicy.EVICT_LAST),
}

# ---------------------------------------------------------------- a row in shared memory


class RowPart(NamedTuple):
    """The row that a block works on, and which part of it."""

    row: Any
    rank: Any  #: of the block in its cluster
    thread: Any
    begin: Any  #: bytes of the row in front of the part
    accesses: Any  #: of 16 bytes, in the part


def place_in_shared(part: int, blocks: int) -> Any:
    """Return the function that finds a block's `RowPart`, of `part` bytes."""
    PART, BLOCKS = part, blocks

    @device_function
    def row_of_a_block(sizes: Any) -> Any:
        thread, row = cuda.threadIdx.x, i64(cuda.blockIdx.x)
        return RowPart(row, 0, thread, 0, min(sizes.accesses, PART // 16))

    @device_function
    def row_of_a_cluster(sizes: Any) -> Any:
        thread, row = cuda.threadIdx.x, i64(cuda.blockIdx.x // BLOCKS)
        rank = i64(ptx.cluster_ctarank())
        begin = rank * PART
        accesses = min(sizes.accesses, (begin + PART) // 16) - begin // 16
        return RowPart(row, rank, thread, begin, accesses)

    return row_of_a_cluster if blocks > 1 else row_of_a_block


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


def slot_functions(op: RowOperation, share: Share, slot: int, options: RowOptions) -> Any:
    """Return the functions that load a slot of the part, and that reduce it."""
    SHARE, SLOT, EACH, reduce = share, slot, slot // 16, op.reduce
    add_residual = plus if options.residual else unchanged
    store_total = store_global if options.residual_out else no_store

    @device_function
    def residual(staged: Any, slot: Any, thread: Any, here: Any) -> Any:
        return load_shared(SHARE, staged.address_of((1, slot * SLOT)), thread, here)

    @device_function
    def no_residual(staged: Any, slot: Any, thread: Any, here: Any) -> Any:
        return ()

    load_residual = residual if options.residual else no_residual

    @device_function
    def load(staged: Any, at: Any, slot: Any) -> Any:
        """Return the thread's values of a slot, with what is added to them."""
        here = at.accesses - slot * EACH
        packed = load_shared(SHARE, staged.address_of((0, slot * SLOT)), at.thread, here)
        values = to_float(SHARE, packed)
        return add_residual(SHARE, values, load_residual(staged, slot, at.thread, here))

    @device_function
    def from_0(at: Any, slot: Any) -> Any:
        return 0

    @device_function
    def from_column(at: Any, slot: Any) -> Any:
        return (at.begin + slot * SLOT) // 16

    first_access = from_column if options.index else from_0

    @device_function
    def reduce_slot(staged: Any, total: Any, at: Any, slot: Any, scalar: Any) -> Any:
        """Return the thread's part of a slot, after its sums have been written out."""
        here, begin = at.accesses - slot * EACH, at.begin + slot * SLOT
        values = load(staged, at, slot)
        store_total(SHARE, total + begin, at.thread, here, from_float(SHARE, values))
        first = first_access(at, slot)
        part, _ = reduce(SHARE, values, first + at.thread, first + here, scalar)
        return part

    return load, reduce_slot


@functools.cache
def rows_in_shared(
    op: RowOperation, dtype: DType, nbytes: int, plan: RowPlan, options: RowOptions
) -> Any:
    """Return the kernel whose blocks, or clusters, take a row of `nbytes` each and end.

    Registers hold one slot at a time, so shared memory alone decides how many blocks are resident,
    and the parts that they wait for are the bytes in flight.
    """
    part, copies = block_part(nbytes, plan.cluster), 1 + options.residual
    require_room(op.name, plan, copies * part)
    whole = part % plan.slot == 0 and part * plan.cluster == nbytes
    SLOT, SLOTS, EACH = plan.slot, -(-part // plan.slot), plan.slot // 16
    WRITTEN = SLOTS if options.output else 0
    SHARE = Share(dtype, 16, EACH // plan.threads, plan.threads, whole)
    STAGED, (SCRATCH, PEERS) = (
        Tile((copies, part), "u8"),
        exchange_tiles(plan.threads, plan.cluster),
    )
    place = place_in_shared(part, plan.cluster)
    start_copies = copies_to_shared(nbytes, part, plan, options)
    start_exchange, combine = combine_parts(
        op.combination(SHARE), plan.threads, plan.cluster, initialised=True
    )
    load, reduce = slot_functions(op, SHARE, plan.slot, options)
    merge, finish = op.merge, op.finish or op.apply
    early_weight, load_weight = affine(options.weight, plan.early)
    early_bias, load_bias = affine(options.bias, plan.early)
    scale, shift = times if options.weight else unchanged, plus if options.bias else unchanged
    store_numbers = store_statistics(op, options)

    def in_shared(arrays, sizes, scalar):  # type: ignore[no-untyped-def]
        staged, loaded = shared_tile(STAGED), shared_barrier()
        exchange = Exchange(shared_tile(SCRATCH), shared_tile(PEERS), shared_barriers(1))
        at = place(sizes)
        start_copies(staged, loaded, exchange, arrays, at)
        start_exchange(exchange, at.thread)
        cuda.syncthreads()  # the barriers are initialised
        loaded.wait(0)
        total = row_of(arrays.total, at.row)
        part = reduce(staged, total, at, 0, scalar)
        for slot in range(1, SLOTS):
            part = merge(part, reduce(staged, total, at, slot, scalar), scalar)
        next_weight = early_weight(SHARE, arrays.weight + at.begin, at.thread, at.accesses)
        next_bias = early_bias(SHARE, arrays.bias + at.begin, at.thread, at.accesses)
        whole = combine(part, exchange, scalar)
        for slot in range(WRITTEN):
            here, begin = at.accesses - slot * EACH, at.begin + slot * SLOT
            values = finish(load(staged, at, slot), whole, whole, sizes.columns, scalar)
            weight = load_weight(SHARE, arrays.weight + begin, at.thread, here, next_weight)
            values = scale(SHARE, values, weight)
            bias = load_bias(SHARE, arrays.bias + begin, at.thread, here, next_bias)
            values = shift(SHARE, values, bias)
            ahead = min(slot + 1, SLOTS - 1)
            begin_ahead, left = at.begin + ahead * SLOT, at.accesses - ahead * EACH
            next_weight = early_weight(SHARE, arrays.weight + begin_ahead, at.thread, left)
            next_bias = early_bias(SHARE, arrays.bias + begin_ahead, at.thread, left)
            row = row_of(arrays.y, at.row)
            store_global(SHARE, row + begin, at.thread, here, from_float(SHARE, values))
        store_numbers(True, whole, at, arrays, sizes.columns, scalar)

    in_shared.__name__ = f"{op.name}_in_shared"
    return compiled(in_shared, plan)
