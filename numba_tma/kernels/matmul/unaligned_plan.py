"""The plan of the matmul kernel for operands of any alignment: what follows from its configuration.

An `UnalignedConfig` is what a user may choose. An `UnalignedPlan` adds types, layouts and epilogue,
and is all that the kernel is compiled for.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from numba_tma.kernels.matmul.plan import (
    UNALIGNED_TYPES,
    WGMMA_ROWS,
    NarrowPlan,
    UnalignedConfig,
    unaligned_extent,
)

if TYPE_CHECKING:
    from numba_tma.pipeline import Role, Roles

LOADERS = 256  #: threads that load: few would be bound by the latency of their instructions


@dataclass(frozen=True)
class UnalignedPlan(NarrowPlan):
    """All that the matmul kernel for operands of any alignment is compiled for."""

    config: UnalignedConfig

    REPAIR: ClassVar[str] = "smaller n, k or cluster"

    def __post_init__(self) -> None:
        if {self.a.name, self.b.name} - set(UNALIGNED_TYPES):
            raise ValueError(
                f"matmul(): config is {self.config}, whose kernel reads "
                f"{' and '.join(UNALIGNED_TYPES)}, but a is {self.a} and b is {self.b}: use a "
                "Config"
            )
        super().__post_init__()

    @property
    def rows(self) -> int:
        """Rows of an output tile."""
        is_first = self.config.first == "a"
        return WGMMA_ROWS if is_first else unaligned_extent(self.config.n, self.a_major)

    @property
    def columns(self) -> int:
        """Columns of an output tile."""
        is_first = self.config.first == "b"
        return WGMMA_ROWS if is_first else unaligned_extent(self.config.n, self.b_major)

    @property
    def blocks(self) -> int:
        """Resident blocks per SM, whose threads wait for memory in turn.

        Wide tiles leave few of two blocks' registers to the steps of an epilogue.
        """
        return 2 if self.n <= (32 if self.epilogue.changes else 64) else 1

    @property
    def _blocks(self) -> int:
        return 2  # also where `blocks` is 1: the times of the model are of so many stages

    @property
    def threads(self) -> int:
        """Threads of a block: those of `roles`."""
        return 128 + LOADERS

    @functools.cached_property
    def roles(self) -> Roles:
        """A warpgroup that multiplies, and those that load."""
        from numba_tma.pipeline import Roles, Warpgroups  # bodies, which the host does without

        return Roles(mma0=Warpgroups(1), load=Warpgroups(LOADERS // 128))

    @property
    def consumers(self) -> tuple[Role, ...]:
        """The role of the consumer (MMA) warpgroup."""
        return (self.roles.mma0,)
