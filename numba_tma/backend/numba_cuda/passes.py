"""The library's compiler passes, which run for every function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.cuda.compiler import CUDACompiler
from numba.cuda.core.compiler_machinery import FunctionPass, register_pass

_PASSES: list[tuple[Any, Any, str]] = []
_define_pipelines = CUDACompiler.define_pipelines

Run = Callable[[Any], None]


def runs_after(numba_pass: Any, description: str) -> Callable[[Run], Run]:
    """Make a function of the compiler's state a pass, which runs after one of numba-cuda's."""

    def add(run: Run) -> Run:
        class Pass(FunctionPass):
            _name = f"numba_tma_{run.__name__}"

            def __init__(self) -> None:
                super().__init__()

            def run_pass(self, state: Any) -> bool:
                run(state)
                return True  # read by checks of numba-cuda's own, which are off

        register_pass(mutates_CFG=True, analysis_only=False)(Pass)
        _PASSES.append((Pass, numba_pass, description))
        return run

    return add


def _define_pipelines_with_ours(self: Any) -> Any:
    managers = _define_pipelines(self)
    for manager in managers:
        for our_pass, numba_pass, description in _PASSES:
            place = [p for p, _ in manager.passes].index(numba_pass) + 1
            manager.passes.insert(place, (our_pass, description))
        manager.finalize()
    return managers


CUDACompiler.define_pipelines = _define_pipelines_with_ours
