"""How a matmul is cut up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """How a matmul is cut up: tiles of the result, and how they are made."""

    m: int = 128  #: rows of a tile, 64 for each warpgroup that multiplies
    n: int = 256  #: columns of a tile
    k: int = 128  #: bytes along K in a stage
    stages: int = 4  #: that hold what was loaded
    cluster: int = 1  #: blocks, one below the other, that share what they load of b
    group: int = 16  #: rows of tiles that blocks take before they move to the right
    out_bytes: int = 128  #: of the rows of the pieces in which a result is stored
    out_stages: int = 2  #: of such pieces, for each warpgroup
    splits: int = 1  #: parts of K that are added up afterwards
