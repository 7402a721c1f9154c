"""How a body returns mutable objects that it made: by value, into the caller's frame.

A mutable object is a pointer into the frame of the function that made it. A body that returns such
an object returns its fields instead, and the fields of the mutable objects in it. The call stores
them in the caller's frame. Bodies are inlined, so LLVM removes these copies. A body that returns an
object of its caller (``return self``) returns the pointer.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from llvmlite import ir
from numba.core import types
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.extending import core_models, register_model

from numba_tma.backend.numba_cuda.object_types import ObjectType, make_object

#: The parts of a value that the returning function made. None: no part. A tuple: the value is an
#: object or a tuple with such parts, or is itself a mutable object made in the function.
Parts: TypeAlias = "tuple[Parts, ...] | None"


class ReturnType(types.Type):
    """The return type of a body whose result `of` has mutable objects; the body made `parts`."""

    def __init__(self, of: types.Type, parts: Parts) -> None:
        self.of, self.parts = of, parts
        super().__init__(name=f"returned({of}, {parts})")

    @property
    def key(self) -> tuple[Any, ...]:
        return self.of, self.parts


def children(typ: types.Type) -> tuple[types.Type, ...]:
    """Return the types of the fields of an object, or of the elements of a tuple."""
    return tuple(typ.types if isinstance(typ, types.BaseTuple) else typ.field_types)


def holds_mutable(typ: types.Type) -> bool:
    """Return whether a value of `typ` is or holds a pointer to a mutable object."""
    if isinstance(typ, types.BaseTuple):
        return any(map(holds_mutable, typ))
    return isinstance(typ, ObjectType) and (typ.mutable or any(map(holds_mutable, typ.field_types)))


def _struct(manager: Any, typ: types.Type, parts: Parts) -> Any:
    if parts is None:
        return manager.lookup(typ).get_value_type()
    fields = [_struct(manager, t, p) for t, p in zip(children(typ), parts)]
    return ir.LiteralStructType(fields or [ir.IntType(8)])


@register_model(ReturnType)
class _ReturnModel(core_models.DataModel):
    """The fields of objects that the body made, and pointers to objects of the caller."""

    def __init__(self, manager: Any, numba_type: ReturnType) -> None:
        super().__init__(manager, numba_type)
        self.struct = _struct(manager, numba_type.of, numba_type.parts)

    def get_value_type(self) -> ir.Type:
        return self.struct

    get_data_type = get_argument_type = get_return_type = get_value_type

    def as_data(self, builder: Any, value: Any) -> Any:
        return value

    as_argument = as_return = from_data = from_argument = from_return = as_data

    def load_from_data_pointer(self, builder: Any, ptr: Any, align: Any = None) -> Any:
        return builder.load(ptr)


def _load(context: Any, builder: Any, typ: types.Type, parts: Parts, value: Any) -> Any:
    """Return the fields of the objects that the current function made."""
    if parts is None:
        return value
    fields = builder.load(value) if getattr(typ, "mutable", False) else value
    result = ir.Constant(_struct(context.data_model_manager, typ, parts), ir.Undefined)
    for i, (field, part) in enumerate(zip(children(typ), parts)):
        loaded = _load(context, builder, field, part, builder.extract_value(fields, i))
        result = builder.insert_value(result, loaded, i)
    return result


def spill(context: Any, builder: Any, typ: types.Type, parts: Parts, value: Any) -> Any:
    """Return a body's result as an object of `typ`, in the current function's frame."""
    if parts is None:
        return value
    fields = [
        spill(context, builder, field, part, builder.extract_value(value, i))
        for i, (field, part) in enumerate(zip(children(typ), parts))
    ]
    if isinstance(typ, types.BaseTuple):
        return context.make_tuple(builder, typ, fields)
    return make_object(context, builder, typ, fields)


@lowering_registry.lower_cast(ObjectType, ReturnType)
@lowering_registry.lower_cast(types.BaseTuple, ReturnType)
def _cast(context: Any, builder: Any, typ: types.Type, to: ReturnType, value: Any) -> Any:
    return _load(context, builder, typ, to.parts, value)
