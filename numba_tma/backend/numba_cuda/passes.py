"""The library's compiler passes, which run for every function."""

from __future__ import annotations

from typing import Any

from numba.cuda.compiler import CUDACompiler

_PASSES: list[tuple[Any, Any, str]] = []
_define_pipelines = CUDACompiler.define_pipelines


def add_pass(pass_class: Any, after: Any, description: str) -> None:
    """Run `pass_class` after numba-cuda's pass `after`, which runs once."""
    _PASSES.append((pass_class, after, description))


def _define_pipelines_with_ours(self: Any) -> Any:
    managers = _define_pipelines(self)
    for manager in managers:
        for pass_class, after, description in _PASSES:
            place = [p for p, _ in manager.passes].index(after) + 1
            manager.passes.insert(place, (pass_class, description))
        manager.finalize()
    return managers


CUDACompiler.define_pipelines = _define_pipelines_with_ours
