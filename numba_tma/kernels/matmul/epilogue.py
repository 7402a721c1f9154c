"""The epilogue of a matmul: what happens to each sum before it is stored.

    activation(alpha * row_scale * column_scale * sum + beta * old + bias) + residual

An `Epilogue` says which steps a kernel is compiled with, `Terms` are their run-time values
(arguments.py). Each step is a device function, and `chain` applies those that are needed. The
matmul kernels apply the chain to registers, and the split-K kernel, at the end of this page, to
sums of parts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.device.vectors import load_vector, map_lanes, store_vector
from numba_tma.host.annotations import DeviceFunction, Kernel
from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile
from numba_tma.kernels.matmul.arguments import REDUCTION_THREADS, Epilogue
from numba_tma.kernels.pointwise.formulas import (
    gelu_bf16,
    gelu_f16,
    gelu_f32,
    gelu_tanh_lane,
    swiglu_lane,
)

_ZERO: Any = np.float32(0)
_ONE: Any = np.float32(1)
_FLOAT = Tile(1, "f32")

class TileOrigin(NamedTuple):
    """The first row and column of a tile, and the last of the matrix; int32."""

    row: Any  #: counted through all matrices of the batch
    column: Any
    last_row: Any
    last_column: Any


class OutputElement(NamedTuple):
    """The element of the result that an epilogue works on."""

    row: Any  #: from the tile's origin
    column: Any
    origin: TileOrigin
    old: Any  #: what `out` holds there, for beta
    residual: Any


@cuda.jit(device=True)
def row_of(element):  # type: ignore[no-untyped-def]
    """Return the element's row, or the matrix's last row for an element outside it."""
    return min(np.int32(element.origin.row + element.row), element.origin.last_row)


@cuda.jit(device=True)
def column_of(element):  # type: ignore[no-untyped-def]
    """Return the element's column, or the matrix's last column for an element outside it."""
    return min(np.int32(element.origin.column + element.column), element.origin.last_column)


# ------------------------------------------------------------------------------- the steps


def times_alpha(value, element, terms):  # type: ignore[no-untyped-def]
    """Scale by one number."""
    return value * terms.alpha


def times_row_scale(value, element, terms):  # type: ignore[no-untyped-def]
    """Scale by the row's number."""
    return value * load_vector(terms.row_scale, 4 * row_of(element), _FLOAT)[0]


def times_column_scale(value, element, terms):  # type: ignore[no-untyped-def]
    """Scale by the column's number."""
    return value * load_vector(terms.column_scale, 4 * column_of(element), _FLOAT)[0]


def plus_beta_old(value, element, terms):  # type: ignore[no-untyped-def]
    """Add beta times what `out` holds."""
    return value + terms.beta * element.old


def plus_residual(value, element, terms):  # type: ignore[no-untyped-def]
    """Add the residual."""
    return value + element.residual


def bias_step(dtype: DType) -> Callable[..., Any]:
    """Return the step that adds the column's bias."""
    ELEMENT, SIZE = Tile(1, dtype), dtype.itemsize

    def plus_bias(value, element, terms):  # type: ignore[no-untyped-def]
        return value + load_vector(terms.bias, SIZE * column_of(element), ELEMENT)[0]

    return plus_bias


def activation_step(name: str, out: DType) -> Callable[..., Any]:
    """Return the step that applies an activation, as exact as results of the type `out` need."""
    swiglu = cuda.jit(device=True)(swiglu_lane)

    def relu(x):  # type: ignore[no-untyped-def]
        return ptx.max_nan_f32(x, _ZERO)

    def silu(x):  # type: ignore[no-untyped-def]
        return swiglu(x, _ONE)

    gelu = {"bf16": gelu_bf16, "f16": gelu_f16}.get(out.name, gelu_f32)
    functions: dict[str, Any] = {
        **{"relu": relu, "silu": silu},
        **{"gelu": gelu, "gelu_tanh": gelu_tanh_lane},
    }
    activation = cuda.jit(device=True)(functions[name])

    def activate(value, element, terms):  # type: ignore[no-untyped-def]
        return activation(value)

    return activate


def steps_of(epilogue: Epilogue, out: DType) -> list[Callable[..., Any]]:
    """Return the steps of an epilogue in their order."""
    steps = [
        times_alpha if epilogue.alpha else None,
        times_row_scale if epilogue.row_scale else None,
        times_column_scale if epilogue.column_scale else None,
        plus_beta_old if epilogue.beta else None,
        bias_step(epilogue.bias) if epilogue.bias else None,
        activation_step(epilogue.activation, out) if epilogue.activation else None,
        plus_residual if epilogue.residual else None,
    ]
    return [step for step in steps if step]


