"""Rules of a copy's operands, each by itself: what is refused, and what is taken beside it."""

from types import SimpleNamespace

import pytest

from numba_tma import Swizzle, TensorMapType, Tile
from numba_tma.backend.interface import Unknown
from numba_tma.device.barrier import Barrier, PairBarrier
from numba_tma.device.copy_rules import (
    check_copy,
    check_pair,
    check_reduction,
    check_rows,
    check_store,
    require_map,
    require_reduction,
    require_tiled_map,
)
from numba_tma.device.shared import SharedTile
from numba_tma.host.boxes import Copies
from numba_tma.host.tensor_map import TensorMap
from numba_tma.host.tensor_map_array import TensorMapArray
from numba_tma.simulator import BadOperand

TILE, BYTES, FOLDED = Tile((8, 32), "f32"), Tile((8, 64), "u8"), Tile((8, 256), "f16", Swizzle.B128)
PACKED, UNPACKED = Tile((8, 128), "e2m1"), Tile((8, 128), "e2m1_unpacked")
MAP, GATHER = TensorMapType(2, TILE), TensorMapType(2, TILE, mode="gather")
IN_PARTS = TensorMapType(2, FOLDED, copies=Copies(FOLDED, (1, 1), fold=True))  # of 128 bytes
SLICES = TensorMapType(4, Tile((1, 1, 8, 16), "u16", Swizzle.B32), interleave=32)
GAPS = "rows have gaps"


class Of(Unknown):
    """An operand of a class, known at run time, with what the compiler knows of it."""

    cls = None

    def __init__(self, cls, **known):
        vars(self).update(known, cls=cls)


class Sequence:
    shared_kind = "map"


def at(*coordinates):
    return SimpleNamespace(elements=coordinates)


def known_map(**known):
    return Of(TensorMap, **{"mode": "tiled", "tile": TILE} | known)


def store(tensor_map, *coordinates, what="TensorMap.store"):
    check_store(what, tensor_map, at(*coordinates))


def copy(tensor_map, *coordinates, mode="tiled", tile=None):
    given = None if tile is None else Of(SharedTile, tile=tile)
    check_copy("TensorMap.load", tensor_map, given, at(*coordinates), mode)


def rows(numbers, column=0, what="gather", tensor_map=GATHER, tile=None):
    check_rows(f"TensorMap.{what}", tensor_map, tile, numbers, column)


def pair(cta_group, barrier=Barrier):
    check_pair("TensorMap.load", Of(barrier), cta_group)


