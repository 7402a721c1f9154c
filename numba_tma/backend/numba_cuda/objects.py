"""Objects in kernels: dataclasses whose fields live in registers and whose methods are inlined."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.cuda import cgutils, utils
from numba.cuda.core import ir_utils
from numba.cuda.core.errors import TypingError
from numba.cuda.core.imputils import RefType, iternext_impl
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.descriptor import cuda_target
from numba.cuda.extending import core_models, register_model, typeof_impl
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, Signature, signature

from numba_tma.backend.interface import is_native
from numba_tma.backend.numba_cuda.functions import Body, LiteralTemplate
from numba_tma.backend.numba_cuda.registration import LOWERED, register_subjects, registers


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

    @property
    def key(self) -> tuple[Any, ...]:
        return self.cls, self.static, self.field_types, self.mutable

    @property
    def description(self) -> _Description:
        return _DESCRIPTIONS[self.cls]

    def static_value(self, name: str) -> Any:
        return self.static[self.description.static.index(name)]

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
        if self.description.yields is not None:
            return self.description.yields(self)
        take = self.description.methods["take"].body
        return take.signature(cuda_target.typing_context, (self,), {}).return_type

    @property
    def iterator_type(self) -> types.IteratorType:
        return self


@dataclasses.dataclass
class _Description:
    """What `device_class` learnt about a class."""

    static: tuple[str, ...]
    fields: dict[str, types.Type | None]
    defaults: dict[str, Any]
    mutable: bool
    local: bool
    type_class: type[ObjectType]
    methods: dict[str, Any] = dataclasses.field(default_factory=dict)
    properties: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: Attributes whose names are known from the type alone: `resolve(typ, name)` gives a type.
    resolve: Callable[[ObjectType, str], types.Type | None] = lambda typ, name: None
    lower: Callable[..., Any] | None = None
    #: Raises a TypingError for a type that cannot be; called when an instance is made.
    check: Callable[[ObjectType], None] = lambda typ: None
    #: Of an iterator whose `take` is not what says so: the type of what it yields, and a value that
    #: stands for it when it ends.
    yields: Callable[[ObjectType], types.Type] | None = None
    idle: Callable[..., Any] | None = None


_DESCRIPTIONS: dict[type, _Description] = {}
_FIELD_TYPES = {"u32": types.uint32, "i64": types.int64, "bool": types.boolean}


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

    def traverse(self, builder: Any) -> list[Any]:
        return []

    def contains_nrt_meminfo(self) -> bool:
        return False


@registers("device_class")
def _register_record(cls: type, static: tuple[str, ...], mutable: bool, local: bool) -> None:
    """Register a `numba_tma.backend.interface.device_class`."""
    all_fields = dataclasses.fields(cls)
    fields = [f for f in all_fields if f.name not in static]
    iterable = hasattr(cls, "has_next")
    description = _Description(
        static,
        {f.name: _FIELD_TYPES.get(str(f.type)) for f in fields},
        {
            f.name: f.default
            for f in dataclasses.fields(cls)
            if f.default is not dataclasses.MISSING
        },
        mutable,
        local or mutable,
        IterableObjectType if iterable else ObjectType,
    )
    _DESCRIPTIONS[cls] = description
    for name, member in vars(cls).items():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType) and is_native(function):
            continue
        if isinstance(member, FunctionType) and not name.startswith("__"):
            description.methods[name] = _PythonMethod(cls, name, member)
        elif isinstance(member, property):
            description.properties[name] = Body(vars(cls)[name].fget)
    if all_fields:
        _register_constructor(cls, description)


@registers("constant_class")
def _register_constant(cls: type) -> None:
    """Register a `numba_tma.backend.interface.constant_class`."""
    description = _Description(("value",), {}, {}, False, False, ObjectType)
    for name in getattr(cls, "device_methods", ()):
        if not is_native(getattr(cls, name)):
            description.methods[name] = _PythonMethod(cls, name, getattr(cls, name))
    _DESCRIPTIONS[cls] = description
    typeof_impl.register(cls)(lambda value, context: ObjectType(cls, (value,)))


def is_constant(value: Any) -> bool:
    """Return whether `value` is a host object that kernels use as a compile-time value."""
    return type(value) in _DESCRIPTIONS and _DESCRIPTIONS[type(value)].static == ("value",)


@lowering_registry.lower_constant(ObjectType)
def _lower_constant_object(context: Any, builder: Any, typ: ObjectType, value: Any) -> Any:
    return ir.Constant(ir.LiteralStructType([ir.IntType(8)]), ir.Undefined)


def static_of(typ: types.Type, what: str) -> Any:
    """Return the compile-time value that a Numba type carries, or say that there is none."""
    if isinstance(typ, types.Literal):
        return typ.literal_value
    if isinstance(typ, ObjectType) and not typ.field_types and len(typ.static) == 1:
        return typ.static[0]
    if isinstance(typ, types.Omitted):
        return typ.value
    raise TypingError(f"{what} must be a compile-time constant, but its type is {typ}")


def _register_constructor(cls: type, description: _Description) -> None:
    names = [f.name for f in dataclasses.fields(cls)]

    class Template(LiteralTemplate):
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
            description.check(result)
            return signature(result, *(bound[n] for n in names if n in bound)).replace(
                pysig=inspect.Signature(
                    [
                        inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                        for n in names
                        if n in bound
                    ]
                )
            )

    typing_registry.register(Template)
    typing_registry.register_global(cls, types.Function(Template))

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


def make_object(context: Any, builder: Any, typ: ObjectType, values: list[Any]) -> Any:
    """Build an object of `typ` from its fields' LLVM values, in the current function's frame."""
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


def describe(cls: type) -> _Description:
    """Return what is known of a device class, to be completed by its lowering."""
    if cls not in _DESCRIPTIONS:  # declared by a module that a lowering has imported
        register_subjects()
    return _DESCRIPTIONS[cls]


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

    def bind(self, context: Any, typ: ObjectType) -> types.BoundFunction:
        method = self

        class Template(LiteralTemplate):
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

        return types.BoundFunction(Template, typ)


class _PythonMethod:
    def __init__(self, cls: type, name: str, function: Any) -> None:
        self.key = (cls, name)
        self.body = Body(function)
        self.lower = self.body.call
        lowering_registry.lower(self.key, types.VarArg(types.Any))(self.lower)
        #: Raises a TypingError for arguments that the body would only fail on deep inside.
        self.check: Callable[..., None] = lambda *args, **kws: None

    def bind(self, context: Any, typ: ObjectType) -> types.BoundFunction:
        method = self

        class Template(AbstractTemplate):
            key = method.key

            def generic(self, args: Any, kws: Any) -> Any:
                method.check(*args, **kws)
                sig = method.body.signature(self.context, (typ, *args), kws)
                return sig.as_method() if sig is not None else None

        return types.BoundFunction(Template, typ)


@typing_registry.register_attr
class _ObjectAttributes(AttributeTemplate):
    key = ObjectType

    def generic_resolve(self, typ: ObjectType, attr: str) -> types.Type | None:
        description = typ.description
        if attr in description.methods:
            return description.methods[attr].bind(self.context, typ)
        if attr in description.fields:
            return typ.field_types[list(description.fields).index(attr)]
        if attr in description.properties:
            return description.properties[attr].signature(self.context, (typ,), {}).return_type
        resolved = description.resolve(typ, attr)
        if resolved is not None:
            return resolved
        value = _static_attribute(typ, attr)
        if isinstance(value, int):
            return types.literal(int(value))
        if isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            return types.UniTuple(types.intp, len(value))
        if value is not None:
            return ObjectType(type(value), (value,))
        return None


def _static_attribute(typ: ObjectType, attr: str) -> Any:
    if attr in typ.description.static:
        return typ.static_value(attr)
    if typ.description.static == ("value",):
        return getattr(typ.static[0], attr, None)
    return None


@lowering_registry.lower_getattr_generic(ObjectType)
def _get_attribute(context: Any, builder: Any, typ: ObjectType, value: Any, attr: str) -> Any:
    if attr in typ.description.methods:
        return value
    if attr in typ.description.fields:
        return get_field(builder, typ, value, attr)
    description = typ.description
    if attr in description.properties:
        body = description.properties[attr]
        sig = body.signature(context.typing_context, (typ,), {})
        return body.call(context, builder, sig, [value])
    if description.lower is not None and description.resolve(typ, attr) is not None:
        return description.lower(context, builder, typ, value, attr)
    static = _static_attribute(typ, attr)
    if isinstance(static, int):
        return context.get_constant(types.intp, int(static))
    if isinstance(static, tuple):
        integers = [context.get_constant(types.intp, v) for v in static]
        return context.make_tuple(builder, types.UniTuple(types.intp, len(static)), integers)
    return ir.Constant(ir.LiteralStructType([ir.IntType(8)]), ir.Undefined)


@lowering_registry.lower_setattr_generic(ObjectType)
def _set_attribute(context: Any, builder: Any, sig: Signature, args: Any, attr: str) -> None:
    typ, value_type = sig.args
    field_type = typ.field_types[list(typ.description.fields).index(attr)]
    value = context.cast(builder, args[1], value_type, field_type)
    set_field(builder, typ, args[0], attr, value)


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
    # Both paths yield the same pointers, and validity is passed on as a phi of constants: LLVM then
    # keeps what the pointers lead to in registers and threads the loop into one branch a step.
    idle = typ.description.idle
    result.yield_(
        context.get_constant_null(typ.yield_type)
        if idle is None
        else idle(context, builder, typ, args[0])
    )
    before = builder.block
    with builder.if_then(has_next):
        result.yield_(methods["take"].lower(context, builder, yield_sig, args))
        taken = builder.block
    valid = builder.phi(ir.IntType(1))
    valid.add_incoming(ir.Constant(ir.IntType(1), 0), before)
    valid.add_incoming(ir.Constant(ir.IntType(1), 1), taken)
    result.set_valid(valid)


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

    It takes `tile` for an array that nobody reads any more; but shared memory is read by others.
    """
    target = statement.target.name
    if typemap is None or isinstance(typemap.get(target), ObjectType):
        lives_and_aliases.add(target)
    return statement


for _statement in ir_utils.ir.setitem_types:
    ir_utils.remove_dead_extensions[_statement] = _keep_set_item
