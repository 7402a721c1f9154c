"""Attention's kernels, with the argument types that the wrapper launches them with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numba import types

from numba_tma.backend.lowering.types import RaggedTensorMapType, TensorMapType
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.ragged import WRAP_EXTENT
from numba_tma.host.warpgroup import ROWS
from numba_tma.kernels.attention.arguments import OptionalArguments
from numba_tma.kernels.attention.choice import (
    CANDIDATES,
    FEW_QUERIES_PLANS,
    FP8_CANDIDATES,
    FP8_FEW_QUERIES_PLANS,
    FP8_HEAD_DIMS,
    PLANS,
    in_registers,
    plan_for,
)
from numba_tma.kernels.attention.kernel import attention_kernel
from numba_tma.kernels.attention.plan import E4M3, AttentionPlan, AttentionProblem

#: What there is a plan for, by name.
PROBLEMS = {
    f"d{head_dim}{' causal' * causal}": AttentionProblem(head_dim, as_dtype("bf16"), causal)
    for head_dim, causal in CANDIDATES
}
#: What gives more results, or changes scores.
PROBLEMS |= {
    f"{name} {' '.join(more)}": replace(PROBLEMS[name], **dict.fromkeys(more, True))
    for name, *more in (
        ("d64 causal", "lse"),
        ("d128", "lse"),
        ("d64", "left", "right"),
        ("d96", "right"),
        ("d128", "left"),
        ("d128", "left", "right", "softcap", "lse"),
        ("d64 causal", "softcap"),
        ("d128", "softcap"),
        ("d256 causal", "left", "softcap", "lse"),
        ("d64", "packed"),
        ("d64 causal", "packed"),
        ("d96 causal", "packed"),
        ("d128", "packed", "lse"),
        ("d128 causal", "packed"),
        ("d256", "left", "right", "packed"),
        ("d256 causal", "packed"),
        ("d128 causal", "left"),
        ("d64", "splits", "lse"),
        ("d96 causal", "splits", "lse"),
        ("d128", "splits", "lse"),
        ("d256", "splits", "lse"),
        ("d128", "left", "right", "splits", "lse"),
    )
}
#: Inputs of 8 bits.
PROBLEMS |= {
    f"d{head_dim}{' causal' * causal} e4m3": AttentionProblem(
        head_dim, E4M3, causal, result=as_dtype("bf16")
    )
    for head_dim in FP8_HEAD_DIMS
    for causal in (False, True)
}
PROBLEMS |= {
    f"{name} {' '.join(more)}": replace(PROBLEMS[name], **dict.fromkeys(more, True))
    for name, *more in (
        ("d64 e4m3", "q_scale", "lse"),
        ("d128 causal e4m3", "q_scale", "k_scale", "v_scale"),
        ("d128 e4m3", "left", "right", "softcap", "k_scale", "lse"),
        ("d128 e4m3", "splits", "lse"),
    )
}
#: Of few queries, whose blocks have one warpgroup that multiplies.
FEW = {
    f"{name} few": problem
    for name, problem in PROBLEMS.items()
    if not problem.causal and name.split()[1:] in ([], ["e4m3"], ["splits", "lse"])
}
FEW["d128 e4m3 splits lse few"] = PROBLEMS["d128 e4m3 splits lse"]
PROBLEMS |= FEW
#: Plans beside the usual ones: what lengths may choose, and some whose tiles have several heads.
OTHERS = {
    f"d{head_dim}{' causal' * causal}{narrow} lse plan {number}": (head_dim, causal, plan)
    for narrow, table in (("", CANDIDATES), (" e4m3", FP8_CANDIDATES))
    for (head_dim, causal), candidates in table.items()
    for number, (plan, _) in enumerate(candidates)
    if number
}
OTHERS |= {
    "d64 causal lse 8 heads": (64, True, AttentionPlan(2, 128, 3, votes=False, packed_heads=8)),
    "d96 lse 2 heads": (96, False, AttentionPlan(3, 112, q_stages=2, packed_heads=2)),
    "d128 causal lse 4 heads": (128, True, AttentionPlan(2, 128, q_stages=2, packed_heads=4)),
    "d256 causal lse 8 heads": (256, True, AttentionPlan(1, 64, packed_heads=8)),
    "d64 lse turns": (64, False, AttentionPlan(3, 128, 3, votes=False, q_stages=2, turns=True)),
    "d128 causal lse turns": (128, True, AttentionPlan(2, 128, q_stages=2, turns=True)),
}
PROBLEMS |= {name: replace(PROBLEMS[name.partition(" lse")[0]], lse=True) for name in OTHERS}
EMPTY = types.Tuple(())


def plan_of(name: str) -> AttentionPlan:
    """Return the plan of a problem."""
    problem = PROBLEMS[name]
    if name in OTHERS:
        return OTHERS[name][2]
    if name in FEW:
        return (FP8_FEW_QUERIES_PLANS if problem.is_fp8 else FEW_QUERIES_PLANS)[problem.head_dim]
    if problem.packed:
        return plan_for(problem, ROWS + 1, 1, 1, 1, 1)
    if problem.is_fp8:
        return FP8_CANDIDATES[problem.head_dim, problem.causal][0].plan
    return in_registers(PLANS[problem.head_dim], problem, 1 + problem.splits)


def form(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return the kernel and its argument types."""
    problem, plan = PROBLEMS[name], plan_of(name)
    heads = plan.packed_heads
    tiles = problem.tile(ROWS, heads), problem.tile(plan.block_k)
    maps = [
        TensorMapType(4, tile)
        for tile in (*tiles, problem.v_tile(plan.block_k), problem.o_tile(ROWS, heads))
    ]
    if problem.packed:
        parts = (problem.ragged_tile(n) for n in (plan.block_k, ROWS))
        maps[2:] = (RaggedTensorMapType(3, part, 0, "wrap", WRAP_EXTENT) for part in parts)
    fields = dict.fromkeys(OptionalArguments._fields, types.int64) | {"softcap": types.float32}
    fields |= {f"{name}_scale": types.float32[::1] for name in "qkv"}
    fields |= {"starts_q": types.int32[::1], "starts_k": types.int32[::1]}
    fields["counter"] = types.uint32[::1]
    flags = {"starts_q": "packed", "starts_k": "packed", "counter": "packed", "partials": "splits"}
    more = [
        typ if getattr(problem, flags.get(name, name)) else EMPTY for name, typ in fields.items()
    ]
    numbers = (*[types.int64] * 5, types.float32, types.NamedTuple(more, OptionalArguments))
    return attention_kernel(problem, plan), (*maps, *numbers)
