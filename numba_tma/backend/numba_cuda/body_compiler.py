"""The compiler of bodies: fewer of Numba's passes, and less around each.

A kernel has up to 160 bodies of about 20 statements. So most of its compile is what Numba does once
a function and once a pass: refresh its registries, build the list of passes, time, name and check
each. Bodies share one list, and skip the passes that would change nothing.
"""

from __future__ import annotations

import functools
from typing import Any

from numba.cuda import compiler
from numba.cuda.compiler import (
    CUDACompiler,
    CUDANativeLowering,
    CUDATranslateBytecode,
)
from numba.cuda.core import ir
from numba.cuda.core.callconv import CUDACallConv
from numba.cuda.core.compiler_machinery import PassManager, _pass_registry
from numba.cuda.core.errors import NumbaError
from numba.cuda.core.ir_utils import build_definitions
from numba.cuda.core.typed_passes import (
    AnnotateTypes,
    InlineOverloads,
    IRLegalization,
    NopythonRewrites,
    PreLowerStripPhis,
)
from numba.cuda.core.untyped_passes import (
    DeadBranchPrune,
    FindLiterallyCalls,
    InlineClosureLikes,
    InlineInlinables,
    LiteralUnroll,
    MakeFunctionToJitFunction,
    ReconstructSSA,
    RewriteDynamicRaises,
    WithLifting,
)

from numba_tma.backend.numba_cuda.body_lowering import BodyCallConv, BodyLowering, CheckedCallConv
from numba_tma.backend.numba_cuda.facts import COMPILING
from numba_tma.backend.numba_cuda.functions import FUNCTIONS
from numba_tma.backend.numba_cuda.translation import translate

#: Passes for what no body has: closures, overloads inlined as IR, array expressions, object mode.
_LEFT_OUT = {
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


def _has_branches(state: Any) -> bool:
    return any(type(block.body[-1]) is ir.Branch for block in state.func_ir.blocks.values())


def _has_phis(state: Any) -> bool:
    return any(
        getattr(assign.value, "op", None) == "phi"
        for block in state.func_ir.blocks.values()
        for assign in block.find_insts(ir.Assign)
    )


def _has_redefinitions(state: Any) -> bool:
    """Return whether a variable may have several definitions, and renew the list of them."""
    blocks = state.func_ir.blocks
    state.func_ir._definitions = build_definitions(blocks)
    return len(blocks) > 1 or any(len(d) > 1 for d in state.func_ir._definitions.values())


def _is_debugged(state: Any) -> bool:
    return bool(state.flags.debuginfo)


_LOWERING, _BODY_LOWERING = CUDANativeLowering(), BodyLowering()


def _lower(state: Any) -> None:
    (_LOWERING if _is_debugged(state) else _BODY_LOWERING).run_pass(state)


#: The tests of passes that most bodies do not need.
_NEEDED = {
    DeadBranchPrune: _has_branches,
    ReconstructSSA: _has_redefinitions,
    PreLowerStripPhis: _has_phis,
    IRLegalization: _is_debugged,  # it marks the ends of variables' lifetimes
}
#: The library's own passes, in place of Numba's.
_OURS = {CUDATranslateBytecode: translate, CUDANativeLowering: _lower}


class _Passes(PassManager):
    """A list of passes that functions share."""

    def __init__(self, passes: list[tuple[Any, str]]) -> None:
        super().__init__("cuda")
        self.passes = passes
        self.finalize()
        self._steps = []
        for kind, description in passes:
            step = _pass_registry.get(kind).pass_inst
            run = _OURS.get(kind, step.run_pass)
            self._steps.append((step, run, description, _NEEDED.get(kind, lambda state: True)))

    def run(self, state: Any) -> None:
        """Run the passes that a function needs, with the context that Numba gives their errors."""
        for step, run, description, needed in self._steps:
            if not needed(state):
                continue
            step.analysis = self._analysis
            try:
                run(state)
            except NumbaError as error:
                error.add_context(f"Pass {step.name()}")
                what = f"Failed in {self.pipeline_name} mode pipeline (step: {description})"
                raise self._patch_error(what, error) from error.__cause__


class _Refreshed:
    """A context whose registries the compile of the kernel has just loaded."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def refresh(self) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class LibraryCompiler(CUDACompiler):
    """The compiler of the library's kernels and device functions: all of Numba's passes."""

    _left_out: set[Any] = set()
    _passes: _Passes | None = None

    def __init__(self, typing: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        if len(COMPILING) > 1:
            super().__init__(_Refreshed(typing), _Refreshed(target), *args, **kwargs)
            self.state.typingctx = typing
        else:
            super().__init__(typing, target, *args, **kwargs)

    def define_pipelines(self) -> list[Any]:
        """Return the passes, which all functions share."""
        if self._passes is None:
            (manager,) = super().define_pipelines()
            type(self)._passes = _Passes([p for p in manager.passes if p[0] not in self._left_out])
        return [self._passes]


class BodyCompiler(LibraryCompiler):
    """The compiler of bodies."""

    _left_out = _LEFT_OUT
    _passes = None


_compile_extra = compiler.compile_extra


@functools.wraps(_compile_extra)
def _compile_chosen(*args: Any, **kws: Any) -> Any:
    """Compile a function by the library's compiler, if it is the library's."""
    function = kws["func"]
    if function in FUNCTIONS:
        kws["pipeline_class"], convention = BodyCompiler, BodyCallConv
    elif (function.__module__ or "").startswith("numba_tma."):
        kws["pipeline_class"], convention = LibraryCompiler, CheckedCallConv
    else:
        return _compile_extra(*args, **kws)
    if type(kws["call_conv"]) is CUDACallConv and not kws["flags"].debuginfo:
        kws["call_conv"] = convention(kws["targetctx"])
    return _compile_extra(*args, **kws)


compiler.compile_extra = _compile_chosen
