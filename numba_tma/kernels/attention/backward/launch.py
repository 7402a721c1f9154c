"""The gradients of attention, by FlashAttention's recomputation on Hopper's tensor cores.

Cost model: five products take 10 x queries x keys x head dim operations. Nothing of the size
queries x keys leaves the SM: P is computed again from Q, K and the forward pass's lse. Each tile of
keys reads Q and dO once, and adds float32 sums of the size of Q to memory. `kernel.py` is the page
to read; docs/kernels/attention.md has the details.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.host.arrays import Array
from numba_tma.host.cached_kernel import shipped
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Tile
from numba_tma.host.tensor_map import tensor_map
from numba_tma.host.values import FLAG, checked, instance, optional
from numba_tma.host.warpgroup import ROWS
from numba_tma.kernels._host.device import sm_count
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.memo import launched_again
from numba_tma.kernels._host.outputs import check_outputs, empty_like
from numba_tma.kernels._host.workspace import float_workspace
from numba_tma.kernels.attention.arrays import check, map_of, read_heads, read_lse, scale_of
from numba_tma.kernels.attention.backward.plan import (
    BLOCK_K,
    CHUNK,
    DQ_PART,
    HEAD_DIMS,
    PASS_THREADS,
    WARPGROUPS,
    BackwardPlan,
    block_q,
    check_plan,
    plan_for,
)
from numba_tma.kernels.attention.plan import AttentionProblem

_PAGES = "numba_tma.kernels.attention.backward."
backward_kernel = shipped(_PAGES + "kernel", "backward_kernel")
prepare_kernel = shipped(_PAGES + "passes", "prepare_kernel")
finish_kernel = shipped(_PAGES + "passes", "finish_kernel")
add_splits_kernel = shipped(_PAGES + "passes", "add_splits_kernel")

NAME = "attention_backward"


def attention_backward(
    dout: DeviceArray,
    q: DeviceArray,
    k: DeviceArray,
    v: DeviceArray,
    out: DeviceArray,
    lse: DeviceArray,
    *,
    causal: bool = False,
    scale: float | None = None,
    deterministic: bool = False,
    dq: DeviceArray | None = None,
    dk: DeviceArray | None = None,
    dv: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: BackwardPlan | None = None,
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Return the gradients of `attention` with respect to q, k and v.

    Parameters
    ----------
    dout
        Gradient with respect to the result: a device array (batch, queries, heads, head dim) of
        bf16 or f16, with a head dim of 64 or 128.
    q, k, v, causal, scale
        What `attention` was given. Lengths are any, and `k` and `v` may have fewer heads.
    out, lse
        What `attention` returned with ``return_lse=True``: `lse` is float32 (batch, heads,
        queries).
    deterministic
        Whether blocks add to `dq` in the order of their keys. They wait for each other, which takes
        time.
    dq, dk, dv
        Where to write, like q, k and v; new arrays if None.
    stream, dtype
        As in `attention`.
    plan
        How the work is cut into tiles and stages; the fastest known plan if None.

    Returns
    -------
    tuple
        `dq`, `dk` and `dv`. Sums are float32; P and dS are rounded to the arrays' type before they
        are multiplied. `dk` and `dv` are sums over the heads that share them, and the same for the
        same input. `dq` is the same for the same input if `deterministic`; else blocks add to it in
        the order in which they come, and its last bits may differ.

    Raises
    ------
    TypeError
        If an argument is no array in GPU memory.
    ValueError
        If shapes, types or strides do not fit, or `scale` is not positive.

    Notes
    -----
    It takes a workspace of the size of q in float32, and with splits of the sizes of k and v in
    float32 for each split.
    """
    given = ((dq, q), (dk, k), (dv, v))
    dq, dk, dv = (
        empty_like(NAME, name, like, f"d{name}") if array is None else array
        for name, (array, like) in zip("qkv", given)
    )
    arrays = (dout, q, k, v, out, dq, dk, dv, lse)
    _backward(arrays, stream, (scale,), causal, deterministic, dtype, plan)
    return dq, dk, dv


