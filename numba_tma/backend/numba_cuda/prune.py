"""Branches of bodies on compile-time constants: only the branch taken is typed."""

from __future__ import annotations

import operator
from typing import Any

import numba.core.errors
from numba.core import types
from numba.cuda.core import ir
from numba.cuda.core.analysis import dead_branch_prune
from numba.cuda.core.errors import TypingError
from numba.cuda.core.ir_utils import build_definitions
from numba.cuda.core.untyped_passes import LiteralPropagationSubPipelinePass

from numba_tma.backend.numba_cuda.constants import COMPILE_TIME
from numba_tma.backend.numba_cuda.functions import FUNCTIONS
from numba_tma.backend.numba_cuda.object_types import static_of
from numba_tma.backend.numba_cuda.passes import runs_after

_TYPING_ERRORS = (TypingError, numba.core.errors.TypingError)
_VALUES = (ir.Const, ir.Global, ir.FreeVar)


class _NotConstant(Exception):
    pass


@runs_after(LiteralPropagationSubPipelinePass, "branches on compile-time constants")
def prune_constant_branches(state: Any) -> None:
    """Remove the branches of a body that its constant arguments exclude."""
    while state.func_id.func in FUNCTIONS and _Pruner(state).prune():
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        dead_branch_prune(state.func_ir, state.args)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)


class _Pruner:
    def __init__(self, state: Any) -> None:
        self.func_ir, self.args, self.context = state.func_ir, state.args, state.typingctx
        self.assigns: dict[str, list[Any]] = {}
        for block in self.func_ir.blocks.values():
            for assign in block.find_insts(ir.Assign):
                self.assigns.setdefault(assign.target.name, []).append(assign)

    def prune(self) -> bool:
        """Replace constant conditions by their values; return whether there are any."""
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
            assign.value = ir.Const(value, assign.loc)  # its operands may not support the operation
        return True

    def is_none(self, var: Any) -> bool:
        """Return whether a variable's type is that of None."""
        typ = self.type_of(var)
        if isinstance(typ, types.Optional) or not typ.is_precise():
            raise _NotConstant
        return isinstance(typ, types.NoneType)

    def definition(self, var: Any) -> Any:
        """Return the assigned value of a variable with a single assignment."""
        assigns = self.assigns.get(var.name, [])
        if len(assigns) != 1:
            raise _NotConstant
        return assigns[0].value

    def value(self, var: Any) -> Any:
        """Return the value of a constant variable."""
        value = self.definition(var)
        if isinstance(value, _VALUES):
            return value.value
        op = getattr(value, "op", None)
        if op == "binop" and value.fn in (operator.is_, operator.is_not):
            lhs, rhs = self.is_none(value.lhs), self.is_none(value.rhs)
            if lhs or rhs:
                return (lhs and rhs) == (value.fn is operator.is_)
        if op == "binop":
            return self.computed(value.fn, value.lhs, value.rhs)
        if op == "unary":
            return self.computed(value.fn, value.value)
        if op == "call" and self.is_len(value):
            return len(self.type_of(value.args[0]))
        try:
            return static_of(self.type_of(var), "")
        except _TYPING_ERRORS:
            raise _NotConstant from None

    def computed(self, operation: Any, *operands: Any) -> Any:
        """Return the result of an operation on constants."""
        values = [self.value(operand) for operand in operands]
        try:
            return operation(*values)
        except Exception:  # in a dead branch: None may stand for a number there
            raise _NotConstant from None

    def is_len(self, call: Any) -> bool:
        """Return whether a call is `len` of a tuple."""
        return getattr(self.definition(call.func), "value", None) is len and isinstance(
            self.type_of(call.args[0]), types.BaseTuple
        )

    def type_of(self, var: Any) -> types.Type:
        """Return the type of a variable that is an argument, a global, or a part of one."""
        value = self.definition(var)
        if isinstance(value, ir.Arg):
            return self.args[value.index]
        if isinstance(value, ir.Var):
            return self.type_of(value)
        try:
            if isinstance(value, _VALUES):
                return self.context.resolve_value_type_prefer_literal(value.value)
            typ = self.type_of_expression(value)
        except (*_TYPING_ERRORS, ValueError):  # type inference raises the same, if it gets there
            raise _NotConstant from None
        if typ is None:
            raise _NotConstant
        return typ

    def type_of_expression(self, value: Any) -> types.Type | None:
        op = getattr(value, "op", None)
        if op == "cast":
            return self.type_of(value.value)
        if op == "getattr":
            return self.context.resolve_getattr(self.type_of(value.value), value.attr)
        if op == "static_getitem":
            signature = self.context.resolve_static_getitem(self.type_of(value.value), value.index)
            return signature and signature.return_type
        if op == "call":
            return self.type_of_call(value)
        return None

    def type_of_call(self, call: Any) -> types.Type | None:
        """Return the result type of a call of a compile-time function."""
        function = self.type_of(call.func)
        if call.vararg or getattr(function, "typing_key", None) not in COMPILE_TIME:
            return None
        args = tuple(self.type_of(arg) for arg in call.args)
        kws = {name: self.type_of(arg) for name, arg in call.kws}
        signature = self.context.resolve_function_type(function, args, kws)
        return signature and signature.return_type
