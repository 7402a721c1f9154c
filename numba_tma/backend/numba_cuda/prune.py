"""Branches of bodies whose conditions are compile-time constants: only the one taken is typed."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import numba.core.errors
from numba.core import types
from numba.cuda.core import ir
from numba.cuda.core.analysis import dead_branch_prune
from numba.cuda.core.compiler_machinery import FunctionPass, register_pass
from numba.cuda.core.errors import TypingError
from numba.cuda.core.ir_utils import build_definitions
from numba.cuda.core.typed_passes import PartialTypeInference
from numba.cuda.core.untyped_passes import LiteralPropagationSubPipelinePass

from numba_tma.backend.numba_cuda.functions import FUNCTIONS
from numba_tma.backend.numba_cuda.object_types import static_of
from numba_tma.backend.numba_cuda.passes import add_pass


class _NotConstant(Exception):
    pass


@register_pass(mutates_CFG=True, analysis_only=False)
class PruneConstantBranches(FunctionPass):
    """Drop the branches of a body that its constant arguments rule out."""

    _name = "numba_tma_prune_constant_branches"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        """Type what can be typed, and prune, until nothing more is known."""
        if state.func_id.func not in FUNCTIONS:
            return False
        changed = False
        while any(isinstance(b.body[-1], ir.Branch) for b in state.func_ir.blocks.values()):
            with _typing_errors_of_cuda(state.typingctx):
                PartialTypeInference().run_pass(state)
            pruned = _Pruner(state).prune()
            state.typemap = state.calltypes = None
            if not pruned:
                break
            changed = True
            state.func_ir._definitions = build_definitions(state.func_ir.blocks)
            dead_branch_prune(state.func_ir, state.args)
            state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return changed


@contextlib.contextmanager
def _typing_errors_of_cuda(context: Any) -> Iterator[None]:
    """Let errors of Numba's own types be errors of numba-cuda's, which alone it expects."""

    def expected(function: Any) -> Any:
        def resolve(*args: Any) -> Any:
            try:
                return function(*args)
            except numba.core.errors.TypingError as error:
                raise TypingError(str(error)) from None

        return resolve

    names = ("resolve_function_type", "resolve_getattr")
    before = {name: context.__dict__.get(name) for name in names}
    for name in names:
        setattr(context, name, expected(getattr(context, name)))
    try:
        yield
    finally:
        for name, function in before.items():
            if function is None:
                delattr(context, name)
            else:
                setattr(context, name, function)


class _Pruner:
    def __init__(self, state: Any) -> None:
        self.func_ir, self.typemap = state.func_ir, state.typemap
        self.assigns: dict[str, list[Any]] = {}
        for block in self.func_ir.blocks.values():
            for assign in block.find_insts(ir.Assign):
                self.assigns.setdefault(assign.target.name, []).append(assign)

    def prune(self) -> bool:
        """Write constants for the conditions that are; return whether there are some."""
        found = False
        for block in self.func_ir.blocks.values():
            branch = block.body[-1]
            if not isinstance(branch, ir.Branch):
                continue
            test = self.assigns.get(branch.cond.name, [])
            if len(test) != 1 or getattr(test[0].value, "op", None) != "call":
                continue
            (condition,) = test[0].value.args
            try:
                value = bool(self.value(condition))
            except _NotConstant:
                continue
            found |= self.replace(test[0], condition, value)
        return found

    def replace(self, test: Any, condition: Any, value: bool) -> bool:
        (assign,) = self.assigns[condition.name]
        if isinstance(assign.value, ir.Const):
            return False
        block = next(b for b in self.func_ir.blocks.values() if test in b.body)
        known = block.scope.make_temp(test.loc)
        constant = ir.Assign(ir.Const(value, test.loc), known, test.loc)
        block.body.insert(block.body.index(test), constant)
        test.value.args = [known]
        if getattr(assign.value, "op", None) in ("binop", "unary"):
            assign.value = ir.Const(value, assign.loc)  # its operands may have no such operation
        return True

    def is_none(self, var: Any) -> bool:
        """Return whether a variable is None, which its type says."""
        typ = self.typemap.get(var.name, types.unknown)
        if isinstance(typ, types.Optional) or not typ.is_precise():
            raise _NotConstant
        return isinstance(typ, types.NoneType)

    def is_len(self, call: Any) -> bool:
        """Return whether a call is that of `len` of a tuple."""
        functions = self.assigns.get(call.func.name, [])
        return [getattr(assign.value, "value", None) for assign in functions] == [
            len
        ] and isinstance(self.typemap.get(call.args[0].name), types.BaseTuple)

    def value(self, var: Any) -> Any:
        """Return the value of a variable, if it is a constant."""
        try:
            return static_of(self.typemap[var.name], "")
        except (TypingError, KeyError):
            pass
        assigns = self.assigns.get(var.name, [])
        if len(assigns) != 1:
            raise _NotConstant
        value = assigns[0].value
        if isinstance(value, (ir.Const, ir.Global, ir.FreeVar)):
            return value.value
        if isinstance(value, ir.Var):
            return self.value(value)
        if not isinstance(value, ir.Expr):
            raise _NotConstant
        if value.op == "binop" and value.fn in (operator.is_, operator.is_not):
            lhs, rhs = self.is_none(value.lhs), self.is_none(value.rhs)
            if lhs or rhs:
                return (lhs and rhs) == (value.fn is operator.is_)
        if value.op == "binop":
            return value.fn(self.value(value.lhs), self.value(value.rhs))
        if value.op == "unary":
            return value.fn(self.value(value.value))
        if value.op == "call" and self.is_len(value):
            return len(self.typemap[value.args[0].name])
        if value.op == "cast":
            return self.value(value.value)
        raise _NotConstant


add_pass(
    PruneConstantBranches, LiteralPropagationSubPipelinePass, "branches on compile-time constants"
)
