"""Rows: what a kernel over them is made of, and the device functions that all of them share.

A kernel of rows is an `Operation` (what is reduced, and what becomes of the elements) under one of
the regimes of `_row_at_once`, `_row_staged` and `_row_ring`, cut up by a `Plan`. A row is read once
and written once; what the threads have reduced meets in shared memory, and between the blocks of a
cluster by stores into each other's (st.async). `_row_launch` is the host's half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i64
from numba_tma.device.arithmetic import larger
from numba_tma.device.row_share import Share
from numba_tma.host.layout import Tile
from numba_tma.kernels._host.limits import SHARED_BYTES


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
        Whether rows come to shared memory, by bulk copies, instead of straight to registers.
    blocks
        That the compiler leaves registers for on a multiprocessor; 0: it may choose. With `stages`,
        that stay on a multiprocessor.
    early
        Whether weights are loaded before the reduction, at the cost of registers, or after it. With
        `slot`, those of the next slot then come from the L2 cache while one is stored.
    stages
        Of a ring that persistent blocks stream rows through, a row a stage; 0: blocks take their
        rows at once and end.
    slot
        Bytes of a row that registers hold at a time, with `bulk`: the row waits in shared memory,
        which is read slot by slot to reduce the row, and again to normalise it. 0: registers hold
        a block's part of the row.
    cache
        How rows are loaded: "allocate" through the L1 cache, "no_allocate" past it, "evict_last" to
        leave the L2 cache after what is written, "evict_first" before it. Bulk copies know only the
        last two.

    Raises
    ------
    ValueError
        If these do not go together.
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

    def __post_init__(self) -> None:
        threads, slot, alone = self.threads, self.slot, self.rows == self.cluster == 1
        rules = (
            (threads in [1 << k for k in range(11)], "threads is a power of 2, up to 1,024"),
            (self.cluster in (1, 2, 4, 8), "cluster is 1, 2, 4 or 8"),
            (
                self.rows == 1 or (threads <= 32 and self.cluster == 1),
                "several rows are of up to 32 threads each, without a cluster",
            ),
            (
                threads >= 32 or (self.cluster == 1 and not self.stages),
                "blocks of a cluster, or with stages, have 32 threads or more",
            ),
            (
                not self.stages or (alone and self.blocks > 0 and not self.bulk and not slot),
                "stages go with blocks, and with neither rows, cluster, bulk nor slot",
            ),
            (not slot or (self.bulk and self.rows == 1), "slot goes with bulk=True and rows=1"),
            (slot % (16 * threads) == 0, f"slot is a multiple of {16 * threads:,}: 16 B a thread"),
        )
        for holds, rule in rules:
            if not holds:
                raise ValueError(f"{self}: {rule}")


def block_part(nbytes: int, blocks: int) -> int:
    """Return the bytes of a row that each block of a cluster has; the last may have fewer, or 0."""
    return -(-nbytes // (16 * blocks)) * 16


def require_room(name: str, plan: Plan, nbytes: int) -> None:
    """Raise unless `nbytes` of rows fit into the shared memory of a block."""
    if nbytes > SHARED_BYTES:
        raise ValueError(
            f"{name}(plan={plan}): a block has {nbytes:,} B of rows, but room for "
            f"{SHARED_BYTES:,} B in shared memory: give a row more blocks (cluster=, up to 8), a "
            "block fewer rows or stages, or no plan"
        )


#: What a bulk copy takes for `Plan.cache`.
CACHE_HINTS: dict[str, Any] = {
    "allocate": None,
    "no_allocate": None,
    "evict_first": int(ptx.CachePolicy.EVICT_FIRST),
    "evict_last": int(ptx.CachePolicy.EVICT_LAST),
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


# ---------------------------------------------------------------------- device functions


@device_function
def lanes_sum(value: Any, lanes: Any) -> Any:
    """Return the sum over `lanes` neighbouring lanes, a power of 2, in each of them."""
    if lanes > 16:
        value += ptx.shfl_sync_bfly_f32(value, 16)
    if lanes > 8:
        value += ptx.shfl_sync_bfly_f32(value, 8)
    if lanes > 4:
        value += ptx.shfl_sync_bfly_f32(value, 4)
    if lanes > 2:
        value += ptx.shfl_sync_bfly_f32(value, 2)
    if lanes > 1:
        value += ptx.shfl_sync_bfly_f32(value, 1)
    return value


@device_function
def lanes_max(value: Any, lanes: Any) -> Any:
    """Return the largest over `lanes` neighbouring lanes, a power of 2, in each of them."""
    if lanes > 16:
        value = larger(value, ptx.shfl_sync_bfly_f32(value, 16))
    if lanes > 8:
        value = larger(value, ptx.shfl_sync_bfly_f32(value, 8))
    if lanes > 4:
        value = larger(value, ptx.shfl_sync_bfly_f32(value, 4))
    if lanes > 2:
        value = larger(value, ptx.shfl_sync_bfly_f32(value, 2))
    if lanes > 1:
        value = larger(value, ptx.shfl_sync_bfly_f32(value, 1))
    return value


def _entries(threads: int, blocks: int) -> int:
    """Return how many parts meet in each block of a cluster: of each warp, or of each block."""
    warps = max(1, threads // 32)
    return warps * blocks if warps * blocks <= 32 else blocks


def meeting_places(threads: int, blocks: int, turns: int = 1) -> tuple[Tile, Tile]:
    """Return the tiles in which the threads of a block, and the blocks of a cluster, meet."""
    warps = max(1, threads // 32)
    return Tile((turns * warps, 4), "f32"), Tile((turns * _entries(threads, blocks), 4), "f32")


def meeting(combine: Any, threads: int, blocks: int) -> Any:
    """Return the device function in which all threads that share a row combine their parts.

    ``scratch`` and ``peers`` are `meeting_places`, and a barrier of ``full`` completes when what
    the cluster's blocks send has come. Where threads meet again and again, there are two turns of
    each, used in ``turn``: what one writes next, another may still be reading. ``phase`` is then
    the parity of the barrier's phase.
    """
    LANES, WARPS, THREADS, BLOCKS = min(threads, 32), max(1, threads // 32), threads, blocks
    ENTRIES = _entries(threads, blocks)
    EACH_WARP = ENTRIES > blocks or threads <= 32

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
        thread, entry = ptx.tid_x(), ptx.cluster_ctarank()
        if thread == 0:
            full[turn].arrive_expect_tx(16 * ENTRIES)
        if EACH_WARP:
            whole = combine(part, LANES, scalar)
            peer, entry = thread % 32, entry * WARPS + thread // 32
        else:
            whole = in_block(part, scratch, peers, full, turn, phase, scalar)
            peer = thread
        if peer < BLOCKS:
            mine = peers.address_of((turn * ENTRIES + entry, 0))
            ptx.st_async_v4_f32(ptx.mapa(mine, peer), whole, ptx.mapa(full[turn], peer))
        full[turn].wait(phase)
        return combine(peers.read_vector((turn * ENTRIES + thread % ENTRIES, 0)), ENTRIES, scalar)

    if blocks > 1:
        return in_cluster
    return in_block if threads > 32 else in_warp


def storing_statistics(op: Operation, options: Options) -> Any:
    """Return the device function in which one thread writes the statistics of a row."""
    statistics, INDEX, (FIRST, SECOND) = op.statistics, options.index, options.statistics

    @device_function
    def store_statistics(
        whole: Any, row: Any, statistic_0: Any, statistic_1: Any, columns: Any, scalar: Any
    ) -> None:
        of_row = statistics(whole, columns, scalar)
        if FIRST:
            ptx.st_global_f32(statistic_0 + 4 * row, of_row[0])
        if SECOND:
            if INDEX:
                ptx.st_global_u64(statistic_1 + 8 * row, i64(of_row[1]))
            else:
                ptx.st_global_f32(statistic_1 + 4 * row, of_row[1])

    return store_statistics
