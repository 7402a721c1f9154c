"""Functions in kernels: instructions with a lowering, and Python bodies, which are inlined."""

from __future__ import annotations

import collections
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numba.core.errors
from numba import cuda
from numba.core import types
from numba.cuda import utils
from numba.cuda.core import config, targetconfig
from numba.cuda.core.errors import TypingError
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.typing.templates import AbstractTemplate, Signature

from numba_tma.backend.numba_cuda.facts import COMPILING, facts_of, known_facts
from numba_tma.backend.numba_cuda.fresh import Parts, ReturnType, spill
from numba_tma.backend.numba_cuda.kernel_globals import define_shared, define_use_flags
from numba_tma.backend.numba_cuda.registration import LOWERED, registers
from numba_tma.host.architectures import TMA, Targets, Version, refusal, target_of
from numba_tma.host.tracing import compiles_traced

_EMPTY = inspect.Parameter.empty
_PLAIN = inspect.Parameter.POSITIONAL_OR_KEYWORD


def compile_target() -> str:
    """Return the target of the function under compilation, such as "90a".

    numba-cuda passes a GPU's capability without a suffix, and compiles for its own target from 9.0
    on. A target that was asked for has three parts (`exact`).
    """
    flags = targetconfig.ConfigStack.top_or_none()
    capability = config.FORCE_CUDA_CC
    if flags is None or capability:
        return target_of(capability or (9, 0, "a"))
    return _own_or_given(tuple(flags.compute_capability))


@functools.cache
def _own_or_given(capability: tuple[Any, ...]) -> str:
    own = len(capability) == 2 and TMA.on(capability)
    return target_of((*capability, "a") if own else capability)


#: What a body is compiled for beside its argument types: the target, and whether with a trace.
Variant = tuple[str, bool]


def compiled_variant() -> Variant:
    """Return the variant of the functions under compilation."""
    return compile_target(), compiles_traced()


