"""The gradients of attention, by FlashAttention's recomputation on the tensor cores of Hopper.

Cost model: five products take 10 x queries x keys x depth operations. Nothing of the size
queries x keys leaves the multiprocessor: the weights are computed again, from Q, K and the
logarithms of their sums that the forward pass leaves. Each block of keys reads Q and dO once and
adds float32 of the size of Q to memory. How it works is told in `_attention_backward_kernel`, and
in docs/kernels/attention.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numba_tma.host.layout import Tile
from numba_tma.host.mma_rules import ROWS
from numba_tma.host.tensor_map import tensor_map
from numba_tma.kernels._host.launching import Matrix, empty_like, launch, launched_again
from numba_tma.kernels.attention.arrays import Heads, check, logarithms, scale_of
from numba_tma.kernels.attention.backward.kernel import DQ_PART, backward_kernel
from numba_tma.kernels.attention.backward.passes import (
    CHUNK,
    THREADS,
    finish_kernel,
    prepare_kernel,
)
from numba_tma.kernels.attention.backward.plan import (
    BLOCK_K,
    HEAD_DIMS,
    WARPGROUPS,
    BackwardPlan,
    block_q,
    plan_for,
)
from numba_tma.kernels.attention.plan import AttentionProblem
from numba_tma.kernels.rows.columns import workspace

NAME = "attention_backward"


def attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    causal: bool = False,
    scale: float | None = None,
    deterministic: bool = False,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    stream: Any = None,
    dtype: object = None,
    plan: BackwardPlan | None = None,
) -> tuple[Any, Any, Any]:
    """Return the gradients of `attention` with respect to q, k and v.

    Parameters
    ----------
    dout
        Gradient with respect to the result: a device array (batch, queries, heads, depth) of bf16
        or f16, with a depth of 64 or 128.
    q, k, v, causal, scale
        What `attention` was given. Of any lengths, and with fewer heads in `k` and `v`.
    out, lse
        What `attention` returned with ``return_lse=True``: `lse` is float32 (batch, heads,
        queries).
    deterministic
        Whether blocks of keys add to `dq` in a fixed order. It costs time: they wait for each
        other.
    dq, dk, dv
        Where to write, like q, k and v; new arrays if None.
    stream, dtype
        As in `attention`.
    plan
        How to cut the work up; what is measured to be fast if None.

    Returns
    -------
    tuple
        `dq`, `dk` and `dv`. Sums are float32, and weights and gradients of scores are rounded to
        the arrays' type between products. `dk` and `dv` are sums over the heads that share them,
        and always the same for the same input. So is `dq` if `deterministic`; else it is summed
        over blocks of keys in the order in which they come, and its last bits may differ.

    Raises
    ------
    ValueError
        If shapes, types or strides do not fit, or `scale` is not positive.

    Notes
    -----
    It takes a workspace of the size of q in float32.
    """
    given = ((dq, q), (dk, k), (dv, v))
    dq, dk, dv = (empty_like(like) if array is None else array for array, like in given)
    arrays = (dout, q, k, v, out, dq, dk, dv, lse)
    _backward(arrays, stream, (scale,), causal, deterministic, dtype, plan)
    return dq, dk, dv


@launched_again
def _backward(
    arrays: tuple[Any, ...],
    stream: Any,
    numbers: tuple[float | None],
    causal: bool,
    deterministic: bool,
    dtype: object,
    plan: BackwardPlan | None,
) -> list[Any]:
    """Launch, and return the workspaces."""
    names = ("dout", "q", "k", "v", "out", "dq", "dk", "dv")
    dout, q, k, v, out, dq, dk, dv = (Heads(n, a, dtype, NAME) for n, a in zip(names, arrays))
    _check(dout, q, k, v, out, dq, dk, dv)
    lse = logarithms(arrays[8], q)
    (batch, queries, heads, depth), (_, keys, kv_heads, _) = q.shape, k.shape
    scale = scale_of(NAME, numbers[0], depth)
    if batch == 0 or heads == 0:
        return []
    problem, sharing = AttentionProblem(depth, q.dtype, bool(causal)), heads // kv_heads
    plan = plan_for(problem, queries, sharing) if plan is None else plan
    rows = block_q(depth)
    q_tiles = -(-queries // rows)
    padded = q_tiles * rows
    parts = batch * heads * q_tiles * WARPGROUPS
    sums, scaled, delta = (
        workspace(parts, ROWS * ROWS),
        *(workspace(batch * heads, padded) for _ in range(2)),
    )
    turns = workspace(parts, 1)
    places = [Matrix("workspace", w) for w in (sums, scaled, delta, turns)]
    launch(
        prepare_kernel(problem),
        batch * heads * padded * (depth // CHUNK) // THREADS,
        THREADS,
        stream,
        *(dout.address, dout.strides[:3], out.address, out.strides[:3], lse),
        *(places[1].address, places[2].address, places[0].address),
        *(places[3].address, parts, queries, heads, q_tiles),
    )
    queried, stored = problem.tile(rows), problem.tile(ROWS)
    held, row = problem.tile(BLOCK_K), Tile((1, rows), "f32")
    launch(
        backward_kernel(problem, plan, bool(deterministic)),
        batch * kv_heads * -(-keys // BLOCK_K),
        plan.threads,
        stream,
        *(a.map(tile) for a, tile in ((q, queried), (k, held), (v, held), (dout, queried))),
        *(tensor_map(place.view(padded), row) for place in places[1:3]),
        tensor_map(places[0].view(*DQ_PART.shape[1:]), DQ_PART),
        *(a.map(stored) for a in (dk, dv)),
        places[3].as_counters(),
        *(queries, keys, kv_heads, batch, sharing),
        np.float32(scale),
        np.float32(scale * math.log2(math.e)),
    )
    launch(
        finish_kernel(q.dtype, depth),
        parts,
        THREADS,
        stream,
        *(places[0].address, dq.address, dq.strides[:3], queries, heads, q_tiles),
        np.float32(scale),
    )
    return [sums, scaled, delta, turns]


def _check(
    dout: Heads,
    q: Heads,
    k: Heads,
    v: Heads,
    out: Heads,
    dq: Heads,
    dk: Heads,
    dv: Heads,
) -> None:
    """Raise unless the arrays fit each other and the copy engine."""
    if q.shape[3] not in HEAD_DIMS or q.shape[1] == 0:
        raise ValueError(
            f"{NAME}(): q has shape {q.shape}; it takes a depth of "
            f"{' or '.join(map(str, HEAD_DIMS))} and at least one query"
        )
    for like_q in (out, dout, dq):
        check(q, k, v, like_q)
    check(q, dk, dv, dq)
    for array, like in ((dk, k), (dv, v)):
        if array.shape != like.shape:
            raise ValueError(
                f"{NAME}(): {array.name} has shape {array.shape}, but {like.name} has "
                f"{like.shape}; they must agree"
            )
