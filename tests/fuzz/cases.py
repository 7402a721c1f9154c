"""Which call belongs to a seed and an index."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from tests.fuzz.absurd import ABSURD
from tests.fuzz.families import Case
from tests.fuzz.memory import GAPS
from tests.fuzz.trial import FAMILIES, ODD, arguments_of, problem_of

#: Calls are drawn from so many pools of kernels; index i belongs to pool i % POOLS.
POOLS = 16
ABSURD_SHARE = 0.15
ABOUT_COPIES = ("tensor_map", "pipeline", "im2col", "ragged", "ring")  # functions of the fuzzer
ALIGNED = ["plain", "gaps of 16", "starts at 16"]


def draw(seed: int, index: int, tiny: bool, only: str = "") -> Case:
    """Return the case of a seed and an index; `tiny` for the simulator."""
    rng = np.random.default_rng([seed, index])
    names = names_of(index % POOLS, only)
    weights = np.array([FAMILIES[name].weight for name in names], float)
    family = FAMILIES[names[int(rng.choice(len(names), p=weights / weights.sum()))]]
    variant = int(rng.integers(max(2, family.weight)))
    kept = np.random.default_rng([seed, index % POOLS, zlib.crc32(family.name.encode()), variant])
    choices = {
        name: _plain(choice.take(kept if choice.fixed else rng, tiny))
        for name, choice in family.choices.items()
    }
    case: Case = {"family": family.name, "seed": int(rng.integers(1 << 31)), "choices": choices}
    case["stream"] = str(rng.choice(["none", "none", "own", "per-thread", "default"]))
    case["bits"] = bool(rng.random() < 0.3)
    try:
        _, problem = problem_of(case)
    except (TypeError, ValueError):  # which the trial reports
        return case
    views = {}
    for name in problem.views:
        if rng.random() < 0.35:
            odd = rng.random() < 0.2
            usual = ALIGNED if problem.aligned else list(GAPS)
            views[name] = str(rng.choice(ODD if odd else usual))
    if choices.get("out") == "new":  # Numba's own arrays do not walk backwards
        views = {name: view for name, view in views.items() if view != "reversed"}
    case["views"] = {name: view for name, view in views.items() if _possible(problem, name, view)}
    if (
        rng.random() < ABSURD_SHARE
        and (known := arguments_of(case))
        and family.name not in ABOUT_COPIES
    ):
        kinds = list(ABSURD)
        case["absurd"] = [known[rng.integers(len(known))], kinds[rng.integers(len(kinds))]]
        case["views"] = {}
    return case


def names_of(pool: int, only: str) -> list[str]:
    """Return the functions of a pool, half of all: a process makes more calls of a kernel."""
    names = sorted((n for n in FAMILIES if only in n), key=lambda n: -FAMILIES[n].weight)
    return names[pool % 2 :: 2] or names


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _possible(problem: Any, name: str, view: str) -> bool:
    array = problem.arrays.get(name, problem.arrays.get(f"{name}s"))
    shape = problem.outputs[name][0] if name in problem.outputs else getattr(array, "shape", ())
    if not shape or 0 in shape:
        return False
    if view == "expanded":
        return False if name in problem.outputs else shape[0] == 1 and len(shape) > 1
    needed = {"transposed": 2, "permuted": 3, "reversed": 2}.get(view, 1)
    return len(shape) >= needed
