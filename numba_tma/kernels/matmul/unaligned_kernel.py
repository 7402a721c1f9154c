"""The matmul kernel for operands of any alignment: threads load and shift what TMA cannot address.

TMA reads rows that begin at multiples of 16 B. Here each thread loads the two 16-byte words of
memory that enclose 16 bytes of an operand, shifts them together, and writes these to the tile.

Cost model: small and narrow products take as long as memory takes to deliver the operands, once.
A copy to aligned rows moves them three times, and costs a launch. Large products are bound by the
tensor cores: they load a tile many times, and each time take these instructions.

    load warpgroup                          MMA warpgroup, 64 rows of the first operand
    for each output tile:                   for each output tile:
        for each k:                             for each k: wait, acc += first @ second, release
            acquire a stage                     in a cluster: send acc to block 0, which adds all
            load, shift, write a and b          scale, bias, activation, store
            commit it

- First operand: a, or b with swapped operands, as in `swapped_kernel`, where the cluster's sums
  are explained, too.
- In flight: a thread starts the loads of up to `AT_ONCE` chunks before it waits for one. Two blocks
  share an SM, so that one loads while the other writes.
- Edges: a chunk's words lie inside the operand's memory; if not, the chunk is loaded by elements.
  Beyond the matrix a chunk is 0, so that what K has in its last stage adds nothing.

Words: a *chunk* is 16 bytes of a tile. `line` and `column` count in memory: lines are rows of a
K-major operand, and elements of K of an MN-major one. `phase` is where a chunk begins in its first
word.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.device.waiting import wait_for
from numba_tma.host.annotations import DeviceFunction, Kernel
from numba_tma.host.arrays import CHUNK
from numba_tma.kernels.matmul.kernel import IN_FLIGHT
from numba_tma.kernels.matmul.swapped_kernel import SUMS, add_parts, send, tile_store
from numba_tma.kernels.matmul.unaligned_plan import UnalignedPlan

AT_ONCE = 8  #: chunks that a thread loads before it writes one
LOADERS = 128  #: threads of the load warpgroup

# ------------------------------------------------------------------- load: chunks, by all threads


@cuda.jit(device=True)
def of_a(a, b, at, stage):  # type: ignore[no-untyped-def]
    """Return a, the line and column at which its tile begins, and its tile in a stage."""
    return a, at[0], stage.a


@cuda.jit(device=True)
def of_b(a, b, at, stage):  # type: ignore[no-untyped-def]
    """Return b, the line and column at which its tile begins, and its tile in a stage."""
    return b, at[1], stage.b


@cuda.jit(device=True)
def shifted(low, high, phase):  # type: ignore[no-untyped-def]
    """Return the 16 bytes from byte `phase` of two words on."""
    # By 8 bytes, by 4 bytes, and by the bytes below that.
    eight, four = phase & 8 != 0, phase & 4 != 0
    w0, w1 = low[2] if eight else low[0], low[3] if eight else low[1]
    w2, w3 = high[0] if eight else low[2], high[1] if eight else low[3]
    w4, w5 = high[2] if eight else high[0], high[3] if eight else high[1]
    w0, w1, w2 = w1 if four else w0, w2 if four else w1, w3 if four else w2
    w3, w4 = w4 if four else w3, w5 if four else w4
    selector: Any = np.uint32(0x3210 + 0x1111 * (phase & 3))
    return (
        ptx.prmt_b32(w0, w1, selector),
        ptx.prmt_b32(w1, w2, selector),
        ptx.prmt_b32(w2, w3, selector),
        ptx.prmt_b32(w3, w4, selector),
    )


@cuda.jit(device=True)
def first_bytes(word, nbytes):  # type: ignore[no-untyped-def]
    """Return the first 0, 2 or 4 bytes of a 32-bit word; what follows is 0."""
    return word if nbytes >= 4 else np.uint32(word & 0xFFFF) if nbytes > 0 else np.uint32(0)


def chunk_moves(plan: UnalignedPlan, side: str) -> list[ChunkMove]:
    """Return what moves each of a thread's chunks of an operand: the same functions.

    Threads take the chunks of a tile in turn, line by line.
    """
    tile = plan.a_tile if side == "a" else plan.b_tile
    operand = of_a if side == "a" else of_b
    LINES, SIZE = tile.shape[1], tile.itemsize
    LANES, PER_LINE = CHUNK // SIZE, tile.shape[2] * SIZE // CHUNK
    CHUNKS = LINES * PER_LINE

    @cuda.jit(device=True)
    def place(matrix, start, chunk):  # type: ignore[no-untyped-def]
        """Return line and column in the tile, the chunk's address, and its bytes in the matrix."""
        down, right = np.int32(chunk // PER_LINE), np.int32(chunk % PER_LINE * LANES)
        line, column = np.int32(start[0] + down), np.int32(start[1] + right)
        nbytes = np.int32(min(np.int32(matrix.columns) - column, np.int32(LANES)) * SIZE)
        here = line < matrix.lines and chunk < CHUNKS
        address = np.int64(start[2] + np.int64(line) * matrix.line) + np.int64(column * SIZE)
        return down, right, address, nbytes if here else np.int32(0)

    @cuda.jit(device=True)
    def is_edge(matrix, address, nbytes):  # type: ignore[no-untyped-def]
        """Return whether a word of a chunk has bytes before or behind the operand's memory."""
        first, last = address & -16, (address + nbytes + 15) & -16
        return nbytes > 0 and (first < matrix.address or last > matrix.end)

    @cuda.jit(device=True)
    def read(a, b, at, stage, chunk):  # type: ignore[no-untyped-def]
        matrix, start, _ = operand(a, b, at, stage)
        _, _, address, nbytes = place(matrix, start, chunk)
        phase = np.int32(address & 15)
        inside = not is_edge(matrix, address, nbytes)
        word = address - phase
        low = ptx.ld_global_v4_u32(word, condition=inside and nbytes > 0)
        high = ptx.ld_global_v4_u32(word, offset=16, condition=inside and phase + nbytes > 16)
        return low, high

    @cuda.jit(device=True)
    def write(words, a, b, at, stage, chunk):  # type: ignore[no-untyped-def]
        matrix, start, tile = operand(a, b, at, stage)
        down, right, address, nbytes = place(matrix, start, chunk)
        if chunk < CHUNKS:
            to = tile.address_of((0, down, right))
            if is_edge(matrix, address, nbytes):
                for i in range(LANES):
                    there = i * SIZE < nbytes
                    element = ptx.ld_global_u16(address + i * SIZE, condition=there)
                    ptx.st_shared_u16(to + i * SIZE, element)
            else:
                found = shifted(words[0], words[1], np.int32(address & 15))
                if nbytes < 16:
                    found = (
                        first_bytes(found[0], nbytes),
                        first_bytes(found[1], nbytes - 4),
                        first_bytes(found[2], nbytes - 8),
                        first_bytes(found[3], nbytes - 12),
                    )
                ptx.st_shared_v4_u32(to, found)

    return [ChunkMove(read, write, i * LOADERS) for i in range(-(-CHUNKS // LOADERS))]


class ChunkMove(NamedTuple):
    """How threads move a chunk each, from one number on, from memory to a stage."""

    read: DeviceFunction
    write: DeviceFunction
    first: int


@cuda.jit(device=True)
def nothing_to_move(a, b, at, stage, thread):  # type: ignore[no-untyped-def]
    """Move nothing: there is no further chunk."""


def chunks_move(moves: Sequence[ChunkMove]) -> DeviceFunction:
    """Return the function that reads a thread's chunks, and then writes all of them.

    This is an unrolled loop, since what has been read must stay in registers.
    """
    if not moves:
        return nothing_to_move
    (read, write, FIRST), move_others = moves[0], chunks_move(moves[1:])

    @cuda.jit(device=True)
    def move(a, b, at, stage, thread):  # type: ignore[no-untyped-def]
        chunk = np.uint32(thread + FIRST)
        words = read(a, b, at, stage, chunk)
        move_others(a, b, at, stage, thread)
        write(words, a, b, at, stage, chunk)

    return move


def stage_fill(plan: UnalignedPlan) -> DeviceFunction:
    """Return the function with which a thread writes its chunks of a stage, some at once."""
    moves = [*chunk_moves(plan, "a"), *chunk_moves(plan, "b")]
    rounds = -(-len(moves) // AT_ONCE)
    each = -(-len(moves) // rounds)
    return in_turn([chunks_move(moves[i : i + each]) for i in range(0, len(moves), each)])


def in_turn(functions: Sequence[DeviceFunction]) -> DeviceFunction:
    """Return the function that calls functions one after the other."""
    if len(functions) == 1:
        return functions[0]
    before, last = in_turn(functions[:-1]), functions[-1]

    @cuda.jit(device=True)
    def call(a, b, at, stage, thread):  # type: ignore[no-untyped-def]
        before(a, b, at, stage, thread)
        last(a, b, at, stage, thread)

    return call


# ------------------------------------------------------------------------------ the kernel


@functools.cache
def unaligned_kernel(plan: UnalignedPlan) -> Kernel:
    """Return the kernel of a plan. Its blocks have ``plan.roles.threads`` threads.

    `a` and `b` are `UnalignedMatrix`, `out` an array as in `swapped_kernel.tile_store`; `old` and
    `residual` are `MatrixBytes`. A cluster computes one tile.
    """
    ROWS, COLUMNS, STAGE_K, CLUSTER = plan.rows, plan.columns, plan.k, plan.config.cluster
    A_MAJOR, B_MAJOR, FIRST, N = plan.a_major, plan.b_major, plan.config.first, plan.n
    LOAD = plan.roles.load
    PIPE = tma.TilePipeline(
        plan.stages,
        a=plan.a_tile,
        b=plan.b_tile,
        producer=LOAD,
        consumer=plan.consumers,
        filled_by="threads",
    )
    SCHEDULER = tma.GroupedScheduler(16)
    PARTS, PITCH = plan.parts_tile, 4 * plan.parts_tile.shape[2]
    SENT_BYTES = 4 * 64 * N * (CLUSTER - 1)
    fill, add, store = stage_fill(plan), add_parts(plan), tile_store(plan)

    def unaligned(a, b, out, old, residual, extents, terms):  # type: ignore[no-untyped-def]
        thread, rank = ptx.tid_x(), ptx.cluster_ctarank()
        parts: Any = 0
        if CLUSTER > 1:
            parts, sent = tma.shared_tile(PARTS), tma.shared_barrier()
            if thread == 0:
                sent.init(1)
                ptx.fence_mbarrier_init()
                if rank == 0:
                    sent.arrive_expect_tx(SENT_BYTES)
            ptx.barrier_cluster_arrive("relaxed")
        pipe = PIPE.start()
        schedule = SCHEDULER.over(extents.tile_rows, extents.tile_columns, extents.batch)
        first, step = ptx.clusterid_x(), ptx.nclusterid_x()
        begin = np.uint32(np.uint32(rank * extents.steps) // np.uint32(CLUSTER))
        end = np.uint32(np.uint32((rank + 1) * extents.steps) // np.uint32(CLUSTER))
        if pipe.is_producer():
            loader = np.uint32(thread - LOAD.first)
            for tile in schedule.tiles(first, step):
                row, column = tile.row * ROWS, tile.column * COLUMNS
                a_matrix = np.int64(a.address + np.int64(tile.batch) * a.matrix)
                b_matrix = np.int64(b.address + np.int64(tile.batch) * b.matrix)
                # All threads of the role execute the body, whose end commits the stage.
                for k_tile, stage in pipe.produce(begin, end):
                    k = k_tile * STAGE_K
                    a_at = (row, k, a_matrix) if A_MAJOR == "K" else (k, row, a_matrix)
                    b_at = (column, k, b_matrix) if B_MAJOR == "K" else (k, column, b_matrix)
                    fill(a, b, (a_at, b_at), stage, loader)
            if CLUSTER > 1:
                ptx.barrier_cluster_wait()
        else:
            for tile in schedule.tiles(first, step):
                acc = tma.fragment(N)
                for _, stage in pipe.consume(begin, end, in_flight=IN_FLIGHT):
                    a_part = stage.a.matrix_descriptor(A_MAJOR)
                    b_part = stage.b.matrix_descriptor(B_MAJOR)
                    if FIRST == "a":
                        acc = tma.wgmma(acc, a_part, b_part)
                    else:
                        acc = tma.wgmma(acc, b_part, a_part)
                    # The loop's next step releases the stage before: its product is complete.
                    acc = tma.wgmma_wait(acc, IN_FLIGHT)
                acc = tma.wgmma_wait(acc)
                pipe.release_pending()  # the last stage
                if CLUSTER > 1:
                    ptx.barrier_cluster_wait()  # block 0 has initialised its barrier
                    if rank > 0:
                        to = parts.address_of((rank - 1, 0, 0))
                        acc.map_coords(send, ptx.mapa(to, 0), PITCH, ptx.mapa(sent, 0))
                    else:
                        wait_for(sent, 0, SUMS)
                        acc = acc.map_coords(add, parts.address_of((0, 0, 0)))
                if rank == 0:
                    top, left = tile.row * ROWS, tile.column * COLUMNS
                    store(acc, out, old, residual, (tile.batch, top, left, extents), terms)
        pipe.close()

    kernel = tma.cluster(CLUSTER)(unaligned) if CLUSTER > 1 else unaligned
    return cuda.jit(launch_bounds=(plan.threads, plan.blocks))(kernel)
