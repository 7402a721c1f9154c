"""Functions in kernels: instructions that lower themselves, and Python bodies that are inlined."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from numba import cuda
from numba.core import types
from numba.cuda import utils
from numba.cuda.core import targetconfig
from numba.cuda.core.errors import TypingError
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.typing.templates import AbstractTemplate, Signature

from numba_tma.backend.numba_cuda.registration import LOWERED, registers

_EMPTY = inspect.Parameter.empty
_PLAIN = inspect.Parameter.POSITIONAL_OR_KEYWORD


def compute_capability() -> tuple[int, int]:
    """Return the (major, minor) that the function under compilation is for."""
    flags = targetconfig.ConfigStack.top_or_none()
    return tuple(flags.compute_capability[:2]) if flags is not None else (9, 0)


def require_architecture(what: str, sm: int | str) -> None:
    """Raise unless the target of this compilation has what came with architecture `sm`."""
    major, minor = compute_capability()
    target = 10 * major + minor
    if isinstance(sm, str) and target != int(sm[:-1]) and not (sm == "90a" and major >= 10):
        raise TypingError(
            f"{what} exists on sm_{sm} alone; this kernel is compiled for compute capability "
            f"{major}.{minor}"
        )
    if isinstance(sm, int) and sm >= 90 and major < 9:
        raise TypingError(
            f"{what} needs compute capability 9.0 (Hopper) or newer; this kernel is compiled for "
            f"{major}.{minor}, which has no Tensor Memory Accelerator"
        )
    if isinstance(sm, int) and target < sm:
        raise TypingError(
            f"{what} needs compute capability {sm // 10}.{sm % 10} or newer; this kernel is "
            f"compiled for {major}.{minor}"
        )


class LiteralTemplate(AbstractTemplate):
    """Types a call with its literals first, and holds to what is wrong with them.

    Numba tries a call again without its literals when it was refused with them; the refusal
    would be lost, and a wrong literal compiled like a value that is not known yet.
    """

    prefer_literal = True
    refused: tuple[Any, TypingError] | None = None

    def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
        """Type the call, or raise what its literals were refused with."""
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
    """Give `function` a meaning in kernels: `typer(*types)` types a call, `lower` emits it.

    `typer` takes the types of the arguments that were given, by name, and returns a signature over
    them in the order of the parameters, or raises a TypingError. `lower(context, builder, sig,
    args)` returns the value; ``sig.pysig`` has the names.
    """
    parameters = utils.pysignature(function)

    class Template(LiteralTemplate):
        key = function

        def type_call(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Any:
            try:
                bound = parameters.bind(*args, **kws)
            except TypeError as error:
                raise TypingError(f"{function.__name__}: {error}") from None
            result = typer(**bound.arguments)
            if result is None:
                return None
            # Numba's own binding misplaces what is keyword-only.
            given = [
                parameters.parameters[n].replace(default=_EMPTY, kind=_PLAIN)
                for n in bound.arguments
            ]
            return result.replace(pysig=parameters.replace(parameters=given))

    Template.__name__ = f"{function.__name__}_template"
    typing_registry.register(Template)
    typing_registry.register_global(function, types.Function(Template))
    lowering_registry.lower(function, types.VarArg(types.Any))(lower)
    LOWERED.add(function)


class Body:
    """A plain Python function, compiled per argument types and always inlined by LLVM."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.parameters = utils.pysignature(function)
        # The Numba type of a dispatcher refers to it weakly, so it is kept here.
        self.dispatcher = cuda.jit(device=True, forceinline=True)(function)
        self.type = types.Dispatcher(self.dispatcher)

    def signature(self, context: Any, args: Any, kws: Any) -> Signature | None:
        sig = self.type.get_call_type(context, args, kws)
        return sig.replace(pysig=self.parameters) if sig is not None else None

    def call(self, context: Any, builder: Any, sig: Signature, args: Any) -> Any:
        resolved = self.type.get_call_type(context.typing_context, sig.args, {})
        function = context.get_function(self.type, resolved)
        context.add_linking_libs(getattr(function, "libs", ()))
        cast = [context.cast(builder, a, f, t) for a, f, t in zip(args, sig.args, resolved.args)]
        return function(builder, cast)


#: What `device_function` compiled, for lowerings that call it.
BODIES: dict[Callable[..., Any], Body] = {}


@registers("device_function")
def device_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a `numba_tma.backend.interface.device_function`, or a lowering's own."""
    body = BODIES[function] = Body(function)

    class Template(AbstractTemplate):
        key = function

        def generic(self, args: Any, kws: Any) -> Any:
            return body.signature(self.context, args, kws)

    typing_registry.register(Template)
    typing_registry.register_global(function, types.Function(Template))
    lowering_registry.lower(function, types.VarArg(types.Any))(body.call)
    return function
