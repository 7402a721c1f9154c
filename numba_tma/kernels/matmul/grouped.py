"""Grouped matmul: rows that are sorted by group times a matrix for each group, in one launch.

How the kernel works is told in `_grouped_kernel`, and in docs/kernels/matmul.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.ragged import ragged_tensor_map
from numba_tma.host.tensor_map import tensor_map
from numba_tma.kernels._host.launching import (
    Matrix,
    empty,
    launch,
    launched_again,
    multiprocessors,
    resident_clusters,
)
from numba_tma.kernels.matmul.choice import CONFIGS, MatmulProblem, choose_from
from numba_tma.kernels.matmul.epilogue import Epilogue
from numba_tma.kernels.matmul.grouped_kernel import RowGroups, grouped_kernel
from numba_tma.kernels.matmul.kernel import MatmulExtents
from numba_tma.kernels.matmul.launch import target
from numba_tma.kernels.matmul.operands import Matrices, as_factor, as_readable
from numba_tma.kernels.matmul.plan import Config, MatmulPlan, check_config

WHAT = "grouped_matmul()"
#: Types that go together as factors, and what their products are stored as, the usual one first.
FACTORS = {
    ("bf16",): ("bf16", "f32", "f16"),
    ("f16",): ("f16", "f32", "bf16"),
    ("e4m3", "e5m2"): ("bf16", "f16", "f32"),
}


def grouped_matmul(
    a: Any,
    b: Any,
    group_sizes: Any = None,
    out: Any = None,
    *,
    offsets: Any = None,
    alpha: float = 1.0,
    scales: Any = None,
    out_dtype: object = None,
    stream: Any = None,
    dtype: object = None,
    config: Config | None = None,
) -> Any:
    """Multiply the rows of each group with its own matrix: the experts of a mixture.

    ``out[rows of g] = alpha * scales[g] * (a[rows of g] @ b[g])``

    Parameters
    ----------
    a
        A device array (M, K) in which the rows of the groups follow each other, or (G, rows, K) in
        which each has its own place, of which the first ``group_sizes[g]`` rows count. Contiguous
        along K; copied first if its rows start at no multiple of 16 B.
    b
        (G, K, N), both bf16, both f16, or e4m3 and e5m2 in any mix. Contiguous along K or N, as
        `matmul` takes it: ``w.mT`` is multiplied as it lies.
    group_sizes
        int32, (G,), on the device, which alone reads it: how many rows each group has, 0 or more,
        and no more in all than there are.
    out
        Where to write, (M, N) or (G, rows, N), with a contiguous last axis; a new array if None.
        Rows of no group are left as they are.
    offsets
        Instead of `group_sizes`, with a of (M, K): int32, (G,), where each group ends, which are
        the cumulative sums of the sizes, as `torch._grouped_mm` has them.
    alpha
        A number.
    scales
        float32, (G,), on the device: one for each group, such as those of quantised weights.
    out_dtype
        What to store: by default the type of `a` for bf16 and f16, bf16 for 8-bit floats; or f32.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        What the bits of a and b mean where their own type cannot say it; or a pair for a and b.
    config
        How the work is cut up, with ``splits=1``; what is expected to be fast for groups of equal
        sizes if None.

    Returns
    -------
    Any
        `out`. Products are added up in float32 and rounded once.

    Raises
    ------
    ValueError
        If shapes or types disagree.
    """
    kinds = dtype if isinstance(dtype, tuple) else (dtype, dtype)
    named = None if out_dtype is None else as_dtype(out_dtype)
    if out is None:
        left, right = Matrices("a", a, kinds[0]), Matrices("b", b, kinds[1])
        shape, found = _result(left, right, named)
        out, named = empty(a, shape, found), found
    arrays = (a, b, out, group_sizes, offsets, scales)
    _grouped(arrays, stream, (float(alpha),), kinds, named, config)
    return out


@launched_again
def _grouped(
    arrays: tuple[Any, ...],
    stream: Any,
    numbers: tuple[float],
    kinds: tuple[object, object],
    out_dtype: DType | None,
    config: Config | None,
) -> list[Any]:
    check_config("grouped_matmul", config, Config)
    a, b = (Matrices(name, array, kind) for name, array, kind in zip("ab", arrays, kinds))
    out = Matrices("out", arrays[2], out_dtype)
    shape, _ = _result(a, b, out.dtype)
    if out.shape != shape or not out.has_rows or not out.is_one:
        raise ValueError(
            f"{WHAT}: out has shape {out.shape} and steps of {out.steps} B; with a of shape "
            f"{a.shape} and b of {b.shape} it has shape {shape}, a contiguous last axis and rows "
            "that lie equally far apart: pass another array"
        )
    if not a.has_rows or not a.is_one:
        raise ValueError(
            f"{WHAT}: a has shape {a.shape} and steps of {a.steps} B; its last axis must be "
            "contiguous and its rows lie equally far apart: pass a contiguous copy"
        )
    groups, each = len(b.shape) and b.shape[0], a.rows if len(a.shape) == 3 else 0
    rows, scales = _of_groups(arrays[3:], groups, bool(each or len(a.shape) == 3))
    if not out.nbytes or not groups:
        return []
    kept: list[Any] = []
    left = as_readable(a.as_one(), stream, kept)
    right, b_major = as_factor(b.transposed, stream, kept)
    if config is None:
        problem = MatmulProblem(
            *(max(1, -(-a.batch * a.rows // groups)), b.columns, b.rows, groups),
            *(a.dtype.itemsize, out.dtype.itemsize, False),
        )
        config = choose_from(CONFIGS, problem, multiprocessors())
    if config.splits != 1:
        raise ValueError(f"{WHAT}: config has splits={config.splits}: use splits=1")
    result = out.as_one()
    (alpha,) = numbers
    epilogue = Epilogue(alpha=alpha != 1 or scales is not None)
    form = MatmulPlan(
        a.dtype, b.dtype, "K", b_major, out.dtype, config, epilogue, result.is_writable
    )
    tile_columns = -(-b.columns // config.n)
    height = config.m * config.cluster
    tile_rows = groups * -(-each // height) if each else left.rows // height + groups
    masked = len(a.shape) == 3
    launch(
        grouped_kernel(form, arrays[4] is not None, masked, scales is not None),
        min(resident_clusters(config.cluster, 1), tile_rows * tile_columns) * config.cluster,
        form.roles.threads,
        stream,
        tensor_map(left.view(form.a), form.a_tile, dtype=form.a),
        tensor_map(right.view(form.b), form.b_copy, dtype=form.b),
        ragged_tensor_map(result.view(), form.out_tile, axis=1)
        if form.addressable
        else target(form, result),
        RowGroups(
            rows.as_bytes(),
            scales.as_bytes() if scales else 0,
            *(groups, each, tile_columns, -(-a.columns // form.k)),
        ),
        MatmulExtents(result.rows, result.columns, 0, tile_columns, 1, 0, 0, 1, 1),
        np.float32(alpha),
    )
    return kept


def _result(a: Matrices, b: Matrices, out_dtype: DType | None) -> tuple[tuple[int, ...], DType]:
    """Return the shape and type of the result, or raise a ValueError."""
    names = {a.dtype.name, b.dtype.name}
    outs = next((outs for kinds, outs in FACTORS.items() if names <= set(kinds)), None)
    if outs is None:
        raise ValueError(
            f"{WHAT}: a is {a.dtype} and b is {b.dtype}; groups are multiplied of "
            f"{'; '.join(' with '.join(dict.fromkeys((k[0], k[-1]))) for k in FACTORS)}"
        )
    found = out_dtype or as_dtype(outs[0])
    if found.name not in outs:
        raise ValueError(
            f"{WHAT}: out is {found}, but products of {a.dtype} and {b.dtype} are stored as "
            f"{', '.join(outs)}"
        )
    fits = len(b.shape) == 3 and (len(a.shape) == 2 or a.shape[:-2] == b.shape[:1])
    if not fits or a.columns != b.rows:
        raise ValueError(
            f"{WHAT}: a has shape {a.shape} and b {b.shape}; b is (groups, K, N), and a (M, K) or "
            "(groups, rows, K), with the same K; is b transposed?"
        )
    return (*a.shape[:-1], b.columns), found


def _of_groups(arrays: tuple[Any, ...], groups: int, masked: bool) -> tuple[Matrix, Matrix | None]:
    """Return the arrays of a number for each group: rows or ends, and scales."""
    group_sizes, offsets, scales = arrays
    if (group_sizes is None) == (offsets is None) or (masked and offsets is not None):
        both = "neither" if group_sizes is None and offsets is None else "offsets"
        raise ValueError(
            f"{WHAT}: {both} given; pass group_sizes, how many rows each group has, or, where all "
            "rows are one matrix, offsets instead, where each group ends"
        )
    name = "group_sizes" if offsets is None else "offsets"
    rows = Matrix(name, group_sizes if offsets is None else offsets)
    scale = None if scales is None else Matrix("scales", scales)
    for vector, kind in ((rows, "i32"), (scale, "f32")):
        if vector is not None and (
            vector.shape != (groups,) or vector.dtype.name != kind or not vector.is_contiguous()
        ):
            raise ValueError(
                f"{WHAT}: {'scales' if vector is scale else name} has shape {vector.shape} of "
                f"{vector.dtype}; with {groups} groups it is contiguous, of shape {(groups,)} and "
                f"of {kind}"
            )
    return rows, scale
