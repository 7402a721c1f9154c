"""The compiler's half of `numba_tma.device.scope`: typed scopes, and one branch less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.cuda.core import ir
from numba.cuda.core.analysis import dead_branch_prune
from numba.cuda.core.errors import TypingError
from numba.cuda.core.ir_utils import build_definitions
from numba.cuda.core.typed_passes import PartialTypeInference
from numba.cuda.core.untyped_passes import LiteralPropagationSubPipelinePass
from numba.cuda.descriptor import cuda_target
from numba.cuda.typing.templates import signature

from numba_tma.backend.numba_cuda.functions import instruction_function
from numba_tma.backend.numba_cuda.object_types import static_of
from numba_tma.backend.numba_cuda.passes import runs_after

_returns = ""


def register(as_scope: Callable[..., Any], wanted: str, returns: str) -> None:
    """Let kernels call `as_scope`; `returns` marks functions that return from within a scope."""
    global _returns
    _returns = returns

    def typer(value: Any, line: Any) -> Any:
        context = cuda_target.typing_context
        if not all(context.resolve_getattr(value, name) for name in ("enters", "close")):
            # Numba drops the source line of an error that a call's typer raises.
            raise TypingError(f"line {static_of(line, 'line')}, with over {value}: {wanted}")
        return signature(value, value, line)

    instruction_function(as_scope, typer, lambda context, builder, sig, args: args[0])


@runs_after(LiteralPropagationSubPipelinePass, "entering scopes")
def enter_always(state: Any) -> None:
    """Remove the branch around a scope that every thread enters.

    Along that branch a function that returns a value from within the scope would return None, and
    its return type would be that of both.
    """
    if not getattr(state.func_id.func, _returns, False):
        return
    PartialTypeInference().run_pass(state)
    for block in state.func_ir.blocks.values():
        for assign in list(block.find_insts(ir.Assign)):
            if _is_entered_by_all(assign, state.typemap):
                # The call stays, for its other effects.
                entered = ir.Assign(ir.Const(True, assign.loc), assign.target, assign.loc)
                block.insert_after(entered, assign)
                assign.target = block.scope.make_temp(assign.loc)
    state.typemap = state.calltypes = None
    state.func_ir._definitions = build_definitions(state.func_ir.blocks)
    dead_branch_prune(state.func_ir, state.args)


def _is_entered_by_all(assign: Any, typemap: dict[str, types.Type]) -> bool:
    value = assign.value
    if not isinstance(value, ir.Expr) or value.op != "call":
        return False
    method, entered = typemap.get(value.func.name), typemap.get(assign.target.name)
    return (
        isinstance(method, types.BoundFunction)
        and isinstance(method.typing_key, tuple)
        and method.typing_key[-1] == "enters"
        and isinstance(entered, types.BooleanLiteral)
        and entered.literal_value is True
    )
