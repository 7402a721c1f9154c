"""Variables of a kernel that hold stages, or other objects with pointers, are stored by element.

A stage points to its consumer, a mutable object in the kernel's frame. LLVM keeps the frame in
registers if it knows the object of each pointer. A variable with several assignments is a place in
the frame, and the pointers that they store meet in a phi. LLVM 7, libNVVM's for Hopper, splits
stores of whole aggregates, and folds what it has split only after the pass that makes registers:
until then the operands of the phi are different pointers. Elements that are stored one by one are
the same pointer at once.
"""

from __future__ import annotations

import functools

from llvmlite import ir
from numba.core import types
from numba.cuda import cgutils
from numba.cuda.lowering import Lower

from numba_tma.backend.numba_cuda.body_lowering import inserted
from numba_tma.backend.numba_cuda.fresh import children, holds_mutable

_storevar = Lower.storevar


@functools.wraps(_storevar)
def _store_variable(self: Lower, value: ir.Value, name: str, argidx: int | None = None) -> None:
    typ = self.typeof(name)
    has_place = name not in self._singly_assigned_vars or self._disable_sroa_like_opt
    if has_place and argidx is None and holds_mutable(typ):
        self._alloca_var(name, typ)
        _store(self.builder, typ, value, self.getvar(name))
    else:
        _storevar(self, value, name, argidx)


def _store(builder: ir.IRBuilder, typ: types.Type, value: ir.Value, place: ir.Value) -> None:
    """Store a value, or the elements of one that holds pointers."""
    if not holds_mutable(typ) or getattr(typ, "mutable", False):
        builder.store(value, place)
        return
    known = inserted(value) if isinstance(value, ir.instructions.InsertValue) else {}
    for i, child in enumerate(children(typ)):
        element = known.get((i,)) or builder.extract_value(value, i)
        _store(builder, child, element, cgutils.gep_inbounds(builder, place, 0, i))


Lower.storevar = _store_variable
