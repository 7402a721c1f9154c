"""The kernels of attention's gradients, with the argument types that they are launched with."""

from __future__ import annotations

from typing import Any

from numba import types

from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Tile
from numba_tma.host.warpgroup import ROWS
from numba_tma.kernels.attention.backward.kernel import DQ_PART, backward_kernel
from numba_tma.kernels.attention.backward.passes import (
    add_splits_kernel,
    finish_kernel,
    prepare_kernel,
)
from numba_tma.kernels.attention.backward.plan import BLOCK_K, PLANS, block_q
from numba_tma.kernels.attention.plan import AttentionProblem

INT, F32 = types.int64, types.float32
STRIDES = types.UniTuple(INT, 3)

#: What there is a plan for, by name.
PROBLEMS = {
    f"d{depth}{' causal' * causal}{' splits' * splits}": AttentionProblem(
        depth, as_dtype("bf16"), causal, splits=splits
    )
    for depth in PLANS
    for causal in (False, True)
    for splits in (False, True)
}


def form(name: str, deterministic: bool = False) -> tuple[Any, tuple[Any, ...]]:
    """Return the kernel and its argument types."""
    problem = PROBLEMS[name]
    rows = block_q(problem.head_dim)
    loaded, held, stored = (TensorMapType(4, problem.tile(n)) for n in (rows, BLOCK_K, ROWS))
    numbers = TensorMapType(2, Tile((1, rows), "f32"))
    maps = (loaded, held, held, loaded, numbers, numbers, TensorMapType(3, DQ_PART), stored, stored)
    kernel = backward_kernel(problem, PLANS[problem.head_dim], deterministic)
    return kernel, (*maps, types.int32[::1], *[INT] * 8, F32, F32)


def prepare(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return the kernel that comes before, and its argument types."""
    return prepare_kernel(PROBLEMS[name]), (*(INT, STRIDES) * 2, *[INT] * 9)


def finish(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return the kernel that comes after, and its argument types."""
    problem = PROBLEMS[name]
    return finish_kernel(problem.dtype, problem.head_dim), (INT, INT, STRIDES, INT, INT, INT, F32)


def add_splits(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return the kernel that adds splits, and its argument types."""
    problem = PROBLEMS[name]
    kernel = add_splits_kernel(problem.dtype, problem.head_dim)
    return kernel, (INT, INT, *(INT, STRIDES) * 2, *[INT] * 4)
