"""What a math warpgroup of a block-scaled matmul does for a tile: products, scaled and added up."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import i32
from numba_tma.device.mma import fragment, load_rows, wgmma, wgmma_wait
from numba_tma.device.vectors import load_vector
from numba_tma.host.layout import Tile
from numba_tma.kernels.matmul.block_scaled_form import ScaledForm
from numba_tma.kernels.matmul.form import ROWS

_SCALE = Tile(1, "f32")
ALL_LANES, NOTHING = 0xFFFFFFFF, np.float32(0)


class Scales(NamedTuple):
    """The scales of b as bytes: their memory, and how far apart they are in it."""

    memory: Any
    k: Any  #: bytes from a block of K to the next
    column: Any  #: and from a block of columns
    last: Any  #: the last block of columns


class Columns(NamedTuple):
    """Where the scales of a tile's columns begin, in bytes; int32."""

    left: Any  #: those of its first columns
    right: Any  #: those from `edge` on
    edge: Any  #: the column of the tile at which the next block of b begins


def multiplying(form: ScaledForm) -> Any:
    """Return the device function that multiplies a tile: ``multiply(works, mine, steps, ...)``.

    It returns the sums of a warpgroup's products, those of a second one being 0 if there is none.
    `steps` is at least 1: a stage is waited for before they are counted. The caller hands the last
    stage back, and has had the first scales of b loaded into `lanes`.

    Between a product and the next there is nothing but its addition. All that the next stage needs
    is done while a product is under way: hand back the stage before, wait for the next one, read
    its scales and fence them.

    No product is under way from one turn of a loop to the next. ptxas lets multiply-adds of a
    warpgroup give way to the products of another (every second one yields), but only where it sees
    that they add what a product has left in the same turn.
    """
    return _in_turn(form) if form.products == 2 else _alone(form)


def _alone(form: ScaledForm) -> Any:
    """Return `multiply` for one product of each stage."""
    N, ZEROS = form.config.n, zeros(form.out_columns, form.pieces)
    scales_of, add = reading(form), adding(form, form.pieces)

    @cuda.jit(device=True, forceinline=True)
    def multiply(works, mine, steps, scales, columns, lanes):  # type: ignore[no-untyped-def]
        sums, part = ZEROS(), fragment(N)
        stage = works.wait()
        works.release_older()  # none: but the compiler knows then that one is held
        a, b = stage.a.matrix_descriptor().advance(row=mine), stage.b.matrix_descriptor()
        lanes, by, _ = scales_of(works, stage, mine, scales, columns, 0, steps, lanes)
        for i in range(1, steps):
            part = wgmma(part, a, b, scale_d=False)
            works.release_older()
            stage = works.wait()
            a, b = stage.a.matrix_descriptor().advance(row=mine), stage.b.matrix_descriptor()
            now = by
            lanes, by, _ = scales_of(works, stage, mine, scales, columns, i, steps, lanes)
            ptx.fence_proxy_async()
            part = wgmma_wait(part)
            sums = add(sums, part, now, columns.edge)
        part = wgmma(part, a, b, scale_d=False)
        works.release_older()
        ptx.fence_proxy_async()
        sums = add(sums, wgmma_wait(part), by, columns.edge)
        return sums, 0

    return multiply


def _in_turn(form: ScaledForm) -> Any:
    """Return `multiply` for two products of each stage, one after the other.

    They have one fragment: there are no registers for two.
    """
    N, ZEROS = form.config.n, zeros(form.out_columns, form.pieces)
    scales_of, add = reading(form), adding(form, form.pieces)

    @cuda.jit(device=True, forceinline=True)
    def multiply(works, mine, steps, scales, columns, lanes):  # type: ignore[no-untyped-def]
        sums, more, part = ZEROS(), ZEROS(), fragment(N)
        stage = works.wait()
        works.release_older()  # none: but the compiler knows then that one is held
        a, b = stage.a.matrix_descriptor(), stage.b.matrix_descriptor()
        lanes, upper, lower = scales_of(works, stage, mine, scales, columns, 0, steps, lanes)
        for i in range(1, steps):
            part = wgmma(part, a.advance(row=mine), b, scale_d=False)
            works.release_older()
            by, by_more, a_more, b_more = upper, lower, a.advance(row=mine + ROWS), b
            stage = works.wait()
            a, b = stage.a.matrix_descriptor(), stage.b.matrix_descriptor()
            lanes, upper, lower = scales_of(works, stage, mine, scales, columns, i, steps, lanes)
            part = wgmma_wait(part)
            sums = add(sums, part, by, columns.edge)
            part = wgmma(part, a_more, b_more, scale_d=False)
            ptx.fence_proxy_async()
            part = wgmma_wait(part)
            more = add(more, part, by_more, columns.edge)
        part = wgmma(part, a.advance(row=mine), b, scale_d=False)
        works.release_older()
        part = wgmma_wait(part)
        sums = add(sums, part, upper, columns.edge)
        part = wgmma(part, a.advance(row=mine + ROWS), b, scale_d=False)
        ptx.fence_proxy_async()
        part = wgmma_wait(part)
        more = add(more, part, lower, columns.edge)
        return sums, more

    return multiply


