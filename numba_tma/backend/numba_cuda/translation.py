"""The translation of bytecode to Numba's IR, once for a function and not for each compile.

A body is compiled for the types of each kernel that reaches it, and passes change its IR. So the
translation is kept in pickled form, which the C unpickler copies in an eighth of the time. What the
function refers to (globals, constants, places in the source) is shared by the copies.
"""

from __future__ import annotations

import io
import pickle
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any

from numba.cuda.compiler import CUDABytecodeInterpreter
from numba.cuda.core import interpreter, ir
from numba.cuda.core.bytecode import ByteCode, ByteCodeInst, FunctionIdentity
from numba.cuda.core.byteflow import Flow, State, TraceRunner
from numba.cuda.core.compiler import StateDict
from numba.cuda.core.consts import ConstantInference

from numba_tma.backend.numba_cuda.functions import FUNCTIONS

_SHARED = (ir.Global, ir.FreeVar, ir.Const, ir.Loc)
_COPIED = (str, int, float, bool, type(None), list, dict, defaultdict, OrderedDict, tuple, set)
#: What the pickled IR may refer to. The IR of a function with anything else is not kept.
_KNOWN = {*_SHARED, type, BuiltinFunctionType, FunctionType, ConstantInference}

_PEEPHOLES = {
    interpreter.peep_hole_list_to_tuple,
    interpreter.peep_hole_call_function_ex_to_call_function_kw,
}


class _BodyInterpreter(CUDABytecodeInterpreter):
    """The translation of a body, without the rewrites for exceptions and dictionaries."""

    def post_process(self, peepholes: list[Callable[..., Any]], func_ir: ir.FunctionIR) -> Any:
        return super().post_process([p for p in peepholes if p in _PEEPHOLES], func_ir)


_run_handle_exception = Flow._run_handle_exception


def _go_on(self: Flow, runner: TraceRunner, state: State) -> bool | None:
    """Go on to the next instruction, in a function without ``try`` and ``with``.

    Numba looks for both at each instruction. They have exception entries.
    """
    if self._bytecode.exception_entries or state._blockstack or state._blockstack_initial:
        return _run_handle_exception(self, runner, state)
    state.advance_pc()
    return None


Flow._run_handle_exception = _go_on


def _without_caches(bytecode: ByteCode) -> ByteCode:
    """Leave out the caches that follow instructions: two thirds, which Numba would trace."""
    kept: dict[int, ByteCodeInst] = {}
    before = bytecode.table[0]
    for offset, instruction in bytecode.table.items():
        if instruction.opname == "CACHE":
            before.next = instruction.next
        else:
            kept[offset] = before = instruction
    bytecode.table = kept
    return bytecode


class _IRPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, identity: FunctionIdentity, shared: list[object]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.identity, self.shared = identity, shared

    def persistent_id(self, value: object) -> int | None:
        if value is self.identity:
            return 0
        kind = type(value)
        if kind in _COPIED or kind.__module__ == ir.__name__ and kind not in _SHARED:
            return None
        self.shared.append(value)
        return len(self.shared)


class _IRUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes, identity: FunctionIdentity, shared: list[object]) -> None:
        super().__init__(io.BytesIO(data))
        self.identity, self.shared = identity, shared

    def persistent_load(self, number: int) -> object:
        return self.shared[number - 1] if number else self.identity


class _Translation:
    """The pickled IR of a function, and what it refers to."""

    def __init__(self, func_ir: ir.FunctionIR) -> None:
        self.shared: list[object] = []
        file = io.BytesIO()
        _IRPickler(file, func_ir.func_id, self.shared).dump(func_ir)
        self.data = file.getvalue()
        self.is_kept = {type(value) for value in self.shared} <= _KNOWN
        self.globals = [value for value in self.shared if isinstance(value, ir.Global)]
        self.cells = [value for value in self.shared if isinstance(value, ir.FreeVar)]

    def copy(self, identity: FunctionIdentity) -> ir.FunctionIR:
        """Return the IR for another compile of the function."""
        func_ir = _IRUnpickler(self.data, identity, self.shared).load()
        func_ir._reset_analysis_variables()
        return func_ir

    def holds(self, function: FunctionType) -> bool:
        """Return whether the function's globals and closure are those of the translation."""
        names, cells = function.__globals__, function.__closure__ or ()
        return (
            self.is_kept
            and all(names.get(g.name, g.value) is g.value for g in self.globals)
            and all(cells[f.index].cell_contents is f.value for f in self.cells)
        )


#: The translations of functions that were compiled twice. The first compile of a function leaves
#: None: most kernels reach it once.
_TRANSLATIONS: weakref.WeakKeyDictionary[FunctionType, _Translation | None]
_TRANSLATIONS = weakref.WeakKeyDictionary()


def translate(state: StateDict) -> None:
    """Give the compile of a function its IR."""
    identity = state["func_id"]
    function = identity.func
    if function not in FUNCTIONS:
        state["func_ir"] = CUDABytecodeInterpreter(identity).interpret(state["bc"])
        return
    known = _TRANSLATIONS.get(function)
    if known is not None and known.holds(function):
        state["func_ir"] = known.copy(identity)
        return
    state["func_ir"] = func_ir = _BodyInterpreter(identity).interpret(_without_caches(state["bc"]))
    _TRANSLATIONS[function] = _Translation(func_ir) if function in _TRANSLATIONS else None
