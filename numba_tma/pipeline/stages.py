"""The stages that `acquire` and `wait` return: their tiles by name, and the end of their scope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba_tma.backend.interface import (
    Constant,
    Unknown,
    compile_time,
    device_class,
    device_function,
    u32,
)
from numba_tma.backend.primitives import add32
from numba_tma.device.barrier import Barrier, PairBarrier
from numba_tma.device.shared import SharedTile
from numba_tma.host.layout import Tile
from numba_tma.pipeline.stage_layout import StageLayout, tile_stride
from numba_tma.simulator import BadOperand


@device_class()
@dataclass
class StageTiles:
    """The tiles of one slot by name. A stage has `k_group` slots."""

    owner: Any
    slot: u32

    def __getattr__(self, name: Constant[str]) -> SharedTile:
        return slot_tile(self.owner, self.slot, name)


class GroupedStage:
    """Access to tiles, which the stages of producer and consumer share."""

    owner: Any
    index: u32

    def __getattr__(self, name: Constant[str]) -> SharedTile:
        check_single(self.owner.pipeline, name)
        return slot_tile(self.owner, self.index, name)

    def tile(self, j: Constant[int]) -> StageTiles:
        """Return the j-th tile of each name (0 to `k_group` - 1): ``stage.tile(j).x``."""
        check_tile_number(self.owner.pipeline, j)
        return StageTiles(self.owner, self.index * self.owner.pipeline.k_group + j)

    def get_tile(self, j: Constant[int] = 0) -> tuple[SharedTile, ...]:
        """Return the j-th tile of each name as a tuple, in the order of the payload."""
        check_tile_number(self.owner.pipeline, j)
        slot = u32(self.index * self.owner.pipeline.k_group + j)
        return tiles_from(self.owner, slot, 0)

    def enters(self) -> bool:
        """Return True: every thread that has acquired the stage executes its scope."""
        return True


@device_class()
@dataclass
class ProducerStage(GroupedStage):
    """An acquired stage: its tiles by name, and the `barrier` on which their copies complete."""

    owner: Any
    index: u32

    @property
    def barrier(self) -> Barrier:
        """The full barrier of the stage; in a CTA pair that of the even block."""
        barriers = self.owner.barriers
        if self.owner.pipeline.in_pair:
            return PairBarrier(barriers + 8 * self.index)
        return Barrier(barriers + 8 * self.index, self.owner.pipeline.ledger_offset)

    def expect_bytes(self, tx_bytes: Constant[int]) -> None:
        """Check `tx_bytes` against the bytes of the stage, which follow from its tiles.

        The check happens when the kernel is compiled and adds no instruction. Another number is an
        error.
        """
        check_bytes(self.owner.pipeline, tx_bytes)

    def close(self) -> None:
        """Commit the stage."""
        self.owner.commit()


@device_class()
@dataclass
class ConsumerStage(GroupedStage):
    """A full stage: its tiles by name."""

    owner: Any
    index: u32

    def close(self) -> None:
        """Release the stage. Nested scopes hold several stages."""
        self.owner._release_stage(self.index)


@device_function
def slot_tile(owner: Any, slot: int, name: Constant[str]) -> SharedTile:
    """Return the tile `name` in a slot. `owner` has a pipeline, a base and accesses."""
    tile, offset = tile_named(owner.pipeline, name), tile_offset(owner.pipeline, name)
    address = add32(add32(owner.base, offset), slot * tile_stride(tile))
    return SharedTile(tile, address, owner.accesses)


@device_function
def tiles_from(owner: Any, slot: int, number: Constant[int]) -> tuple[SharedTile, ...]:
    """Return the tiles of a slot as a tuple, from the `number`-th name on."""
    first = slot_tile(owner, slot, tile_name(owner.pipeline, number))
    if is_last(owner.pipeline, number):
        return (first,)
    return (first,) + tiles_from(owner, slot, following(owner.pipeline, number))  # noqa: RUF005


# ------------------------------------------------------------------- when a kernel is compiled


@compile_time
def tile_named(pipeline: StageLayout, name: str) -> Tile:
    """Return the tile `name` of a pipeline's stages."""
    tile = dict(pipeline.tiles).get(name)
    if tile is None:
        raise AttributeError(f"{pipeline} has no tile {name!r}")
    return tile


@compile_time
def tile_offset(pipeline: StageLayout, name: str) -> int:
    """Return the offset of the first tile `name` from the pipeline's base, in bytes."""
    return pipeline.tile_offset(name)


@compile_time
def tile_name(pipeline: StageLayout, number: int) -> str:
    """Return the `number`-th name of a pipeline's tiles."""
    return pipeline.tiles[number][0]


@compile_time
def is_last(pipeline: StageLayout, number: int) -> bool:
    """Return whether a stage has no name after the `number`-th."""
    return number == len(pipeline.tiles) - 1


@compile_time
def following(pipeline: StageLayout, number: int) -> int:
    """Return the number of the next name. Raise after the last one: typing reaches it too."""
    if is_last(pipeline, number):
        raise ValueError(f"{pipeline} has {number + 1} tiles")
    return number + 1


@compile_time
def check_single(pipeline: StageLayout, name: str) -> None:
    """Raise for ``stage.x`` if a stage holds several tiles x."""
    if pipeline.k_group > 1 and name in dict(pipeline.tiles):
        raise AttributeError(
            f"stage.{name}: a stage of {pipeline} holds {pipeline.k_group} tiles of each name; say "
            f"which, as in stage.tile(j).{name}"
        )


@compile_time
def check_tile_number(pipeline: StageLayout, j: int) -> None:
    """Raise unless a stage has a j-th tile of each name."""
    if isinstance(j, Unknown):
        if not j.is_integer:
            raise BadOperand(f"stage.tile(j): j is an integer, not {j}")
    elif not 0 <= j < pipeline.k_group:
        raise BadOperand(f"stage.tile({j}): the stage holds the tiles 0 to {pipeline.k_group - 1}")


@compile_time
def check_bytes(pipeline: StageLayout, tx_bytes: int) -> None:
    """Raise unless `tx_bytes` is the number of bytes of a stage's tiles."""
    if isinstance(tx_bytes, Unknown):
        raise BadOperand(
            "expect_bytes(tx_bytes=...) must be a compile-time constant, but its type is "
            f"{tx_bytes}"
        )
    if tx_bytes != pipeline.tx_bytes:
        given = f"{tx_bytes:,}" if isinstance(tx_bytes, int | float) else repr(tx_bytes)
        terms = " + ".join(f"{t.nbytes:,} ({n})" for n, t in pipeline.tiles)
        each = f"{pipeline.k_group} x ({terms})" if pipeline.k_group > 1 else terms
        raise BadOperand(
            f"expect_bytes({given}): a stage of {pipeline} receives {each} = "
            f"{pipeline.tx_bytes:,} B, which it expects by itself; leave the call out, or correct "
            "the number"
        )
