"""What the host asks of a backend, which stands to its right and comes with the first kernel.

The package hands both answers in when it is imported (`numba_tma.__init__`), as functions that
import the backend when they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


class KernelArgument:
    """A host object that kernels take as an argument."""

    __slots__ = ()

    @property
    def _numba_type_(self) -> Any:
        """The compiler's type, for which numba-cuda's launcher asks at each launch."""
        return _type_of(self)
