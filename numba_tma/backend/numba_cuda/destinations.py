"""Copies whose place in shared memory is an argument of the kernel, which is in global memory.

The type of an array does not tell where it is. After type inference, the pass follows the tile of
a map's copies back to its definition.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.cuda.core import ir
from numba.cuda.core.errors import TypingError
from numba.cuda.core.typed_passes import NopythonTypeInference

from numba_tma.backend.numba_cuda.kernels import compiles_device_function
from numba_tma.backend.numba_cuda.passes import runs_after
from numba_tma.host.host_only import not_in_shared_memory

#: The copies of maps whose first argument is in shared memory.
_COPIES = ("load", "store", "reduce", "load_im2col", "store_im2col")
_ITEMS = ("getitem", "static_getitem")


@runs_after(NopythonTypeInference, "looking for copies to global memory")
def check_destinations(state: Any) -> None:
    """Raise a TypingError for a kernel's copy between a map and an array that is an argument.

    In a device function an argument may be anywhere.
    """
    maps = {name for name, typ in state.typemap.items() if hasattr(typ, "host_class")}
    if not maps or compiles_device_function():
        return
    defined = {
        assign.target.name: assign.value
        for block in state.func_ir.blocks.values()
        for assign in block.find_insts(ir.Assign)
    }
    for call in defined.values():
        if getattr(call, "op", None) != "call":
            continue
        method = defined.get(call.func.name)
        if not isinstance(method, ir.Expr) or method.op != "getattr":
            continue
        if method.value.name in maps and method.attr in _COPIES:
            given = call.args[0] if call.args else dict(call.kws).get("tile")
            _check(call, state.typemap, given, defined)


def _check(
    call: ir.Expr,
    typemap: dict[str, types.Type],
    given: ir.Var | None,
    defined: dict[str, ir.Expr],
) -> None:
    if given is None or not isinstance(typemap.get(given.name), types.Array):
        return
    source = defined.get(given.name)
    while isinstance(source, ir.Var) or isinstance(source, ir.Expr) and source.op in _ITEMS:
        source = defined.get(source.name if isinstance(source, ir.Var) else source.value.name)
    if isinstance(source, ir.Arg):
        raise TypingError(not_in_shared_memory(f"the array {source.name}"), loc=call.loc)
