"""The kinds of primitive that the library is written in; imports no compiler.

A module of `ptx`, `device`, `pipeline` or `kernels` declares with the names below the functions and
classes that kernels may use. A declaration only enters a list. The backend walks the list at the
first compile, and at each later compile walks the new declarations. The simulator has no such list:
there, the same functions and classes are ordinary Python.

- *Scalars*: `u32`, `i32`, `i64` and `u64` are casts in bodies and annotations of fields; plain
  integers in the simulator.
- *Bodies*: a `device_function` is a plain ``def``, compiled per argument types and inlined.
- *Records*: a `device_class` is a dataclass whose instances a kernel builds and holds: by value in
  registers, or mutable in the frame of the function that made it. Its methods are bodies.
- *Constants*: a `constant_class` is a class of hashable host objects that a kernel takes from its
  globals as compile-time values: a tile, a pipeline, a scheduler, a `Site`.
- *Natives*: a `native` function, method or class has a lowering, under the name of its module in
  `numba_tma.backend.lowering`. The simulator runs its Python body. Shared memory (`shared_tile`,
  `shared_barrier`), vectors and fragments of registers, and checks at compile time (a lowering's
  typer raises) are natives. `primitives` has the natives by which a body states its requirements
  on the kernel.
- *Compile time*: a `compile_time` function runs when a kernel is compiled, and its result is a
  constant there. Of a body's branch on a constant, only the side taken is compiled.
- *Instructions*: an `instruction_row` is one row of the table in `numba_tma.ptx`.
- *Arguments*: a tensor map, or an array of maps, is a kernel's parameter. Only the host makes one,
  so `numba_tma.host.backend` types it.
- *Launch attributes*: clusters are declared on the kernel (`numba_tma.host.cluster_rules`), and
  launch bounds follow from its roles. The backend gives both to the compiled kernel.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from numba_tma.host.environment import simulated
from numba_tma.host.host_only import refuse_construction, refuse_methods
from numba_tma.host.loop_rules import WITHOUT_SCOPES

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# ------------------------------------------------------------------------------ scalars


@dataclass(frozen=True)
class Scalar:
    """An integer type of kernels, and the cast to it."""

    name: str  #: Numba's: "uint32"

    def __call__(self, value: Any) -> int:
        """Return an integer; only a kernel truncates it to the type's bits."""
        return int(value)


if TYPE_CHECKING or simulated():
    u32: TypeAlias = int  #: 32 bits without a sign
    i32: TypeAlias = int  #: 32 bits with a sign
    i64: TypeAlias = int  #: 64 bits with a sign
    u64: TypeAlias = int  #: 64 bits without a sign
    SCALARS: tuple[Scalar, ...] = ()  #: the scalars that the backend registers
else:
    u32, i32, i64, u64 = Scalar("uint32"), Scalar("int32"), Scalar("int64"), Scalar("uint64")
    SCALARS = (u32, i32, i64, u64)


# ------------------------------------------------------------------------- declarations


@dataclass(frozen=True)
class Declaration:
    """A subject that kernels may use; `kind` names the function below that declared it."""

    kind: str
    subject: Any
    options: Mapping[str, Any] = field(default_factory=dict)


#: Every declaration of this process, in order.
DECLARATIONS: list[Declaration] = []
_at_once: Callable[[], None] | None = None


def register_at_once(register: Callable[[], None]) -> None:
    """Let `declared` call `register` from now on: a compile has begun."""
    global _at_once
    _at_once = register


def declared() -> None:
    """Register new declarations, of a module that may have been imported during a compile.

    A kernel that uses ``tma.edit_map`` imports its module when Numba resolves the attribute.
    """
    if _at_once is not None:
        _at_once()


def _declare(kind: str, subject: Any, **options: Any) -> None:
    if not simulated():
        DECLARATIONS.append(Declaration(kind, subject, options))


def device_function(function: F) -> F:
    """Let kernels call the Python `function`; its body is compiled and always inlined."""
    _declare("device_function", function)
    return function


def device_class(
    *, static: tuple[str, ...] = (), mutable: bool = False, local: bool = False
) -> Callable[[C], C]:
    """Let kernels build and hold instances of a dataclass, and call its methods.

    The fields named in `static` are compile-time values and belong to the type. A field annotated
    ``u32``, ``i64`` or ``bool`` has that type; any other has the type of its initial value. A body
    may return mutable objects that it makes, and its caller keeps them in its frame. A user's
    device function may return neither these nor `local` objects, which own mutable ones. A class
    with methods ``has_next`` and ``take`` can be iterated over. A ``__getattr__`` gets the name as
    a constant. A ``__post_init__`` runs when an instance is compiled, and sees the static fields.
    """

    def declare(cls: C) -> C:
        _declare("device_class", cls, static=static, mutable=mutable, local=local)
        if simulated() and hasattr(cls, "enters") and hasattr(cls, "close"):
            cls.__enter__ = cls.__exit__ = _without_scopes  # type: ignore[attr-defined]
        return cls

    return declare


