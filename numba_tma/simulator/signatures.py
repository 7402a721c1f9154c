"""The compiler's names for signatures of kernels, which the simulator accepts and does not read."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.host.boxes import Copies
from numba_tma.host.layout import Tile


@dataclass(frozen=True)
class SimulatedMapType:
    """Stands for the compiler's type of a `TensorMap` in ``@cuda.jit((TensorMapType(2, TILE),))``.

    The compiler's class of this name has the meaning of the parameters.
    """

    rank: int | None = None
    tile: Tile | None = None
    interleave: int | None = None
    partial_rows: str = ""
    copies: Copies | None = None
    mode: str = "tiled"
    editable: bool = False


TensorMapType = SimulatedMapType  #: its public name
