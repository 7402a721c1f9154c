"""Functions that run at compile time, and functions that only the simulator runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.cuda import utils
from numba.cuda.core.errors import TypingError
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.typing.templates import signature

from numba_tma.backend.interface import Unknown, targets
from numba_tma.backend.numba_cuda.functions import REFUSALS, LiteralTemplate, compile_target
from numba_tma.backend.numba_cuda.object_types import (
    ObjectType,
    constant_type,
    constant_value,
    static_of,
)
from numba_tma.backend.numba_cuda.registration import registers
from numba_tma.simulator.errors import SimulatorError

#: The exceptions by which compile-time functions reject their arguments.
CHECKED = (ValueError, TypeError, AttributeError, LookupError, SimulatorError)

#: The functions that `compile_time` registered.
COMPILE_TIME: set[Callable[..., Any]] = set()


class _Unknown(Unknown):
    """An argument that is known at run time only; it has the attributes of its type."""

    def __init__(self, typ: types.Type) -> None:
        self.type = typ

    def __repr__(self) -> str:
        if isinstance(self.type, ObjectType) and self.type.static:
            return repr(self.type.static[0])
        return repr(self.type)

    def __str__(self) -> str:
        return str(self.type)

    def __getattr__(self, name: str) -> Any:
        if isinstance(self.type, ObjectType):
            description = self.type.description
            if name in description.static:
                return self.type.static_value(name)
            if name in description.fields:
                return known(self.type.field_types[list(description.fields).index(name)])
        if name in getattr(self.type, "facts", ()):
            return getattr(self.type, name)
        raise AttributeError(name)

    @property
    def is_integer(self) -> bool:
        return isinstance(types.unliteral(self.type), types.Integer)

    @property
    def cls(self) -> type | None:
        return getattr(self.type, "cls", None) or getattr(self.type, "host_class", None)

    @property
    def elements(self) -> tuple[Any, ...] | None:
        return tuple(map(known, self.type)) if isinstance(self.type, types.BaseTuple) else None

    @property
    def num_numbers(self) -> int | None:
        if not isinstance(self.type, types.BaseTuple):
            return getattr(self.type, "num_numbers", None)
        numbers = all(isinstance(types.unliteral(t), types.Number) for t in self.type)
        return len(self.type) if numbers else None

    @property
    def is_number(self) -> bool:
        return isinstance(types.unliteral(self.type), types.Integer | types.Boolean)


def known(typ: types.Type) -> Any:
    """Return the value of a compile-time type, or an `Unknown` with the type's attributes."""
    try:
        return static_of(typ, "")
    except TypingError:
        return _Unknown(typ)


def run_rule(function: Callable[..., Any], *args: Any, **kws: Any) -> Any:
    """Call a compile-time function, with types replaced by values or an `Unknown`."""
    try:
        return function(*map(_known, args), **{name: _known(value) for name, value in kws.items()})
    except CHECKED as error:
        REFUSALS.appendleft(str(error))
        raise TypingError(str(error)) from None


def _known(given: Any) -> Any:
    return known(given) if isinstance(given, types.Type) else given


@registers("compile_time")
def compile_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run `function` when a kernel that calls it is compiled; its result is a constant there.

    Arguments known at compile time are passed as values, any other as an `Unknown`. An exception of
    the function is the error of the compile.
    """
    parameters = utils.pysignature(function)
    results: dict[tuple[types.Type, ...], Any] = {}

    class CompileTimeTemplate(LiteralTemplate):
        key = function

        def type_call(self, args: Any, kws: Any) -> Any:
            try:
                bound = parameters.bind(*args, **kws)
            except TypeError as error:
                raise TypingError(f"{function.__name__}: {error}") from None
            given = bound.arguments
            result = run_rule(function, **given)
            typ = constant_type(result)
            if typ is None:
                raise TypingError(f"{function.__name__} returns {result!r}, which is no constant")
            results[tuple(given.values())] = result
            kept = [parameters.parameters[name] for name in given]
            return signature(typ, *given.values()).replace(
                pysig=parameters.replace(parameters=kept)
            )

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        result = results[tuple(sig.args)]
        return constant_value(context, builder, sig.return_type, result)

    _register(function, CompileTimeTemplate, lower)
    COMPILE_TIME.add(function)
    return function


#: Called with (context, builder, function, sig, args) where a kernel skips a call: races mode.
LABELLED: list[Callable[..., None]] = []


@registers("simulator_only")
def simulator_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let kernels call `function`; the call does nothing in a kernel."""

    class SkippedTemplate(LiteralTemplate):
        key = function

        def type_call(self, args: Any, kws: Any) -> Any:
            names = [*utils.pysignature(function).parameters.values()]
            given = [*args, *kws.values()]
            pysig = utils.pysignature(function).replace(parameters=names[: len(given)])
            return signature(types.void, *given).replace(pysig=pysig)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        for hook in LABELLED:
            hook(context, builder, function, sig, args)
        return context.get_dummy_value()

    _register(function, SkippedTemplate, lower)
    return function


def _register(function: Callable[..., Any], template: type, lower: Callable[..., Any]) -> None:
    typing_registry.register_global(function, types.Function(template))
    lowering_registry.lower(function, types.VarArg(types.Any))(lower)


targets(compile_target)
