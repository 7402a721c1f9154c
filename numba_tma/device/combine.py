"""How the threads that share a row combine their parts: over lanes, warps and blocks of a cluster.

A part is a vector of four float32. Lanes exchange parts by shuffles, warps through shared memory,
and blocks of a cluster by stores into each other's shared memory that complete bytes of an mbarrier
there (st.async).
"""

from __future__ import annotations

from typing import NamedTuple

from numba_tma import ptx
from numba_tma.backend.interface import device_function
from numba_tma.device.arithmetic import larger
from numba_tma.device.clusters import cluster_sync
from numba_tma.host.annotations import BarrierLike, DeviceFunction, Registers, SharedMemory
from numba_tma.host.layout import Tile


@device_function
def lanes_sum(value: Registers, lanes: int) -> Registers:
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
def lanes_max(value: Registers, lanes: int) -> Registers:
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


class Exchange(NamedTuple):
    """The shared memory through which the warps of a block, and blocks of a cluster, combine.

    Kernels that combine again and again have two turns of each: a slower warp may still be reading
    the turn before.
    """

    scratch: SharedMemory  #: one part per warp
    peers: SharedMemory  #: one part per warp of the cluster; per block if it has more than 32 warps
    full: BarrierLike  #: one per turn; its phase completes when all parts of `peers` have arrived


def _entries(threads: int, blocks: int) -> int:
    """Return the number of parts that each block of a cluster receives."""
    warps = max(1, threads // 32)
    return warps * blocks if warps * blocks <= 32 else blocks


def exchange_tiles(threads: int, blocks: int, turns: int = 1) -> tuple[Tile, Tile]:
    """Return the tiles `scratch` and `peers` of an `Exchange`."""
    warps = max(1, threads // 32)
    return Tile((turns * warps, 4), "f32"), Tile((turns * _entries(threads, blocks), 4), "f32")


def combine_in_turns(
    combine: DeviceFunction, threads: int, blocks: int
) -> tuple[DeviceFunction, DeviceFunction]:
    """Return the functions that start an exchange, ``(exchange, thread)``, and combine the parts.

    All threads that share a row call the second, as ``(part, exchange, turn, phase, scalar)``:
    `turn` alternates between 0 and 1, and `phase` is the parity of that turn's barrier. `combine`
    is `RowOperation.combine_lanes`.
    """
    LANES, WARPS, THREADS, BLOCKS = min(threads, 32), max(1, threads // 32), threads, blocks
    ENTRIES = _entries(threads, blocks)

    @device_function
    def start_alone(exchange: Exchange, thread: int) -> None:
        pass

    @device_function
    def start_in_cluster(exchange: Exchange, thread: int) -> None:
        if thread == 0:
            exchange.full.init(1)
            ptx.fence_mbarrier_init()
        cluster_sync()

    @device_function
    def in_warp(
        part: Registers, exchange: Exchange, turn: int, phase: int, scalar: bool
    ) -> Registers:
        return combine(part, LANES, scalar)

    @device_function
    def in_block(
        part: Registers, exchange: Exchange, turn: int, phase: int, scalar: bool
    ) -> Registers:
        whole = combine(part, LANES, scalar)
        lane = ptx.tid_x() % 32
        if lane == 0:
            exchange.scratch.write_vector((turn * WARPS + ptx.tid_x() // 32, 0), whole)
        ptx.barrier_sync(1, THREADS)  # a producer warp does not share rows
        return combine(
            exchange.scratch.read_vector((turn * WARPS + lane % WARPS, 0)), WARPS, scalar
        )

    @device_function
    def send(part: Registers, exchange: Exchange, turn: int, entry: int, peer: int) -> None:
        """Store a part to a block of the cluster."""
        if peer < BLOCKS:
            mine = exchange.peers.address_of((turn * ENTRIES + entry, 0))
            ptx.st_async_v4_f32(ptx.mapa(mine, peer), part, ptx.mapa(exchange.full[turn], peer))

    @device_function
    def received(exchange: Exchange, turn: int, phase: int, scalar: bool) -> Registers:
        exchange.full[turn].wait(phase)
        parts = exchange.peers.read_vector((turn * ENTRIES + ptx.tid_x() % ENTRIES, 0))
        return combine(parts, ENTRIES, scalar)

    @device_function
    def expect(exchange: Exchange, turn: int) -> None:
        if ptx.tid_x() == 0:
            exchange.full[turn].arrive_expect_tx(16 * ENTRIES)

    @device_function
    def in_cluster_by_warps(
        part: Registers, exchange: Exchange, turn: int, phase: int, scalar: bool
    ) -> Registers:
        expect(exchange, turn)
        whole, thread = combine(part, LANES, scalar), ptx.tid_x()
        entry = ptx.cluster_ctarank() * WARPS + thread // 32
        send(whole, exchange, turn, entry, thread % 32)
        return received(exchange, turn, phase, scalar)

    @device_function
    def in_cluster_by_blocks(
        part: Registers, exchange: Exchange, turn: int, phase: int, scalar: bool
    ) -> Registers:
        expect(exchange, turn)
        whole = in_block(part, exchange, turn, phase, scalar)
        send(whole, exchange, turn, ptx.cluster_ctarank(), ptx.tid_x())
        return received(exchange, turn, phase, scalar)

    if blocks > 1:
        each_warp = ENTRIES > blocks or threads <= 32
        return start_in_cluster, in_cluster_by_warps if each_warp else in_cluster_by_blocks
    return start_alone, in_block if threads > 32 else in_warp


def combine_parts(
    combine: DeviceFunction, threads: int, blocks: int, initialised: bool = False
) -> tuple[DeviceFunction, DeviceFunction]:
    """Return the functions that start an exchange, ``(exchange, thread)``, and combine once.

    The second is called as ``(part, exchange, scalar)``. Other blocks of the cluster write here, so
    a block tells them when its barrier is initialised, and waits for them before it combines; what
    it does in between overlaps with their start.
    """
    start_alone, meet = combine_in_turns(combine, threads, blocks)

    @device_function
    def combine_alone(part: Registers, exchange: Exchange, scalar: bool) -> Registers:
        return meet(part, exchange, 0, 0, scalar)

    @device_function
    def start_in_cluster(exchange: Exchange, thread: int) -> None:
        if thread == 0:
            exchange.full.init(1)
            ptx.fence_mbarrier_init()
        ptx.barrier_cluster_arrive()

    @device_function
    def combine_in_cluster(part: Registers, exchange: Exchange, scalar: bool) -> Registers:
        ptx.barrier_cluster_wait()
        return meet(part, exchange, 0, 0, scalar)

    @device_function
    def announce(exchange: Exchange, thread: int) -> None:
        ptx.barrier_cluster_arrive()

    if blocks > 1:
        return announce if initialised else start_in_cluster, combine_in_cluster
    return start_alone, combine_alone
