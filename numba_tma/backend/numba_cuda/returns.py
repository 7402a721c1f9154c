"""The parts of a body's result that the body made: see `fresh`."""

from __future__ import annotations

import dataclasses
from typing import Any

from numba.core import types
from numba.cuda.core import ir
from numba.cuda.core.errors import TypingError
from numba.cuda.core.typed_passes import NopythonTypeInference

from numba_tma.backend.numba_cuda.fresh import Parts, ReturnType, holds_mutable
from numba_tma.backend.numba_cuda.functions import BODIES, FUNCTIONS, Body
from numba_tma.backend.numba_cuda.object_types import DESCRIPTIONS, ObjectType
from numba_tma.backend.numba_cuda.passes import runs_after


@runs_after(NopythonTypeInference, "fresh objects that a body returns")
def return_fresh_objects(state: Any) -> None:
    """Let a body return the mutable objects that it made, by value."""
    returned = state.return_type
    if state.func_id.func not in FUNCTIONS or not holds_mutable(returned):
        return
    origins = _Origins(state)
    casts = [
        assign
        for block in state.func_ir.blocks.values()
        if isinstance(block.body[-1], ir.Return)
        for assign in [origins.assigns[block.body[-1].value.name][0]]
    ]
    found = {origins.parts(cast.value.value, set()) for cast in casts}
    name = state.func_id.func_qualname
    if len(found) > 1:
        raise TypingError(
            f"{name} returns an object that it was given on one way and one that it makes on "
            "another: make it on both, or on neither"
        )
    (parts,) = found
    if parts is not None:
        origins.refuse_replaced_fields(name)
    state.return_type = ReturnType(returned, parts)
    for cast in casts:
        state.typemap.pop(cast.target.name)
        state.typemap[cast.target.name] = state.return_type


class _Origins:
    """The origins of a function's objects."""

    def __init__(self, state: Any) -> None:
        self.typemap, self.calltypes, self.context = state.typemap, state.calltypes, state.typingctx
        self.blocks = state.func_ir.blocks
        self.assigns: dict[str, list[Any]] = {}
        for block in self.blocks.values():
            for assign in block.find_insts(ir.Assign):
                self.assigns.setdefault(assign.target.name, []).append(assign)

    def refuse_replaced_fields(self, name: str) -> None:
        for block in self.blocks.values():
            for statement in block.body:
                if isinstance(statement, ir.SetAttr) and holds_mutable(
                    self.typemap[statement.value.name]
                ):
                    raise TypingError(
                        f"{name}: .{statement.attr} is given another mutable object, and the "
                        "function returns one that it makes: build it with that object"
                    )

    def parts(self, var: Any, seen: set[str]) -> Parts:
        """Return the parts of a variable's value that the function made."""
        if not holds_mutable(self.typemap[var.name]):
            return None
        found = {self.of(assign, seen) for assign in self.assigns[var.name]}
        if len(found) > 1:
            raise TypingError(
                f"{var.name} is an object of the caller on one way and one that is made here on "
                "another, and it is returned: give them different names"
            )
        return found.pop()

    def of(self, assign: Any, seen: set[str]) -> Parts:
        value = assign.value
        if isinstance(value, ir.Var):
            return self.parts(value, seen)
        if not isinstance(value, ir.Expr):
            return None
        if value.op in ("cast", "exhaust_iter"):
            return self.parts(value.value, seen)
        if value.op == "phi":
            (found,) = {self.parts(v, set(seen)) for v in value.incoming_values}
            return found
        if value.op == "getattr":
            return self.attribute(value, seen)
        if value.op == "static_getitem":
            return self.part(value.value, value.index, seen)
        if value.op == "build_tuple":
            return _any([self.parts(item, seen) for item in value.items])
        if value.op == "call":
            return self.call(value, assign.target.name, seen)
        return None

    def attribute(self, value: Any, seen: set[str]) -> Parts:
        owner = self.typemap[value.value.name]
        if not isinstance(owner, ObjectType):
            return None
        fields = list(owner.description.fields)
        if value.attr in fields:
            return self.part(value.value, fields.index(value.attr), seen)
        self.refuse_escape(value.attr, [value.value])  # a property's result
        return None

    def part(self, whole: Any, index: int, seen: set[str]) -> Parts:
        """Return the parts of an object's field, or of a tuple's element."""
        parts = self.parts(whole, set())
        if parts is None or parts[index] is None:
            return None
        self.refuse_twice(f"{whole.name}[{index}]", seen)
        return parts[index]

    def call(self, value: Any, target: str, seen: set[str]) -> Parts:
        function, sig = self.typemap[value.func.name], self.calltypes[value]
        if isinstance(function, types.BoundFunction):
            key = function.typing_key
            owner = function.this
            method = owner.description.methods.get(key[-1]) if hasattr(owner, "cls") else None
            body = getattr(method, "body", None)
            sig = sig.replace(args=(owner, *sig.args))
            (bound,) = self.assigns[value.func.name]
            given = [bound.value.value]
        else:
            key = getattr(function, "typing_key", None)
            if isinstance(key, type) and key in DESCRIPTIONS:
                return self.constructed(key, value, target, seen)
            body, given = BODIES.get(key) if callable(key) else None, []
        made = body.returned(self.context, sig) if isinstance(body, Body) else None
        if made is None:
            self.refuse_escape(str(key), [*given, *value.args, *(v for _, v in value.kws)])
        else:
            self.refuse_twice(target, seen)
        return made

    def constructed(self, cls: type, value: Any, target: str, seen: set[str]) -> Parts:
        description = DESCRIPTIONS[cls]
        names = [field.name for field in dataclasses.fields(cls)]
        given = dict(zip(names, value.args)) | dict(value.kws)
        parts = tuple(
            self.parts(given[name], seen) if name in given else None for name in description.fields
        )
        if not description.mutable:
            return _any(list(parts))
        self.refuse_twice(target, seen)
        return parts

    def refuse_twice(self, target: str, seen: set[str]) -> None:
        if target in seen:
            raise TypingError(
                f"{target} is returned as a part of two objects, which would each get a copy"
            )
        seen.add(target)

    def refuse_escape(self, what: str, given: list[Any]) -> None:
        """Raise if a call that is not analysed may return an object of this function."""
        if any(self.parts(v, set()) is not None for v in given if v.name in self.assigns):
            raise TypingError(
                f"{what} returns, through a call, an object that this function makes: return the "
                "object itself"
            )


def _any(parts: list[Parts]) -> Parts:
    return None if all(p is None for p in parts) else tuple(parts)
