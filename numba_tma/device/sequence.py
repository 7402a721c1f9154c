"""One sequence of a ragged tensor map, which a kernel loads from and stores to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba_tma.backend.interface import device_class, native
from numba_tma.host.annotations import Coordinates, Integer
from numba_tma.host.tensor_map import TensorMap
from numba_tma.ptx._instruction import BarrierAddress, CacheHint, TileAddress
from numba_tma.ptx.blackwell import CtaGroup
from numba_tma.simulator import BadCoordinate, BadOperand


@native
@device_class()
@dataclass(frozen=True)
class RaggedSequence:
    """`length` rows of a `RaggedTensorMap` from row `start` on; see its method `sequence`."""

    tensor_map: Any
    start: Any
    length: Any
    shared_kind = "map"

    def load(
        self,
        tile: TileAddress,
        coords: Coordinates,
        barrier: BarrierAddress,
        cache_hint: CacheHint = None,
        multicast: Integer | None = None,
        cta_group: CtaGroup = 1,
    ) -> None:
        """Start the copy of one tile of the sequence into shared memory; see `TensorMap.load`.

        Elements past the sequence's end are filled, and their bytes count on the barrier.
        """
        if self.tensor_map.encoding == "shift":
            raise BadOperand(f"RaggedTensorMap.load: {only_stores(self.tensor_map.rank)}")
        _part(self, coords).load(tile, coords, barrier, cache_hint, multicast, cta_group)

    def store(self, tile: TileAddress, coords: Coordinates, cache_hint: CacheHint = None) -> None:
        """Start the copy of one tile into the sequence; see `TensorMap.store`.

        Nothing is written past the sequence's end.
        """
        _part(self, coords).store(tile, coords, cache_hint)

    def reduce(
        self, tile: TileAddress, coords: Coordinates, op: str, cache_hint: CacheHint = None
    ) -> None:
        """Start the reduction of one tile into the sequence; see `TensorMap.reduce`.

        Nothing is changed past the sequence's end.
        """
        _part(self, coords).reduce(tile, coords, op, cache_hint)

    def prefetch_tile(self, coords: Coordinates, cache_hint: CacheHint = None) -> None:
        """Prefetch one tile of the sequence into L2; see `TensorMap.prefetch_tile`."""
        if self.tensor_map.encoding == "shift":
            raise BadOperand(f"RaggedTensorMap.prefetch_tile: {only_stores(self.tensor_map.rank)}")
        _part(self, coords).prefetch_tile(coords, cache_hint)


def only_stores(rank: int) -> str:
    """Say why a map of the shifted encoding is not loaded from."""
    repair = (
        "make the map with encoding='wrap'"
        if rank < 4
        else "merge axes of the array with array.reshape, so that 3 are left"
    )
    return f"the encoding 'shift' starts in front of the array and only stores: {repair}"


def _part(sequence: RaggedSequence, coords: Coordinates) -> TensorMap:
    """Return the sequence as a map of its own (simulator)."""
    ragged = sequence.tensor_map
    axis, start, length = ragged.axis, int(sequence.start), int(sequence.length)
    rows = ragged.shape[axis]
    if start < 0 or length < 0 or start + length > rows:
        raise BadCoordinate(
            f"{ragged}: the sequence of {length} rows at {start} is not in the array, which has "
            f"{rows}; on a GPU nothing of it would be copied"
        )
    if len(coords) == ragged.rank and int(coords[axis]) < 0:
        raise BadCoordinate(
            f"{ragged}: the coordinate of axis {axis} is {coords[axis]}; a tile starts in its "
            "sequence or past it, since the rows before belong to another"
        )
    rows_of_it = (*[slice(None)] * axis, slice(start, start + length))
    return TensorMap(ragged.array[rows_of_it], None, ragged._encoding)
