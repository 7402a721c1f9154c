"""Host objects that are parameters of a kernel: the backend types them, once there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_type_of: Callable[[Any], Any] | None = None


def typed_by(type_of: Callable[[Any], Any]) -> None:
    """Let `type_of` find the compiler's type of a `KernelArgument`."""
    global _type_of
    _type_of = type_of


class KernelArgument:
    """A host object that kernels take as an argument."""

    __slots__ = ()

    @property
    def _numba_type_(self) -> Any:
        """The compiler's type, for which numba-cuda's launcher asks at each launch."""
        if _type_of is None:
            raise AttributeError("no compiler is there that could type a kernel's argument")
        return _type_of(self)
