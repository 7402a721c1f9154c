"""The compiler of the library's functions: fewer of Numba's passes, less around each.

A kernel has up to 160 bodies of about 20 statements. So most of its compile is what Numba does once
a function and once a pass: refresh its registries, build the list of passes, time, name and check
each. The library's functions share a list, and skip the passes that would change nothing. They are
the bodies, and the shipped kernels with their device functions.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from numba.cuda import compiler
from numba.cuda.compiler import CUDACompiler, CUDANativeLowering, CUDATranslateBytecode
from numba.cuda.core import ir
from numba.cuda.core.callconv import CUDACallConv
from numba.cuda.core.compiler import StateDict
from numba.cuda.core.compiler_machinery import CompilerPass, PassManager, _pass_registry
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
    GenericRewrites,
    InlineClosureLikes,
    InlineInlinables,
    LiteralUnroll,
    MakeFunctionToJitFunction,
    ReconstructSSA,
    RewriteDynamicRaises,
    WithLifting,
)
from numba.cuda.target import CUDATargetContext, CUDATypingContext

from numba_tma.backend.numba_cuda.body_lowering import BodyCallConv, CheckedCallConv, LeanLowering
from numba_tma.backend.numba_cuda.facts import COMPILING
from numba_tma.backend.numba_cuda.functions import is_of_library
from numba_tma.backend.numba_cuda.kernels import compiles_device_function
from numba_tma.backend.numba_cuda.translation import translate

#: Passes for what no function of the library has: closures, overloads inlined as IR, array
#: expressions, object mode.
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


def _has_branches(state: StateDict) -> bool:
    return any(type(block.body[-1]) is ir.Branch for block in state.func_ir.blocks.values())


def _has_phis(state: StateDict) -> bool:
    return any(
        getattr(assign.value, "op", None) == "phi"
        for block in state.func_ir.blocks.values()
        for assign in block.find_insts(ir.Assign)
    )


def _has_redefinitions(state: StateDict) -> bool:
    """Return whether a variable may have several definitions, and renew the list of them."""
    blocks = state.func_ir.blocks
    state.func_ir._definitions = build_definitions(blocks)
    return len(blocks) > 1 or any(len(d) > 1 for d in state.func_ir._definitions.values())


def _may_be_rewritten(state: StateDict) -> bool:
    """Return whether the IR has what Numba rewrites before it infers types."""
    for block in state.func_ir.blocks.values():
        for statement in block.body:
            if type(statement) is not ir.Assign:
                if type(statement) not in _NEVER_REWRITTEN:
                    return True
            elif getattr(statement.value, "op", None) in ("getitem", "binop"):
                if statement.value.op == "getitem" or statement.value.fn is operator.pow:
                    return True
            elif isinstance(statement.value, _VALUES) and statement.value.value is print:
                return True
    return False


def _is_lean(state: StateDict) -> bool:
    return not state.flags.debuginfo


def _needs_lifetimes(state: StateDict) -> bool:
    """Return whether the IR must say where a variable's lifetime ends: LLVM makes use of it."""
    return len(state.func_ir.blocks) > 1 or not _is_lean(state)


#: Statements that no rewrite is for, and values that may be Python's `print`.
_NEVER_REWRITTEN = {ir.Branch, ir.Jump, ir.Return, ir.SetAttr, ir.Del}
_VALUES = (ir.Global, ir.FreeVar, ir.Const)

_LOWERING, _LEAN_LOWERING = CUDANativeLowering(), LeanLowering()


def _lower(state: StateDict) -> None:
    (_LEAN_LOWERING if _is_lean(state) else _LOWERING).run_pass(state)


#: The tests of passes that most functions do not need.
_NEEDED = {
    GenericRewrites: _may_be_rewritten,
    DeadBranchPrune: _has_branches,
    ReconstructSSA: _has_redefinitions,
    PreLowerStripPhis: _has_phis,
    IRLegalization: _needs_lifetimes,
}
#: The library's own passes, in place of Numba's.
_OURS = {CUDATranslateBytecode: translate, CUDANativeLowering: _lower}


class _Passes(PassManager):
    """A list of passes that functions share."""

    def __init__(self, passes: list[tuple[type[CompilerPass], str]]) -> None:
        super().__init__("cuda")
        self.passes = passes
        self.finalize()
        self._steps = []
        for kind, description in passes:
            step = _pass_registry.get(kind).pass_inst
            run = _OURS.get(kind, step.run_pass)
            self._steps.append((step, run, description, _NEEDED.get(kind, lambda state: True)))

    def run(self, state: StateDict) -> None:
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
                self._patch_error(what, error)
                raise


class _Refreshed:
    """A context whose registries the compile of the kernel has just loaded."""

    def __init__(self, context: object) -> None:
        self._context = context

    def refresh(self) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class LibraryCompiler(CUDACompiler):
    """The compiler of the library's kernels and device functions."""

    _passes: _Passes | None = None

    def __init__(
        self, typing: CUDATypingContext, target: CUDATargetContext, *args: object
    ) -> None:
        if len(COMPILING) > 1:
            super().__init__(_Refreshed(typing), _Refreshed(target), *args)
            self.state.typingctx = typing
        else:
            super().__init__(typing, target, *args)

    def define_pipelines(self) -> list[_Passes]:
        """Return the passes, which all functions share."""
        if self._passes is None:
            (manager,) = super().define_pipelines()
            kept = [p for p in manager.passes if p[0] not in _LEFT_OUT]
            type(self)._passes = _Passes(kept)
        return [self._passes]  # type: ignore[list-item]


_compile_extra = compiler.compile_extra


@functools.wraps(_compile_extra)
def _compile_chosen(*args: object, **kws: Any) -> Any:
    """Compile a function by the library's compiler, if it is the library's."""
    if not is_of_library(kws.get("func")):
        return _compile_extra(*args, **kws)
    kws["pipeline_class"] = LibraryCompiler
    if type(kws["call_conv"]) is CUDACallConv and not kws["flags"].debuginfo:
        convention = BodyCallConv if compiles_device_function() else CheckedCallConv
        kws["call_conv"] = convention(kws["targetctx"])
    return _compile_extra(*args, **kws)


compiler.compile_extra = _compile_chosen
