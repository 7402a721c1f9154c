"""Block-scaled matmul: products of fp8 whose factors have a scale for each block of 128.

How the kernel works is told in `_block_scaled_kernel`, and in docs/kernels/matmul.md.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.tensor_map import tensor_map
from numba_tma.kernels._host.launching import empty, launch, launched_again, multiprocessors
from numba_tma.kernels.matmul.block_scaled_kernel import BScales, block_scaled_kernel
from numba_tma.kernels.matmul.block_scaled_plan import BLOCK, ScaledConfig, ScaledPlan
from numba_tma.kernels.matmul.choice import MatmulProblem, choose_from
from numba_tma.kernels.matmul.epilogue import Epilogue, Terms
from numba_tma.kernels.matmul.launch import (
    MatmulCall,
    add_up,
    cut,
    in_parts,
    parts_of,
    run,
    target,
)
from numba_tma.kernels.matmul.operands import Matrices, as_factor
from numba_tma.kernels.matmul.plan import check_config

WHAT = "block_scaled_matmul()"
FACTORS, RESULTS = ("e4m3", "e5m2"), ("bf16", "f16", "f32")

#: Of several that are expected to be equally fast, the first is taken. Beside its four stages there
#: is room for three pieces of 64 B, which are stored sooner than one of 128 B.
CONFIGS = (
    ScaledConfig(256, 128, group=8, out_bytes=64, out_stages=3),
    ScaledConfig(128, 192, group=12, out_stages=1),
    ScaledConfig(128, 128, group=12),
    ScaledConfig(128, 64, group=8),
    ScaledConfig(64, 128, group=16),
    ScaledConfig(64, 64, group=12),
)


def block_scaled_matmul(
    a: Any,
    b: Any,
    a_scales: Any,
    b_scales: Any,
    out: Any = None,
    *,
    out_dtype: object = None,
    stream: Any = None,
    dtype: object = None,
    config: ScaledConfig | None = None,
) -> Any:
    """Multiply matrices of fp8 that have a scale for each block, as DeepSeek-V3 quantises them.

    ``out = sum over blocks k of (a_scales[:, k] * b_scales[k]) * (a[:, k] @ b[k])``

    Parameters
    ----------
    a, b
        Device arrays (M, K) and (K, N) of e4m3 or e5m2, in any mix. Read where they lie are those
        that are contiguous along K, as ``w.T`` is, with rows of K that start at multiples of 16 B;
        others are copied or transposed first, at every call.
    a_scales
        float32, (M, ceil(K / 128)): one for each 1 x 128 of a. Contiguous along M, it is read where
        it lies if M is a multiple of 4; otherwise it is copied or transposed first.
    b_scales
        float32, (ceil(K / 128), ceil(N / 128)): one for each 128 x 128 of b. Any strides.
    out
        Where to write, (M, N), with a contiguous last axis; a new array if None.
    out_dtype
        What to store: bf16, which is the default, f16 or f32.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        What the bits of a and b mean where their own type cannot say it; or a pair for a and b.
    config
        How the work is cut up; what is expected to be fast if None.

    Returns
    -------
    Any
        `out`. Products of a block of K are added up by the tensor cores, which keep 13 bits or so
        of them; blocks are scaled and added up in float32, and the result is rounded once.

    Raises
    ------
    ValueError
        If shapes or types disagree.
    """
    kinds = dtype if isinstance(dtype, tuple) else (dtype, dtype)
    named = None if out_dtype is None else as_dtype(out_dtype)
    if out is None:
        left, right = Matrices("a", a, kinds[0]), Matrices("b", b, kinds[1])
        _check_factors(left, right)
        named = named or as_dtype("bf16")
        _check_result(named)
        out = empty(a, (left.rows, right.columns), named)
    _block_scaled((a, b, a_scales, b_scales, out), stream, (), kinds, named, config)
    return out


@launched_again
def _block_scaled(
    arrays: tuple[Any, ...],
    stream: Any,
    numbers: tuple[()],
    kinds: tuple[object, object],
    out_dtype: DType | None,
    config: ScaledConfig | None,
) -> list[Any]:
    check_config("block_scaled_matmul", config, ScaledConfig)
    a, b = (Matrices(name, array, kind) for name, array, kind in zip("ab", arrays, kinds))
    a_scales, b_scales = (Matrices(f"{n}_scales", s) for n, s in zip("ab", arrays[2:]))
    out = Matrices("out", arrays[4], out_dtype)
    _check_factors(a, b)
    _check_result(out.dtype)
    blocks_k, blocks_n = -(-a.columns // BLOCK), -(-b.columns // BLOCK)
    _check_array(a_scales, (a.rows, blocks_k), f"a of shape {a.shape}", ("f32",))
    _check_array(b_scales, (blocks_k, blocks_n), f"b of shape {b.shape}", ("f32",))
    _check_array(out, (a.rows, b.columns), f"{a.shape} @ {b.shape}", RESULTS)
    if not out.has_rows:
        raise ValueError(
            f"{WHAT}: out has shape {out.shape} and steps of {out.steps[1:]} B: its last axis must "
            "be contiguous; pass another array"
        )
    if not out.nbytes:
        return []
    if not blocks_k:  # and so no scales: zeros, as of any product without K
        return run(MatmulCall(a, b, out, None, Epilogue(), Terms()), None, stream)
    kept: list[Any] = []
    left, _ = as_factor(a, stream, kept)
    right, _ = as_factor(b.transposed, stream, kept)
    by_block, _ = as_factor(a_scales.transposed, stream, kept)
    if config is None:
        problem = MatmulProblem(out.rows, out.columns, a.columns, 1, 1, out.dtype.itemsize)
        config = choose_from(CONFIGS, problem, multiprocessors())
    config = replace(config, splits=min(config.splits, blocks_k))  # empty parts would hang
    form = ScaledPlan(a.dtype, b.dtype, "K", "K", out.dtype, config, addressable=out.is_writable)
    multiply = functools.partial(_multiply, left, right, by_block, b_scales, a.columns, stream)
    if config.splits == 1:
        multiply(form, out)
    else:
        parts = parts_of(out, config.splits, kept)
        multiply(in_parts(form), parts)
        add_up(form, parts, out, None, Terms(), stream)
    return kept


def _multiply(
    a: Matrices,
    b: Matrices,
    a_scales: Matrices,
    b_scales: Matrices,
    k: int,
    stream: Any,
    form: ScaledPlan,
    out: Matrices,
) -> None:
    """Launch the kernel of a form on matrices that it reads as they are."""
    sizes, blocks = cut(form, a, b, k, out)
    _, step, column = b_scales.steps
    launch(
        block_scaled_kernel(form.of_any_splits),
        blocks,
        form.roles.threads,
        stream,
        tensor_map(a.view(form.a), form.a_tile, dtype=form.a),
        tensor_map(b.view(form.b), form.b_copy, dtype=form.b),
        tensor_map(a_scales.view(), form.scales_tile),
        BScales(b_scales.span(), step, column, max(0, b_scales.columns - 1)),
        target(form, out),
        sizes,
    )


def _check_factors(a: Matrices, b: Matrices) -> None:
    """Raise unless a and b are matrices of fp8 that can be multiplied."""
    for matrix in (a, b):
        if matrix.dtype.name not in FACTORS:
            raise ValueError(
                f"{WHAT}: {matrix.name} is {matrix.dtype}; blocks of {' or '.join(FACTORS)} have "
                "scales: use matmul() for other types, or dtype= to say what the bits mean"
            )
        if len(matrix.shape) != 2:
            raise ValueError(
                f"{WHAT}: {matrix.name} has shape {matrix.shape}; it is one matrix: call it for "
                "each of a batch"
            )
    if a.columns != b.rows:
        raise ValueError(
            f"{WHAT}: a has shape {a.shape} and b {b.shape}: K is {a.columns} and {b.rows}, and "
            "must be the same; is b transposed?"
        )


def _check_result(dtype: DType) -> None:
    if dtype.name not in RESULTS:
        raise ValueError(f"{WHAT}: out is {dtype}, but results are stored as {', '.join(RESULTS)}")


def _check_array(array: Matrices, shape: tuple[int, int], of: str, dtypes: tuple[str, ...]) -> None:
    """Raise unless an array has the shape and type that go with the factors."""
    if array.shape != shape or array.dtype.name not in dtypes:
        raise ValueError(
            f"{WHAT}: {array.name} has shape {array.shape} of {array.dtype}; with {of} it has "
            f"shape {shape}, of {' or '.join(dtypes)}"
        )