EIGHT, MINUS = (0,) * 8, (0, 0, 0, -1, 0, 0, 0, 0)
#: A call that is refused, what the error says, and calls beside it that are taken.
RULES = {
    "a store starts inside": (
        lambda: store(MAP, 0, -1), "coordinate of axis 1 is -1; a store starts",
        lambda: store(MAP, 0, 0), lambda: copy(MAP, -1, 0),
    ),
    "a reduction starts inside": (
        lambda: store(MAP, -1, 0, what="TensorMap.reduce"),
        "coordinate of axis 0 is -1; a reduction starts",
        lambda: store(MAP, 1, 1, what="TensorMap.reduce"),
    ),
    "what lies between rows is not overwritten": (
        lambda: store(TensorMapType(2, TILE, partial_rows=GAPS), 0, 0), GAPS,
        lambda: copy(TensorMapType(2, TILE, partial_rows=GAPS), 0, 0),
    ),
    "unpacked elements are not stored": (
        lambda: store(TensorMapType(2, UNPACKED), 0, 0), "e2m1_unpacked",
        lambda: store(TensorMapType(2, PACKED), 0, 0), lambda: store(TensorMapType(2, None), 0, 0),
    ),
    "a coordinate for each axis": (
        lambda: copy(MAP, 0), "1 coordinates for .*, which has rank 2",
        lambda: copy(MAP, 0, 0), lambda: copy(TensorMapType(None, None), 0),
    ),
    "and no more": (lambda: copy(MAP, 0, 0, 0), "3 coordinates for"),
    "rows start at 16 bytes": (
        lambda: copy(MAP, 0, 2), "coordinate is 2, which is 8 B into .*a multiple of 4 elements",
        lambda: copy(MAP, 2, 4), lambda: copy(MAP, 1, -4),
    ),
    "of bytes, too": (
        lambda: copy(TensorMapType(2, BYTES), 0, 8), "is 8, which is 8 B .*multiple of 16 elements",
        lambda: copy(TensorMapType(2, BYTES), 8, 16),
    ),
    "a map of other copies": (
        lambda: copy(MAP, 0, 0, mode="im2col"), "a tiled one",
        lambda: copy(TensorMapType(2, TILE, mode="im2col"), 0, 0, mode="im2col"),
    ),
    "parts are moved whole": (
        lambda: copy(IN_PARTS, 0, 32), "coordinate is 32; a map with fold=True moves parts of 64",
        lambda: copy(IN_PARTS, 32, 64), lambda: copy(TensorMapType(2, FOLDED), 0, 32),
    ),
    "slices have no coordinate of their own": (
        lambda: copy(SLICES, 0, 0, 0, 0), "4 coordinates for .*, which has rank 4",
        lambda: copy(SLICES, 0, 0, 1),
    ),
    "whole numbers": (lambda: copy(MAP, 0.5, 0), "coords", lambda: copy(MAP, 1, 0)),
    "the tile of the map's box": (
        lambda: copy(MAP, 0, 0, tile=BYTES), "but the tile in shared memory is",
        lambda: copy(MAP, 0, 0, tile=TILE),
    ),
    "one copy where the rank alone is known": (
        lambda: copy(TensorMapType(2), 0, 0, tile=FOLDED), "takes 4 copies, but of",
        lambda: copy(TensorMapType(2), 0, 0, tile=TILE),
    ),
    "two copies are not one": (
        lambda: copy(TensorMapType(2), 0, 0, tile=Tile((8, 128), "f16", Swizzle.B128)),
        "takes 2 copies",
    ),
    "the barrier of a pair": (
        lambda: pair(None, PairBarrier), "has cta_group=1, whose barrier is in its own block",
        lambda: pair(2, PairBarrier),
    ),
    "the operation is a literal": (
        lambda: require_reduction("reduce", known_map(), Of(str)), "a literal such as 'add'",
        lambda: require_reduction("reduce", known_map(), "add"),
    ),
    "the map's elements can be added": (
        lambda: require_reduction("reduce", known_map(tile=BYTES), "add"), "u8",
    ),
    "the elements of a sequence, too": (
        lambda: require_reduction(
            "reduce", Of(Sequence, tensor_map=known_map(tile=BYTES)), "add"
        ), "u8",
    ),
    "a map and not its array": (
        lambda: require_map("load", Of(list)), "pass tensor_map.array, tile. to the kernel",
        lambda: require_map("load", known_map()), lambda: require_map("load", 3),
        lambda: require_map("load", Of(Sequence)),
    ),
    "one of several maps": (
        lambda: require_map("load", Of(TensorMapArray)), "index it: give maps.i.",
    ),
    "a map of tiles": (
        lambda: require_tiled_map("load", known_map(mode="gather"), "use gather"),
        "load takes maps of tensor_map, not .*: use gather",
        lambda: require_tiled_map("load", known_map(), "use gather"),
        lambda: require_tiled_map("load", Of(Sequence), "use gather"),
    ),
    "a map of tiles and not its array": (
        lambda: require_tiled_map("load", Of(list), "use gather"), "pass tensor_map.array, tile.",
    ),
    "a number for each row": (
        lambda: rows((0,) * 7), "7 row numbers for a tile of 8 rows",
        lambda: rows(EIGHT), lambda: rows(object()),
    ),
    "rows that exist are stored": (
        lambda: rows(MINUS, what="scatter"), "number of row 3 is -1",
        lambda: rows(MINUS), lambda: rows(EIGHT, what="scatter"),
    ),
    "columns start at 16 bytes": (
        lambda: rows(EIGHT, 3), "column is 3, which is 12 B .* a multiple of 4 elements",
        lambda: rows(EIGHT, 4), lambda: rows(EIGHT, object()),
    ),
    "gaps behind gathered rows": (
        lambda: rows(EIGHT, 0, "scatter", TensorMapType(2, TILE, mode="gather", partial_rows=GAPS)),
        GAPS,
        lambda: rows(EIGHT, 0, "gather", TensorMapType(2, TILE, mode="gather", partial_rows=GAPS)),
    ),
    "a map of rows": (lambda: rows(EIGHT, tensor_map=MAP), "a tiled one"),
    "the tile of the map": (
        lambda: rows(EIGHT, tile=SimpleNamespace(tile=BYTES)), "but the tile in shared memory is",
        lambda: rows(EIGHT, tile=SimpleNamespace(tile=TILE)),
    ),
    "blocks of a pair": (
        lambda: pair(3), "the literal 1, or 2 for a CTA pair, not 3",
        lambda: pair(None), lambda: pair(1), lambda: pair(2),
    ),
    "flags are no numbers of blocks": (lambda: pair(True), "the literal 1, or 2 .*, not True"),
    "elements that are added": (
        lambda: check_reduction("TensorMap.reduce", TensorMapType(2, BYTES), "add"), "u8",
        lambda: check_reduction("TensorMap.reduce", MAP, "add"),
        lambda: check_reduction("TensorMap.reduce", TensorMapType(2, None), "add"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_a_rule_refuses_and_takes(name):
    wrong, text, *right = RULES[name]
    with pytest.raises(BadOperand, match=text):
        wrong()
    for call in right:
        call()
