"""What the host asks of what stands to its right: a compiler, or the simulator.

The package hands the answers in when it is imported (`numba_tma.__init__`), as functions that
import what they need when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from numba_tma.host.environment import simulated
from numba_tma.host.host_only import HOST_METHODS, refuse_attributes, refuse_methods

if TYPE_CHECKING:
    from numba_tma.host.annotations import Kernel
    from numba_tma.host.exported_arguments import ExportedArgument
    from numba_tma.host.kernel_image import KernelImage
    from numba_tma.host.launch_rules import Resources
    from numba_tma.host.launching import Launcher


def _none(*_: Any) -> Any:
    raise AttributeError("there is no compiler here that could take a kernel's argument")


_type_of: Callable[[Any], Any] = _none
_launcher: Callable[[], type[Launcher]] = _none


def typed_by(type_of: Callable[[Any], Any]) -> None:
    """Let `type_of` find the compiler's type of a `KernelArgument`."""
    global _type_of
    _type_of = type_of


def launched_by(find: Callable[[], type[Launcher]]) -> None:
    """Let `find` return the launcher of compiled kernels."""
    global _launcher
    _launcher = find


def compiled_launcher() -> type[Launcher]:
    """Return the launcher of compiled kernels."""
    return _launcher()


_declarations: Callable[[], Iterable[tuple[str, Any, Any]]] = tuple


def declared_by(declarations: Callable[[], Iterable[tuple[str, Any, Any]]]) -> None:
    """Let `declarations` return what was declared for kernels: kind, subject and options."""
    global _declarations
    _declarations = declarations


def declarations() -> Iterable[tuple[str, Any, Any]]:
    """Return kind, subject and options of everything that was declared for kernels."""
    return _declarations()


_compile: Callable[[Any, tuple[Any, ...]], Any] = _none


def compiled_by(compile_image: Callable[[Any, tuple[Any, ...]], Any]) -> None:
    """Let `compile_image` compile a kernel for arguments."""
    global _compile
    _compile = compile_image


def compiled_image(kernel: Kernel, arguments: tuple[Any, ...]) -> KernelImage | None:
    """Return a kernel compiled for arguments; None if only the compiler's package launches it."""
    image: KernelImage | None = _compile(kernel, arguments)
    return image


_examine: Callable[[Kernel, tuple[object, ...]], Resources] = _none


def examined_by(examine: Callable[[Kernel, tuple[object, ...]], Resources]) -> None:
    """Let `examine` compile a kernel as a launch does, and return its resources."""
    global _examine
    _examine = examine


def resources_of(kernel: Kernel, arguments: tuple[object, ...]) -> Resources:
    """Return the resources of the kernel that a launch with these arguments launches."""
    return _examine(kernel, arguments)


_export: Callable[[Any, Any, tuple[int, int, str], int], Any] = _none


def exported_by(export_image: Callable[[Any, Any, tuple[int, int, str], int], Any]) -> None:
    """Let `export_image` compile a kernel for a signature."""
    global _export
    _export = export_image


def exported_image(
    kernel: Kernel, signature: object, capability: tuple[int, int, str], shared: int
) -> tuple[KernelImage, tuple[ExportedArgument, ...]]:
    """Return a kernel compiled for a compute capability, and the types of its arguments."""
    exported: tuple[KernelImage, tuple[ExportedArgument, ...]] = _export(
        kernel, signature, capability, shared
    )
    return exported


_traced: Callable[[], Any] = _none


def traced_by(find: Callable[[], Any]) -> None:
    """Let `find` return the module that compiles and launches kernels with a trace."""
    global _traced
    _traced = find


def traced_kernels() -> Any:
    """Return the module that compiles and launches kernels with a trace."""
    return _traced()


_copies: Callable[[], ModuleType] | None = None


def executed_by(find: Callable[[], ModuleType]) -> None:
    """Let `find` return the bodies that a map's methods have in the simulator."""
    global _copies
    _copies = find


def in_kernels(method: str) -> Callable[..., None]:
    """Return the body of a map's method in the simulator; without that, methods are for kernels."""
    if _copies is None:
        raise RuntimeError(
            f"TensorMap.{method} runs inside a @cuda.jit kernel, which takes the map as an "
            "argument; it cannot be called on the host"
        )
    body: Callable[..., None] = getattr(_copies(), method)
    return body


class LaunchParameter(NamedTuple):
    """How a launch of code from the cache passes a `KernelArgument`."""

    kind: tuple[Any, ...]  #: all that compiled code depends on
    form: str  #: a format of `struct`
    value: Any


class KernelArgument:
    """A host object that kernels take as an argument, or as a global."""

    __slots__ = ()
    #: Whether kernels see an object by its type alone, so that only methods are left of it.
    _opaque = False

    def __init_subclass__(cls) -> None:
        if cls._opaque and simulated():
            refuse_attributes(cls)
            refuse_methods(cls, vars(cls).keys() - HOST_METHODS)

    @property
    def _launch_parameter_(self) -> LaunchParameter | None:
        """How a launch passes the object; None if only the compiler's package can."""
        return None

    @property
    def _numba_type_(self) -> Any:
        """The compiler's type, for which Numba asks: at each launch, or when it meets a global."""
        return _type_of(self)