def chain(steps: list[Callable[..., Any]]) -> DeviceFunction:
    """Return the device function that applies the steps one after the other."""
    if not steps:
        return cuda.jit(device=True)(lambda value, element, terms: value)
    *earlier, last = steps
    # Inlined first: the compiler then sees one expression, and keeps its operands' order.
    final = cuda.jit(device=True, forceinline=True)(last)
    if not earlier:
        return final
    before = chain(earlier)

    @cuda.jit(device=True, forceinline=True)
    def apply(value, element, terms):  # type: ignore[no-untyped-def]
        return final(before(value, element, terms), element, terms)

    return apply


@functools.cache
def epilogue_function(epilogue: Epilogue, out: DType) -> DeviceFunction:
    """Return ``finish(sum, row, column, old, residual, origin, terms)`` for `Fragment.map_coords`.

    `row` and `column` count from the `TileOrigin`. Elements outside the matrix are computed with
    the terms of its last row or column, and are not stored.
    """
    steps = chain(steps_of(epilogue, out))

    @cuda.jit(device=True)
    def finish(value, row, column, old, residual, origin, terms):  # type: ignore[no-untyped-def]
        return steps(value, OutputElement(row, column, origin, old, residual), terms)

    return finish


# --------------------------------------------------------------------------------- split-K
#
# A small result has too few tiles for all SMs. With split-K each tile is computed in parts along K,
# which are float32 matrices of their own. The kernel below adds the parts in a fixed order, so that
# equal calls give equal bits, and applies the epilogue.

@functools.cache
def split_k_kernel(epilogue: Epilogue, dtype: DType) -> Kernel:
    """Return the kernel in which each thread adds the parts of one element and finishes it.

    `parts` are float32 matrices, those of one result next to each other; `out` and `residual` are
    of `dtype`.
    """
    ELEMENT, SIZE = Tile(1, dtype), dtype.itemsize
    finish = chain(steps_of(epilogue, dtype))
    load_old = source_element(ELEMENT) if epilogue.beta else no_source
    load_residual = source_element(ELEMENT) if epilogue.residual else no_source

    @cuda.jit
    def add_parts(parts, out, residual, extents, terms):  # type: ignore[no-untyped-def]
        number = np.uint32(cuda.blockIdx.x * REDUCTION_THREADS + cuda.threadIdx.x)
        rows, columns = np.uint32(extents.rows), np.uint32(extents.columns)
        row, column = np.uint32(number // columns), np.uint32(number % columns)
        matrix, matrix_row = np.uint32(row // rows), np.uint32(row % rows)
        ptx.griddepcontrol_wait()  # this grid starts while the last parts are stored
        if matrix < extents.batch:
            at = matrix * extents.splits * parts.matrix + matrix_row * parts.row + 4 * column
            total = load_vector(parts.memory, at, _FLOAT)
            for part in range(1, extents.splits):
                total = total + load_vector(parts.memory, at + part * parts.matrix, _FLOAT)
            at = matrix * out.matrix + matrix_row * out.row + SIZE * column
            old = load_old(out, matrix, matrix_row, column)
            added = load_residual(residual, matrix, matrix_row, column)
            here = TileOrigin(np.int32(row), np.int32(column), np.int32(row), np.int32(column))
            element: Any = OutputElement(np.int32(0), np.int32(0), here, old, added)
            total = map_lanes(finish, (total,), (element, terms))
            store_vector(out.memory, at, total, ELEMENT)

    return add_parts


@cuda.jit(device=True)
def no_source(source, matrix, row, column):  # type: ignore[no-untyped-def]
    """Return 0: this epilogue reads no such matrix."""
    return _ZERO


@functools.cache
def source_element(element: Tile) -> DeviceFunction:
    """Return the device function that loads an element of `MatrixBytes`."""
    SIZE = element.itemsize

    @cuda.jit(device=True)
    def load(source, matrix, row, column):  # type: ignore[no-untyped-def]
        at = matrix * source.matrix + row * source.row + SIZE * column
        return load_vector(source.memory, at, element)[0]

    return load


@functools.cache
def element_epilogue(epilogue: Epilogue, out: DType) -> DeviceFunction:
    """Return the epilogue of one element, which reads the element's sources from memory.

    It is called with the element's place (batch, row, column) and the sources (old, residual),
    which are `MatrixBytes`. Elements outside the matrix read those of the last row and column, and
    are not stored.
    """
    ELEMENT, finish = Tile(1, out), epilogue_function(epilogue, out)
    load_old = source_element(ELEMENT) if epilogue.beta else no_source
    load_residual = source_element(ELEMENT) if epilogue.residual else no_source

    @cuda.jit(device=True)
    def element(value, place, sources, extents, terms):  # type: ignore[no-untyped-def]
        batch, row, column = place
        old, residual = sources
        row = min(np.int32(row), np.int32(extents.rows - 1))
        column = min(np.int32(column), np.int32(extents.columns - 1))
        before = load_old(old, batch, row, column)
        added = load_residual(residual, batch, row, column)
        of_all = np.int32(batch * extents.rows + row)
        here = TileOrigin(of_all, column, of_all, column)
        return finish(value, np.int32(0), np.int32(0), before, added, here, terms)

    return element
