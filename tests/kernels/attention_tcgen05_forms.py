"""Attention's kernel of Blackwell's tensor cores, with the argument types of its launches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numba import types

from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.attention.arguments import OptionalArguments
from numba_tma.kernels.attention.plan import AttentionProblem
from numba_tma.kernels.attention.tcgen05_kernel import tcgen05_attention_kernel
from numba_tma.kernels.attention.tcgen05_plan import (
    TCGEN05_HEAD_DIMS,
    Tcgen05AttentionForm,
    Tcgen05AttentionPlan,
)

#: By name: every head dim and mask, and what gives more results or changes scores.
FORMS: dict[str, tuple[AttentionProblem, Tcgen05AttentionPlan]] = {
    f"d{head_dim}{' causal' * causal}": (
        AttentionProblem(head_dim, as_dtype("bf16"), causal),
        Tcgen05AttentionPlan(),
    )
    for head_dim in TCGEN05_HEAD_DIMS
    for causal in (False, True)
}
FORMS |= {
    f"{name} {' '.join(more)}": (
        replace(FORMS[name][0], **dict.fromkeys(more, True)),
        Tcgen05AttentionPlan(),
    )
    for name, *more in (
        ("d128", "lse"),
        ("d64 causal", "lse"),
        ("d128", "left", "right", "softcap", "lse"),
        ("d128 causal", "left"),
    )
}
FORMS["d128 f16"] = (AttentionProblem(128, as_dtype("f16")), Tcgen05AttentionPlan())
FORMS["d64 narrow"] = (FORMS["d64"][0], Tcgen05AttentionPlan(32, 2, polynomial_period=0))


def tcgen05_form(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return the kernel and its argument types."""
    problem, plan = FORMS[name]
    form = Tcgen05AttentionForm(problem, plan)
    kv_tile = problem.tile(plan.block_k)
    maps = (TensorMapType(4, tile) for tile in (form.q_tile, kv_tile, kv_tile, form.o_tile))
    given = {"lse": types.int64, "left": types.int64, "right": types.int64}
    given |= {"softcap": types.float32}
    more = [
        given[field] if field in given and getattr(problem, field) else types.Tuple(())
        for field in OptionalArguments._fields
    ]
    numbers = (*[types.int64] * 5, types.float32, types.NamedTuple(more, OptionalArguments))
    return tcgen05_attention_kernel(problem, plan), (*maps, *numbers)
