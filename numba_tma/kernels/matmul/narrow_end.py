"""How a tile of few rows or columns ends: blocks of a cluster exchange sums, each stores a share.

A cluster computes one tile, and each of its blocks a part of K. The tile's columns of the
accumulator are divided among the blocks. Each block sends the sums of every share to the shared
memory of the block whose share it is (st.async), which adds up what has come in the order of the
blocks: equal calls give equal bits. A share is a multiple of 8 columns, so fewer blocks than all
may have one.
"""

from __future__ import annotations

from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.device.waiting import wait_for
from numba_tma.host.annotations import DeviceFunction
from numba_tma.host.debug import Site
from numba_tma.kernels.matmul.epilogue import element_epilogue
from numba_tma.kernels.matmul.mma_kernel import sum_epilogue
from numba_tma.kernels.matmul.plan import SwappedPlan
from numba_tma.kernels.matmul.unaligned_plan import UnalignedPlan

PIECE = 32  #: columns of sums that are finished together
SUMS = Site("matmul(): sums of the cluster's blocks", in_cluster=True)


# ------------------------------------------------ exchange: the sums of a cluster's blocks


def sums_start(plan: SwappedPlan | UnalignedPlan) -> DeviceFunction:
    """Return the function that allocates what the sums of other blocks arrive in.

    All threads of the cluster call it before their first stage, and wait for the cluster's barrier
    once: those that send wait before they send.
    """
    PARTS, SHARES = plan.parts_tile, plan.shares
    SENT_BYTES = 4 * plan.m * plan.share * plan.config.cluster

    @cuda.jit(device=True)
    def start(thread, rank):  # type: ignore[no-untyped-def]
        parts, sent = tma.shared_tile(PARTS), tma.shared_barrier()
        if thread == 0:
            sent.init(1)
            ptx.fence_mbarrier_init()
            if rank < SHARES:
                sent.arrive_expect_tx(SENT_BYTES)
        ptx.barrier_cluster_arrive("relaxed")
        return parts, sent

    @cuda.jit(device=True)
    def nothing(thread, rank):  # type: ignore[no-untyped-def]
        return 0, 0

    return start if plan.config.cluster > 1 else nothing


def shares_send(plan: SwappedPlan | UnalignedPlan, index: int) -> DeviceFunction:
    """Return the function that sends shares 0 to `index` of an accumulator to their blocks.

    `to` is the place of this block's sums of a share. This is an unrolled loop, since a fragment's
    columns must be compile-time constants.
    """
    send_previous = shares_send(plan, index - 1) if index else nothing_to_send
    SHARE, PITCH = plan.share, 4 * plan.parts_tile.shape[2]
    START = index * SHARE

    @cuda.jit(device=True)
    def send(value, down, right, to, barrier):  # type: ignore[no-untyped-def]
        ptx.st_async_f32(to + right * PITCH + 4 * down, value, barrier)
        return value

    @cuda.jit(device=True)
    def send_share(acc, to, barrier):  # type: ignore[no-untyped-def]
        send_previous(acc, to, barrier)
        share = acc.columns(START, SHARE)
        share.map_coords(send, ptx.mapa(to, index), ptx.mapa(barrier, index))

    return send_share


@cuda.jit(device=True)
def nothing_to_send(acc, to, barrier):  # type: ignore[no-untyped-def]
    """Send nothing: there is no share before the first."""


def sums_of_parts(plan: SwappedPlan | UnalignedPlan) -> DeviceFunction:
    """Return the function that adds up an element of a share, as `map_coords` calls it."""
    BLOCKS, _, PITCH = plan.parts_tile.shape
    PART_NBYTES = plan.parts_tile.nbytes // BLOCKS

    @cuda.jit(device=True)
    def add(own, down, right, start):  # type: ignore[no-untyped-def]
        place = start + right * (4 * PITCH) + 4 * down
        value = ptx.ld_shared_f32(place)
        for part in range(1, BLOCKS):
            value = value + ptx.ld_shared_f32(place + part * PART_NBYTES)
        return value

    return add