def exact(capability: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the capability of a target that was asked for, whose suffix may be empty."""
    return (*capability, "") if len(capability) == 2 else capability


def require_targets(what: str, having: Targets) -> None:
    """Raise unless the target of this compile has `what`."""
    if error := refusal(what, having, compile_target()):
        raise TypingError(error)


@functools.cache
def toolkit() -> Version:
    """Return the version of the CUDA toolkit whose ptxas assembles kernels: major, minor."""
    from cuda.bindings import nvjitlink

    major, minor = nvjitlink.version()
    return int(major), int(minor)


def require_isa(what: str, isa: Version) -> None:
    """Raise unless the toolkit's ptxas takes the PTX ISA that has `what`.

    CUDA 13.m assembles PTX ISA 9.m. Older ones have all instructions before PTX ISA 9.0, or are
    refused elsewhere.
    """
    major, minor = toolkit()
    if isa > max((9, 0), (major - 4, minor)):
        raise TypingError(
            f"{what} needs PTX ISA {isa[0]}.{isa[1]}, which CUDA {isa[0] + 4}.{isa[1]} and newer "
            f"assemble; this kernel is compiled with CUDA {major}.{minor}: update the CUDA toolkit"
        )


class LiteralTemplate(AbstractTemplate):
    """Types a call with its literals first, and keeps the error of a wrong literal.

    Numba types a call again without its literals when the first attempt fails. The error would be
    lost, and a wrong literal would compile like a run-time value.
    """

    prefer_literal = True
    refused: tuple[Any, TypingError] | None = None

    def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        """Type the call, or raise the error of its literals."""
        call = (args, tuple(kws.items()))
        refused, type(self).refused = type(self).refused, None
        if refused is not None and refused[0] == call:
            raise refused[1]
        try:
            return self.type_call(args, kws)
        except TypingError as error:
            plain = tuple(map(types.unliteral, args))
            plain_call = (plain, tuple((n, types.unliteral(t)) for n, t in kws.items()))
            if plain_call != call:
                type(self).refused = plain_call, error
            raise

    def type_call(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        """Return the signature of the call, or None, or raise a TypingError."""
        raise NotImplementedError


def instruction_function(
    function: Callable[..., Any],
    typer: Callable[..., Signature | None],
    lower: Callable[..., Any],
) -> None:
    """Let kernels call `function`: `typer(*types)` types a call, `lower` emits it.

    `typer` takes the types of the given arguments, by name. It returns a signature over them in the
    order of the parameters, or raises a TypingError. `lower(context, builder, sig, args)` returns
    the value; ``sig.pysig`` has the names.
    """

    class InstructionTemplate(LiteralTemplate):
        key = function

        def type_call(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
            parameters = utils.pysignature(function)  # most functions are never called
            try:
                bound = parameters.bind(*args, **kws)
            except TypeError as error:
                raise TypingError(f"{function.__name__}: {error}") from None
            result = typer(**bound.arguments)
            if result is None:
                return None
            # Numba's own binding misplaces keyword-only arguments.
            given = [
                parameters.parameters[n].replace(default=_EMPTY, kind=_PLAIN)
                for n in bound.arguments
            ]
            return result.replace(pysig=parameters.replace(parameters=given))

    InstructionTemplate.__name__ = f"{function.__name__}_template"
    typing_registry.register_global(function, types.Function(InstructionTemplate))
    lowering_registry.lower(function, types.VarArg(types.Any))(lower)
    LOWERED.add(function)


class Body:
    """A plain Python function, compiled per argument types and always inlined by LLVM.

    A parameter annotated ``Constant[...]`` keeps the type of a literal argument.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.constants = [
            name
            for name, annotation in function.__annotations__.items()
            if str(annotation).startswith("Constant[") and name != "return"
        ]
        FUNCTIONS.add(function)
        # A dispatcher per variant. The Numba type has only a weak reference to it.
        self._dispatchers: dict[Variant, tuple[Any, types.Dispatcher]] = {}
        #: The signatures of the dispatchers, which compile: by variant, argument types and names.
        self._resolved: dict[tuple[Any, ...], Signature | None] = {}

    @functools.cached_property
    def parameters(self) -> inspect.Signature:
        """The parameters of the function: most functions are registered and never called."""
        return utils.pysignature(self.function)

    @property
    def type(self) -> types.Dispatcher:
        """The Numba type of the function."""
        variant = compiled_variant()
        if variant not in self._dispatchers:
            dispatcher = self._compiler()(self.function)
            self._dispatchers[variant] = dispatcher, types.Dispatcher(dispatcher)
        return self._dispatchers[variant][1]

    def _compiler(self) -> Any:
        return cuda.jit(device=True, forceinline=self.function not in OUTLINED)

    def signature(self, context: object, args: Any, kws: Any) -> Signature | None:
        if self.constants:
            args, kws = self._with_constants(args, kws)
        try:
            sig = self._resolve(context, args, kws)
        except (TypingError, numba.core.errors.TypingError) as error:
            # Numba's own types raise Numba's TypingError, which numba-cuda does not catch.
            text = next((refusal for refusal in REFUSALS if refusal in str(error)), str(error))
            raise TypingError(text) from None
        if sig is None:
            return None
        result = sig.return_type
        result = result.of if isinstance(result, ReturnType) else result
        return sig.replace(pysig=self.parameters, return_type=result)

    def _resolve(
        self, context: object, args: Sequence[types.Type], kws: Mapping[str, types.Type]
    ) -> Signature | None:
        """Compile the function for argument types, unless it is, and return its signature."""
        key = (compiled_variant(), tuple(args), tuple(kws.items()))
        if key not in self._resolved:
            dispatcher = self.type.dispatcher
            pysig, folded = dispatcher.fold_argument_types(tuple(args), kws)
            compiled = dispatcher.compile_device(tuple(folded))
            self._resolved[key] = compiled.signature.replace(pysig=pysig)
        return self._resolved[key]

    def _with_constants(self, args: Any, kws: Any) -> tuple[Any, Any]:
        """Return the argument types: literal for ``Constant`` parameters, else not."""
        try:
            bound = self.parameters.bind(*args, **kws).arguments
        except TypeError as error:
            raise TypingError(f"{self.function.__name__}: {error}") from None
        for name, typ in bound.items():
            if name not in self.constants:
                bound[name] = types.unliteral(typ)
        names = list(self.parameters.parameters)
        if list(bound) == names[: len(bound)]:
            return tuple(bound.values()), {}
        return (), bound

    def returned(self, context: object, sig: Signature) -> Parts:
        """Return the parts of a call's result that the body makes."""
        result = self._resolve(context, sig.args, {}).return_type  # type: ignore[union-attr]
        return result.parts if isinstance(result, ReturnType) else None

    def call(self, context: Any, builder: Any, sig: Signature, args: Any) -> Any:
        for hook in CALLED:
            hook(context, builder, self.function)
        resolved = self._resolve(context.typing_context, sig.args, {})
        assert resolved is not None
        compiled = self._dispatchers[compiled_variant()][0].overloads[tuple(resolved.args)]
        name = compiled.fndesc.llvm_func_name
        facts = known_facts(name)
        if facts.is_per_call:
            if name in _ALLOCATED:  # each call in the source has its own memory
                return Body(self.function).call(context, builder, sig, args)
            _ALLOCATED.add(name)
        facts_of(builder.function).take_over(facts)
        # A compile that has loaded the backend is not in the list: it is a kernel's.
        if not (COMPILING and COMPILING[-1] in FUNCTIONS):
            define_use_flags(builder, facts.use_flags)
            for variable in facts.shared:
                define_shared(builder, *variable)
        function = context.get_function(self.type, resolved)
        context.add_linking_libs(getattr(function, "libs", ()))
        cast = [context.cast(builder, a, f, t) for a, f, t in zip(args, sig.args, resolved.args)]
        value = function(builder, cast)
        result = resolved.return_type
        if isinstance(result, ReturnType):
            return spill(context, builder, result.of, result.parts, value)
        return value


#: Called with (context, builder, function) before a call of a body is emitted: races mode.
CALLED: list[Callable[..., None]] = []
#: The Python functions of all bodies.
FUNCTIONS: set[Callable[..., Any]] = set()


def is_of_library(function: Any) -> bool:
    """Return whether a function is a body, or a kernel or device function of the library."""
    module = str(getattr(function, "__module__", ""))
    return function in FUNCTIONS or module.startswith("numba_tma.")


#: The latest errors of compile-time functions, which an error of the compile begins with.
REFUSALS: collections.deque[str] = collections.deque(maxlen=32)
# Bodies that allocate shared memory: the first call uses the body, each other call a copy.
_ALLOCATED: set[str] = set()

#: The functions of bodies that are never inlined.
OUTLINED: set[Callable[..., Any]] = set()

#: The bodies of `device_function`, by function, for lowerings that call them.
BODIES: dict[Callable[..., Any], Body] = {}


@registers("device_function")
def device_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a `numba_tma.backend.interface.device_function`, or a lowering's own."""
    body = BODIES[function] = Body(function)

    class BodyTemplate(body_template(body)):  # type: ignore[misc]
        key = function

        def call_body(self, args: Any, kws: Any) -> Any:
            return body.signature(self.context, args, kws)

    typing_registry.register_global(function, types.Function(BodyTemplate))
    lowering_registry.lower(function, types.VarArg(types.Any))(body.call)
    return function


class _LiteralBodyTemplate(LiteralTemplate):
    def type_call(self, args: Any, kws: Any) -> Any:
        return self.call_body(args, kws)


class _PlainBodyTemplate(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        return self.call_body(args, kws)


def body_template(body: Body) -> type:
    """Return the template of calls of `body`; a ``Constant`` parameter is typed literal first."""
    return _LiteralBodyTemplate if body.constants else _PlainBodyTemplate
