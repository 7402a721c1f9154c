"""Variables of a kernel that hold stages, or other objects with pointers: stored by element.

Such an object has a pointer to a mutable one in the kernel's frame, as a stage has one to its
consumer. A variable with several assignments has a place in memory, of which LLVM makes registers.
Of an object that is stored as a whole it splits the store first: the pointers that meet in a phi
are then elements of several aggregates, and nothing shows in time that they are one. The mutable
object would stay in local memory.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils
from numba.cuda.lowering import Lower

from numba_tma.backend.numba_cuda.body_lowering import inserted
from numba_tma.backend.numba_cuda.fresh import holds_mutable
from numba_tma.backend.numba_cuda.object_types import ObjectType

_storevar = Lower.storevar


@functools.wraps(_storevar)
def _store_variable(self: Lower, value: ir.Value, name: str, argidx: int | None = None) -> None:
    typ = self.typeof(name)
    has_place = name not in self._singly_assigned_vars or self._disable_sroa_like_opt
    if has_place and argidx is None and isinstance(typ, ObjectType):
        if not typ.mutable and holds_mutable(typ):
            self._alloca_var(name, typ)
            _store(self.builder, value, self.getvar(name))
            return
    _storevar(self, value, name, argidx)


def _store(builder: ir.IRBuilder, value: ir.Value, place: ir.Value) -> None:
    """Store the elements of a value."""
    if not isinstance(value.type, ir.LiteralStructType):
        builder.store(value, place)
        return
    known: dict[tuple[int, ...], Any] = {}
    if isinstance(value, ir.instructions.InsertValue):
        known = inserted(value)
    for i in range(len(value.type.elements)):
        element = known.get((i,)) or builder.extract_value(value, i)
        _store(builder, element, cgutils.gep_inbounds(builder, place, 0, i))


Lower.storevar = _store_variable