def reading(form: ScaledForm) -> Any:
    """Return the device function that reads the scales of a stage, block `i` of a tile's `steps`.

    It returns what to multiply both products of the stage by, the columns on the left of the edge
    and those on the right; and, for the next call, what the lanes hold of b's scales. The caller
    fences what it has read (`fence_proxy_async`) before the stage is handed back.
    """
    SCALES, TWO, EDGE = Tile(form.config.m, "f32"), form.products == 2, form.has_edge
    hold = holding(form)

    @cuda.jit(device=True, forceinline=True)
    def read(works, stage, mine, scales, columns, i, steps, lanes):  # type: ignore[no-untyped-def]
        of_rows = stage.sfa.view(SCALES)
        upper = load_rows(of_rows, mine)
        lower = upper
        if TWO:
            lower = load_rows(of_rows, mine + ROWS)
        works.accesses.unfenced = False  # the caller fences, where it costs nothing
        lane = i32(i32(i) & 31)
        left = cuda.shfl_sync(ALL_LANES, lanes[0], lane)
        right = left
        if EDGE:
            right = cuda.shfl_sync(ALL_LANES, lanes[1], lane)
        if lane == 31:
            lanes = hold(scales, columns, i + 1, steps)
        return lanes, (upper * left, upper * right), (lower * left, lower * right)

    return read


def holding(form: ScaledForm) -> Any:
    """Return the device function that loads b's scales of 32 blocks from `first` on, one a lane.

    To load one for each block would wait for memory each time.
    """
    EDGE = form.has_edge

    @cuda.jit(device=True)
    def hold(scales, columns, first, steps):  # type: ignore[no-untyped-def]
        block = min(i32(first + ptx.laneid()), i32(steps - 1))
        near, far = NOTHING, NOTHING
        if block >= 0:  # always; but with the question ptxas counts the loop in uniform registers
            near = load_vector(scales.memory, i32(columns.left + block * scales.k), _SCALE)[0]
            if EDGE:
                far = load_vector(scales.memory, i32(columns.right + block * scales.k), _SCALE)[0]
        return near, far

    return hold


# The sums are a tuple of pieces, as wide as those in which they are stored, since columns of a
# fragment are compile-time constants. A piece has columns of one block of b: tiles begin at
# multiples of n, and pieces are as wide as n and 128 have in common, or less.


def zeros(columns: int, pieces: int) -> Any:
    """Return the device function that makes sums to start from."""
    before: Any = zeros(columns, pieces - 1) if pieces > 1 else None

    def first():  # type: ignore[no-untyped-def]
        return (fragment(columns),)

    def all_of_them():  # type: ignore[no-untyped-def]
        return before() + (fragment(columns),)

    return cuda.jit(device=True)(all_of_them if before else first)


def adding(form: ScaledForm, pieces: int) -> Any:
    """Return the device function that adds products, times the scales of their rows and columns."""
    before: Any = adding(form, pieces - 1) if pieces > 1 else None
    LAST, EDGE, COLUMNS = pieces - 1, form.has_edge, form.out_columns
    START = LAST * COLUMNS

    @cuda.jit(device=True)
    def piece(sums, part, by, edge):  # type: ignore[no-untyped-def]
        scale = by[0]
        if EDGE and START >= edge:
            scale = by[1]
        return sums[LAST] + part.columns(START, COLUMNS) * scale

    def first(sums, part, by, edge):  # type: ignore[no-untyped-def]
        return (piece(sums, part, by, edge),)

    def all_of_them(sums, part, by, edge):  # type: ignore[no-untyped-def]
        return before(sums, part, by, edge) + (piece(sums, part, by, edge),)

    return cuda.jit(device=True)(all_of_them if before else first)
