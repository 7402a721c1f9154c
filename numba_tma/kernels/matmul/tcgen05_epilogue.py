"""The epilogue of the matmul kernels of Blackwell's tensor cores: a thread has one row of a tile.

Each of four warps reaches 32 of the 128 lanes of tensor memory. A thread loads 32 columns of its
lane at once (`tcgen05.ld`), applies the chain of the epilogue, and writes 16 bytes at a time to an
epilogue tile, which the copy engine stores. `tcgen05_kernel` and `tcgen05_pair_kernel` share it.

Words are those of `kernel`; `at` is (batch, row, column) of the thread's next columns.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma.device.vectors import map_columns, store_vector
from numba_tma.host.annotations import DeviceFunction
from numba_tma.kernels.matmul.epilogue import element_epilogue
from numba_tma.kernels.matmul.tcgen05_plan import CHUNK_BYTES, LOADED_COLUMNS, Tcgen05Plan

#: The sums of a product whose K is 0, which no instruction writes to an accumulator.
ZEROS = (np.float32(0),) * LOADED_COLUMNS

# ------------------------------------------- a tile of the block, by all threads of the epilogue


def tile_store(plan: Tcgen05Plan) -> DeviceFunction:
    """Return the function that finishes and stores an accumulator: 128 rows x n columns.

    `acc` is the acquired stage of the accumulator, `results` the started `StorePipeline`, `origin`
    (batch, row, column) of the block's first element, and `lane` the thread's row. `out` is a
    tensor map, or `MatrixBytes` if TMA cannot address it.
    """
    N, COLUMNS = plan.config.n, plan.out_columns
    BY_TMA, EMPTY = plan.addressable, plan.empty
    write_columns = columns_write(plan)

    @cuda.jit(device=True)
    def store_tile(acc, results, origin, lane, out, sources, extents, terms):  # type: ignore[no-untyped-def]
        batch, row, left = origin
        for piece in range(0, N, COLUMNS):
            stage = results.acquire()
            for i in range(0, COLUMNS, LOADED_COLUMNS):
                if EMPTY:
                    values = ZEROS
                else:
                    values = acc.load(piece + i, LOADED_COLUMNS)
                at = (batch, row + lane, left + piece + i)
                write_columns(values, stage, (lane, i), out, at, sources, extents, terms)
            if BY_TMA:
                results.store(out, stage.result, (batch, row, left + piece))
            results.commit()

    return store_tile


# --------------------------------------------- store: a row of 32 columns, by each epilogue thread


def columns_write(plan: Tcgen05Plan) -> DeviceFunction:
    """Return the function that finishes and writes the columns that a thread has loaded."""
    if plan.addressable:
        return chunks_write(plan, LOADED_COLUMNS * plan.out.itemsize // CHUNK_BYTES - 1)
    return elements_write(plan)


def chunks_write(plan: Tcgen05Plan, index: int) -> DeviceFunction:
    """Return the function that writes chunks 0 to `index`, of 16 bytes, to the epilogue tile.

    This is an unrolled loop: registers are indexed by compile-time constants, so each chunk has its
    own function, which first calls that of chunk ``index - 1``. `place` is that of the columns in
    the tile.
    """
    write_previous = chunks_write(plan, index - 1) if index else nothing_to_write
    NUM = CHUNK_BYTES // plan.out.itemsize
    START, finish = index * NUM, column_epilogue(plan)
    TILE = tma.Tile(plan.out_tile.shape[1:], plan.out, plan.out_tile.swizzle)

    @cuda.jit(device=True)
    def write(values, stage, place, out, at, sources, extents, terms):  # type: ignore[no-untyped-def]
        write_previous(values, stage, place, out, at, sources, extents, terms)
        chunk = map_columns(finish, values, START, NUM, (at, sources, extents, terms))
        row, column = place
        stage.result.view(TILE).write_vector((row, column + START), chunk)

    return write


@cuda.jit(device=True)
def nothing_to_write(values, stage, place, out, at, sources, extents, terms):  # type: ignore[no-untyped-def]
    """Write nothing: there is no chunk to the left of the first."""


def elements_write(plan: Tcgen05Plan) -> DeviceFunction:
    """Return the function that writes elements to `out`, `MatrixBytes` that TMA cannot address."""
    ELEMENT, SIZE, finish = tma.Tile(1, plan.out), plan.out.itemsize, column_epilogue(plan)

    @cuda.jit(device=True)
    def store(value, right, at, out, sources, extents, terms):  # type: ignore[no-untyped-def]
        batch, row, left = at
        value = finish(value, right, at, sources, extents, terms)
        if row < extents.rows and left + right < extents.columns:
            start = batch * out.matrix + row * out.row + SIZE * (left + right)
            store_vector(out.memory, start, map_columns(same, (value,), 0, 1, ()), ELEMENT)
        return value

    @cuda.jit(device=True)
    def write(values, stage, place, out, at, sources, extents, terms):  # type: ignore[no-untyped-def]
        map_columns(store, values, 0, LOADED_COLUMNS, (at, out, sources, extents, terms))

    return write


@cuda.jit(device=True)
def same(value, column):  # type: ignore[no-untyped-def]
    """Return the value."""
    return value


def column_epilogue(plan: Tcgen05Plan) -> DeviceFunction:
    """Return the epilogue of one element as `map_columns` calls it; `element_epilogue` does it."""
    if not plan.epilogue.changes:

        @cuda.jit(device=True)
        def unchanged(value, right, at, sources, extents, terms):  # type: ignore[no-untyped-def]
            return value

        return unchanged
    finish = element_epilogue(plan.epilogue, plan.out)

    @cuda.jit(device=True)
    def element(value, right, at, sources, extents, terms):  # type: ignore[no-untyped-def]
        batch, row, left = at
        return finish(value, (batch, row, left + right), sources, extents, terms)

    return element
