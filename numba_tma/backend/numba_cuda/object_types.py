"""The Numba types of device objects and of compile-time constants, and their values in LLVM."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.cuda import cgutils
from numba.cuda.core.base import BaseContext
from numba.cuda.core.errors import TypingError
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.extending import core_models, register_model
from numba.cuda.np.numpy_support import from_dtype

#: The LLVM value of an object whose type is all its information.
NOTHING = ir.LiteralStructType([ir.IntType(8)])


class ObjectType(types.Type):
    """The Numba type of a device object: its class, its compile-time values, its fields' types.

    A mutable object is a pointer to its fields in the frame of the function that made it.
    """

    def __init__(
        self,
        cls: type,
        static: tuple[Any, ...] = (),
        fields: tuple[types.Type, ...] = (),
        mutable: bool = False,
    ) -> None:
        self.cls, self.static, self.field_types, self.mutable = cls, static, fields, mutable
        shown = ", ".join([repr(s) for s in static] + [str(f) for f in fields])
        types.Type.__init__(self, name=f"{cls.__name__}({shown}){'&' if mutable else ''}")
        self._hash = hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or types.Type.__eq__(self, other)

    @property
    def key(self) -> tuple[Any, ...]:
        return self.cls, self.static, self.field_types, self.mutable

    @property
    def description(self) -> Description:
        return DESCRIPTIONS[self.cls]

    def static_value(self, name: str) -> Any:
        return self.static[self.description.static.index(name)]

    def can_convert_to(self, context: BaseContext, other: types.Type) -> Any:
        """Return the conversion to a type of Numba's own; see `Description.converts`."""
        known = DESCRIPTIONS.get(self.cls)
        return known.converts(self, other) if known is not None else None

    def referenced(self) -> ObjectType:
        return type(self)(self.cls, self.static, self.field_types, True)


class IterableObjectType(ObjectType, types.IterableType):
    """An object with `has_next` and `take`: a kernel's ``for`` loop makes a mutable copy of it."""

    @property
    def iterator_type(self) -> types.IteratorType:
        return IteratorObjectType(self.cls, self.static, self.field_types, True)


class IteratorObjectType(ObjectType, types.SimpleIteratorType):
    """The running form of an `IterableObjectType`."""

    @property
    def yield_type(self) -> types.Type:
        return self.description.yields(self)  # type: ignore[misc]

    @property
    def iterator_type(self) -> types.IteratorType:
        return self


@dataclasses.dataclass
class Description:
    """The members of a device class, and how kernels use them."""

    static: tuple[str, ...]
    fields: dict[str, types.Type | None]
    defaults: dict[str, Any]
    mutable: bool
    local: bool
    type_class: type[ObjectType]
    methods: dict[str, Any] = dataclasses.field(default_factory=dict)
    properties: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: The body of ``__setattr__``, compiled so, too.
    set_by_name: Any = None
    #: The conversion of an object to a type that is none of the library; None where there is none.
    converts: Callable[[ObjectType, types.Type], Any] = lambda typ, other: None
    #: The functions of properties whose values the object's type has.
    constants: dict[str, Callable[[Any], Any]] = dataclasses.field(default_factory=dict)
    #: The body of ``__getattr__``, compiled with the attribute's name as a constant.
    by_name: Any = None
    #: The body of ``__getitem__``, compiled with a literal index as a constant; None for natives.
    by_index: Any = None
    #: The lowering of ``object[index]``.
    item: Callable[..., Any] | None = None
    #: The body of ``__setitem__``, and the lowering of ``object[index] = value``, as above.
    by_assignment: Any = None
    assign: Callable[..., Any] | None = None
    #: The type that an iterator yields; None for other classes.
    yields: Callable[[ObjectType], types.Type] | None = None


#: The description of each device class.
DESCRIPTIONS: dict[type, Description] = {}


