"""Objects in kernels: dataclasses with their fields in registers and their methods inlined."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.cuda import utils
from numba.cuda.core import ir_utils
from numba.cuda.core.errors import TypingError
from numba.cuda.core.imputils import RefType, iternext_impl
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.descriptor import cuda_target
from numba.cuda.extending import typeof_impl
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, Signature, signature

from numba_tma.backend.interface import constant_property
from numba_tma.backend.numba_cuda.constants import CHECKED, known, run_rule
from numba_tma.backend.numba_cuda.fresh import holds_mutable
from numba_tma.backend.numba_cuda.functions import Body, LiteralTemplate, body_template
from numba_tma.backend.numba_cuda.object_types import (
    DESCRIPTIONS,
    Description,
    IterableObjectType,
    IteratorObjectType,
    ObjectType,
    constant_type,
    constant_value,
    get_field,
    make_object,
    set_field,
    static_of,
)
from numba_tma.backend.numba_cuda.registration import LOWERED, register_subjects, registers
from numba_tma.host.host_only import attribute_refusal, call_refusal

_FIELD_TYPES = {"u32": types.uint32, "i64": types.int64, "bool": types.boolean}


@registers("device_class")
def _register_record(cls: type, static: tuple[str, ...], mutable: bool, local: bool) -> None:
    """Register a `numba_tma.backend.interface.device_class`."""
    fields = dataclasses.fields(cls)
    iterable = hasattr(cls, "has_next")
    description = Description(
        static,
        {f.name: _FIELD_TYPES.get(str(f.type)) for f in fields if f.name not in static},
        {f.name: f.default for f in fields if f.default is not dataclasses.MISSING},
        mutable,
        local or mutable,
        IterableObjectType if iterable else ObjectType,
    )
    DESCRIPTIONS[cls] = description
    for owner in reversed(cls.__mro__):  # a base may be a plain class that several share
        _add_members(cls, description, owner)
    if iterable:
        description.yields = functools.partial(_yields, description.methods["take"].body)
    if fields:
        _register_constructor(cls, description)


def _add_members(cls: type, description: Description, owner: type) -> None:
    for name, member in vars(owner).items():
        if isinstance(member, FunctionType) and not name.startswith("__"):
            description.methods[name] = _PythonMethod(cls, name, member)
        elif isinstance(member, FunctionType) and name == "__getattr__":
            description.by_name = Body(member)
        elif isinstance(member, FunctionType) and name == "__getitem__":
            body = Body(member)
            if body.constants:  # a native's index has another lowering
                description.by_index, description.item = body, body.call
        elif isinstance(member, FunctionType) and name == "__setitem__":
            body = Body(member)
            if body.constants:
                description.by_assignment, description.assign = body, body.call
        elif isinstance(member, FunctionType) and name == "__setattr__" and not _is_frozen(owner):
            description.set_by_name = Body(member)
        elif isinstance(member, constant_property) and member.fget is not None:
            description.constants[name] = member.fget
        elif isinstance(member, property) and member.fget is not None:
            description.properties[name] = Body(member.fget)


def _is_frozen(cls: type) -> bool:
    """Return whether a class's ``__setattr__`` is the one that `dataclass` has made."""
    parameters = getattr(cls, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def _yields(take: Body, typ: ObjectType) -> types.Type:
    """Return the type that an iterator's `take` returns."""
    sig = take.signature(cuda_target.typing_context, (typ,), {})
    return sig.return_type  # type: ignore[union-attr]


@registers("constant_class")
def _register_constant(cls: type) -> None:
    """Register a `numba_tma.backend.interface.constant_class`."""
    description = Description(("value",), {}, {}, False, False, ObjectType)
    for name in getattr(cls, "device_methods", ()):
        description.methods[name] = _PythonMethod(cls, name, getattr(cls, name))
    DESCRIPTIONS[cls] = description
    typeof_impl.register(cls)(lambda value, context: ObjectType(cls, (value,)))
    refuse_calls(cls)


@registers("host_only")
def refuse_calls(subject: Any) -> None:
    """Raise a TypingError for calls of a function, or of a class, of the host."""

    class RefusedTemplate(AbstractTemplate):
        key = subject

        def generic(self, args: Any, kws: Any) -> Any:
            raise TypingError(call_refusal(subject.__name__))

    typing_registry.register_global(subject, types.Function(RefusedTemplate))


def _register_constructor(cls: type, description: Description) -> None:
    names = [f.name for f in dataclasses.fields(cls)]

    class ConstructorTemplate(LiteralTemplate):
        key = cls

        def type_call(self, args: Any, kws: Any) -> Any:
            bound = dict(zip(names, args)) | kws
            static = tuple(
                static_of(bound[n], f"{cls.__name__}({n}=...)")
                if n in bound
                else description.defaults[n]
                for n in description.static
            )
            fields = []
            for name, declared in description.fields.items():
                given = types.unliteral(bound[name]) if name in bound else declared
                fields.append(declared if declared is not None else given)
            result = description.type_class(cls, static, tuple(fields), description.mutable)
            if hasattr(cls, "__post_init__"):
                try:
                    cls.__post_init__(known(result))
                except CHECKED as error:
                    raise TypingError(str(error)) from None
            return signature(result, *(bound[n] for n in names if n in bound)).replace(
                pysig=inspect.Signature(
                    [
                        inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                        for n in names
                        if n in bound
                    ]
                )
            )

    typing_registry.register_global(cls, types.Function(ConstructorTemplate))

    @lowering_registry.lower(cls, types.VarArg(types.Any))
    def construct(context: Any, builder: Any, sig: Signature, args: Any) -> Any:
        typ = sig.return_type
        given = dict(zip(sig.pysig.parameters, zip(args, sig.args)))
        values = []
        for name, field_type in zip(description.fields, typ.field_types):
            if name in given:
                value, value_type = given[name]
                values.append(context.cast(builder, value, value_type, field_type))
            else:
                values.append(context.get_constant(field_type, description.defaults[name]))
        return make_object(context, builder, typ, values)


def describe(cls: type) -> Description:
    """Return the description of a device class, which its lowering completes."""
    if cls not in DESCRIPTIONS:  # declared by a module that a lowering has imported
        register_subjects()
    return DESCRIPTIONS[cls]


def native_method(
    cls: type, name: str, typer: Callable[..., Signature | None], lower: Callable[..., Any]
) -> None:
    """Register a method by its typer (self type first) and its lowering."""
    describe(cls).methods[name] = NativeMethod(cls, name, typer, lower)
    LOWERED.add((f"{cls.__module__}.{cls.__qualname__}", name))


class NativeMethod:
    """A method given by its typer (self type first) and its lowering."""

    def __init__(self, owner: Any, name: str, typer: Any, lower: Any) -> None:
        self.key = (owner, name)
        self.typer = typer
        lowering_registry.lower(self.key, types.VarArg(types.Any))(lower)
        self._bound = functools.cache(self._bind)

    def bind(self, context: Any, typ: ObjectType) -> types.BoundFunction:
        """Return the method of an object of `typ`."""
        return self._bound(typ)

    def _bind(self, typ: ObjectType) -> types.BoundFunction:
        method = self

        class NativeMethodTemplate(LiteralTemplate):
            key = method.key

            def type_call(self, args: Any, kws: Any) -> Any:
                parameters = utils.pysignature(method.typer)
                try:
                    bound = parameters.bind(typ, *args, **kws)
                except TypeError as error:
                    raise TypingError(f"{method.key[1]}: {error}") from None
                sig = method.typer(*bound.args, **bound.kwargs)
                if sig is None:
                    return None
                kept = list(parameters.parameters.values())[: len(sig.args)]
                return sig.replace(pysig=parameters.replace(parameters=kept)).as_method()

        return types.BoundFunction(NativeMethodTemplate, typ)


class _PythonMethod:
    def __init__(self, cls: type, name: str, function: Any) -> None:
        self.key = (cls, name)
        self.body = Body(function)
        self.lower = self.body.call
        lowering_registry.lower(self.key, types.VarArg(types.Any))(self.lower)
        #: Raises a TypingError for arguments on which the body would fail with an unclear error.
        self.check: Callable[..., None] = lambda *args, **kws: None
        self._bound = functools.cache(self._bind)

    def bind(self, context: Any, typ: ObjectType) -> types.BoundFunction:
        """Return the method of an object of `typ`."""
        return self._bound(typ)

    def _bind(self, typ: ObjectType) -> types.BoundFunction:
        method = self

        class MethodTemplate(body_template(method.body)):  # type: ignore[misc]
            key = method.key

            def call_body(self, args: Any, kws: Any) -> Any:
                method.check(*args, **kws)
                sig = method.body.signature(self.context, (typ, *args), kws)
                return sig.as_method() if sig is not None else None

        return types.BoundFunction(MethodTemplate, typ)


@typing_registry.register_attr
class _ObjectAttributes(AttributeTemplate):
    key = ObjectType

    def generic_resolve(self, typ: ObjectType, attr: str) -> types.Type | None:
        if typ.cls not in DESCRIPTIONS:  # an attribute of a constant, which kernels pass on
            raise TypingError(attribute_refusal(typ.cls, attr))
        description = typ.description
        if attr in description.methods:
            return description.methods[attr].bind(self.context, typ)
        if attr in description.fields:
            return typ.field_types[list(description.fields).index(attr)]
        if attr in description.properties:
            return description.properties[attr].signature(self.context, (typ,), {}).return_type
        try:
            return _constant(typ, _static_attribute(typ, attr))
        except AttributeError:
            pass
        if description.by_name is None:
            return None
        return description.by_name.signature(self.context, _named(typ, attr), {}).return_type


def _named(typ: ObjectType, attr: str) -> tuple[types.Type, types.Type]:
    """Return the argument types of ``__getattr__``."""
    return typ, types.literal(attr)


def _static_attribute(typ: ObjectType, attr: str) -> Any:
    """Return an attribute whose value the object's type has."""
    if attr in typ.description.static:
        return typ.static_value(attr)
    if attr in typ.description.constants:
        return run_rule(typ.description.constants[attr], typ)
    if typ.description.static == ("value",) and not hasattr(object, attr):
        value = getattr(typ.static[0], attr)
        if isinstance(value, MethodType):
            raise TypingError(attribute_refusal(typ.cls, attr))
        return value
    raise AttributeError(attr)


def _constant(typ: ObjectType, value: Any) -> types.Type | None:
    # An attribute's True is 1: conditions on it are the same, and sums of it are allowed.
    found = constant_type(int(value) if isinstance(value, bool) else value)
    return ObjectType(type(value), (value,)) if found is None else found


@lowering_registry.lower_getattr_generic(ObjectType)
def _get_attribute(context: Any, builder: Any, typ: ObjectType, value: Any, attr: str) -> Any:
    description = typ.description
    if attr in description.methods:
        return value
    if attr in description.fields:
        return get_field(builder, typ, value, attr)
    if attr in description.properties:
        body = description.properties[attr]
        sig = body.signature(context.typing_context, (typ,), {})
        return body.call(context, builder, sig, [value])
    try:
        static = _static_attribute(typ, attr)
    except AttributeError:
        body = description.by_name
        sig = body.signature(context.typing_context, _named(typ, attr), {})
        name = constant_value(context, builder, types.literal(attr), attr)
        return body.call(context, builder, sig, [value, name])
    if isinstance(static, int):
        return context.get_constant(types.intp, int(static))
    return constant_value(context, builder, constant_type(static), static)


@lowering_registry.lower_setattr_generic(ObjectType)
def _set_attribute(context: Any, builder: Any, sig: Signature, args: Any, attr: str) -> None:
    typ, value_type = sig.args
    if (body := typ.description.set_by_name) is not None:
        called = body.signature(context.typing_context, (*_named(typ, attr), value_type), {})
        name = constant_value(context, builder, types.literal(attr), attr)
        body.call(context, builder, called, [args[0], name, args[1]])
        return
    if not isinstance(args[0].type, ir.PointerType):
        raise TypingError(f"{typ} is a value: its {attr} is not assigned to")
    field_type = typ.field_types[list(typ.description.fields).index(attr)]
    value = context.cast(builder, args[1], value_type, field_type)
    set_field(builder, typ, args[0], attr, value)


@typing_registry.register_global(operator.getitem)
class _ObjectItem(LiteralTemplate):
    key = operator.getitem

    def type_call(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        if isinstance(args[0], ObjectType) and args[0].description.by_index is not None:
            return args[0].description.by_index.signature(self.context, args, kws)
        return None


@lowering_registry.lower(operator.getitem, ObjectType, types.Any)
def _get_item(context: object, builder: object, sig: Signature, args: list[object]) -> Any:
    return sig.args[0].description.item(context, builder, sig, args)


@typing_registry.register_global(operator.setitem)
class _ObjectAssignment(LiteralTemplate):
    key = operator.setitem

    def type_call(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        if isinstance(args[0], ObjectType) and args[0].description.by_assignment is not None:
            return args[0].description.by_assignment.signature(self.context, args, kws)
        return None


@lowering_registry.lower(operator.setitem, ObjectType, types.Any, types.Any)
def _set_item(context: object, builder: object, sig: Signature, args: list[object]) -> Any:
    return sig.args[0].description.assign(context, builder, sig, args)


@typing_registry.register
class _NoIterator(AbstractTemplate):
    """A loop over an object with items, whose ``__iter__`` raises the error."""

    key = "getiter"

    def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> None:
        if isinstance(args[0], ObjectType) and args[0].description.item is not None:
            iterate = getattr(args[0].cls, "__iter__", None)
            try:
                if iterate is not None:
                    iterate(None)
            except TypeError as refusal:
                raise TypingError(str(refusal)) from None


@lowering_registry.lower("getiter", IterableObjectType)
def _getiter(context: Any, builder: Any, sig: Signature, args: Any) -> Any:
    typ = sig.args[0]
    values = [builder.extract_value(args[0], i) for i in range(len(typ.field_types))]
    return make_object(context, builder, sig.return_type, values)


@lowering_registry.lower("iternext", IteratorObjectType)
@iternext_impl(RefType.UNTRACKED)
def _iternext(context: Any, builder: Any, sig: Signature, args: Any, result: Any) -> None:
    typ = sig.args[0]
    methods = typ.description.methods
    yield_sig = signature(typ.yield_type, typ)
    has_next = methods["has_next"].lower(context, builder, signature(types.boolean, typ), args)
    # Both paths yield the same pointers, and validity is a phi of constants. So LLVM keeps the
    # pointers' targets in registers and threads the loop into one branch a step.
    result.yield_(_idle(context, builder, typ, args[0]))
    before = builder.block
    with builder.if_then(has_next):
        result.yield_(methods["take"].lower(context, builder, yield_sig, args))
        taken = builder.block
    valid = builder.phi(ir.IntType(1))
    valid.add_incoming(ir.Constant(ir.IntType(1), 0), before)
    valid.add_incoming(ir.Constant(ir.IntType(1), 1), taken)
    result.set_valid(valid)


def _idle(context: Any, builder: Any, typ: IteratorObjectType, value: Any) -> Any:
    """Return the placeholder of a yielded value: zeros, and the same pointers."""
    pointers = {
        field: get_field(builder, typ, value, name)
        for name, field in zip(typ.description.fields, typ.field_types)
        if holds_mutable(field)
    }

    def make(part: types.Type) -> Any:
        if part in pointers:
            return pointers[part]
        if isinstance(part, types.BaseTuple):
            return context.make_tuple(builder, part, [make(t) for t in part])
        if isinstance(part, ObjectType) and not part.mutable:
            return make_object(context, builder, part, [make(t) for t in part.field_types])
        return ir.Constant(context.get_value_type(part), None)

    return make(typ.yield_type)


def _keep_set_item(
    statement: Any,
    lives: set[str],
    lives_and_aliases: set[str],
    arg_aliases: set[str],
    alias_map: Any,
    func_ir: Any,
    typemap: dict[str, types.Type] | None,
) -> Any:
    """Keep ``tile[i] = v`` in Numba's dead-code elimination, which runs after IR inlining.

    The pass assumes that no one reads `tile` after its last use in this thread. Other threads and
    TMA do read shared memory.
    """
    target = statement.target.name
    if typemap is None or isinstance(typemap.get(target), ObjectType):
        lives_and_aliases.add(target)
    return statement


for _statement in ir_utils.ir.setitem_types:
    ir_utils.remove_dead_extensions[_statement] = _keep_set_item
