"""What a stage holds: tiles by name, given one by one or as a payload, and where each lies."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from numba_tma.layout import Tile

#: Names that mean something else on a stage, or on what its `tile` returns.
RESERVED = frozenset(
    {"barrier", "index", "owner", "slot", "tile", "get_tile", "expect_bytes", "enters", "close"}
)


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


def payload_tiles(payload: Any) -> dict[str, Tile]:
    """Return the tiles of a payload by name."""
    if dataclasses.is_dataclass(payload) and not isinstance(payload, type | Tile):
        return {f.name: getattr(payload, f.name) for f in dataclasses.fields(payload)}
    if hasattr(payload, "_asdict") and not isinstance(payload, type):
        return dict(payload._asdict())
    raise TypeError(
        f"TilePipeline(payload={payload!r}): a payload is a dataclass or a NamedTuple of tiles, "
        "such as StandardTilePayload(a, b); or give tiles by name, as in TilePipeline(4, x=TILE)"
    )


def check_tiles(tiles: dict[str, Tile]) -> None:
    """Raise unless `tiles` are tiles, at least one, by names that a stage can have."""
    if not tiles:
        raise ValueError("TilePipeline(): name at least one tile, as in TilePipeline(4, x=TILE)")
    for name, tile in tiles.items():
        if not isinstance(tile, Tile):
            raise TypeError(f"TilePipeline({name}=...) takes a Tile, not {tile!r}")
        if name in RESERVED:
            raise ValueError(f"TilePipeline({name}=...): the name means something else on a stage")


def tile_stride(tile: Tile) -> int:
    """Return the bytes from one tile of a name to the next."""
    return round_up(tile.shared_nbytes, tile.alignment)


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple of `multiple` that `value` does not exceed."""
    return -(-value // multiple) * multiple