def tile_end(plan: SwappedPlan | UnalignedPlan) -> DeviceFunction:
    """Return the function with which an MMA warpgroup ends a tile.

    `mma_row` is the warpgroup's first row of the first operand, `started` what `sums_start` has
    returned, and `place` the tile's batch, first row and first column.
    """
    SHARES, SHARE = plan.shares, plan.share
    DOWN, RIGHT = (1, 0) if plan.config.first == "a" else (0, 1)
    store = sums_store(plan)

    @cuda.jit(device=True)
    def alone(acc, started, rank, mma_row, place, results, extents, terms):  # type: ignore[no-untyped-def]
        out, old, residual = results
        batch, top, left = place
        given = batch, top + mma_row * DOWN, left + mma_row * RIGHT, extents
        store(acc, out, old, residual, given, terms)

    send, add = shares_send(plan, SHARES - 1), sums_of_parts(plan)

    @cuda.jit(device=True)
    def together(acc, started, rank, mma_row, place, results, extents, terms):  # type: ignore[no-untyped-def]
        parts, sent = started
        out, old, residual = results
        batch, top, left = place
        ptx.barrier_cluster_wait()  # all blocks have initialised their barriers
        send(acc, parts.address_of((rank, 0, mma_row)), sent)
        if rank < SHARES:
            wait_for(sent, 0, SUMS)
            sums = acc.columns(0, SHARE).map_coords(add, parts.address_of((0, 0, mma_row)))
            top = top + mma_row * DOWN + rank * SHARE * RIGHT
            left = left + mma_row * RIGHT + rank * SHARE * DOWN
            store(sums, out, old, residual, (batch, top, left, extents), terms)

    return together if plan.config.cluster > 1 else alone


# ---------------------------------------------------------- store: epilogue, by threads


def sums_store(plan: SwappedPlan | UnalignedPlan) -> DeviceFunction:
    """Return the function that finishes the sums of a block and stores them.

    `out` is (batch, columns, rows): accumulator rows are columns of the result. If a is the first
    operand, `out` is (batch, rows, columns).
    """
    return pieces_store(plan, -(-plan.share // PIECE) - 1)


def pieces_store(plan: SwappedPlan | UnalignedPlan, index: int) -> DeviceFunction:
    """Return the function that finishes and stores pieces 0 to `index` of the sums.

    A piece leaves registers to the steps of an epilogue. This is an unrolled loop, since a
    fragment's columns must be compile-time constants.
    """
    store_piece = (transposed_store if plan.config.first == "b" else straight_store)(plan)
    store_previous = pieces_store(plan, index - 1) if index else nothing_to_store
    START, SWAPPED = index * PIECE, plan.config.first == "b"
    WIDTH = min(PIECE, plan.share - START)

    @cuda.jit(device=True)
    def store(acc, out, old, residual, given, terms):  # type: ignore[no-untyped-def]
        store_previous(acc, out, old, residual, given, terms)
        batch, top, left, extents = given
        if SWAPPED:
            top = top + START
        else:
            left = left + START
        piece = acc.columns(START, WIDTH)
        store_piece(piece, out, old, residual, (batch, top, left, extents), terms)

    return store


@cuda.jit(device=True)
def nothing_to_store(acc, out, old, residual, given, terms):  # type: ignore[no-untyped-def]
    """Store nothing: there is no piece before the first."""


def straight_store(plan: SwappedPlan | UnalignedPlan) -> DeviceFunction:
    """Return the function that finishes and stores an accumulator whose rows are those of `out`."""
    OUT, finish = plan.out.name, sum_epilogue(plan)

    @cuda.jit(device=True)
    def store(acc, out, old, residual, given, terms):  # type: ignore[no-untyped-def]
        batch, top, left, extents = given
        acc = finish(acc, (old, residual), (batch, top, left), extents, terms)
        acc.to(OUT).store_global(out[batch], top, left)

    return store


def transposed_store(plan: SwappedPlan | UnalignedPlan) -> DeviceFunction:
    """Return the function that finishes a transposed accumulator and stores it."""
    OUT, finish = plan.out.name, element_epilogue(plan.epilogue, plan.out)

    @cuda.jit(device=True)
    def element(value, down, right, sources, given, terms):  # type: ignore[no-untyped-def]
        batch, top, left, extents = given
        return finish(value, (batch, top + right, left + down), sources, extents, terms)

    @cuda.jit(device=True)
    def store(acc, out, old, residual, given, terms):  # type: ignore[no-untyped-def]
        batch, top, left, _ = given
        acc.to(OUT).store_global(out[batch], left, top)

    @cuda.jit(device=True)
    def finish_and_store(acc, out, old, residual, given, terms):  # type: ignore[no-untyped-def]
        batch, top, left, _ = given
        acc = acc.map_coords(element, (old, residual), given, terms)
        acc.to(OUT).store_global(out[batch], left, top)

    return finish_and_store if plan.epilogue.changes else store
