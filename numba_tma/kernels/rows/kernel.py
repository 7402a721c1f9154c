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
    load_global,
    load_shared,
    store_global,
    to_float,
)
from numba_tma.device.shared import shared_barrier, shared_barriers, shared_tile
from numba_tma.host.annotations import DeviceFunction, Kernel
from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile
from numba_tma.kernels.rows.plan import RowOptions, RowPlan, block_part, require_room
from numba_tma.kernels.rows.steps import (
    CACHE_HINTS,
    Steps,
    affine_steps,
    copies_to_shared,
    first_access,
    load_slots,
    no_store,
    residual_to_registers,
    row_of,
    store_statistics,
    store_step,
)

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


# ------------------------------------------------------------------- rows in registers


class RowPlace(NamedTuple):
    """The row that a thread works on, and its share of it, in accesses of `Share.width` bytes."""

    row: Any
    rank: Any  #: of the block in its cluster
    thread: Any  #: of the threads that share the row in this block
    begin: Any  #: bytes of the row before access 0; 0 unless the row is staged
    first: Any  #: the thread's first access
    limit: Any  #: accesses that exist; 0 for a row behind the last


def place_in_registers(share: Share, plan: RowPlan) -> Callable[..., Any]:
    """Return ``place(sizes)`` for rows in registers."""
    THREADS, ROWS, BLOCKS = plan.threads, plan.rows, plan.cluster
    ACCESSES = share.step * share.count  # per block

    @device_function
    def row_of_a_block(sizes: Any) -> Any:
        thread = cuda.threadIdx.x
        return RowPlace(i64(cuda.blockIdx.x), 0, thread, 0, thread, sizes.accesses)

    @device_function
    def row_of_some_threads(sizes: Any) -> Any:
        thread = cuda.threadIdx.x % THREADS
        row = i64(cuda.blockIdx.x) * ROWS + cuda.threadIdx.x // THREADS
        return RowPlace(row, 0, thread, 0, thread, sizes.accesses if row < sizes.rows else 0)

    @device_function
    def row_of_a_cluster(sizes: Any) -> Any:
        row, rank, thread = cuda.blockIdx.x // BLOCKS, ptx.cluster_ctarank(), cuda.threadIdx.x
        return RowPlace(row, rank, thread, 0, rank * ACCESSES + thread, sizes.accesses)

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
def rows_in_registers(op: RowOperation, share: Share, plan: RowPlan, options: RowOptions) -> Kernel:
    """Return the kernel whose blocks take `plan.rows` rows each and end."""
    SHARE, (SCRATCH, PEERS) = share, exchange_tiles(plan.threads, plan.cluster)
    place = place_in_registers(share, plan)
    start_load, load, STAGED = load_to_registers(op.name, share, plan)
    load_residual, add_residual = residual_to_registers(share, options)
    load_early, scale_and_shift = affine_steps(share, options, plan)
    store_total, store = (store_step(share, is_) for is_ in (options.residual_out, options.output))
    reduce, apply = op.reduce, op.apply
    start_exchange, combine = combine_parts(op.combination(share), plan.threads, plan.cluster)
    store_numbers = store_statistics(op.statistics, options)

    def in_registers(arrays, sizes, scalar):  # type: ignore[no-untyped-def]
        exchange = Exchange(shared_tile(SCRATCH), shared_tile(PEERS), shared_barriers(1))
        staged, loaded = shared_tile(STAGED), shared_barrier()
        at = place(sizes)
        start_load(staged, loaded, arrays.x, at, sizes)
        start_exchange(exchange, at.thread)
        packed = load(staged, loaded, arrays.x, at)
        residual, early = load_residual(arrays, at), load_early(arrays, at)
        values = add_residual(SHARE, to_float(SHARE, packed), residual)
        store_total(row_of(arrays.total, at.row), at, values)
        own, values = reduce(SHARE, values, at.first, at.limit, scalar)
        whole = combine(own, exchange, scalar)
        values = apply(values, own, whole, sizes.columns, scalar)
        values = scale_and_shift(values, arrays, at, early)
        store(row_of(arrays.y, at.row), at, values)
        store_numbers(at.row < sizes.rows, whole, at, arrays, sizes.columns, scalar)

    in_registers.__name__ = f"{op.name}_in_registers"
    return compiled(in_registers, plan)


# --------------------------------------------------------------- rows in shared memory


