"""Names of the host that a kernel's own code cannot use: refused by the compiler, and simulated so.

A compiled kernel sees a map by its type, and constants by their values. In the simulator a kernel
is Python, and would see every attribute of the host's objects. So there the host's names check
their caller, which may be any function but a kernel or a device function. Outside the simulator
nothing is added to them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from types import CodeType, FunctionType, MemberDescriptorType
from typing import Any, TypeVar

from numba_tma.host.environment import simulated

F = TypeVar("F", bound=Callable[..., Any])

#: The code of the kernels and device functions that have run (simulator).
KERNEL_CODE: dict[int, CodeType] = {}


def call_refusal(name: str) -> str:
    """Return the error of a kernel that calls a function, or makes an object, of the host."""
    return (
        f"{name}(...) is for the host: call it before the launch, and let the kernel take the "
        "result as an argument or from its globals"
    )


def attribute_refusal(cls: type, name: str) -> str:
    """Return the error of a kernel that reads an attribute of an object of the host."""
    return (
        f"{cls.__name__}.{name} is for the host: read it before the launch, and pass the value to "
        "the kernel as an argument or a global"
    )


def array_refusal(name: str) -> str:
    """Return the error of a kernel that reads an attribute that arrays do not have."""
    if name in _OF_MAPS:
        return (
            f"array.{name}: an array is no tensor map; pass tensor_map(array, tile) to the kernel "
            "in its place"
        )
    return f"an array has no attribute {name!r} in a kernel"


#: Methods of tensor maps that kernels do not have.
HOST_METHODS = frozenset({"explain", "replace_address"})
_OF_MAPS = frozenset(
    {"load", "store", "reduce", "prefetch_tile", "load_im2col", "store_im2col", "sequence"}
    | {"gather", "scatter", "prefetch"}
)


def is_of_maps(name: str) -> bool:
    """Return whether `name` is a method of tensor maps, which a kernel may try on an array."""
    return name in _OF_MAPS


def not_in_shared_memory(what: str) -> str:
    """Return the error of a copy between a map and an array in global memory."""
    return (
        f"the tile is {what}, which is not in shared memory; give a stage's tile, a shared_tile or "
        "a cuda.shared.array"
    )


#: Functions and classes of the host, whose calls a compiler refuses in kernels.
HOST_ONLY: list[Callable[..., Any]] = []


def host_only(function: F) -> F:
    """Refuse calls of a function, or the construction of a class, by a kernel's own code."""
    if not simulated():
        HOST_ONLY.append(function)
        return function
    if isinstance(function, type):
        refuse_construction(function)
        return function

    @functools.wraps(function)
    def checked(*args: Any, **kws: Any) -> Any:
        if id(sys._getframe(1).f_code) in KERNEL_CODE:
            raise TypeError(call_refusal(function.__name__))
        return function(*args, **kws)

    return checked  # type: ignore[return-value]


def refuse_construction(cls: type) -> None:
    """Refuse objects of a class that a kernel's own code makes (simulator)."""
    make = cls.__init__  # type: ignore[misc]

    @functools.wraps(make)
    def checked(self: object, *args: Any, **kws: Any) -> None:
        if id(sys._getframe(1).f_code) in KERNEL_CODE:
            raise TypeError(call_refusal(cls.__name__))
        make(self, *args, **kws)

    cls.__init__ = checked  # type: ignore[misc]


def refuse_methods(cls: type, allowed: Collection[str]) -> None:
    """Refuse a class's public methods to a kernel's own code, but for `allowed` (simulator)."""
    for name, member in list(vars(cls).items()):
        if type(member) is FunctionType and not name.startswith("_") and name not in allowed:
            setattr(cls, name, _checked_method(cls, name, member))


def refuse_attributes(cls: type) -> None:
    """Refuse the public attributes of a class to a kernel's own code, methods aside (simulator).

    Those that ``cls._of_the_type`` names have a value in kernels, which the compiler finds too.
    """
    for name, member in list(vars(cls).items()):
        if not name.startswith("_") and isinstance(member, property | MemberDescriptorType):
            setattr(cls, name, _checked_attribute(cls, name, member))


def _checked_method(cls: type, name: str, method: FunctionType) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(*args: Any, **kws: Any) -> Any:
        if id(sys._getframe(1).f_code) in KERNEL_CODE:
            raise AttributeError(attribute_refusal(cls, name))
        return method(*args, **kws)

    return checked


def _checked_attribute(cls: type, name: str, member: Any) -> property:
    known = getattr(cls, "_of_the_type", {}).get(name)

    def read(self: object) -> Any:
        if id(sys._getframe(1).f_code) in KERNEL_CODE:
            if known is not None:
                return known(self)
            raise AttributeError(attribute_refusal(cls, name))
        return member.__get__(self, type(self))

    return property(read, getattr(member, "__set__", None), doc=member.__doc__)
