"""How attention is launched: from arrays and options to the kernel, its plan and its workspaces."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from numba_tma.host.mma_rules import ROWS
from numba_tma.kernels._host.launching import in_even_rounds, launch, multiprocessors
from numba_tma.kernels.attention.arrays import Heads, scale_of
from numba_tma.kernels.attention.kernel import OptionalArguments, attention_kernel
from numba_tma.kernels.attention.plan import AttentionPlan, AttentionProblem, check_plan, plan_for
from numba_tma.kernels.attention.split_kv import add_up, parts_of
from numba_tma.kernels.attention.transpose_v import turned


def run(
    q: Heads,
    k: Heads,
    v: Heads,
    out: Heads,
    lse: int | None,
    starts: tuple[Any, Any] | None,
    stream: Any,
    numbers: tuple[Any, ...],
    plan: AttentionPlan | None,
    scales: dict[str, Any] | None = None,
) -> list[Any]:
    """Launch the kernels for arrays that were checked; return memory that they need.

    `starts` are those of packed sequences, `scales` those of heads, by the names that `More` has.
    """
    scale, softcap, left, right = numbers
    scale, scales = scale_of(q.function, scale, q.shape[3]), scales or {}
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(
            f"{q.function}(softcap={softcap}): the cap is a positive number, or None for none"
        )
    if q.shape[1] == 1 and not starts:
        q, k, v, out = of_one_query(q, k, v, out, left, "q_scale" in scales)
        left = right = None
    (batch, queries, heads, depth), (_, keys, kv_heads, _) = q.shape, k.shape
    # A side on which all keys are in the window has no limit, which takes no masks.
    more = {
        "lse": lse,
        "left": left if left is not None and left < keys - 1 else None,
        "right": right if right and right < queries - 1 else None,
        "softcap": None if softcap is None else np.float32(scale / softcap),
    }
    more = {name: value for name, value in more.items() if value is not None} | scales
    flags = {name: True for name in more}
    result = None if out.dtype is q.dtype else out.dtype
    problem = AttentionProblem(
        depth, q.dtype, right == 0, packed=starts is not None, result=result, **flags
    )
    if plan:
        check_plan(q.function, problem, plan)
    if starts:
        batch = starts[0].shape[0] - 1
        more |= {"starts_q": starts[0], "starts_k": starts[1]}
    if 0 in q.shape or batch == 0:
        return []
    sharing, blocks, kept = heads // kv_heads, multiprocessors(), list[Any]()
    if not plan:
        shown = keys
        if problem.left:
            shown = left + 2 * ROWS + more.get("right", 0 if problem.causal else queries)
        plan = plan_for(problem, queries, min(keys, shown), batch * heads, sharing, blocks)
    splits = min(plan.splits, -(-keys // plan.block_k))
    if splits > 1:
        problem, batch = replace(problem, splits=True, lse=True), batch * splits
        parts, sums = parts_of(out, splits, kept)
        more |= {"splits": splits, "partials": parts, "lse": sums}
    maps = [a.map(problem.tile(rows)) for a, rows in ((q, ROWS), (k, plan.block_k))]
    if starts:
        # As many as there may be: the ends of sequences are in blocks of their own.
        tiles = heads * (queries // plan.block_q + batch)
        maps += [
            a.ragged(problem.ragged_tile(rows)) for a, rows in ((v, plan.block_k), (out, ROWS))
        ]
    else:
        tiles = batch * heads * -(-queries // plan.block_q)
        if problem.is_fp8:
            v = turned(v, stream, kept)
        maps += [v.map(problem.v_tile(plan.block_k)), out.map(problem.o_tile(ROWS))]
    launch(
        attention_kernel(problem, replace(plan, splits=1)),  # the same kernel for any number
        in_even_rounds(tiles, blocks) if problem.tiles_are_equal else min(tiles, blocks),
        plan.threads,
        stream,
        *maps,
        *(queries, keys, heads, batch, sharing),
        np.float32((scale if softcap is None else softcap) * math.log2(math.e)),
        OptionalArguments(**more),
    )
    if splits > 1:
        add_up(parts, sums, splits, out, lse, stream)
    return kept


def of_one_query(
    q: Heads, k: Heads, v: Heads, out: Heads, left: int | None, scaled: bool
) -> tuple[Heads, Heads, Heads, Heads]:
    """Return the arrays of one query as those of a problem without a mask.

    It sees the last keys, which are then all that there are. Heads that share keys become the
    queries of one head, unless they are `scaled`, each in its own way.
    """
    if left is not None and left < k.shape[1]:
        k, v = k.last(left + 1), v.last(left + 1)
    sharing = q.shape[2] // k.shape[2]
    if not scaled and sharing:
        q, out = q.as_queries(sharing), out.as_queries(sharing)
    return q, k, v, out


def sides(function: str, window: Any, causal: bool) -> tuple[int | None, int | None]:
    """Return how many keys a query sees before its place and behind it; None: all."""
    pair = isinstance(window, tuple | list) and len(window) == 2
    given = window if pair else (window, window)
    for side in given:
        whole = isinstance(side, int | np.integer) and not isinstance(side, bool)
        if side is not None and not (whole and side >= 0):
            raise ValueError(
                f"{function}(window={window!r}): a window is (left, right), the numbers of keys "
                "that a query sees before its place and behind it: whole numbers from 0, or None "
                "for all; or one number for both"
            )
    left, right = (None if side is None else int(side) for side in given)
    return left, 0 if causal else right