def places_in_shared(part: int, plan: RowPlan) -> Steps:
    """Return ``place(sizes)`` of a block's part of `part` bytes, and ``slot_of(at, slot)``."""
    PART, BLOCKS, SLOT, EACH = part, plan.cluster, plan.slot, plan.slot // 16

    @device_function
    def row_of_a_block(sizes: Any) -> Any:
        thread, row = cuda.threadIdx.x, i64(cuda.blockIdx.x)
        return RowPlace(row, 0, thread, 0, thread, min(sizes.accesses, PART // 16))

    @device_function
    def row_of_a_cluster(sizes: Any) -> Any:
        thread, row = cuda.threadIdx.x, i64(cuda.blockIdx.x // BLOCKS)
        rank = i64(ptx.cluster_ctarank())
        begin = rank * PART
        accesses = min(sizes.accesses, (begin + PART) // 16) - begin // 16
        return RowPlace(row, rank, thread, begin, thread, accesses)

    @device_function
    def slot_of(at: Any, slot: Any) -> Any:
        """Return the place of a slot of the part."""
        begin, limit = at.begin + slot * SLOT, at.limit - slot * EACH
        return RowPlace(at.row, at.rank, at.thread, begin, at.thread, limit)

    return (row_of_a_cluster if plan.cluster > 1 else row_of_a_block), slot_of


@functools.cache
def rows_in_shared(
    op: RowOperation, dtype: DType, nbytes: int, plan: RowPlan, options: RowOptions
) -> Kernel:
    """Return the kernel whose blocks, or clusters, take a row of `nbytes` each and end.

    Registers hold one slot at a time, so shared memory alone decides how many blocks are resident,
    and the parts that they wait for are the bytes in flight.
    """
    part, copies = block_part(nbytes, plan.cluster), 1 + options.residual
    require_room(op.name, plan, copies * part)
    whole_slots = part % plan.slot == 0 and part * plan.cluster == nbytes
    share = Share(dtype, 16, plan.slot // 16 // plan.threads, plan.threads, whole_slots)
    STAGED, (SCRATCH, PEERS) = (
        Tile((copies, part), "u8"),
        exchange_tiles(plan.threads, plan.cluster),
    )
    SLOTS = -(-part // plan.slot)
    WRITTEN = SLOTS if options.output else 0
    place, slot_of = places_in_shared(part, plan)
    start_copies = copies_to_shared(nbytes, part, plan, options)
    load = load_slots(share, plan.slot, options)
    reduce = reduce_slots(op, share, options, load, slot_of)
    load_early, scale_and_shift = affine_steps(share, options, plan)
    store = store_step(share, True)
    merge, finish = op.merge, op.finish or op.apply
    start_exchange, combine = combine_parts(
        op.combination(share), plan.threads, plan.cluster, initialised=True
    )
    store_numbers = store_statistics(op.statistics, options)

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
        ahead = load_early(arrays, at)
        whole = combine(part, exchange, scalar)
        for slot in range(WRITTEN):
            values = finish(load(staged, at, slot), whole, whole, sizes.columns, scalar)
            here = slot_of(at, slot)
            values = scale_and_shift(values, arrays, here, ahead)
            ahead = load_early(arrays, slot_of(at, min(slot + 1, SLOTS - 1)))
            store(row_of(arrays.y, at.row), here, values)
        store_numbers(True, whole, at, arrays, sizes.columns, scalar)

    in_shared.__name__ = f"{op.name}_in_shared"
    return compiled(in_shared, plan)


def reduce_slots(
    op: RowOperation,
    share: Share,
    options: RowOptions,
    load: DeviceFunction,
    slot_of: DeviceFunction,
) -> DeviceFunction:
    """Return ``reduce(staged, total, at, slot, scalar)``: the thread's part of a slot.

    It writes the slot's sums with the residual to the row at `total`, if the call wants them.
    """
    SHARE, reduce, first_of = share, op.reduce, first_access(options)
    store_total = store_global if options.residual_out else no_store

    @device_function
    def reduce_slot(staged: Any, total: Any, at: Any, slot: Any, scalar: Any) -> Any:
        values, here = load(staged, at, slot), slot_of(at, slot)
        packed = from_float(SHARE, values)
        store_total(SHARE, total + here.begin, here.first, here.limit, packed)
        first = first_of(here)
        part, _ = reduce(SHARE, values, first + here.first, first + here.limit, scalar)
        return part

    return reduce_slot


def compiled(kernel: Kernel, plan: RowPlan) -> Kernel:
    """Return the `cuda.jit` kernel of a plan."""
    if plan.cluster > 1:
        kernel = cluster(plan.cluster)(kernel)
    return cuda.jit(launch_bounds=plan.launch_bounds)(kernel)
