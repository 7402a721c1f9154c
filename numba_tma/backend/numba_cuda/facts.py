"""The requirements of a function under compilation on the kernel that calls it.

A body is compiled into a module of its own. Its allocations and requirements are kept under its
LLVM name, and its callers take them over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numba.cuda.core.errors import TypingError

from numba_tma.host.tensor_tiles import ColumnClaim


@dataclass
class Facts:
    """The requirements of a function, and of its callees, on its kernel."""

    #: The shared variables that its kernel defines: name, bytes, alignment, name in errors.
    shared: list[tuple[str, int, int, str]] = field(default_factory=list)
    #: Whether the function, or a callee, allocates shared memory.
    allocates: bool = False
    #: Its module's flags of whether the kernel uses tiles; see `kernel_globals.load_use_flag`.
    use_flags: list[str] = field(default_factory=list)
    #: Whether a cluster size meets a requirement of it, with the function that writes the error.
    clusters: list[tuple[Callable[[Any], bool], Callable[[Any], str]]] = field(default_factory=list)
    launch_bounds: tuple[int, int] | None = None
    #: The threads of a block, if debug mode limits the registers to what a block of them has.
    block: int = 0
    #: The columns of tensor memory that its matrices take.
    columns: list[ColumnClaim] = field(default_factory=list)
    #: The limit of a block's shared memory on the target, in bytes.
    shared_limit: int = 0
    target: str = ""

    @property
    def is_per_call(self) -> bool:
        """Whether each call in the source needs a copy of the function."""
        return self.allocates or bool(self.use_flags)

    def take_over(self, callee: Facts) -> None:
        """Add the requirements of a callee, which is inlined."""
        self.shared += callee.shared
        self.use_flags += callee.use_flags
        self.clusters += callee.clusters
        self.block = self.block or callee.block
        for claim in callee.columns:
            self.claim_columns(claim)
        if callee.launch_bounds:
            self.require_launch_bounds(callee.launch_bounds)
        if callee.allocates:
            self.allocates, self.shared_limit = True, callee.shared_limit
            self.target = callee.target

    def require_launch_bounds(self, bounds: tuple[int, int]) -> None:
        """Require launch bounds; all functions of a kernel must require the same."""
        before = self.launch_bounds or bounds
        if before != bounds:
            raise TypingError(
                f"set_registers: one role is of a block of {before[0]} threads and another of one "
                f"of {bounds[0]}; a kernel has the roles of one Roles"
            )
        self.launch_bounds = bounds

    def claim_columns(self, claim: ColumnClaim) -> None:
        """Let a matrix have columns of tensor memory, unless another one has some of them."""
        try:
            for other in self.columns:
                claim.check(other)
        except ValueError as error:
            raise TypingError(str(error)) from None
        self.columns.append(claim)


_FACTS: dict[str, Facts] = {}


def facts_of(function: Any) -> Facts:
    """Return the facts of an LLVM function, which the caller may complete."""
    return _FACTS.setdefault(function.name, Facts())


def known_facts(name: str) -> Facts:
    """Return the facts of the compiled function `name`."""
    return _FACTS.get(name, _NONE)


_NONE = Facts()

#: The Python functions under compilation, the innermost last.
COMPILING: list[Callable[..., Any]] = []
