"""`block_scaled_matmul`: products of fp8 whose operands have a scale for each block of 128."""

from __future__ import annotations

import functools
from dataclasses import replace

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.host.arrays import Array, option_dtype
from numba_tma.host.cached_kernel import shipped
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.tensor_map import tensor_map
from numba_tma.kernels._host.device import sm_count
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.memo import launched_again
from numba_tma.kernels._host.outputs import check_outputs, empty
from numba_tma.kernels.matmul.arguments import BScales, Epilogue, Terms
from numba_tma.kernels.matmul.block_scaled_plan import BLOCK, ScaledConfig, ScaledPlan
from numba_tma.kernels.matmul.choice import MatmulProblem, choose_from
from numba_tma.kernels.matmul.launch import (
    MatmulCall,
    add_up,
    grid_of,
    part_plan,
    parts_of,
    run,
    target,
)
from numba_tma.kernels.matmul.operands import (
    Kinds,
    Workspace,
    as_matrices,
    as_operand,
    map_source,
    operand_dtypes,
    read_matrices,
)
from numba_tma.kernels.matmul.plan import check_config

block_scaled_kernel = shipped("numba_tma.kernels.matmul.block_scaled_kernel", "block_scaled_kernel")

OPERANDS, RESULTS = ("e4m3", "e5m2"), ("bf16", "f16", "f32")

#: The table. Of configurations that are expected to be equally fast, the first is taken. Beside the
#: four stages of the first there is room for three epilogue tiles of 64 B, which are stored sooner
#: than one of 128 B.
CONFIGS = (
    ScaledConfig(256, 128, group=8, out_bytes=64, out_stages=3),
    ScaledConfig(128, 192, group=12, out_stages=1),
    ScaledConfig(128, 128, group=12),
    ScaledConfig(128, 64, group=8),
    ScaledConfig(64, 128, group=16),
    ScaledConfig(64, 64, group=12),
)


def block_scaled_matmul(
    a: DeviceArray,
    b: DeviceArray,
    a_scales: DeviceArray,
    b_scales: DeviceArray,
    out: DeviceArray | None = None,
    *,
    out_dtype: DTypeLike | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | tuple[DTypeLike, DTypeLike] | None = None,
    config: ScaledConfig | None = None,
) -> DeviceArray:
    """Multiply matrices of fp8 that have a scale for each block, as DeepSeek-V3 quantises them.

    ``out = sum over blocks k of (a_scales[:, k] * b_scales[k]) * (a[:, k] @ b[k])``

    Parameters
    ----------
    a, b
        Device arrays (M, K) and (K, N), any mix of e4m3 and e5m2. Operands that are contiguous
        along K, as ``w.T`` is, and whose rows of K start at multiples of 16 B are read without a
        copy. Others are copied or transposed first, at every call.
    a_scales
        float32, (M, ceil(K / 128)): one for each 1 x 128 of a. Read without a copy if it is
        contiguous along M and M is a multiple of 4; otherwise copied or transposed first.
    b_scales
        float32, (ceil(K / 128), ceil(N / 128)): one for each 128 x 128 of b. Any strides.
    out
        Device array (M, N), with a contiguous last axis; a new array if None.
    out_dtype
        Type of the result: bf16, which is the default, f16 or f32.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        Element type of a and b where their own type cannot say it; or a pair for a and b.
    config
        A `ScaledConfig`; the one that is expected to be fastest if None.

    Returns
    -------
    DeviceArray
        `out`. The tensor cores add up the products of a block of K, and keep about 13 bits of them.
        Blocks are scaled and added up in float32, and the result is rounded once.

    Raises
    ------
    TypeError
        If an argument is no array in GPU memory, or `config` is of another class.
    ValueError
        If shapes, types or layouts do not fit each other.
    """
    kinds = operand_dtypes("block_scaled_matmul", dtype)
    named = option_dtype("block_scaled_matmul", "out_dtype", out_dtype)
    if out is None:
        left, right = (_read(*given) for given in zip("ab", (a, b), kinds))
        _check_operands(left, right)
        named = named or as_dtype("bf16")
        _check_result(named)
        shape = left.shape[0], right.shape[1]
        out = empty("block_scaled_matmul", "a", a, shape, named)
    _block_scaled((a, b, a_scales, b_scales, out), stream, (), kinds, named, config)
    return out


_read = functools.partial(read_matrices, "block_scaled_matmul")


