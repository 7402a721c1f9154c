"""The form of a stencil's kernel: all that is compiled into it besides the function."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.host.dtypes import DType
from numba_tma.kernels.stencil.plan import Radii


@dataclass(frozen=True)
class StencilForm:
    """What a stencil's kernel is made of; axes are planes, rows and columns."""

    tile: tuple[int, int]  #: rows and columns
    dtype: DType
    radii: tuple[Radii, ...]  #: of each array
    is_array: tuple[bool, ...]  #: of each parameter of the function
    axes: int  #: indices of the function
    outputs: int
    boundaries: tuple[str | None, str | None, str | None]
    margins: tuple[tuple[int, int], ...]  #: neighbours that must be in the array; else `cval`
    cval: float
    stages: int
    warps: int

    @property
    def radius(self) -> int:
        """Planes on both sides of the middle one."""
        return max(planes for planes, _, _ in self.radii)

    @property
    def needs_sources(self) -> bool:
        """Whether threads read the arrays beside the tiles."""
        return "wrap" in self.boundaries[1:]