@register_model(ObjectType)
@register_model(IterableObjectType)
@register_model(IteratorObjectType)
class _ObjectModel(core_models.DataModel):
    """A struct of the fields, or a pointer to it when the object is mutable."""

    def __init__(self, manager: Any, numba_type: ObjectType) -> None:
        super().__init__(manager, numba_type)
        models = [manager.lookup(t) for t in numba_type.field_types]
        # Never empty: PTX has no empty parameters, and a debug build does not inline them away.
        self.struct = ir.LiteralStructType([m.get_value_type() for m in models] or [ir.IntType(8)])

    def get_value_type(self) -> ir.Type:
        return self.struct.as_pointer() if self.fe_type.mutable else self.struct

    get_data_type = get_argument_type = get_value_type

    def get_return_type(self) -> ir.Type:
        if self.fe_type.description.local:
            raise TypingError(
                f"{self.fe_type} lives in the function that made it and cannot be returned from "
                "it; pass it down to device functions as an argument instead"
            )
        return self.struct

    def as_data(self, builder: Any, value: Any) -> Any:
        return value

    as_argument = as_return = from_data = from_argument = from_return = as_data

    def load_from_data_pointer(self, builder: Any, ptr: Any, align: Any = None) -> Any:
        return builder.load(ptr)


# ----------------------------------------------------------------------------- objects


def make_object(context: Any, builder: Any, typ: ObjectType, values: list[Any]) -> Any:
    """Return an object of `typ` from its fields' LLVM values, in the current function's frame."""
    struct = context.data_model_manager.lookup(typ).struct
    if not typ.mutable:
        result = ir.Constant(struct, ir.Undefined)
        for i, value in enumerate(values):
            result = builder.insert_value(result, value, i)
        return result
    pointer = cgutils.alloca_once(builder, struct)
    for i, value in enumerate(values):
        builder.store(value, cgutils.gep_inbounds(builder, pointer, 0, i))
    return pointer


def get_field(builder: Any, typ: ObjectType, value: Any, name: str) -> Any:
    """Return the LLVM value of the field `name` of an object."""
    index = list(typ.description.fields).index(name)
    if typ.mutable:
        return builder.load(cgutils.gep_inbounds(builder, value, 0, index))
    return builder.extract_value(value, index)


def set_field(builder: Any, typ: ObjectType, value: Any, name: str, field: Any) -> None:
    """Store the LLVM value `field` into the field `name` of a mutable object."""
    index = list(typ.description.fields).index(name)
    builder.store(field, cgutils.gep_inbounds(builder, value, 0, index))


# --------------------------------------------------------------------------- constants


def is_constant(value: Any) -> bool:
    """Return whether `value` is a host object that kernels use as a compile-time value."""
    return type(value) in DESCRIPTIONS and DESCRIPTIONS[type(value)].static == ("value",)


def static_of(typ: types.Type, what: str) -> Any:
    """Return the compile-time value of a Numba type, or raise a TypingError about `what`."""
    if isinstance(typ, types.Literal):
        return typ.literal_value
    if isinstance(typ, ObjectType) and not typ.field_types and len(typ.static) == 1:
        return typ.static[0]
    if isinstance(typ, types.Omitted):
        return typ.value
    if isinstance(typ, types.NoneType):
        return None
    raise TypingError(f"{what} must be a compile-time constant, but its type is {typ}")


def constant_type(value: Any) -> types.Type | None:
    """Return the Numba type of a compile-time value; None if kernels have no such values."""
    if value is None:
        return types.none
    if isinstance(value, bool):
        return types.literal(value)
    if isinstance(value, int | np.integer):
        return types.literal(int(value))
    if isinstance(value, str):
        return types.literal(value)
    if isinstance(value, tuple):
        if all(isinstance(v, int) for v in value):
            return types.UniTuple(types.intp, len(value))
        parts = [constant_type(v) for v in value]
        return None if None in parts else types.Tuple(parts)
    if isinstance(value, np.dtype):
        return types.DType(from_dtype(value))
    return ObjectType(type(value), (value,)) if is_constant(value) else None


def constant_value(context: Any, builder: Any, typ: types.Type, value: Any) -> Any:
    """Return the LLVM value of a compile-time value of `constant_type`."""
    if isinstance(typ, types.StringLiteral):
        return ir.Constant(context.get_value_type(typ), ir.Undefined)  # the type has the value
    if isinstance(typ, types.Literal):
        return context.get_constant(typ.literal_type, value)
    if isinstance(typ, types.NoneType | types.DType):
        return context.get_dummy_value()
    if isinstance(typ, types.BaseTuple):
        parts = [constant_value(context, builder, t, v) for t, v in zip(typ, value)]
        return context.make_tuple(builder, typ, parts)
    if isinstance(typ, types.Integer):
        return context.get_constant(typ, value)
    return ir.Constant(NOTHING, ir.Undefined)


@lowering_registry.lower_constant(ObjectType)
def _lower_constant_object(context: Any, builder: Any, typ: ObjectType, value: Any) -> Any:
    return ir.Constant(NOTHING, ir.Undefined)
