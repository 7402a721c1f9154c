"""`grouped_matmul`: rows that are sorted by group times a matrix for each group, in one launch."""

from __future__ import annotations

import numpy as np

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.host.arrays import Array, option_dtype
from numba_tma.host.cached_kernel import shipped
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.ragged import ragged_tensor_map
from numba_tma.host.tensor_map import tensor_map
from numba_tma.host.values import NUMBER, checked
from numba_tma.kernels._host.device import resident_clusters, sm_count
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.memo import launched_again
from numba_tma.kernels._host.outputs import check_outputs, empty
from numba_tma.kernels.matmul.arguments import Epilogue, MatmulExtents, RowGroups
from numba_tma.kernels.matmul.choice import ROW_CLUSTERS, MatmulProblem, choose_from
from numba_tma.kernels.matmul.launch import target
from numba_tma.kernels.matmul.operands import (
    Kinds,
    Workspace,
    as_loadable,
    as_matrices,
    as_one,
    as_operand,
    is_one,
    map_source,
    operand_dtypes,
    read_matrices,
)
from numba_tma.kernels.matmul.plan import Config, MatmulPlan, check_config

grouped_kernel = shipped("numba_tma.kernels.matmul.grouped_kernel", "grouped_kernel")

#: Operand types that may be mixed, and the types of their results, the default first.
RESULTS = {
    ("bf16",): ("bf16", "f32", "f16"),
    ("f16",): ("f16", "f32", "bf16"),
    ("e4m3", "e5m2"): ("bf16", "f16", "f32"),
}


def grouped_matmul(
    a: DeviceArray,
    b: DeviceArray,
    group_sizes: DeviceArray | None = None,
    out: DeviceArray | None = None,
    *,
    offsets: DeviceArray | None = None,
    alpha: float = 1.0,
    scales: DeviceArray | None = None,
    out_dtype: DTypeLike | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | tuple[DTypeLike, DTypeLike] | None = None,
    config: Config | None = None,
) -> DeviceArray:
    """Multiply the rows of each group with the group's own matrix: the experts of a mixture.

    ``out[rows of g] = alpha * scales[g] * (a[rows of g] @ b[g])``

    Parameters
    ----------
    a
        A device array (M, K) in which the rows of the groups follow each other, or (G, rows, K), in
        which the first ``group_sizes[g]`` rows of each matrix count. Contiguous along K; copied
        first if its base or row stride is not 16-byte aligned.
    b
        (G, K, N). Both are bf16, both f16, or any mix of e4m3 and e5m2. Contiguous along K or N, as
        in `matmul`: ``w.mT`` is multiplied without a copy.
    group_sizes
        int32, (G,), on the device: the rows of each group, 0 or more, and in all no more than a
        has. The host does not read it.
    out
        Device array (M, N) or (G, rows, N), with a contiguous last axis; a new array if None. Rows
        of no group are left as they are.
    offsets
        int32, (G,), for an a of (M, K), instead of `group_sizes`: where each group ends, which are
        the cumulative sums of the sizes, as in `torch._grouped_mm`.
    alpha
        A number.
    scales
        float32, (G,), on the device: a factor for each group, such as that of quantised weights.
    out_dtype
        Type of the result: by default that of `a` for bf16 and f16, bf16 for 8-bit floats; f32, f16
        and bf16 are possible for all.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        Element type of a and b where their own type cannot say it; or a pair for a and b.
    config
        A `Config` with ``splits=1``; if None, the one that is expected to be fastest for groups of
        equal sizes.

    Returns
    -------
    DeviceArray
        `out`. Products are added up in float32 and rounded once.

    Raises
    ------
    TypeError
        If an argument is no array in GPU memory, or `config` is of another class.
    ValueError
        If shapes, types or layouts do not fit each other.
    """
    kinds = operand_dtypes("grouped_matmul", dtype)
    named = option_dtype("grouped_matmul", "out_dtype", out_dtype)
    if out is None:
        left, right = (
            read_matrices("grouped_matmul", *given) for given in zip("ab", (a, b), kinds)
        )
        shape, named = _result(left, right, named)
        out = empty("grouped_matmul", "a", a, shape, named)
    arrays = (a, b, out, group_sizes, offsets, scales)
    _grouped(arrays, stream, (alpha,), kinds, named, config)
    return out


