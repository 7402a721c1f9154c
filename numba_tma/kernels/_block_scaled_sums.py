"""What a math warpgroup of a block-scaled matmul does for a tile: products, scaled and added up."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import cuda

from numba_tma import ptx
from numba_tma._device import i32
from numba_tma.kernels._block_scaled_form import ScaledForm
from numba_tma.kernels._matmul_form import ROWS
from numba_tma.layout import Tile
from numba_tma.mma import fragment, load_rows, wgmma, wgmma_wait
from numba_tma.vectors import load_vector

_SCALE = Tile(1, "f32")


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
    """
    return _in_turn(form) if form.products == 2 else _alone(form)


def _alone(form: ScaledForm) -> Any:
    """Return `multiply` for one product of each stage."""
    N, ZEROS = form.config.n, zeros(form.out_columns, form.pieces)
    scales_of, add = reading(form), adding(form, form.pieces)

    @cuda.jit(device=True, forceinline=True)
    def multiply(works, mine, steps, scales, columns):  # type: ignore[no-untyped-def]
        sums, (left, right, edge) = ZEROS(), columns
        for _ in range(steps):
            stage = works.wait()
            of_a = stage.a.matrix_descriptor().advance(row=mine)
            part = wgmma(fragment(N), of_a, stage.b.matrix_descriptor(), scale_d=False)
            by_row, _, near, far = scales_of(works, stage, mine, scales, left, right)
            left, right = i32(left + scales.k), i32(right + scales.k)
            part = wgmma_wait(part)
            works.release()
            sums = add(sums, part, by_row, near, far, edge)
        return sums, 0

    return multiply


def _in_turn(form: ScaledForm) -> Any:
    """Return `multiply` for two products of each stage, one after the other."""
    N, ZEROS = form.config.n, zeros(form.out_columns, form.pieces)
    scales_of, add = reading(form), adding(form, form.pieces)

    @cuda.jit(device=True, forceinline=True)
    def multiply(works, mine, steps, scales, columns):  # type: ignore[no-untyped-def]
        sums, more, (left, right, edge) = ZEROS(), ZEROS(), columns
        for _ in range(steps):
            stage = works.wait()
            of_a, of_b = stage.a.matrix_descriptor(), stage.b.matrix_descriptor()
            part = wgmma(fragment(N), of_a.advance(row=mine), of_b, scale_d=False)
            by_row, below, near, far = scales_of(works, stage, mine, scales, left, right)
            left, right = i32(left + scales.k), i32(right + scales.k)
            part = wgmma_wait(part)
            sums = add(sums, part, by_row, near, far, edge)
            # The fragment is used again, since ptxas would else have both, and too few registers.
            part = wgmma_wait(wgmma(part, of_a.advance(row=mine + ROWS), of_b, scale_d=False))
            works.release()
            more = add(more, part, below, near, far, edge)
        return sums, more

    return multiply


def reading(form: ScaledForm) -> Any:
    """Return the device function that reads the scales of a stage, while a product is under way.

    Of the rows of both products, if there are two, and of the columns on both sides of the edge.
    """
    SCALES, TWO, EDGE = Tile(form.config.m, "f32"), form.products == 2, form.has_edge

    @cuda.jit(device=True, forceinline=True)
    def read(works, stage, mine, scales, left, right):  # type: ignore[no-untyped-def]
        of_rows = stage.sfa.view(SCALES)
        by_row = load_rows(of_rows, mine)
        below = by_row
        if TWO:
            below = load_rows(of_rows, mine + ROWS)
        # Here it costs nothing; the stage's release, which others wait for, needs none then.
        ptx.fence_proxy_async()
        works.accesses.unfenced = False
        near = load_vector(scales.memory, left, _SCALE)[0]
        far = near
        if EDGE:
            far = load_vector(scales.memory, right, _SCALE)[0]
        return by_row, below, near, far

    return read


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
    """Return the device function that adds products, times the scales of rows and columns."""
    before: Any = adding(form, pieces - 1) if pieces > 1 else None
    LAST, EDGE, COLUMNS = pieces - 1, form.has_edge, form.out_columns
    START = LAST * COLUMNS

    @cuda.jit(device=True)
    def piece(sums, part, by_row, near, far, edge):  # type: ignore[no-untyped-def]
        by_column = near
        if EDGE and START >= edge:
            by_column = far
        return sums[LAST] + part.columns(START, COLUMNS) * (by_row * by_column)

    def first(sums, part, by_row, near, far, edge):  # type: ignore[no-untyped-def]
        return (piece(sums, part, by_row, near, far, edge),)

    def all_of_them(sums, part, by_row, near, far, edge):  # type: ignore[no-untyped-def]
        added = before(sums, part, by_row, near, far, edge)
        return added + (piece(sums, part, by_row, near, far, edge),)

    return cuda.jit(device=True)(all_of_them if before else first)
