"""``cuda.atomic`` on objects of the library: numba-cuda's templates know arrays alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from numba.core import types
from numba.cuda import cudadecl, stubs
from numba.cuda.typing.templates import AbstractTemplate

Typer: TypeAlias = Callable[[str, Sequence[types.Type]], Any]


def type_atomics(typer: Typer) -> dict[str, Any]:
    """Type the operations by `typer` first; return them by name, as lowerings are registered.

    `typer` is called with an operation's name and the types of its arguments. It returns a
    signature, or None to leave the call to numba-cuda.
    """
    names = [name for name in vars(stubs.atomic) if not name.startswith("_")]
    for name in names:
        template = getattr(cudadecl, f"Cuda_atomic_{name.rstrip('_')}")
        template.generic = _typed_first(name, typer, template.generic)
    return {name: getattr(stubs.atomic, name) for name in names}


def _typed_first(name: str, typer: Typer, arrays: Callable[..., object]) -> Callable[..., Any]:
    def generic(
        self: AbstractTemplate, args: tuple[types.Type, ...], kws: dict[str, types.Type]
    ) -> Any:
        found = typer(name, args) if args and not kws else None
        return arrays(self, args, kws) if found is None else found

    return generic
