"""Payloads, which name the tiles that a stage of a matmul's `TilePipeline` holds."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.host.layout import Tile


@dataclass(frozen=True)
class StandardTilePayload:
    """The tiles of a matmul: a stage holds one of `a` and one of `b`."""

    a: Tile
    b: Tile


@dataclass(frozen=True)
class BlockScaledTilePayload:
    """The tiles of a matmul with block scales: `sfa` and `sfb` are the scales of `a` and `b`."""

    a: Tile
    b: Tile
    sfa: Tile
    sfb: Tile
