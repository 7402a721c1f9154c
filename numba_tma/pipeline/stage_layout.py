"""`StageLayout`: where the tiles of a ring's stages lie in shared memory.

The tiles of one name lie side by side, stage by stage. Each name begins at its tile's alignment.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from numba_tma.backend.interface import compile_time
from numba_tma.host.layout import Tile

#: Attributes of stages and of `StageTiles`, which cannot be names of tiles.
RESERVED = frozenset(
    {"barrier", "index", "owner", "slot", "tile", "get_tile", "expect_bytes", "enters", "close"}
)


class StageLayout:
    """The layout of a pipeline with named tiles in `num_stages` stages.

    A stage holds `k_group` tiles of each name.
    """

    num_stages: int
    tiles: tuple[tuple[str, Tile], ...]
    k_group: int = 1

    @property
    def tx_bytes(self) -> int:
        """Bytes of the copies into one stage."""
        return self.k_group * sum(tile.nbytes for _, tile in self.tiles)

    @property
    def alignment(self) -> int:
        """Alignment of the stages in shared memory, in bytes: the largest of the tiles'."""
        return max(tile.alignment for _, tile in self.tiles)

    def tile_offset(self, name: str) -> int:
        """Return the offset of the first stage's tile `name` from the tiles' base, in bytes."""
        offset = 0
        for other, tile in self.tiles:
            offset = round_up(offset, tile.alignment)
            if other == name:
                return offset
            offset += self.slots * tile_stride(tile)
        raise AttributeError(f"{self} has no tile {name!r}")

    @property
    def slots(self) -> int:
        """Tiles of each name in all stages."""
        return self.num_stages * self.k_group

    @property
    def storage_nbytes(self) -> int:
        """Shared memory of the tiles alone, in bytes."""
        name, tile = self.tiles[-1]
        return self.tile_offset(name) + self.slots * tile_stride(tile)

    @property
    def barriers_offset(self) -> int:
        """Offset of the barriers from the tiles' base, in bytes, if the pipeline has barriers."""
        return round_up(self.storage_nbytes, 8)

    @property
    def _name(self) -> str:
        return "+".join(name for name, _ in self.tiles)


@compile_time
def tile_stride(tile: Tile) -> int:
    """Return the bytes from one tile to the next of the same name."""
    return round_up(tile.shared_nbytes, tile.alignment)


def round_up(value: int, multiple: int) -> int:
    """Return the first multiple that is not below `value`."""
    return -(-value // multiple) * multiple


# ------------------------------------------------------------------------ checks of arguments


#: More barriers than the shared memory of any GPU's block, 227 KiB, has room for.
MOST_STAGES = 227 * 1024 // 8


def positive(owner: str, name: str, value: Any, rule: str = "an integer of at least 1") -> int:
    """Return a number of stages, tiles or answers, of which a block has at least 1.

    `rule` says so in the error. There may be as many as any block's shared memory holds.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{owner}({name}={value!r}): {rule}")
    if number > MOST_STAGES:
        raise ValueError(
            f"{owner}({name}={number}): a block has shared memory for {MOST_STAGES:,} barriers of "
            "stages at most, and less for their tiles: use fewer"
        )
    return number


def named_tiles(
    owner: type, payload: Any, tiles: dict[str, Any], taken: frozenset[str] = RESERVED
) -> tuple[tuple[str, Tile], ...]:
    """Return the tiles of a stage by name, from a payload or from keyword arguments of `owner`."""
    if payload is not None and tiles:
        raise TypeError(f"{owner.__name__}: give its tiles as a payload or by name, not both")
    named = tiles if payload is None else _payload_tiles(owner, payload)
    if not named:
        raise ValueError(
            f"{owner.__name__}(): name at least one tile, as in {owner.__name__}(4, x=TILE)"
        )
    for name, tile in named.items():
        if not isinstance(tile, Tile):
            raise TypeError(f"{owner.__name__}({name}=...) takes a Tile, not {tile!r}")
        if name in taken:
            raise ValueError(
                f"{owner.__name__}({name}=...): the name is reserved for an attribute of stages; "
                "choose another name"
            )
    return tuple(named.items())


def _payload_tiles(owner: type, payload: Any) -> dict[str, Any]:
    """Return the tiles of a payload by name."""
    if dataclasses.is_dataclass(payload) and not isinstance(payload, type | Tile):
        return {f.name: getattr(payload, f.name) for f in dataclasses.fields(payload)}
    if hasattr(payload, "_asdict") and not isinstance(payload, type):
        return dict(payload._asdict())
    raise TypeError(
        f"{owner.__name__}(payload={payload!r}): a payload is a dataclass or a NamedTuple of "
        f"tiles, such as StandardTilePayload(a, b); or give tiles by name, as in "
        f"{owner.__name__}(4, x=TILE)"
    )
