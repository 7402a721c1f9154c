"""The two kernels over rows: norms, softmax and reductions take each row through five steps.

    load      each thread's share of the row
    reduce    the share to a part: four float32, the statistics of the thread's elements
    combine   the parts of all threads of the row to the row's statistics, in each thread
    apply     the row's statistics to the share, which gives the result
    store     the result, times the weight and plus the bias

An operation (`RowOperation`) has the device functions of reduce, combine and apply, and a few more.
rmsnorm/operation.py, and the same of layernorm, softmax and reductions, define one or two each.

`rows_in_shared` runs if `RowPlan.slot` is set. The row is copied to shared memory once and read
from there twice, a slot at a time: for reduce, and again for apply. By default those are rows above
32 KB that allow 16-byte accesses and fit into the shared memory of up to 8 blocks (plan.py).
`rows_in_registers` runs otherwise, and holds the row in registers between load and store.

Parts are combined by shuffles in a warp; through shared memory and a named barrier among the warps
of a block; and among the blocks of a cluster by st.async into each peer's shared memory, which
completes bytes of the mbarrier `full` there (device/combine.py). `start_exchange` arrives at the
cluster's barrier; `combine_row` waits for it before the first st.async, so every peer has
initialised its `full` by then.

A feature is a function in its place: without a residual, `load_residual` is `load_none`, which
returns (), and `add_residual` is `unchanged` (steps.py).

Neither kernel uses a `TilePipeline`, because blocks that loop over rows were slower: RMSNorm moves
4,272 GB/s (bf16 32768 x 8192, H200), and with a pipeline (`rmsnorm_pipelined`) 4,089 GB/s. A block
loads its rows once and exits; the other resident blocks of the SM hide the latency of its loads.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i64
from numba_tma.device.clusters import cluster
from numba_tma.device.combine import Exchange, combine_parts, exchange_tiles
from numba_tma.device.row_share import from_float, load_global, load_shared, store_global, to_float
from numba_tma.device.share import Share
from numba_tma.device.shared import shared_barrier, shared_barriers, shared_tile
from numba_tma.host.annotations import (
    Address,
    BarrierLike,
    DeviceFunction,
    Integer,
    Kernel,
    Real,
    Registers,
    SharedMemory,
)
from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile
from numba_tma.kernels.rows.plan import (
    RowArrays,
    RowMemory,
    RowOptions,
    RowPlan,
    RowSizes,
    bytes_per_block,
    require_room,
)
from numba_tma.kernels.rows.steps import (
    CACHE_HINTS,
    RowPlace,
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

# --------------------------------------------------------------- what a kernel computes


@dataclass(frozen=True, eq=False)  # one object per operation, compared by identity
class RowOperation:
    """What a kernel computes: five device functions, and two optional ones.

    A part is a vector of four float32: the statistics of some elements of a row, such as
    (sum of squares, 0, 0, 0). The row's statistics, `row_stats`, are the part of all its elements.
    `scalar` is a float32 argument of the launch: eps of a norm, scale of a softmax.

    Parameters
    ----------
    name
        The public function, for errors and kernels' names.
    reduce
        ``(share, values, first, limit, scalar)`` returns the thread's part, and the values that
        `apply` gets. `first` and `limit` are those of device/row_share.py. In `rows_in_shared`
        they are counted from the start of the slot, or of the row if `RowOptions.index` is set.
    combine_lanes
        ``(part, lanes, scalar)`` returns, in each of `lanes` neighbouring lanes, the part of all
        their elements.
    merge
        ``(part, other, scalar)`` returns the part of two slots of one thread; `rows_in_shared`
        alone calls it.
    apply
        ``(values, own, row_stats, columns, scalar)`` returns the result. `values` and `own`, the
        thread's part, are what `reduce` returned.
    statistics
        ``(row_stats, columns, scalar)`` returns a vector. Its first two elements are what the
        kernel can write for each row.
    finish
        As `apply`, for `rows_in_shared`, which loads the values again: `values` are as loaded, not
        those that `reduce` returned, and `own` is `row_stats`. `apply` if None.
    combine_equal_lanes
        As `combine_lanes`, where every lane's part is of the same number of elements;
        `combine_lanes` if None.
    """

    name: str
    reduce: DeviceFunction
    combine_lanes: DeviceFunction
    merge: DeviceFunction
    apply: DeviceFunction
    statistics: DeviceFunction
    finish: DeviceFunction | None = None
    combine_equal_lanes: DeviceFunction | None = None

    def lanes_combination(self, share: Share) -> DeviceFunction:
        """Return the function that combines lanes that hold such shares."""
        equal = share.whole and self.combine_equal_lanes
        return self.combine_equal_lanes if equal else self.combine_lanes


# ------------------------------------------------------------------- rows in registers


def place_in_registers(share: Share, plan: RowPlan) -> DeviceFunction:
    """Return ``place(sizes, x)``: the thread's `RowPlace`, counted from the start of the row.

    The fields of a `RowPlace` are row, rank, thread, begin, first and limit (steps.py).
    """
    THREADS, ROWS, BLOCKS = plan.threads, plan.rows, plan.cluster
    BLOCK_ACCESSES = share.step * share.count

    @device_function
    def row_of_a_block(sizes: RowSizes, x: RowMemory) -> RowPlace:
        thread = cuda.threadIdx.x
        return RowPlace(i64(cuda.blockIdx.x), 0, thread, 0, thread, sizes.accesses)

    @device_function
    def row_of_some_threads(sizes: RowSizes, x: RowMemory) -> RowPlace:
        thread = cuda.threadIdx.x % THREADS
        row = i64(cuda.blockIdx.x) * ROWS + cuda.threadIdx.x // THREADS
        # A statement of its own: among the arguments, Python 3.12 compiles it to other branches,
        # and ptxas then waits for the first load before it issues the last (5 % slower).
        limit = sizes.accesses if row < sizes.rows else 0
        return RowPlace(row, 0, thread, 0, thread, limit)

    @device_function
    def row_of_a_cluster(sizes: RowSizes, x: RowMemory) -> RowPlace:
        row, rank, thread = cuda.blockIdx.x // BLOCKS, ptx.cluster_ctarank(), cuda.threadIdx.x
        return RowPlace(row, rank, thread, 0, rank * BLOCK_ACCESSES + thread, sizes.accesses)

    if plan.cluster > 1:
        return row_of_a_cluster
    return row_of_some_threads if plan.rows > 1 else row_of_a_block


def load_to_registers(
    name: str, share: Share, plan: RowPlan
) -> tuple[DeviceFunction, DeviceFunction, Tile]:
    """Return the two halves of a load and the shared tile between them.

    With `RowPlan.bulk`, ``start_load(staged, loaded, x, at, sizes)`` starts bulk copies of the
    block's rows, and ``load(staged, loaded, x, at)`` waits for them and reads shared memory.
    Without, the first does nothing and the second loads from global memory.
    """
    SHARE, THREADS, ROWS, BLOCKS = share, plan.threads, plan.rows, plan.cluster
    BLOCK_ACCESSES, WIDTH, HINT = share.step * share.count, share.width, CACHE_HINTS[plan.cache]

    @device_function
    def start_nothing(
        staged: SharedMemory, loaded: BarrierLike, x: RowMemory, at: RowPlace, sizes: RowSizes
    ) -> None:
        pass

    @device_function
    def load_from_global(
        staged: SharedMemory, loaded: BarrierLike, x: RowMemory, at: RowPlace
    ) -> Registers:
        return load_global(SHARE, row_of(x, at.row), at.first, at.limit)

    @device_function
    def start_bulk_copies(
        staged: SharedMemory, loaded: BarrierLike, x: RowMemory, at: RowPlace, sizes: RowSizes
    ) -> None:
        if cuda.threadIdx.x == 0:
            loaded.init(1)
            ptx.fence_mbarrier_init()
            first_row = cuda.blockIdx.x // BLOCKS * ROWS
            num_rows = min(ROWS, sizes.rows - first_row)
            before = at.rank * BLOCK_ACCESSES  # accesses of the blocks of lower rank
            nbytes = max(0, min(BLOCK_ACCESSES, sizes.accesses - before)) * WIDTH
            loaded.arrive_expect_tx(num_rows * nbytes)
            for k in range(ROWS):
                if k < num_rows and nbytes > 0:
                    source = row_of(x, first_row + k) + at.rank * BLOCK_ACCESSES * WIDTH
                    ptx.cp_async_bulk_load(staged.address_of((k, 0)), source, nbytes, loaded, HINT)

    @device_function
    def load_from_shared(
        staged: SharedMemory, loaded: BarrierLike, x: RowMemory, at: RowPlace
    ) -> Registers:
        cuda.syncthreads()  # thread 0 initialised `loaded`: the block sees it
        loaded.wait(0)
        source = staged.address_of((cuda.threadIdx.x // THREADS, 0))
        # Shared memory begins with the block's first access, so the block counts from there.
        return load_shared(SHARE, source, at.thread, at.limit - at.rank * BLOCK_ACCESSES)

    if not plan.bulk:
        return start_nothing, load_from_global, Tile(16, "u8")
    block_nbytes = BLOCK_ACCESSES * WIDTH
    require_room(name, plan, ROWS * block_nbytes)
    return start_bulk_copies, load_from_shared, Tile((ROWS, block_nbytes), "u8")


@functools.cache
def rows_in_registers(op: RowOperation, share: Share, plan: RowPlan, options: RowOptions) -> Kernel:
    """Return the kernel whose threads hold their share of a row in registers.

    A block takes `plan.rows` rows, or a cluster takes one row, and exits.
    """
    return kernel_in_registers(op, share, plan, options, place_in_registers(share, plan))


def kernel_in_registers(
    op: RowOperation, share: Share, plan: RowPlan, options: RowOptions, place: DeviceFunction
) -> Kernel:
    """Return `rows_in_registers`, from the place of a thread."""
    SHARE, (SCRATCH, PEERS) = share, exchange_tiles(plan.threads, plan.cluster)
    start_load, load, STAGED = load_to_registers(op.name, share, plan)
    load_residual, add_residual = residual_to_registers(share, options)
    load_early, scale_and_shift = affine_steps(share, options, plan)
    store_total, store = (store_step(share, is_) for is_ in (options.residual_out, options.output))
    reduce, apply = op.reduce, op.apply
    start_exchange, combine_row = combine_parts(
        op.lanes_combination(share), plan.threads, plan.cluster
    )
    store_stats = store_statistics(op.statistics, options)

    def in_registers(arrays, sizes, scalar):  # type: ignore[no-untyped-def]
        # An array of one barrier: a kernel that combines in a loop has one per turn.
        exchange = Exchange(shared_tile(SCRATCH), shared_tile(PEERS), shared_barriers(1))
        staged, loaded = shared_tile(STAGED), shared_barrier()
        at = place(sizes, arrays.x)
        start_load(staged, loaded, arrays.x, at, sizes)
        start_exchange(exchange, at.thread)
        packed = load(staged, loaded, arrays.x, at)
        residual, early = load_residual(arrays, at), load_early(arrays, at)
        values = add_residual(SHARE, to_float(SHARE, packed), residual)
        store_total(row_of(arrays.total, at.row), at, values)
        own, values = reduce(SHARE, values, at.first, at.limit, scalar)
        row_stats = combine_row(own, exchange, scalar)
        values = apply(values, own, row_stats, sizes.columns, scalar)
        values = scale_and_shift(values, arrays, at, early)
        store(row_of(arrays.y, at.row), at, values)
        store_stats(at.row < sizes.rows, row_stats, at, arrays, sizes.columns, scalar)

    in_registers.__name__ = f"{op.name}_in_registers"
    return compiled(in_registers, plan)


# --------------------------------------------------------------- rows in shared memory


def places_in_shared(block_nbytes: int, plan: RowPlan) -> Steps:
    """Return ``place(sizes, x)`` and ``slot_of(at, slot)``.

    The first is the thread's place in the block's bytes of the row, up to `block_nbytes`; the
    second is its place in one slot of these. Both count accesses of 16 B from `RowPlace.begin`.
    """
    BLOCK_NBYTES, BLOCKS = block_nbytes, plan.cluster
    SLOT, SLOT_ACCESSES = plan.slot, plan.slot // 16

    @device_function
    def row_of_a_block(sizes: RowSizes, x: RowMemory) -> RowPlace:
        thread, row = cuda.threadIdx.x, i64(cuda.blockIdx.x)
        # The two are equal: the block has the whole row. The constant bounds the limit.
        return RowPlace(row, 0, thread, 0, thread, min(sizes.accesses, BLOCK_NBYTES // 16))

    @device_function
    def row_of_a_cluster(sizes: RowSizes, x: RowMemory) -> RowPlace:
        thread, row = cuda.threadIdx.x, i64(cuda.blockIdx.x // BLOCKS)
        rank = i64(ptx.cluster_ctarank())
        begin = rank * BLOCK_NBYTES
        accesses = min(sizes.accesses, (begin + BLOCK_NBYTES) // 16) - begin // 16
        return RowPlace(row, rank, thread, begin, thread, accesses)

    @device_function
    def slot_of(at: RowPlace, slot: Integer) -> RowPlace:
        """Return the place in a slot; its limit counts the accesses of the later slots as well."""
        begin, limit = at.begin + slot * SLOT, at.limit - slot * SLOT_ACCESSES
        return RowPlace(at.row, at.rank, at.thread, begin, at.thread, limit)

    return (row_of_a_cluster if plan.cluster > 1 else row_of_a_block), slot_of


class StagedSteps(NamedTuple):
    """The steps that know how rows lie in shared memory."""

    place: DeviceFunction  #: ``place(sizes, x)``
    slot_of: DeviceFunction  #: ``slot_of(at, slot)``
    start_copies: DeviceFunction  #: ``start(staged, loaded, exchange, arrays, at)``
    load: DeviceFunction  #: ``load(staged, at, slot)``


@functools.cache
def rows_in_shared(
    op: RowOperation, dtype: DType, nbytes: int, plan: RowPlan, options: RowOptions
) -> Kernel:
    """Return the kernel that keeps a row of `nbytes` in shared memory and reads it slot by slot.

    A block, or a cluster, takes one row and exits. All bytes of the row are in flight at once.
    Registers hold one slot, so that shared memory usually limits the resident blocks.
    """
    block_nbytes = bytes_per_block(nbytes, plan.cluster)
    # Every access of every thread exists, so that no predicate is emitted.
    whole = block_nbytes % plan.slot == 0 and block_nbytes * plan.cluster == nbytes
    share = Share(dtype, 16, plan.slot // 16 // plan.threads, plan.threads, whole)
    steps = StagedSteps(
        *places_in_shared(block_nbytes, plan),
        copies_to_shared(nbytes, block_nbytes, plan, options),
        load_slots(share, plan.slot, options),
    )
    return kernel_in_shared(op, share, block_nbytes, plan, options, steps)


def kernel_in_shared(
    op: RowOperation,
    share: Share,
    block_nbytes: int,
    plan: RowPlan,
    options: RowOptions,
    steps: StagedSteps,
) -> Kernel:
    """Return `rows_in_shared`, from the share of a slot and the steps that depend on staging."""
    copies = 1 + options.residual
    require_room(op.name, plan, copies * block_nbytes)
    STAGED = Tile((copies, block_nbytes), "u8")
    SCRATCH, PEERS = exchange_tiles(plan.threads, plan.cluster)
    SLOTS = -(-block_nbytes // plan.slot)
    STORED_SLOTS = SLOTS if options.output else 0
    place, slot_of, start_copies, load = steps
    reduce = reduce_slots(op, share, options, load, slot_of)
    load_early, scale_and_shift = affine_steps(share, options, plan)
    store = store_step(share, True)
    merge, finish = op.merge, finish_and_scale(op, scale_and_shift)
    start_exchange, combine_row = combine_parts(
        op.lanes_combination(share), plan.threads, plan.cluster, initialised=True
    )
    store_stats = store_statistics(op.statistics, options)

    def in_shared(arrays, sizes, scalar):  # type: ignore[no-untyped-def]
        staged, loaded = shared_tile(STAGED), shared_barrier()
        # An array of one barrier: a kernel that combines in a loop has one per turn.
        exchange = Exchange(shared_tile(SCRATCH), shared_tile(PEERS), shared_barriers(1))
        at = place(sizes, arrays.x)
        start_copies(staged, loaded, exchange, arrays, at)
        start_exchange(exchange, at.thread)
        # Thread 0 initialised `loaded` and `full`: the block sees them now, and its peers see
        # `full` after the cluster's barrier, for which combine_row waits.
        cuda.syncthreads()
        loaded.wait(0)
        total = row_of(arrays.total, at.row)
        own = reduce(staged, total, at, 0, scalar)
        for slot in range(1, SLOTS):
            own = merge(own, reduce(staged, total, at, slot, scalar), scalar)
        early = load_early(arrays, at)  # the weights of slot 0, if RowPlan.early is set
        row_stats = combine_row(own, exchange, scalar)
        for slot in range(STORED_SLOTS):
            values = load(staged, at, slot)
            here = slot_of(at, slot)
            values = finish(values, row_stats, sizes.columns, scalar, arrays, here, early)
            # The last pass loads the weights of the last slot once more, and nothing uses them.
            early = load_early(arrays, slot_of(at, min(slot + 1, SLOTS - 1)))
            store(row_of(arrays.y, at.row), here, values)
        store_stats(True, row_stats, at, arrays, sizes.columns, scalar)

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

    If `options.residual_out` is set, it also stores the slot's sums of `x` and the residual to the
    row at address `total`.
    """
    SHARE, reduce, access_0_of = share, op.reduce, first_access(options)
    store_total = store_global if options.residual_out else no_store

    @device_function
    def reduce_slot(
        staged: SharedMemory, total: Address, at: RowPlace, slot: Integer, scalar: Real
    ) -> Registers:
        values, here = load(staged, at, slot), slot_of(at, slot)
        packed = from_float(SHARE, values)
        store_total(SHARE, total + here.begin, here.first, here.limit, packed)
        origin = access_0_of(here)
        part, _ = reduce(SHARE, values, origin + here.first, origin + here.limit, scalar)
        return part

    return reduce_slot


def finish_and_scale(op: RowOperation, scale_and_shift: DeviceFunction) -> DeviceFunction:
    """Return ``finish(values, row_stats, columns, scalar, arrays, here, early)`` of a slot.

    It is one function: called one after the other, its two halves made ptxas spill for sm_100a.
    """
    apply = op.finish or op.apply

    @device_function
    def finish(
        values: Registers,
        row_stats: Registers,
        columns: Integer,
        scalar: Real,
        arrays: RowArrays,
        here: RowPlace,
        early: tuple[Registers, Registers],
    ) -> Registers:
        # The values are loaded anew, so their own part is lost: see `RowOperation.finish`.
        done = apply(values, row_stats, row_stats, columns, scalar)
        return scale_and_shift(done, arrays, here, early)

    return finish


def compiled(kernel: Kernel, plan: RowPlan) -> Kernel:
    """Return the `cuda.jit` kernel of a plan."""
    if plan.cluster > 1:
        kernel = cluster(plan.cluster)(kernel)
    return cuda.jit(launch_bounds=plan.launch_bounds)(kernel)
