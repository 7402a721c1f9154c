"""What a function under compilation asks of the kernel that it ends up in.

A body is compiled into a module of its own: what it allocates and requires is kept by its name in
LLVM, and a function that calls it takes it over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numba.cuda.core.errors import TypingError


@dataclass
class Facts:
    """What a function, with all that it calls, asks of its kernel."""

    #: The shared variables that its kernel defines: name, bytes, alignment, what errors call them.
    shared: list[tuple[str, int, int, str]] = field(default_factory=list)
    #: Whether it, or a callee, allocates shared memory.
    allocates: bool = False
    #: Constants of its module that say whether the kernel uses tiles; see `kernels.tiles_are_used`.
    use_flags: list[str] = field(default_factory=list)
    #: The clusters that it runs in, and what is wrong with others.
    clusters: list[tuple[tuple[int, ...], Callable[[Any], str]]] = field(default_factory=list)
    launch_bounds: tuple[int, int] | None = None
    #: The shared memory of a block, in bytes, on the compute capability that it is compiled for.
    shared_limit: int = 0
    target: tuple[int, int] = (0, 0)

    @property
    def is_per_call(self) -> bool:
        """Whether each call in the source needs a copy of the function."""
        return self.allocates or bool(self.use_flags)

    def take_over(self, callee: Facts) -> None:
        """Add what a function that is called, and inlined, asks for."""
        self.shared += callee.shared
        self.use_flags += callee.use_flags
        self.clusters += callee.clusters
        if callee.launch_bounds:
            self.require_launch_bounds(callee.launch_bounds)
        if callee.allocates:
            self.allocates, self.shared_limit = True, callee.shared_limit
            self.target = callee.target

    def require_launch_bounds(self, bounds: tuple[int, int]) -> None:
        """Ask for launch bounds; a kernel has the same for all that it calls."""
        before = self.launch_bounds or bounds
        if before != bounds:
            raise TypingError(
                f"set_registers: one role is of a block of {before[0]} threads and another of one "
                f"of {bounds[0]}; a kernel has the roles of one Roles"
            )
        self.launch_bounds = bounds


_FACTS: dict[str, Facts] = {}


def facts_of(function: Any) -> Facts:
    """Return the facts of an LLVM function, to be completed."""
    return _FACTS.setdefault(function.name, Facts())


def known_facts(name: str) -> Facts:
    """Return the facts of the compiled function `name`."""
    return _FACTS.get(name, _NONE)


_NONE = Facts()

#: The Python functions that are being compiled, the innermost last.
COMPILING: list[Callable[..., Any]] = []