@launched_again("block_scaled_matmul", "a", "b", "a_scales", "b_scales", "out")
def _block_scaled(
    arrays: tuple[DeviceArray, ...],
    stream: StreamLike,
    numbers: tuple[()],
    kinds: Kinds,
    out_dtype: DType | None,
    config: ScaledConfig | None,
) -> Workspace:
    check_config("block_scaled_matmul", config, ScaledConfig)
    a, b = (_read(*given) for given in zip("ab", arrays, kinds))
    a_scales, b_scales = _read("a_scales", arrays[2]), _read("b_scales", arrays[3])
    out = _read("out", arrays[4], out_dtype)
    _check_operands(a, b)
    _check_result(out.dtype)
    (rows, k), columns = a.shape, b.shape[1]
    blocks_k, blocks_n = -(-k // BLOCK), -(-columns // BLOCK)
    _check_array(a_scales, (rows, blocks_k), f"a of shape {a.shape}", ("f32",))
    _check_array(b_scales, (blocks_k, blocks_n), f"b of shape {b.shape}", ("f32",))
    _check_array(out, (rows, columns), f"{a.shape} @ {b.shape}", RESULTS)
    if not out.has_contiguous_rows:
        raise out.error(
            f"has shape {out.shape} and strides {out.strides} B: its last axis must be contiguous; "
            "pass another array"
        )
    check_outputs([out], [a, b, a_scales, b_scales])
    if not out.size:
        return []
    a, b, a_scales, b_scales, out = map(as_matrices, (a, b, a_scales, b_scales, out))
    if not blocks_k:  # without K and scales the result is zeros, as that of any matmul
        return run(MatmulCall(a, b, out, None, Epilogue(), Terms()), None, stream)
    workspace: Workspace = []
    a, _ = as_operand(a, stream, workspace)
    b, _ = as_operand(b.transposed(), stream, workspace)
    a_scales, _ = as_operand(a_scales.transposed(), stream, workspace)
    if config is None:
        problem = MatmulProblem(rows, columns, k, 1, 1, out.itemsize)
        config = choose_from(CONFIGS, problem, sm_count())
    config = replace(config, splits=min(config.splits, blocks_k))  # a part without stages hangs
    plan = ScaledPlan(a.dtype, b.dtype, "K", "K", out.dtype, config, addressable=out.is_storable)
    multiply = functools.partial(_multiply, a, b, a_scales, b_scales, k, stream)
    if config.splits == 1:
        multiply(plan, out)
    else:
        parts = parts_of(out, config.splits, workspace)
        multiply(part_plan(plan), parts)
        add_up(plan, parts, out, None, Terms(), stream)
    return workspace


def _multiply(
    a: Array,
    b: Array,
    a_scales: Array,
    b_scales: Array,
    k: int,
    stream: StreamLike,
    plan: ScaledPlan,
    out: Array,
) -> None:
    """Launch the kernel of a plan on matrices that it reads as they are."""
    extents, blocks = grid_of(plan, a, b, k, out)
    _, step, column = b_scales.strides
    launch(
        block_scaled_kernel(plan.of_any_splits),
        blocks,
        plan.threads,
        stream,
        tensor_map(map_source(a, plan.a), plan.a_tile, dtype=plan.a),
        tensor_map(map_source(b, plan.b), plan.b_copy, dtype=plan.b),
        tensor_map(map_source(a_scales), plan.scales_tile),
        BScales(b_scales.as_bytes(), step, column, max(0, b_scales.shape[2] - 1)),
        target(plan, out),
        extents,
    )


def _check_operands(a: Array, b: Array) -> None:
    """Raise unless a and b are matrices of fp8 that can be multiplied."""
    for matrix in (a, b):
        if matrix.dtype.name not in OPERANDS:
            raise matrix.error(
                f"is {matrix.dtype}; blocks of {' or '.join(OPERANDS)} have scales: use matmul() "
                "for other types, or dtype= to say what the bits mean"
            )
        if len(matrix.shape) != 2:
            raise matrix.error(
                f"has shape {matrix.shape}; it is one matrix: call it for each of a batch"
            )
    if a.shape[1] != b.shape[0]:
        raise ValueError(
            f"block_scaled_matmul(): a has shape {a.shape} and b {b.shape}: K is {a.shape[1]} and "
            f"{b.shape[0]}, and must be the same; is b transposed?"
        )


def _check_result(dtype: DType) -> None:
    if dtype.name not in RESULTS:
        raise ValueError(
            f"block_scaled_matmul(): out is {dtype}, but results are stored as {', '.join(RESULTS)}"
        )


def _check_array(array: Array, shape: tuple[int, int], of: str, dtypes: tuple[str, ...]) -> None:
    """Raise unless an array has the shape and type that go with the operands."""
    if array.shape != shape or array.dtype.name not in dtypes:
        raise array.error(
            f"has shape {array.shape} of {array.dtype}; with {of} it has shape {shape}, of "
            f"{' or '.join(dtypes)}"
        )
