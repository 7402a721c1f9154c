"""The memory of pipelines: allocated by `start`, or passed to it."""

from __future__ import annotations

from typing import Any, Protocol

from numba_tma.backend.interface import Constant, Unknown, compile_time, device_function, u32
from numba_tma.backend.primitives import add32, allocate_shared
from numba_tma.simulator import BadOperand


class HasBarriers(Protocol):
    """A pipeline that has barriers."""

    @property
    def num_barriers(self) -> int:
        """Number of the barriers."""

    @property
    def launch_kind(self) -> str:
        """The requirement on a launch, as `allocate_shared` takes it."""


class HasTiles(Protocol):
    """A pipeline that has tiles."""

    @property
    def storage_nbytes(self) -> int:
        """Bytes of the tiles."""

    @property
    def alignment(self) -> int:
        """Alignment of the tiles, in bytes."""

    @property
    def launch_kind(self) -> str:
        """The requirement on a launch, as `allocate_shared` takes it."""


class StagesAndBarriers(HasTiles, HasBarriers, Protocol):
    """A pipeline whose barriers lie behind its tiles by default."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tiles and barriers."""

    @property
    def barriers_offset(self) -> int:
        """Offset of the barriers from the tiles, in bytes."""


@device_function
def tiles_and_barriers(
    pipeline: StagesAndBarriers, tiles: Constant[Any], barriers: Constant[Any]
) -> tuple[int, int]:
    """Return the addresses of tiles and barriers. Allocate memory that was not passed."""
    if tiles is None and barriers is None:
        base = allocate_shared(
            pipeline, pipeline.nbytes, pipeline.alignment, "", pipeline.launch_kind
        )
        return base, add32(base, pipeline.barriers_offset)
    return own_or_given_tiles(pipeline, tiles), own_or_given_barriers(pipeline, barriers)


@device_function
def own_or_given_tiles(pipeline: HasTiles, tiles: Constant[Any]) -> int:
    """Return the address of the tiles. Allocate them if `tiles` is None."""
    nbytes, alignment = pipeline.storage_nbytes, pipeline.alignment
    if tiles is None:
        return allocate_shared(pipeline, nbytes, alignment, "", pipeline.launch_kind)
    return given_address("tiles", tiles, nbytes, alignment)


@device_function
def own_or_given_barriers(pipeline: HasBarriers, barriers: Constant[Any]) -> int:
    """Return the address of the barriers. Allocate them if `barriers` is None."""
    nbytes = barrier_nbytes(pipeline)
    if barriers is None:
        return allocate_shared(pipeline, nbytes, 8, "barriers", pipeline.launch_kind)
    return given_address("barriers", barriers, nbytes, 8)


@compile_time
def barrier_nbytes(pipeline: HasBarriers) -> int:
    """Return the bytes of the barriers."""
    return 8 * pipeline.num_barriers


@device_function
def given_address(
    name: Constant[str], memory: Constant[Any], nbytes: Constant[int], alignment: Constant[int]
) -> int:
    """Return the address of the argument `name` of `start`; raise if its memory is too small."""
    if is_address(name, memory, nbytes, alignment):
        return u32(memory)
    return memory.address


@compile_time
def is_address(name: str, memory: Any, nbytes: int, alignment: int) -> bool:
    """Return whether `memory` is an address; raise if its size or alignment does not suffice."""
    if isinstance(memory, Unknown) and memory.is_integer:
        return True
    if isinstance(memory, int):
        if memory % alignment:
            raise BadOperand(
                f"start({name}={memory:#x}): the address must be a multiple of {alignment}"
            )
        return True
    tile: Any = getattr(memory, "tile", None)
    count: Any = getattr(memory, "num_barriers", None)
    if tile is None and count is None:
        raise BadOperand(
            f"start({name}=...) takes an address, a SharedTile or a BarrierArray, not {memory!r}"
        )
    has, aligned = (8 * count, 8) if tile is None else (tile.shared_nbytes, tile.alignment)
    if has < nbytes or aligned % alignment:
        shown = f"{count} barriers" if tile is None else tile
        raise BadOperand(
            f"start({name}={shown}): it has {has:,} B at a multiple of {aligned}, but the "
            f"pipeline needs {nbytes:,} B at a multiple of {alignment}"
        )
    return False
