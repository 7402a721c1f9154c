"""The matmul kernel for operands of any alignment: threads load and shift what TMA cannot address.

TMA reads rows that begin at multiples of 16 B. Here each thread loads the two 16-byte words of
memory that enclose 16 bytes of an operand, shifts them together, and writes these to the tile.

Cost model: small and narrow products take as long as memory takes to deliver the operands, once.
A copy to aligned rows moves them three times, and costs a launch. Large products are bound by the
tensor cores: they load a tile many times, and each time take these instructions.

    two load warpgroups                     MMA warpgroup, 64 rows of the first operand
    for each output tile:                   for each output tile:
        for each k:                             for each k: wait, acc += first @ second, release
            acquire a stage                     in a cluster: exchange sums, and keep a share
            load, shift, write a and b          scale, bias, activation, store
            commit it

- First operand: a, or b with swapped operands, as in `swapped_kernel`, where the cluster's sums
  are explained, too.
- In flight: a thread starts the loads of all its chunks of a stage before it waits for one. Two
  blocks share an SM, so that one loads while the other writes.
- Instructions: they are the bound if there are many for each chunk, since few warps load. So all
  stages but the last along K have a form of their own, which checks no chunk.

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
from numba_tma.host.annotations import DeviceFunction, Kernel
from numba_tma.host.arrays import CHUNK
from numba_tma.kernels.matmul.kernel import IN_FLIGHT
from numba_tma.kernels.matmul.narrow_end import sums_start, tile_end
from numba_tma.kernels.matmul.swapped_kernel import stage_product
from numba_tma.kernels.matmul.unaligned_plan import LOADERS, UnalignedPlan

#: Chunks that a thread loads before it writes one, in an inner stage and in a last one: as many as
#: its registers hold, by the number of resident blocks.
AT_ONCE = {1: (8, 8), 2: (5, 4)}
BEHIND = 8  #: elements of K that follow a stage whose words all lie in the operands' memory

# ------------------------------------------------------------------- load: chunks, by all threads


@cuda.jit(device=True)
def of_a(a, b, at, stage):  # type: ignore[no-untyped-def]
    """Return a, where its tile begins (line, column, address of the matrix), and its stage."""
    return a, at[0], stage.a


@cuda.jit(device=True)
def of_b(a, b, at, stage):  # type: ignore[no-untyped-def]
    """Return b, where its tile begins (line, column, address of the matrix), and its stage."""
    return b, at[1], stage.b


@cuda.jit(device=True)
def shifted(words, phase):  # type: ignore[no-untyped-def]
    """Return the 16 bytes from byte `phase` of two words on."""
    low, high = words
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


class ChunkMove(NamedTuple):
    """How each thread moves one of its chunks of an operand from memory to a stage."""

    read: DeviceFunction  #: returns two words
    write: DeviceFunction
    number: int


def chunk_moves(plan: UnalignedPlan, side: str, *, last: bool) -> list[ChunkMove]:
    """Return the moves of an inner stage along K, or of a last one, where the operands may end.

    Lines and columns beyond the matrix are rows of a or columns of b that no result needs: what is
    loaded in their place is the matrix's last. What a last stage has beyond K is 0 instead, so that
    it adds nothing; words of it that reach behind the operand's memory are not loaded, and their
    chunks moved by elements.

    A thread's lines lie a multiple of 8 apart, and so all of them have one phase, wherever rows
    begin.
    """
    tile, operand = (plan.a_tile, of_a) if side == "a" else (plan.b_tile, of_b)
    K_MAJOR = (plan.a_major if side == "a" else plan.b_major) == "K"
    _, LINES, COLUMNS = tile.shape
    SIZE, LANES, PER_LINE = tile.itemsize, CHUNK // tile.itemsize, COLUMNS * tile.itemsize // CHUNK
    APART, LAST = LOADERS // PER_LINE, last
    assert LOADERS % PER_LINE == 0 and APART * SIZE % CHUNK == 0
    APART_NBYTES = APART * tile.pitch

    @cuda.jit(device=True)
    def column_of(start, loader):  # type: ignore[no-untyped-def]
        return np.int32(start[1] + np.int32(loader % PER_LINE * LANES))

    @cuda.jit(device=True)
    def line_of(start, loader, index):  # type: ignore[no-untyped-def]
        return np.int32(start[0] + np.int32(loader // PER_LINE) + index * APART)

    @cuda.jit(device=True)
    def place(matrix, start, loader, index):  # type: ignore[no-untyped-def]
        """Return the address of a chunk, and its bytes in the matrix."""
        column = min(column_of(start, loader), np.int32(matrix.columns - 1))
        line = min(line_of(start, loader, index), np.int32(matrix.lines - 1))
        nbytes = min(np.int32(matrix.columns) - column, np.int32(LANES)) * SIZE
        in_line_0 = np.int64(start[2] + np.int64(column * SIZE))
        return np.int64(in_line_0 + np.int64(line) * matrix.line), nbytes

    @cuda.jit(device=True)
    def read(a, b, at, stage, loader, index):  # type: ignore[no-untyped-def]
        matrix, start, _ = operand(a, b, at, stage)
        address, nbytes = place(matrix, start, loader, index)
        # A word that the chunk does not reach is not loaded, but the other one twice.
        first, second = np.int64(address & -16), np.int64((address + nbytes - 1) & -16)
        if LAST:
            inside = second + CHUNK <= matrix.end
            low = ptx.ld_global_v4_u32(first, condition=inside)
            return low, ptx.ld_global_v4_u32(second, condition=inside)
        return ptx.ld_global_v4_u32(first), ptx.ld_global_v4_u32(second)

    @cuda.jit(device=True)
    def write(words, a, b, at, stage, loader, index):  # type: ignore[no-untyped-def]
        matrix, start, tile = operand(a, b, at, stage)
        down, right = np.uint32(loader // PER_LINE), np.uint32(loader % PER_LINE * LANES)
        if down + index * APART < LINES:
            phase = np.int32(place(matrix, start, loader, 0)[0] & 15)
            to = tile.address_of((0, down, right)) + index * APART_NBYTES
            chunk = shifted(words, phase)
            if LAST:
                line = line_of(start, loader, index)
                address, nbytes = place(matrix, start, loader, index)
                if K_MAJOR:
                    nbytes = (np.int32(matrix.columns) - column_of(start, loader)) * SIZE
                elif line >= matrix.lines:
                    nbytes = np.int32(0)
                keep = nbytes if K_MAJOR or line >= matrix.lines else np.int32(CHUNK)
                chunk = (
                    first_bytes(chunk[0], keep),
                    first_bytes(chunk[1], keep - 4),
                    first_bytes(chunk[2], keep - 8),
                    first_bytes(chunk[3], keep - 12),
                )
                ptx.st_shared_v4_u32(to, chunk)
                nbytes = min(nbytes, np.int32(CHUNK))
                ends = (address + nbytes - 1 & -16) + CHUNK > matrix.end
                if ends and nbytes > 0 and line < matrix.lines:
                    for i in range(LANES):
                        there = i * SIZE < nbytes
                        element = ptx.ld_global_u16(address + i * SIZE, condition=there)
                        ptx.st_shared_u16(to + i * SIZE, element)
            else:
                ptx.st_shared_v4_u32(to, chunk)

    return [ChunkMove(read, write, i) for i in range(-(-LINES // APART))]


@cuda.jit(device=True)
def nothing_to_move(a, b, at, stage, loader):  # type: ignore[no-untyped-def]
    """Move nothing: there is no further chunk."""


def chunks_move(moves: Sequence[ChunkMove]) -> DeviceFunction:
    """Return the function that reads a thread's chunks, and then writes all of them.

    This is an unrolled loop, since what has been read must stay in registers.
    """
    if not moves:
        return nothing_to_move
    (read, write, INDEX), move_others = moves[0], chunks_move(moves[1:])

    @cuda.jit(device=True)
    def move(a, b, at, stage, loader):  # type: ignore[no-untyped-def]
        words = read(a, b, at, stage, loader, INDEX)
        move_others(a, b, at, stage, loader)
        write(words, a, b, at, stage, loader, INDEX)

    return move


def stage_fill(moves: Sequence[ChunkMove], at_once: int) -> DeviceFunction:
    """Return the function with which a thread moves its chunks of a stage, some at once."""
    if len(moves) <= at_once:
        return chunks_move(moves)
    each = -(-len(moves) // -(-len(moves) // at_once))
    begin, rest = chunks_move(moves[:each]), stage_fill(moves[each:], at_once)

    @cuda.jit(device=True)
    def fill(a, b, at, stage, loader):  # type: ignore[no-untyped-def]
        begin(a, b, at, stage, loader)
        rest(a, b, at, stage, loader)

    return fill


def tile_fill(plan: UnalignedPlan) -> DeviceFunction:
    """Return the function with which a thread moves its chunks of a stage of a tile.

    The first operand's chunks come first: all threads have one, and so no load waits in a branch.
    """
    A_MAJOR, B_MAJOR, STAGE_K = plan.a_major, plan.b_major, plan.k
    sides, at_once = ("a", "b") if plan.config.first == "a" else ("b", "a"), AT_ONCE[plan.blocks]
    inner, last = (
        [move for side in sides for move in chunk_moves(plan, side, last=last)]
        for last in (False, True)
    )
    fill_inner, fill_last = stage_fill(inner, at_once[0]), stage_fill(last, at_once[1])

    @cuda.jit(device=True)
    def fill(a, b, at, stage, loader):  # type: ignore[no-untyped-def]
        row, column, k, a_matrix, b_matrix = at
        a_at = (row, k, a_matrix) if A_MAJOR == "K" else (k, row, a_matrix)
        b_at = (column, k, b_matrix) if B_MAJOR == "K" else (k, column, b_matrix)
        length = a.columns if A_MAJOR == "K" else a.lines
        if k + STAGE_K + BEHIND <= length:
            fill_inner(a, b, (a_at, b_at), stage, loader)
        else:
            fill_last(a, b, (a_at, b_at), stage, loader)

    return fill


# ------------------------------------------------------------------------------ the kernel


@functools.cache
def unaligned_kernel(plan: UnalignedPlan) -> Kernel:
    """Return the kernel of a plan. Its blocks have ``plan.roles.threads`` threads.

    `a` and `b` are `UnalignedMatrix`, `out` an array as in `narrow_end.sums_store`; `old` and
    `residual` are `MatrixBytes`. A cluster computes one tile.
    """
    ROWS, COLUMNS, STAGE_K, CLUSTER = plan.rows, plan.columns, plan.k, plan.config.cluster
    N, LOAD = plan.n, plan.roles.load
    PIPE = tma.TilePipeline(
        plan.stages,
        a=plan.a_tile,
        b=plan.b_tile,
        producer=LOAD,
        consumer=plan.consumers,
        filled_by="threads",
    )
    SCHEDULER = tma.GroupedScheduler(16)
    fill, multiply = tile_fill(plan), stage_product(plan)
    start_sums, end_tile = sums_start(plan), tile_end(plan)

    def unaligned(a, b, out, old, residual, extents, terms):  # type: ignore[no-untyped-def]
        thread, rank = ptx.tid_x(), ptx.cluster_ctarank()
        sums = start_sums(thread, rank)
        pipe = PIPE.start()
        schedule = SCHEDULER.over(extents.tile_rows, extents.tile_columns, extents.batch)
        first, step = ptx.ctaid_x() // CLUSTER, ptx.nctaid_x() // CLUSTER
        begin = np.uint32(np.uint32(rank * extents.steps) // np.uint32(CLUSTER))
        end = np.uint32(np.uint32((rank + 1) * extents.steps) // np.uint32(CLUSTER))
        if pipe.is_producer():
            loader = np.uint32(np.uint32(thread - LOAD.first) % LOADERS)
            for tile in schedule.tiles(first, step):
                row, column = tile.row * ROWS, tile.column * COLUMNS
                a_matrix = np.int64(a.address + np.int64(tile.batch) * a.matrix)
                b_matrix = np.int64(b.address + np.int64(tile.batch) * b.matrix)
                # All threads of the role execute the body, whose end commits the stage.
                for k_tile, stage in pipe.produce(begin, end):
                    at = (row, column, k_tile * STAGE_K, a_matrix, b_matrix)
                    fill(a, b, at, stage, loader)
            if CLUSTER > 1:
                ptx.barrier_cluster_wait()
        else:
            for tile in schedule.tiles(first, step):
                acc = tma.fragment(N)
                for _, stage in pipe.consume(begin, end, in_flight=IN_FLIGHT):
                    acc = multiply(acc, stage, 0)
                    # The loop's next step releases the stage before: its product is complete.
                    acc = tma.wgmma_wait(acc, IN_FLIGHT)
                acc = tma.wgmma_wait(acc)
                pipe.release_pending()  # the last stage
                place = tile.batch, tile.row * ROWS, tile.column * COLUMNS
                end_tile(acc, sums, rank, 0, place, (out, old, residual), extents, terms)
        pipe.close()

    kernel = tma.cluster(CLUSTER)(unaligned) if CLUSTER > 1 else unaligned
    return cuda.jit(launch_bounds=(plan.threads, plan.blocks))(kernel)
