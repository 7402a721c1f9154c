"""Rows: how kernels cut them, read them once, reduce them, and write them.

A kernel of rows is an `Operation` (what is reduced, and what becomes of the elements) under one of
the regimes here. Each thread holds its `Share` of a row in registers between the two, so that a row
is read once and written once; what the threads have reduced meets in shared memory, and between the
blocks of a cluster by stores into each other's (st.async).

`at_once`: a block, or a warp for short rows, takes one row and ends; several blocks on a
multiprocessor overlap one's loads with the others' arithmetic, in the hardware's order of blocks,
which keeps the addresses in flight together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma._device import device_function
from numba_tma._environment import simulated
from numba_tma.clusters import cluster
from numba_tma.dtypes import DType
from numba_tma.kernels import _host
from numba_tma.kernels._host import Matrix
from numba_tma.kernels._registers import (
    Share,
    from_float,
    global_memory,
    larger,
    load_cached,
    load_global,
    load_shared,
    store_float,
    store_global,
    store_index,
    swapped,
    to_float,
)
from numba_tma.layout import Tile
from numba_tma.shared import shared_barrier, shared_barriers, shared_tile


@dataclass(frozen=True)
class Plan:
    """How rows are cut up.

    Parameters
    ----------
    threads
        That share a row in a block, a power of 2. Up to 32 of them are a part of a warp or a warp.
    rows
        Of a block; 1 where more than a warp shares a row.
    cluster
        Blocks that share a row: 1, 2, 4 or 8.
    bulk
        Whether rows come through shared memory, by bulk copies, instead of straight to registers.
    blocks
        That the compiler leaves registers for on a multiprocessor; 0: it may choose.
    early
        Whether weights are loaded before the reduction, at the cost of registers, or after it.
    stages
        Of a ring that persistent blocks, `blocks` on a multiprocessor, stream rows through; 0:
        blocks take their rows at once and end.
    slot
        Bytes of a stage, where a row is several; 0: a stage is a row, which is held in registers.
    cache
        How rows are loaded: "allocate" through the L1 cache, "no_allocate" past it, "evict_first"
        to leave the L2 cache before what is written. Bulk copies know only the last.
    resident
        Whether a block keeps the weights of its part of the rows in shared memory, beside `slot`.
    held
        Whether a row of several slots moves to registers as they come, so that they are refilled
        at once, instead of staying in shared memory until it has been reduced.
    """

    threads: int
    rows: int = 1
    cluster: int = 1
    bulk: bool = False
    blocks: int = 0
    early: bool = False
    stages: int = 0
    slot: int = 0
    cache: str = "allocate"
    resident: bool = False
    held: bool = False


#: What a bulk copy takes for `Plan.cache`.
CACHE_HINTS: dict[str, Any] = {
    "allocate": None,
    "no_allocate": None,
    "evict_first": int(ptx.CachePolicy.EVICT_FIRST),
}


@dataclass(frozen=True, eq=False)  # there is one of each
class Operation:
    """What a kernel of rows computes, as device functions.

    Parameters
    ----------
    name
        Of the function, for messages and kernels.
    reduce
        ``(share, values, first, limit, scalar)`` to the thread's part of the statistics, a vector
        of four float32, and the values that are kept for `apply`.
    combine
        ``(part, lanes, scalar)`` to the part of `lanes` neighbouring lanes together.
    apply
        ``(values, own part, whole part, columns, scalar)`` to the row's values.
    statistics
        ``(whole part, columns, scalar)`` to a vector of four float32, the first of which are the
        statistics that can be written out.
    merge
        ``(part, other part, scalar)`` to the part of both.
    finish
        As `apply`, of values that `reduce` has not changed.
    combine_equal
        As `combine`, where all parts are of as many elements; None: that changes nothing.
    """

    name: str
    reduce: Callable[..., Any]
    combine: Callable[..., Any]
    apply: Callable[..., Any]
    statistics: Callable[..., Any]
    merge: Callable[..., Any]
    finish: Callable[..., Any]
    combine_equal: Callable[..., Any] | None = None

    def combination(self, share: Share) -> Callable[..., Any]:
        """Return how the parts of threads with such shares are combined."""
        return self.combine_equal if share.whole and self.combine_equal else self.combine


@dataclass(frozen=True)
class Options:
    """What a kernel of rows has beside its input and output; each combination is compiled anew."""

    weight: bool = False
    bias: bool = False
    residual: bool = False
    residual_out: bool = False
    statistics: tuple[bool, bool] = (False, False)
    output: bool = True
    index: bool = False  # the second statistic is a column, which is written as int64


# ------------------------------------------------------------------- reductions of lanes


@device_function
def lanes_sum(value: Any, lanes: Any) -> Any:
    """Return the sum over `lanes` neighbouring lanes, a power of 2, in each of them."""
    if lanes > 16:
        value += swapped(value, 16)
    if lanes > 8:
        value += swapped(value, 8)
    if lanes > 4:
        value += swapped(value, 4)
    if lanes > 2:
        value += swapped(value, 2)
    if lanes > 1:
        value += swapped(value, 1)
    return value


@device_function
def lanes_max(value: Any, lanes: Any) -> Any:
    """Return the largest over `lanes` neighbouring lanes, a power of 2, in each of them."""
    if lanes > 16:
        value = larger(value, swapped(value, 16))
    if lanes > 8:
        value = larger(value, swapped(value, 8))
    if lanes > 4:
        value = larger(value, swapped(value, 4))
    if lanes > 2:
        value = larger(value, swapped(value, 2))
    if lanes > 1:
        value = larger(value, swapped(value, 1))
    return value


def meeting(combine: Any, threads: int, blocks: int) -> Any:
    """Return the device function in which all threads that share a row combine their parts.

    ``scratch`` has an entry for each warp, ``peers`` one for each block of the cluster, and a
    barrier of ``full`` completes when those have come. Where threads meet again and again, there
    are two of each, used in ``turn``: what one writes next, another may still be reading. ``phase``
    is then the parity of the barrier's phase.
    """
    LANES, WARPS, THREADS, BLOCKS = min(threads, 32), threads // 32, threads, blocks

    @device_function
    def in_warp(
        part: Any, scratch: Any, peers: Any, full: Any, turn: Any, phase: Any, scalar: Any
    ) -> Any:
        return combine(part, LANES, scalar)

    @device_function
    def in_block(
        part: Any, scratch: Any, peers: Any, full: Any, turn: Any, phase: Any, scalar: Any
    ) -> Any:
        whole = combine(part, LANES, scalar)
        lane = ptx.tid_x() % 32
        if lane == 0:
            scratch.write_vector((turn * WARPS + ptx.tid_x() // 32, 0), whole)
        ptx.barrier_sync(1, THREADS)  # the threads that share rows, which need not be all
        return combine(scratch.read_vector((turn * WARPS + lane % WARPS, 0)), WARPS, scalar)

    @device_function
    def in_cluster(
        part: Any, scratch: Any, peers: Any, full: Any, turn: Any, phase: Any, scalar: Any
    ) -> Any:
        whole = in_block(part, scratch, peers, full, turn, phase, scalar)
        thread = ptx.tid_x()
        if thread == 0:
            full[turn].arrive_expect_tx(16 * BLOCKS)
        if thread < BLOCKS:
            mine = peers.address_of((turn * BLOCKS + ptx.cluster_ctarank(), 0))
            there, barrier = ptx.mapa(mine, thread), ptx.mapa(full[turn], thread)
            ptx.st_async_f32(there, whole[0], barrier)
            ptx.st_async_f32(there + 4, whole[1], barrier)
            ptx.st_async_f32(there + 8, whole[2], barrier)
            ptx.st_async_f32(there + 12, whole[3], barrier)
        full[turn].wait(phase)
        return combine(peers.read_vector((turn * BLOCKS + thread % BLOCKS, 0)), BLOCKS, scalar)

    if blocks > 1:
        return in_cluster
    return in_block if threads > 32 else in_warp


# ------------------------------------------------------------------------------- kernels


@functools.cache
def at_once(op: Operation, share: Share, plan: Plan, options: Options) -> Any:
    """Return the kernel in which each block takes `plan.rows` rows and ends."""
    reduce, apply, statistics = op.reduce, op.apply, op.statistics
    BLOCKS, ROWS, THREADS, WIDTH = plan.cluster, plan.rows, plan.threads, share.width
    meet = meeting(op.combination(share), plan.threads, plan.cluster)
    SHARE, STEP = share, share.step * share.count  # accesses of a block
    ROW = Tile(STEP * share.width, "u8")
    SCRATCH = Tile((max(1, plan.threads // 32), 4), "f32")
    PEERS = Tile((plan.cluster, 4), "f32")
    BULK, STAGED = plan.bulk, Tile((plan.rows, ROW.size), "u8") if plan.bulk else Tile(16, "u8")
    WEIGHT, BIAS, (FIRST, SECOND) = options.weight, options.bias, options.statistics
    RESIDUAL, RESIDUAL_OUT = options.residual, options.residual_out
    EARLY, OUTPUT, INDEX = plan.early, options.output, options.index
    HINT = CACHE_HINTS[plan.cache]

    def rows_at_once(  # type: ignore[no-untyped-def]
        x,
        x_stride,
        residual,
        residual_stride,
        weight,
        bias,
        y,
        y_stride,
        total,
        total_stride,
        statistic_0,
        statistic_1,
        rows,
        accesses,
        columns,
        scalar,
    ):
        scratch, peers, full = shared_tile(SCRATCH), shared_tile(PEERS), shared_barriers(1)
        rank = 0
        thread = cuda.threadIdx.x
        row = cuda.blockIdx.x // BLOCKS
        limit = accesses
        if ROWS > 1:
            thread = cuda.threadIdx.x % THREADS
            row = row * ROWS + cuda.threadIdx.x // THREADS
            limit = accesses if row < rows else 0
        if BLOCKS > 1:
            rank = ptx.cluster_ctarank()
        first = rank * STEP + thread
        if BULK:
            staged, loaded = shared_tile(STAGED), shared_barrier()
            if cuda.threadIdx.x == 0:
                loaded.init(1)
                ptx.fence_mbarrier_init()
                begin = cuda.blockIdx.x // BLOCKS * ROWS
                here = min(ROWS, rows - begin)
                nbytes = max(0, min(STEP, accesses - rank * STEP)) * WIDTH
                loaded.arrive_expect_tx(here * nbytes)
                for k in range(ROWS):
                    if k < here and nbytes > 0:
                        source = x + (begin + k) * x_stride + rank * STEP * WIDTH
                        ptx.cp_async_bulk_load(
                            staged.address_of((k, 0)),
                            global_memory(source, nbytes),
                            nbytes,
                            loaded,
                            HINT,
                        )
        if BLOCKS > 1:
            if cuda.threadIdx.x == 0:
                full.init(1)
                ptx.fence_mbarrier_init()
            ptx.barrier_cluster_arrive()
        if BULK:
            cuda.syncthreads()
            loaded.wait(0)
            place = staged.address_of((cuda.threadIdx.x // THREADS, 0))
            packed = load_shared(SHARE, place, thread, limit - rank * STEP)
        else:
            packed = load_global(SHARE, x + row * x_stride, first, limit)
        if RESIDUAL:
            added = load_global(SHARE, residual + row * residual_stride, first, limit)
        if WEIGHT and EARLY:
            scale = load_cached(SHARE, weight, first, limit)
        if BIAS and EARLY:
            shift = load_cached(SHARE, bias, first, limit)
        values = to_float(SHARE, packed)
        if RESIDUAL:
            values = values + to_float(SHARE, added)
        if RESIDUAL_OUT:
            store_global(SHARE, total + row * total_stride, first, limit, from_float(SHARE, values))
        own, values = reduce(SHARE, values, first, limit, scalar)
        if BLOCKS > 1:
            ptx.barrier_cluster_wait()  # the peers have started and initialised their barriers
        whole = meet(own, scratch, peers, full, 0, 0, scalar)
        if OUTPUT:
            values = apply(values, own, whole, columns, scalar)
            if WEIGHT and not EARLY:
                scale = load_cached(SHARE, weight, first, limit)
            if BIAS and not EARLY:
                shift = load_cached(SHARE, bias, first, limit)
            if WEIGHT:
                values = values * to_float(SHARE, scale)
            if BIAS:
                values = values + to_float(SHARE, shift)
            store_global(SHARE, y + row * y_stride, first, limit, from_float(SHARE, values))
        if FIRST or SECOND:
            if thread == 0 and rank == 0 and row < rows:
                of_row = statistics(whole, columns, scalar)
                if FIRST:
                    store_float(statistic_0 + 4 * row, of_row[0])
                if SECOND:
                    if INDEX:
                        store_index(statistic_1 + 8 * row, of_row[1])
                    else:
                        store_float(statistic_1 + 4 * row, of_row[1])

    rows_at_once.__name__ = f"{op.name}_at_once"
    kernel = cluster(plan.cluster)(rows_at_once) if plan.cluster > 1 else rows_at_once
    bounds = (plan.threads * plan.rows, plan.blocks) if plan.blocks else plan.threads * plan.rows
    return cuda.jit(kernel) if simulated() else cuda.jit(launch_bounds=bounds)(kernel)


# ------------------------------------------------------------------------------ the host


def access_width(*matrices: Matrix | None) -> int:
    """Return by how many bytes, up to 16, all rows can be accessed."""
    width = 16
    for m in matrices:
        if m is None:
            continue
        row = m.columns * m.dtype.itemsize
        stride = m.row_stride if m.rows > 1 else 0
        while m.address % width or row % width or stride % width:
            width //= 2
    return width


def share_of(columns: int, rows: int, element: Any, width: int, plan: Plan) -> Share:
    """Return what a thread holds of rows of `columns`."""
    accesses = columns * element.itemsize // width
    sharing = plan.threads * plan.cluster
    count = -(-accesses // sharing)
    whole = accesses == count * sharing and rows % plan.rows == 0
    return Share(element, width, count, plan.threads, whole, plan.cache)


def _ring(cluster: int = 1, slots: int = 13, **how: Any) -> Plan:
    return Plan(512, 1, cluster, blocks=1, stages=slots, slot=16384, **how)


_HALVES = Plan(512, 1, 2, blocks=2, stages=6, slot=16384)
_SHORT = {
    2048: Plan(32, 2),
    4096: Plan(128),
    8192: Plan(256),
    16384: Plan(256, bulk=True),
    32768: Plan(512, blocks=2),
    65536: Plan(512, blocks=2, stages=6, slot=16384),
}
_STAYS: dict[str, Any] = {"cache": "evict_first", "resident": True}  # what the weights do
_SOFTMAX = {
    **_SHORT,
    8192: Plan(128, bulk=True),
    131072: _ring(),
    262144: _ring(4),
    524288: _ring(8),
}

#: What is fastest for rows of so many bytes, and for more than half of that.
PLANS: dict[str, dict[int, Plan]] = {
    "rmsnorm": {
        **_SHORT,
        131072: _HALVES,
        262144: _ring(4, 9, **_STAYS),
        524288: _ring(8, 9, **_STAYS),
    },
    "layernorm": {
        **_SHORT,
        131072: _ring(4, 9, **_STAYS),
        262144: _ring(4, 6, **_STAYS),
        524288: _ring(8, 6, **_STAYS),
    },
    "softmax": _SOFTMAX,
    "log_softmax": _SOFTMAX,
}


def plan_for(columns: int, name: str = "", itemsize: int = 2) -> Plan:
    """Return how rows of this length are cut up.

    What `PLANS` has for the operation of this name, or about 32 elements to a thread.
    """
    full = 1 << (columns * itemsize - 1).bit_length()
    if plan := PLANS.get(name, {}).get(full):
        return plan
    threads = 1 << max(0, -(-columns // 32) - 1).bit_length()
    if threads <= 32:
        return Plan(threads, 128 // threads)
    if threads <= 1024:
        return Plan(threads)
    blocks = min(8, threads // 512)
    return Plan(min(1024, threads // blocks), 1, blocks)


def check(function: str, x: Matrix, **others: Matrix | None) -> None:
    """Raise unless `x` is of a type for rows, and the others have its shape and type."""
    if x.dtype.name not in ("f32", "f16", "bf16"):
        raise ValueError(f"{function}(): x is {x.dtype}; it works on f32, f16 and bf16")
    given = {name: matrix for name, matrix in others.items() if matrix is not None}
    _host.check_same(function, x=x, **given)


def check_vector(function: str, name: str, vector: Matrix | None, x: Matrix) -> None:
    """Raise unless an array has one element of the type of `x` for each of its columns."""
    if vector is not None and (vector.shape != (x.columns,) or vector.dtype is not x.dtype):
        raise ValueError(
            f"{function}(): {name} has shape {vector.shape} of {vector.dtype}, but x has "
            f"{x.columns} columns of {x.dtype}; pass a {name} of shape ({x.columns},) of {x.dtype}"
        )


def check_statistics(function: str, x: Matrix, **arrays: Matrix | None) -> None:
    """Raise unless an array has one float32 for each row of `x`, without gaps."""
    for name, array in arrays.items():
        if array is None:
            continue
        gaps = array.rows > 1 and array.row_stride != 4 * array.columns
        if array.shape != x.shape[:-1] or array.dtype.name != "f32" or gaps:
            raise ValueError(
                f"{function}(): {name} has shape {array.shape} of {array.dtype}"
                f"{' with gaps' if gaps else ''}; it takes one f32 for each row of x: pass a "
                f"contiguous float32 array of shape {x.shape[:-1]}"
            )


def optional(name: str, array: Any, dtype: object = None) -> Matrix | None:
    """Return where an array that may be absent lies."""
    return None if array is None else Matrix(name, array, dtype)


def run(
    op: Operation,
    x: Matrix,
    y: Matrix | None,
    *,
    residual: Matrix | None = None,
    residual_out: Matrix | None = None,
    weight: Matrix | None = None,
    bias: Matrix | None = None,
    statistics: tuple[Matrix | None, Matrix | None] = (None, None),
    scalar: float = 0.0,
    stream: Any = None,
    plan: Plan | None = None,
) -> None:
    """Launch an operation on the rows of `x`."""
    if x.nbytes == 0:
        return
    width = access_width(x, y, residual, residual_out, weight, bias)
    flags = (
        weight is not None,
        bias is not None,
        residual is not None,
        residual_out is not None,
        (statistics[0] is not None, statistics[1] is not None),
        y is not None,
        statistics[1] is not None and statistics[1].dtype.name == "i64",
    )
    kernel, blocks, threads, draws = _prepared(op, x.rows, x.columns, x.dtype, width, plan, flags)
    _host.launch(
        kernel,
        blocks,
        threads,
        stream,
        *(_counter(stream) if draws else ()),
        *_place(x),
        *_place(residual),
        weight.address if weight is not None else 0,
        bias.address if bias is not None else 0,
        *_place(y),
        *_place(residual_out),
        statistics[0].address if statistics[0] is not None else 0,
        statistics[1].address if statistics[1] is not None else 0,
        x.rows,
        x.columns * x.dtype.itemsize // width,
        x.columns,
        np.float32(scalar),
    )


@functools.lru_cache(4096)
def _prepared(
    op: Operation, rows: int, columns: int, dtype: DType, width: int, plan: Plan | None, flags: Any
) -> tuple[Any, int, int, bool]:
    """Return the kernel, its blocks and threads, and whether it draws rows from a queue."""
    options = Options(*flags)
    plain = options.output and not options.residual and not options.residual_out
    if plan is None:
        plan = plan_for(columns, op.name if plain and width == 16 else "", dtype.itemsize)
    if width < 16 and (plan.bulk or plan.stages):  # bulk copies move multiples of 16 B
        plan = plan_for(columns)
    if plan.stages:
        from numba_tma.kernels._row_held import held_rows
        from numba_tma.kernels._row_rings import row_per_stage, slots_per_row

        make = held_rows if plan.held else slots_per_row if plan.slot else row_per_stage
        kernel = make(op, dtype, columns * dtype.itemsize, plan, options)
        clusters = min(rows, _host.resident_clusters(plan.cluster, plan.blocks))
        producer = 0 if plan.held else 32
        return kernel, clusters * plan.cluster, plan.threads + producer, True
    kernel = at_once(op, share_of(columns, rows, dtype, width, plan), plan, options)
    return kernel, -(-rows // plan.rows) * plan.cluster, plan.threads * plan.rows, False


def _counter(stream: Any) -> tuple[Any]:
    return (_host.queue_counter(_host.current_device(), _host.stream_key(stream)),)


def _place(matrix: Matrix | None) -> tuple[int, int]:
    return (0, 0) if matrix is None else (matrix.address, matrix.row_stride)
