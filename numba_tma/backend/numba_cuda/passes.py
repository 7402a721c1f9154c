"""Compiler passes: the library's passes for every function, and fewer of Numba's for bodies."""

from __future__ import annotations

from typing import Any

from numba.cuda.compiler import CUDACompiler
from numba.cuda.core.typed_passes import AnnotateTypes, InlineOverloads, NopythonRewrites
from numba.cuda.core.untyped_passes import (
    FindLiterallyCalls,
    InlineClosureLikes,
    InlineInlinables,
    LiteralUnroll,
    MakeFunctionToJitFunction,
    RewriteDynamicRaises,
    WithLifting,
)

from numba_tma.backend.numba_cuda.functions import FUNCTIONS

#: Passes for features that no body uses: closures, overloads inlined as IR, array expressions,
#: object mode. A kernel has up to 160 bodies, so each pass left out shortens its compile.
_NOT_FOR_BODIES = {
    WithLifting,
    InlineClosureLikes,
    RewriteDynamicRaises,
    MakeFunctionToJitFunction,
    InlineInlinables,
    FindLiterallyCalls,
    LiteralUnroll,
    InlineOverloads,
    NopythonRewrites,
    AnnotateTypes,
}
_PASSES: list[tuple[Any, Any, str]] = []
_define_pipelines = CUDACompiler.define_pipelines


def add_pass(pass_class: Any, after: Any, description: str) -> None:
    """Run `pass_class` after numba-cuda's pass `after`, which runs once."""
    _PASSES.append((pass_class, after, description))


def _define_pipelines_with_ours(self: Any) -> Any:
    managers = _define_pipelines(self)
    is_body = self.state.func_id.func in FUNCTIONS
    for manager in managers:
        for pass_class, after, description in _PASSES:
            place = [p for p, _ in manager.passes].index(after) + 1
            manager.passes.insert(place, (pass_class, description))
        if is_body:
            manager.passes = [p for p in manager.passes if p[0] not in _NOT_FOR_BODIES]
        manager.finalize()
    return managers


CUDACompiler.define_pipelines = _define_pipelines_with_ours