def _without_scopes(*_: object) -> None:
    """Refuse a ``with`` that no `scopes` has rewritten (simulator), as the compiler does."""
    raise TypeError(WITHOUT_SCOPES)


class constant_property(property):  # noqa: N801  # as `property`
    """A property of a device class, of its static fields alone: a constant in kernels."""


def constant_class(cls: C) -> C:
    """Let kernels use hashable host objects of `cls` from their globals, as compile-time values.

    Kernels can call the methods that ``cls.device_methods`` names; their bodies are inlined.
    """
    _declare("constant_class", cls)
    if simulated():
        _compute_once(cls)
        refuse_construction(cls)
        methods = getattr(cls, "device_methods", ())
        refuse_methods(cls, methods)
        if "start" in methods:
            cls.start = _started_once(cls.start)  # type: ignore[attr-defined]
    return cls


def _compute_once(cls: type) -> None:
    """Keep a constant's properties and text (simulator), for which every thread of a block asks."""
    found = {name: inspect.getattr_static(cls, name) for name in dir(cls)}
    kept: dict[str, Any] = {n: m.fget for n, m in found.items() if type(m) is property and m.fget}
    for name, compute in {**kept, "_text": cls.__repr__}.items():
        once: Any = functools.cached_property(compute)
        once.__set_name__(cls, name)
        setattr(cls, name, once)
    cls.__repr__ = _text  # type: ignore[assignment]


def _text(constant: Any) -> str:
    text: str = constant._text
    return text


def _started_once(start: F) -> F:
    """Refuse a start in a loop (simulator), as the compiler does."""

    @functools.wraps(start)
    def checked(self: Any, *args: Any, **kws: Any) -> Any:
        from numba_tma import simulator

        simulator.check_started_once(self)
        return start(self, *args, **kws)

    return checked  # type: ignore[return-value]


def native(subject: T) -> T:
    """Let kernels use a function, method or class by its lowering.

    Natives of ``numba_tma.device.shared`` have their lowerings in
    ``numba_tma.backend.lowering.shared``. A native without a lowering is an error at the first
    compile.
    """
    _declare("native", subject)
    return subject


def compile_time(function: F) -> F:
    """Run `function` when a kernel that calls it is compiled; its result is a constant there.

    Arguments known at compile time (literals, constants, None) are passed as values, any other as
    an `Unknown`. An exception of the function is the error of the compile. It may return an
    integer, a truth value, a string, None, a constant object, or a tuple of these.
    """
    _declare("compile_time", function)
    return function


def simulator_only(function: F) -> F:
    """Let bodies call `function`; the call does nothing in kernels."""
    _declare("simulator_only", function)
    return function


class Unknown:
    """A compile-time function's argument that is known at run time only.

    It has the compile-time attributes of the argument's type: the `tile` of a shared tile, the
    `rank` of a tensor map, for example.
    """

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    @property
    def is_integer(self) -> bool:
        """Whether the argument is an integer."""
        raise NotImplementedError

    @property
    def is_number(self) -> bool:
        """Whether the argument is an integer or a truth value."""
        raise NotImplementedError

    @property
    def num_numbers(self) -> int | None:
        """The length of a tuple of numbers or a vector; None for any other argument."""
        raise NotImplementedError

    @property
    def elements(self) -> tuple[Any, ...] | None:
        """The elements of a tuple, each a value or an `Unknown`; None for any other argument."""
        raise NotImplementedError

    @property
    def cls(self) -> type | None:
        """The class of a device object or a tensor map; None for any other argument."""
        raise NotImplementedError


def class_of(given: object) -> type | None:
    """Return the class of a value or of an `Unknown`; None if the type has none."""
    return given.cls if isinstance(given, Unknown) else type(given)


#: Annotates a parameter of a body that keeps the type of a literal argument: ``Constant[int]``.
Constant: TypeAlias = Annotated[T, "a literal stays one"]


def instruction_row(row: Any, function: F) -> F:
    """Let kernels call `function` for the instruction `row` of the table."""
    _declare("instruction_row", function, row=row)
    return function


_target: Callable[[], str] | None = None


def targets(target: Callable[[], str]) -> None:
    """Let the backend state the target of the compile."""
    global _target
    _target = target


def compile_target() -> str | None:
    """Return the target of the compile, such as "90a", at compile time; None in the simulator."""
    return _target() if _target is not None else None