@launched_again("grouped_matmul", "a", "b", "out", "group_sizes", "offsets", "scales")
def _grouped(
    arrays: tuple[DeviceArray | None, ...],
    stream: StreamLike,
    numbers: tuple[float],
    kinds: Kinds,
    out_dtype: DType | None,
    config: Config | None,
) -> Workspace:
    check_config("grouped_matmul", config, Config)
    alpha = checked("grouped_matmul", "alpha", numbers[0], NUMBER)
    given = [read_matrices("grouped_matmul", *one) for one in zip("ab", arrays, kinds)]
    given.append(read_matrices("grouped_matmul", "out", arrays[2], out_dtype))
    _check_rows(*given)
    a, b, out = map(as_matrices, given)
    groups, k, columns = given[1].shape
    in_place = len(given[0].shape) == 3  # each group has rows of its own
    rows, scales = _of_groups(arrays[3:], groups, in_place)
    check_outputs([given[2]], [*given[:2], rows, scales])
    if not out.size or not groups:
        return []
    workspace: Workspace = []
    a = as_loadable(as_one(a), stream, workspace)
    b, b_major = as_operand(b.transposed(), stream, workspace)
    out = as_one(out)
    if config is None:
        usual = max(1, -(-a.shape[1] // groups))
        problem = MatmulProblem(usual, columns, k, groups, a.itemsize, out.itemsize, False)
        config = choose_from(ROW_CLUSTERS, problem, sm_count())
    for name in ("splits", "across"):  # groups are computed whole, and share no tiles of a
        if (value := getattr(config, name)) != 1:
            raise ValueError(f"grouped_matmul(): config has {name}={value}: use {name}=1")
    epilogue = Epilogue(alpha=alpha != 1 or scales is not None)
    plan = MatmulPlan(a.dtype, b.dtype, "K", b_major, out.dtype, config, epilogue, out.is_storable)
    apart = given[0].shape[1] if in_place else 0
    height, tile_columns = config.m * config.cluster, -(-columns // config.n)
    # Without a size each group may end within a tile, and so have one tile more.
    tile_rows = groups * -(-apart // height) if apart else a.shape[1] // height + groups
    launch(
        grouped_kernel(plan, arrays[4] is not None, in_place, scales is not None),
        min(resident_clusters(config.cluster, 1), tile_rows * tile_columns) * config.cluster,
        plan.threads,
        stream,
        tensor_map(map_source(a, plan.a), plan.a_tile, dtype=plan.a),
        tensor_map(map_source(b, plan.b), plan.b_copy, dtype=plan.b),
        ragged_tensor_map(map_source(out), plan.out_tile, axis=1)
        if plan.addressable
        else target(plan, out),
        RowGroups(
            rows.as_bytes(),
            0 if scales is None else scales.as_bytes(),
            *(groups, apart, tile_columns, -(-k // plan.k)),
        ),
        MatmulExtents(out.shape[1], columns, 0, tile_columns, 1, 0, 0, 1, 1),
        np.float32(alpha),
    )
    return workspace


def _check_rows(a: Array, b: Array, out: Array) -> None:
    """Raise unless the result fits, and one stride leads through the rows of a and of out."""
    shape, _ = _result(a, b, out.dtype)
    if out.shape != shape or not out.has_contiguous_rows or not is_one(as_matrices(out)):
        raise out.error(
            f"has shape {out.shape} and strides {out.strides} B; with a of shape {a.shape} and b "
            f"of {b.shape} it has shape {shape}, a contiguous last axis and rows that lie equally "
            "far apart: pass another array"
        )
    if not a.has_contiguous_rows or not is_one(as_matrices(a)):
        raise a.error(
            f"has shape {a.shape} and strides {a.strides} B; its last axis must be contiguous and "
            "its rows lie equally far apart: pass a contiguous copy"
        )


def _result(a: Array, b: Array, out_dtype: DType | None) -> tuple[tuple[int, ...], DType]:
    """Return the shape and type of the result, or raise a ValueError."""
    names = {a.dtype.name, b.dtype.name}
    outs = next((outs for kinds, outs in RESULTS.items() if names <= set(kinds)), None)
    if outs is None:
        raise ValueError(
            f"grouped_matmul(): a is {a.dtype} and b is {b.dtype}; groups are multiplied of "
            f"{'; '.join(' with '.join(dict.fromkeys((k[0], k[-1]))) for k in RESULTS)}"
        )
    found = out_dtype or as_dtype(outs[0])
    if found.name not in outs:
        raise ValueError(
            f"grouped_matmul(): out is {found}, but products of {a.dtype} and {b.dtype} are stored "
            f"as {', '.join(outs)}"
        )
    fits = len(b.shape) == 3 and (len(a.shape) == 2 or a.shape[:-2] == b.shape[:1])
    if not fits or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"grouped_matmul(): a has shape {a.shape} and b {b.shape}; b is (groups, K, N), and a "
            "(M, K) or (groups, rows, K), with the same K; is b transposed?"
        )
    return (*a.shape[:-1], b.shape[-1]), found


def _of_groups(
    arrays: tuple[DeviceArray | None, ...], groups: int, in_place: bool
) -> tuple[Array, Array | None]:
    """Return the arrays with one number for each group: sizes or ends, and scales."""
    group_sizes, offsets, scales = arrays
    if (group_sizes is None) == (offsets is None) or (in_place and offsets is not None):
        both = "neither" if group_sizes is None and offsets is None else "offsets"
        raise ValueError(
            f"grouped_matmul(): {both} given; pass group_sizes, how many rows each group has, or, "
            "where all rows are one matrix, offsets instead, where each group ends"
        )
    if offsets is None:
        rows = _group_vector("group_sizes", group_sizes, groups, "i32")
    else:
        rows = _group_vector("offsets", offsets, groups, "i32")
    return rows, None if scales is None else _group_vector("scales", scales, groups, "f32")


def _group_vector(name: str, array: DeviceArray, groups: int, kind: str) -> Array:
    vector = Array.read("grouped_matmul", name, array)
    if vector.shape != (groups,) or vector.dtype.name != kind or not vector.is_contiguous:
        raise vector.error(
            f"has shape {vector.shape} of {vector.dtype}; with {groups} groups it is contiguous, "
            f"of shape {(groups,)} and of {kind}"
        )
    return vector
