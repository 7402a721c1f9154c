"""The translation of bytecode to Numba's IR, once for a function and not for each compile.

A body is compiled for the types of each kernel that reaches it, and passes change its IR. So the
translation is kept in pickled form: the C unpickler copies it in a tenth of the time of another.
What the function refers to (globals, constants, places in the source) is shared by the copies.
"""

from __future__ import annotations

import io
import pickle
import weakref
from collections import OrderedDict, defaultdict
from types import BuiltinFunctionType, FunctionType
from typing import Any

from numba.cuda.compiler import CUDABytecodeInterpreter
from numba.cuda.core import interpreter, ir
from numba.cuda.core.consts import ConstantInference

from numba_tma.backend.numba_cuda.functions import FUNCTIONS

_SHARED = (ir.Global, ir.FreeVar, ir.Const, ir.Loc)
#: What the pickled IR may refer to. The IR of a function with anything else is not kept.
_KNOWN = {*_SHARED, type, BuiltinFunctionType, FunctionType, ConstantInference}
_COPIED = (str, int, float, bool, type(None), list, dict, defaultdict, OrderedDict, tuple, set)


class _BodyInterpreter(CUDABytecodeInterpreter):
    """The translation of a body, without the rewrites for exceptions and dictionaries."""

    def post_process(self, peepholes: Any, func_ir: Any) -> Any:
        return super().post_process([p for p in peepholes if p in _PEEPHOLES], func_ir)


_PEEPHOLES = {
    interpreter.peep_hole_list_to_tuple,
    interpreter.peep_hole_call_function_ex_to_call_function_kw,
}


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, func_id: Any, shared: list[Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.func_id, self.shared = func_id, shared

    def persistent_id(self, value: Any) -> int | None:
        if value is self.func_id:
            return 0
        kind = type(value)
        if kind in _COPIED or kind.__module__ == ir.__name__ and kind not in _SHARED:
            return None
        self.shared.append(value)
        return len(self.shared)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, func_id: Any, shared: list[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self.func_id, self.shared = func_id, shared

    def persistent_load(self, number: int) -> Any:
        return self.shared[number - 1] if number else self.func_id


class _Translation:
    """The pickled IR of a function, and what it refers to."""

    def __init__(self, func_ir: Any) -> None:
        self.shared: list[Any] = []
        file = io.BytesIO()
        _Pickler(file, func_ir.func_id, self.shared).dump(func_ir)
        self.data = file.getvalue()
        self.is_kept = {type(value) for value in self.shared} <= _KNOWN
        self.named = [value for value in self.shared if type(value) in (ir.Global, ir.FreeVar)]

    def copy(self, func_id: Any) -> Any:
        """Return the IR for another compile of the function."""
        func_ir = _Unpickler(self.data, func_id, self.shared).load()
        func_ir._reset_analysis_variables()
        return func_ir

    def holds(self, function: Any) -> bool:
        """Return whether the function's globals and closure are those of the translation."""
        cells = function.__closure__ or ()
        return self.is_kept and all(
            (
                function.__globals__.get(value.name, value.value)
                if type(value) is ir.Global
                else cells[value.index].cell_contents
            )
            is value.value
            for value in self.named
        )


#: The translations of functions that were compiled twice. A first compile leaves None: pickling
#: takes a third of the time of a translation.
_TRANSLATIONS: weakref.WeakKeyDictionary[Any, _Translation | None] = weakref.WeakKeyDictionary()


def translate(state: Any) -> None:
    """Give the compile of a function its IR."""
    func_id = state["func_id"]
    function = func_id.func
    if function not in FUNCTIONS:
        state["func_ir"] = CUDABytecodeInterpreter(func_id).interpret(state["bc"])
        return
    known = _TRANSLATIONS.get(function)
    if known is not None and known.holds(function):
        state["func_ir"] = known.copy(func_id)
        return
    state["func_ir"] = func_ir = _BodyInterpreter(func_id).interpret(state["bc"])
    _TRANSLATIONS[function] = _Translation(func_ir) if function in _TRANSLATIONS else None
