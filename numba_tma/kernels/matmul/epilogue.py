"""What a matmul does to its sums before they are stored, element by element.

An `Epilogue` says which steps there are, when the kernel is compiled; `Terms` are what they work
with, when it runs. `finishing` makes the one function of an element that follows, which fragments
apply through `Fragment.map_coords` and other kernels call as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.device.vectors import load_vector
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.layout import Tile
from numba_tma.kernels.pointwise.activations import (
    gelu_bf16,
    gelu_f16,
    gelu_f32,
    gelu_tanh_lane,
    swiglu_lane,
)

_ZERO: Any = np.float32(0)
_ONE: Any = np.float32(1)

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")


@dataclass(frozen=True)
class Epilogue:
    """Which steps follow the sums.

    ``activation(alpha * row_scale * column_scale * sums + beta * out + bias) + residual``
    """

    alpha: bool = False
    row_scale: bool = False
    column_scale: bool = False
    beta: bool = False
    bias: DType | None = None
    activation: str | None = None
    residual: bool = False

    @property
    def sources(self) -> int:
        """How many matrices are read for it: what `out` holds, and the residual."""
        return self.beta + self.residual

    @property
    def changes(self) -> bool:
        """Whether there is any step at all."""
        return self != Epilogue()


class Terms(NamedTuple):
    """What the steps work with; those that are left out are 0. Vectors are arrays of bytes."""

    alpha: Any = _ONE
    beta: Any = _ZERO
    row_scale: Any = 0  #: float32, one for each row of each matrix
    column_scale: Any = 0  #: float32, one for each column
    bias: Any = 0  #: one for each column


class Place(NamedTuple):
    """Where a part of the result begins, and the last row and column that there are; int32."""

    row: Any  #: counted through all matrices
    column: Any
    last_row: Any
    last_column: Any


@functools.cache
def activation_of(name: str | None, out: DType) -> Any:
    """Return the device function of an activation, as exact as results of the type `out` need."""

    def relu(x):  # type: ignore[no-untyped-def]
        return ptx.max_nan_f32(x, _ZERO)

    def silu(x):  # type: ignore[no-untyped-def]
        return swiglu_lane_(x, _ONE)

    swiglu_lane_ = cuda.jit(device=True)(swiglu_lane)
    gelu = {"bf16": gelu_bf16, "f16": gelu_f16}.get(out.name, gelu_f32)
    functions: dict[Any, Callable[..., Any]] = {
        "relu": relu,
        "gelu": gelu,
        "gelu_tanh": gelu_tanh_lane,
        "silu": silu,
    }
    return cuda.jit(device=True)(functions[name]) if name else None


@functools.cache
def finishing(epilogue: Epilogue, out: DType) -> Any:
    """Return the device function ``finish(sum, row, column, old, added, place, terms)``.

    `row` and `column` count from `place`; `old` is the element of `out` before, and `added` that of
    the residual. Places outside the matrix are computed with the terms of the last row or column:
    their results are not stored.
    """
    ALPHA, BETA, RESIDUAL = epilogue.alpha, epilogue.beta, epilogue.residual
    ROW_SCALE, COLUMN_SCALE = epilogue.row_scale, epilogue.column_scale
    SCALE, BIAS = Tile(1, "f32"), Tile(1, epilogue.bias or as_dtype("f32"))
    HAS_BIAS, BIAS_BYTES = epilogue.bias is not None, BIAS.itemsize
    activate, ACTIVATION = activation_of(epilogue.activation, out), epilogue.activation is not None

    @cuda.jit(device=True)
    def finish(value, row, column, old, added, place, terms):  # type: ignore[no-untyped-def]
        if ALPHA:
            value = value * terms.alpha
        if ROW_SCALE:
            at = min(np.int32(place.row + row), place.last_row)
            value = value * load_vector(terms.row_scale, 4 * at, SCALE)[0]
        at = min(np.int32(place.column + column), place.last_column)
        if COLUMN_SCALE:
            value = value * load_vector(terms.column_scale, 4 * at, SCALE)[0]
        if BETA:
            value = value + terms.beta * old
        if HAS_BIAS:
            value = value + load_vector(terms.bias, BIAS_BYTES * at, BIAS)[0]
        if ACTIVATION:
            value = activate(value)
        if RESIDUAL:
            value = value + added
        return value

    return finish
