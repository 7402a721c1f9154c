"""Rules of a copy's operands, each by itself: what is refused, and what is taken beside it."""

from types import SimpleNamespace

import pytest

from numba_tma import Swizzle, TensorMapType, Tile
from numba_tma.device.copy_rules import (
    check_copy,
    check_pair,
    check_reduction,
    check_rows,
    check_store,
)
from numba_tma.simulator import BadOperand

TILE, BYTES, FOLDED = Tile((8, 32), "f32"), Tile((8, 64), "u8"), Tile((8, 256), "f16", Swizzle.B128)
PACKED, UNPACKED = Tile((8, 128), "e2m1"), Tile((8, 128), "e2m1_unpacked")
MAP, GATHER = TensorMapType(2, TILE), TensorMapType(2, TILE, mode="gather")
GAPS = "rows have gaps"


def at(*coordinates):
    return SimpleNamespace(elements=coordinates)


def store(tensor_map, *coordinates, what="TensorMap.store"):
    check_store(what, tensor_map, at(*coordinates))


def copy(tensor_map, *coordinates, mode="tiled"):
    check_copy("TensorMap.load", tensor_map, None, at(*coordinates), mode)


def rows(numbers, column=0, what="gather", tensor_map=GATHER, tile=None):
    check_rows(f"TensorMap.{what}", tensor_map, tile, numbers, column)


def pair(cta_group):
    check_pair("TensorMap.load", None, cta_group)


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
