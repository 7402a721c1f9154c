"""Attention's kernels, with the argument types that the wrapper launches them with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numba import types

from numba_tma.dtypes import as_dtype
from numba_tma.kernels._attention_kernel import More, attention_kernel
from numba_tma.kernels._attention_plan import PLANS, Plan, Problem
from numba_tma.mma_rules import ROWS
from numba_tma.types import TensorMapType

#: What there is a plan for, by name.
PROBLEMS = {
    f"d{depth}{' causal' * causal}": Problem(depth, as_dtype("bf16"), causal)
    for depth, causal in PLANS
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
        ("d128 causal", "left"),
    )
}
EMPTY = types.Tuple(())


def plan_of(name: str) -> Plan:
    """Return the plan of a problem."""
    return PLANS[PROBLEMS[name].depth, PROBLEMS[name].causal]


def form(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return the kernel and its argument types."""
    problem, plan = PROBLEMS[name], plan_of(name)
    rows = (ROWS, plan.block_k, plan.block_k, ROWS)
    maps = (TensorMapType(4, problem.tile(n)) for n in rows)
    fields = {name: types.int64 for name in More._fields} | {"softcap": types.float32}
    more = [typ if getattr(problem, name) else EMPTY for name, typ in fields.items()]
    numbers = (*[types.int64] * 5, types.float32, types.NamedTuple(more, More))
    return attention_kernel(problem, plan), (*maps, *numbers)
