"""What makes Python classes and functions usable in kernels; nothing at all in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from numba_tma.host.environment import simulated

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

if simulated() or TYPE_CHECKING:
    u32: TypeAlias = int  #: 32 bits: of a device class's field, or as a cast in a body
    i32: TypeAlias = int  #: 32 bits with a sign: a cast
    i64: TypeAlias = int  #: 64 bits
    u64: TypeAlias = int  #: the same without a sign; a cast only

    def device_class(
        *, static: tuple[str, ...] = (), mutable: bool = False, local: bool = False
    ) -> Callable[[C], C]:
        """Return the class as it is: the simulator runs plain Python."""
        return lambda cls: cls

    def constant_class(cls: C) -> C:
        """Return the class as it is: the simulator runs plain Python."""
        return cls

    def device_function(function: F) -> F:
        """Return the function as it is: the simulator runs plain Python."""
        return function

else:
    from numba.core.types import int32 as i32  # noqa: F401
    from numba.core.types import int64 as i64  # noqa: F401
    from numba.core.types import uint32 as u32  # noqa: F401
    from numba.core.types import uint64 as u64  # noqa: F401

    from numba_tma.backend.numba_cuda import constant_class, device_class, device_function  # noqa: F401
