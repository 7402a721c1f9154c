"""From arrays and options to the kernel of attention, its plan, its workspace and its launches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from numba_tma.host.annotations import DeviceArray, StreamLike
from numba_tma.host.arrays import Array
from numba_tma.host.cached_kernel import shipped
from numba_tma.host.values import FLAG, POSITIVE, checked, is_whole, optional
from numba_tma.host.warpgroup import ROWS
from numba_tma.kernels._host.device import fewest_in_same_waves, has_tcgen05, sm_count
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.workspace import queue_counter
from numba_tma.kernels.attention.arguments import OptionalArguments
from numba_tma.kernels.attention.arrays import (
    heads_as_queries,
    last_positions,
    map_of,
    ragged_map_of,
    scale_of,
)
from numba_tma.kernels.attention.choice import plan_for
from numba_tma.kernels.attention.plan import AttentionPlan, AttentionProblem, check_plan
from numba_tma.kernels.attention.split_kv import combine_splits, new_partials
from numba_tma.kernels.attention.tcgen05_plan import (
    AnyAttentionPlan,
    Tcgen05AttentionPlan,
    check_tcgen05,
    tcgen05_plan_for,
)
from numba_tma.kernels.attention.transpose_v import transposed_v

attention_kernel = shipped("numba_tma.kernels.attention.kernel", "attention_kernel")
tcgen05_attention_kernel = shipped(
    "numba_tma.kernels.attention.tcgen05_kernel", "tcgen05_attention_kernel"
)

SOFTCAP = optional(POSITIVE)


class ScoreOptions(NamedTuple):
    """What is done to scores before the softmax."""

    scale: float | None  #: 1 / sqrt(head dim) if None
    softcap: float | None
    left: int | None  #: keys before its own position that a query sees; None: no limit
    right: int | None  #: keys after its own position; 0 for a causal mask


def launch_attention(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array | None,
    stream: StreamLike,
    options: ScoreOptions,
    plan: AnyAttentionPlan | None,
    *,
    starts: tuple[Array, Array] | None = None,
    scales: Mapping[str, Array] | None = None,
) -> list[DeviceArray]:
    """Launch the kernels for arrays that were checked; return the workspace that they need.

    `starts` are those of packed sequences, `scales` the factors of heads by their names in
    `OptionalArguments`.
    """
    _, softcap, left, right = options
    scale, scales = scale_of(q.function, options.scale, q.shape[3]), scales or {}
    checked(q.function, "softcap", softcap, SOFTCAP)
    if q.shape[1] == 1 and not starts:
        packs = isinstance(plan, AttentionPlan) and plan.packed_heads > 1
        keeps_heads = "q_scale" in scales or packs
        q, k, v, out = without_mask(q, k, v, out, left, keeps_heads)
        left = right = None
    (batch, queries, heads, head_dim), (_, keys, kv_heads, _) = q.shape, k.shape
    # A window that includes all keys on a side has no limit there, and takes no masks.
    left = left if left is not None and left < keys - 1 else None
    problem = AttentionProblem(
        head_dim,
        q.dtype,
        causal=right == 0,
        lse=lse is not None,
        left=left is not None,
        right=bool(right and right < queries - 1),
        softcap=softcap is not None,
        packed=starts is not None,
        result=None if out.dtype is q.dtype else out.dtype,
        **dict.fromkeys(scales, True),
    )
    on_tcgen05 = has_tcgen05() if plan is None else isinstance(plan, Tcgen05AttentionPlan)
    if isinstance(plan, AttentionPlan):
        check_plan(q.function, problem, plan, q.shape[2] // k.shape[2])
    elif on_tcgen05:
        check_tcgen05(q.function, problem)
    elif plan is not None:
        raise TypeError(
            f"{q.function}(): plan is {plan!r}; it is an AttentionPlan, on Blackwell a "
            "Tcgen05AttentionPlan, or None"
        )
    if starts:
        batch = starts[0].shape[0] - 1
    if 0 in q.shape or batch == 0:
        return []
    group, sms, workspace = heads // kv_heads, sm_count(), list[DeviceArray]()
    if plan is None:
        seen = keys
        if left is not None:
            after = right if problem.right and right else 0 if problem.causal else queries
            seen = min(keys, left + 2 * ROWS + after)
        choose = tcgen05_plan_for if on_tcgen05 else plan_for
        plan = choose(problem, queries, seen, batch * heads, group, sms)
    arguments = {name: scale.as_argument() for name, scale in scales.items()}
    if lse is not None:
        arguments["lse"] = lse.address
    if left is not None:
        arguments["left"] = left
    if problem.right:
        arguments["right"] = right
    if softcap is not None:
        arguments["softcap"] = np.float32(scale / softcap)
    if starts:
        arguments |= dict(zip(("starts_q", "starts_k"), (s.as_argument() for s in starts)))
        arguments["counter"] = counter = queue_counter()
        workspace.append(counter)
    splits = min(plan.splits, -(-keys // plan.block_k))
    if splits > 1:
        problem, batch = replace(problem, splits=True, lse=True), batch * splits
        partials, partial_lse = new_partials(out, splits, workspace)
        arguments |= {"splits": splits, "partials": partials, "lse": partial_lse}
    packed_heads = plan.packed_heads
    maps = [
        map_of(q, problem.tile(plan.q_rows, packed_heads)),
        map_of(k, problem.tile(plan.block_k)),
    ]
    if starts:
        # The most tiles that there may be: each sequence ends in a tile of its own.
        tiles = heads * (queries // plan.block_q + batch)
        maps += [
            ragged_map_of(v, problem.ragged_tile(plan.block_k)),
            ragged_map_of(out, problem.ragged_tile(ROWS)),
        ]
    else:
        tiles = batch * (heads // packed_heads) * -(-queries * packed_heads // plan.block_q)
        if problem.is_fp8:
            v = transposed_v(v, stream, workspace)
        maps += [
            map_of(v, problem.v_tile(plan.block_k)),
            map_of(out, problem.o_tile(plan.q_rows, packed_heads)),
        ]
    if isinstance(plan, Tcgen05AttentionPlan):
        kernel = tcgen05_attention_kernel(problem, plan)
    else:
        kernel = attention_kernel(problem, replace(plan, splits=1))  # the same for any number
    launch(
        kernel,
        fewest_in_same_waves(tiles, sms) if problem.tiles_are_equal else min(tiles, sms),
        plan.threads,
        stream,
        *maps,
        *(queries, keys, heads // packed_heads, batch, group // packed_heads),
        np.float32((scale if softcap is None else softcap) * math.log2(math.e)),
        OptionalArguments(**arguments),
    )
    if splits > 1:
        combine_splits(partials, partial_lse, splits, out, lse, stream)
    return workspace


def without_mask(
    q: Array, k: Array, v: Array, out: Array, left: int | None, keeps_heads: bool
) -> tuple[Array, Array, Array, Array]:
    """Return the arrays of one query as those of a problem without a mask.

    The query sees the last keys, which are then all keys. Heads that share K and V become the
    queries of one head, unless it `keeps_heads`: each has its own factor, or the plan packs them.
    """
    if left is not None and left < k.shape[1]:
        k, v = last_positions(k, left + 1), last_positions(v, left + 1)
    group = q.shape[2] // k.shape[2]
    if not keeps_heads and group:
        q, out = heads_as_queries(q, group), heads_as_queries(out, group)
    return q, k, v, out


def sides(
    function: str, window: int | tuple[int | None, int | None] | None, causal: bool
) -> tuple[int | None, int | None]:
    """Return the numbers of keys before and after its position that a query sees; None: all."""
    pair = isinstance(window, tuple | list) and len(window) == 2
    given: Any = window if pair else (window, window)
    for side in given:
        if side is not None and not (is_whole(side) and side >= 0):
            raise ValueError(
                f"{function}(window={window!r}): a window is (left, right), the numbers of keys "
                "that a query sees before its position and after it: whole numbers from 0, or None "
                "for all; or one number for both"
            )
    causal = checked(function, "causal", causal, FLAG)
    left, right = (None if side is None else int(side) for side in given)
    return left, 0 if causal else right