@launched_again(NAME, "dout", "q", "k", "v", "out", "dq", "dk", "dv", "lse")
def _backward(
    arrays: tuple[DeviceArray, ...],
    stream: StreamLike,
    numbers: tuple[float | None],
    causal: bool,
    deterministic: bool,
    dtype: DTypeLike | None,
    plan: BackwardPlan | None,
) -> list[DeviceArray]:
    """Read and check the arrays, and launch; return the workspace."""
    names = ("dout", "q", "k", "v", "out", "dq", "dk", "dv")
    dout, q, k, v, out, dq, dk, dv = (
        read_heads(NAME, name, array, dtype) for name, array in zip(names, arrays)
    )
    _check(dout, q, k, v, out, dq, dk, dv)
    lse = read_lse(q, arrays[8])
    (batch, queries, heads, head_dim), (_, keys, kv_heads, _) = q.shape, k.shape
    scale = scale_of(NAME, numbers[0], head_dim)
    causal = checked(NAME, "causal", causal, FLAG)
    deterministic = checked(NAME, "deterministic", deterministic, FLAG)
    checked(NAME, "plan", plan, optional(instance(BackwardPlan)))
    check_outputs([dq, dk, dv], [dout, q, k, v, out, lse])
    if batch == 0:
        return []
    problem, group = AttentionProblem(head_dim, q.dtype, causal), heads // kv_heads
    if plan is None:
        plan = plan_for(problem, queries, keys, batch * kv_heads, group, sm_count())
    check_plan(NAME, plan, group)
    splits, rows = plan.splits, block_q(head_dim)
    q_tiles = -(-queries // rows)
    padded = q_tiles * rows
    parts = batch * heads * q_tiles * WARPGROUPS  # of dQ, 64 x 64 each
    workspace = [
        float_workspace(parts, ROWS * ROWS),
        float_workspace(batch * heads, padded),
        float_workspace(batch * heads, padded),
        float_workspace(parts, 1),
    ]
    split_dk = split_dv = 0
    if splits > 1:
        workspace += [float_workspace(batch * kv_heads * splits * keys, head_dim) for _ in "kv"]
        split_dk, split_dv = (Array.read(NAME, "workspace", w).address for w in workspace[4:])
    sums, scaled_lse, delta, turns = (Array.read(NAME, "workspace", w) for w in workspace[:4])
    launch(
        prepare_kernel(problem),
        batch * heads * padded * (head_dim // CHUNK) // PASS_THREADS,
        PASS_THREADS,
        stream,
        *(dout.address, dout.strides[:3], out.address, out.strides[:3], lse.address),
        *(scaled_lse.address, delta.address, sums.address),
        *(turns.address, parts, queries, heads, q_tiles),
    )
    queried, stored = problem.tile(rows), problem.tile(ROWS)
    held, row = problem.tile(BLOCK_K), Tile((1, rows), "f32")
    launch(
        # The same for any number of splits.
        backward_kernel(
            replace(problem, splits=splits > 1), replace(plan, splits=1), deterministic
        ),
        batch * kv_heads * splits * -(-keys // BLOCK_K),
        plan.threads,
        stream,
        *(map_of(a, tile) for a, tile in ((q, queried), (k, held), (v, held), (dout, queried))),
        *(tensor_map(a, row) for a in (scaled_lse, delta)),
        tensor_map(sums.view((parts, *DQ_PART.shape[1:])), DQ_PART),
        *(map_of(a, stored) for a in (dk, dv)),
        turns.view((parts,), dtype=as_dtype("i32")).as_argument(),
        *(queries, keys, kv_heads, batch, group // splits, splits, split_dk, split_dv),
        np.float32(scale),
        np.float32(scale * math.log2(math.e)),
    )
    launch(
        finish_kernel(q.dtype, head_dim),
        parts,
        PASS_THREADS,
        stream,
        *(sums.address, dq.address, dq.strides[:3], queries, heads, q_tiles),
        np.float32(scale),
    )
    if splits > 1:
        launch(
            add_splits_kernel(dk.dtype, head_dim),
            -(-batch * kv_heads * keys * (head_dim // CHUNK) // PASS_THREADS),
            PASS_THREADS,
            stream,
            *(split_dk, split_dv, dk.address, dk.strides[:3], dv.address, dv.strides[:3]),
            *(batch * kv_heads * keys, keys, kv_heads, splits),
            pdl=True,
        )
    return workspace


def _check(
    dout: Array, q: Array, k: Array, v: Array, out: Array, dq: Array, dk: Array, dv: Array
) -> None:
    """Raise a ValueError unless the arrays fit each other and TMA."""
    if q.shape[3] not in HEAD_DIMS or 0 in q.shape[1:3]:
        raise q.error(
            f"has shape {q.shape}; it takes a head dim of {' or '.join(map(str, HEAD_DIMS))}, and "
            "at least one query and one head"
        )
    for like_q in (out, dout, dq):
        check(q, k, v, like_q)
    check(q, dk, dv, dq)
    for array, like in ((dk, k), (dv, v)):
        if array.shape != like.shape:
            raise array.error(
                f"has shape {array.shape}, but {like.name} has {like.shape}; they must agree"
            )
