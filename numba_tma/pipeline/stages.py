"""The stages that a pipeline hands out: their tiles by name, and how a scope ends with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba_tma.backend.interface import device_class, u32
from numba_tma.device.barrier import Barrier
from numba_tma.device.shared import SharedTile
from numba_tma.pipeline.stage_layout import tile_stride
from numba_tma.simulator import BadOperand


@device_class()
@dataclass
class StageTiles:
    """The tiles of one slot, by name: of a stage, or of a part of it."""

    owner: Any
    slot: u32

    def __getattr__(self, name: str) -> SharedTile:
        return slot_tile(self.owner, self.slot, name)


class _Stage:
    """What stages of both sides have, for the simulator."""

    owner: Any
    index: int

    def __getattr__(self, name: str) -> SharedTile:
        pipeline = self.owner.pipeline
        if pipeline.k_group > 1 and name in dict(pipeline.tiles):
            raise AttributeError(k_group_rule(pipeline, name))
        return slot_tile(self.owner, self.index, name)

    def tile(self, j: int) -> StageTiles:
        """Return the j-th tile of each name, of `k_group`: ``stage.tile(j).x``."""
        k_group = self.owner.pipeline.k_group
        if not 0 <= j < k_group:
            raise BadOperand(f"stage.tile({j}): the stage holds the tiles 0 to {k_group - 1}")
        return StageTiles(self.owner, self.index * k_group + j)

    def get_tile(self, j: int = 0) -> tuple[SharedTile, ...]:
        """Return the j-th tile of each name as a tuple, in the order of the payload."""
        tiles = self.tile(j)
        return tuple(getattr(tiles, name) for name, _ in self.owner.pipeline.tiles)


@device_class()
@dataclass
class ProducerStage(_Stage):
    """A stage to be filled: its tiles by name, and the `barrier` that their copies complete on."""

    owner: Any
    index: u32

    @property
    def barrier(self) -> Barrier:
        """The barrier that completes when the stage has been filled."""
        barriers = self.owner.barriers
        return Barrier(barriers + 8 * self.index, self.owner.pipeline.ledger_offset)

    def expect_bytes(self, tx_bytes: int) -> None:
        """Check `tx_bytes` against the bytes that the stage expects, which follow from its tiles.

        For kernels that say it again. It costs nothing, and another number is an error.
        """
        check_bytes(self.owner.pipeline, tx_bytes)

    def enters(self) -> bool:
        """Return True: every thread that has acquired the stage executes its scope."""
        return True

    def close(self) -> None:
        """Commit the stage."""
        self.owner.commit()


@device_class()
@dataclass
class ConsumerStage(_Stage):
    """A full stage: its tiles by name."""

    owner: Any
    index: u32

    def enters(self) -> bool:
        """Return True: every thread that has acquired the stage executes its scope."""
        return True

    def close(self) -> None:
        """Release the stage, whichever others are held: scopes are nested to hold several."""
        self.owner._release_stage(self.index)


def slot_tile(owner: Any, slot: int, name: str) -> SharedTile:
    """Return the tile `name` in a slot of the ring."""
    for other, tile in owner.pipeline.tiles:
        if other == name:
            offset = owner.pipeline.tile_offset(name) + slot * tile_stride(tile)
            return SharedTile(tile, owner.base + offset, owner.accesses)
    raise AttributeError(f"{owner.pipeline} has no tile {name!r}")


def k_group_rule(pipeline: Any, name: str) -> str:
    """Return what is wrong with ``stage.x`` where a stage has several."""
    return (
        f"stage.{name}: a stage of {pipeline} holds {pipeline.k_group} tiles of each name; say "
        f"which, as in stage.tile(j).{name}"
    )


def check_bytes(pipeline: Any, tx_bytes: int) -> None:
    """Raise unless `tx_bytes` are those that the tiles of a stage have."""
    if tx_bytes != pipeline.tx_bytes:
        given = f"{tx_bytes:,}" if isinstance(tx_bytes, int | float) else repr(tx_bytes)
        terms = " + ".join(f"{t.nbytes:,} ({n})" for n, t in pipeline.tiles)
        each = f"{pipeline.k_group} x ({terms})" if pipeline.k_group > 1 else terms
        raise BadOperand(
            f"expect_bytes({given}): a stage of {pipeline} receives {each} = "
            f"{pipeline.tx_bytes:,} B, which it expects by itself; leave the call out, or correct "
            "the number"
        )
