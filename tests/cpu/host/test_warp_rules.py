"""Parts of operands of mma.sync: which there are, and where each thread's words of them lie."""

import itertools

import numpy as np
import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.warp_rules import (
    WARP_FORMS,
    PartLayout,
    WarpPart,
    check_warp_product,
)

#: Types that one instruction multiplies with each other, and the type of the sums: the PTX ISA.
FAMILIES = [
    ({"f16"}, "f32"), ({"bf16"}, "f32"), ({"f32", "tf32"}, "f32"), ({"e4m3", "e5m2"}, "f32"),
    ({"i8", "u8"}, "i32"),
]  # fmt: skip
TYPES = [*set().union(*(names for names, _ in FAMILIES)), "f64", "i32", "u16", "e2m3"]
SPANS = {Swizzle.B32: 32, Swizzle.B64: 64, Swizzle.B128: 128}
WHAT = {"a": "rows of A", "b": "columns of B"}
UNITS = {"a": 64, "b": 16}  # rows of A of a warpgroup; columns of B that one ldmatrix_x4 loads


def part(side, dtype="bf16", rows=64):
    return WarpPart(side, as_dtype(dtype), rows)


@pytest.mark.parametrize("side", UNITS)
def test_a_part_has_whole_units_of_rows_in_as_many_registers_as_its_bytes_take(side):
    for rows in range(-64, 400):
        if rows % UNITS[side] or not 0 < rows <= 256:
            said = f"is {rows}; .* loads {WHAT[side]} in multiples of {UNITS[side]}, up to 256$"
            with pytest.raises(ValueError, match=said):
                part(side, rows=rows)
        else:
            threads = 128 if side == "a" else 32  # each warp holds all of B
            assert part(side, rows=rows).registers == rows * 32 // (4 * threads)
            assert part(side, rows=rows).groups == rows // UNITS[side]


def test_a_side_is_a_or_b():
    with pytest.raises(ValueError, match='side is \'c\': use "a" or "b"'):
        part("c")


def test_types_of_one_family_are_multiplied_into_its_sums():
    for a, b, sums in itertools.product(TYPES, TYPES, ("f32", "i32", "f16")):
        given = as_dtype(sums), 32, part("a", a), part("b", b, 32)
        if any({a, b} <= names and sums == its for names, its in FAMILIES):
            form = check_warp_product(*given)
            assert form in WARP_FORMS and form.accumulator == sums
        else:
            with pytest.raises(ValueError, match="mma_sync: there is no "):
                check_warp_product(*given)


def test_a_product_has_a_then_b_and_the_columns_of_b():
    f32 = as_dtype("f32")
    for n, columns in itertools.product((16, 32, 64), repeat=2):
        if n == columns:
            check_warp_product(f32, n, part("a"), part("b", rows=columns))
        else:
            with pytest.raises(ValueError, match=rf"have {n} columns and b has {columns}: use fr"):
                check_warp_product(f32, n, part("a"), part("b", rows=columns))
    for sides in ("aa", "ba", "bb"):
        with pytest.raises(ValueError, match=f'side "{sides[0]}" and b of side "{sides[1]}"'):
            check_warp_product(f32, 64, *map(part, sides))


# ----------------------------------------------------------------------------- layouts


def is_operand(side, rows, tile, major):
    """Return whether a part of so many rows may be loaded from a tile."""
    span, size = SPANS.get(tile.swizzle), tile.itemsize
    if span is None or tile.ndim < 2 or set(tile.shape[:-2]) - {1}:
        return False
    first, second = tile.shape[-2:]
    if major == "K":  # rows of one span, which has whole steps of 32 bytes
        return second * size == span and first >= rows
    whole = second % (span // size) == 0 and (side == "b" or span // size == 64)
    return size == 2 and whole and second >= rows and first * size % 32 == 0


SWIZZLES = [Swizzle.NONE, *SPANS, Swizzle.B128_ATOM_32B]


@pytest.mark.parametrize("side", UNITS)
@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize("dtype", ["bf16", "e4m3", "tf32"])
@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_a_part_is_loaded_from_swizzled_matrices(side, major, dtype, swizzle):
    extents = 8, 16, 24, 32, 48, 64, 72, 96, 128, 256
    for shape in [*itertools.product(extents, repeat=2), (1, 64, 64), (2, 64, 64), (1, 2, 64, 64)]:
        tile = Tile(shape, dtype, swizzle)
        for rows in (64, 128):
            if is_operand(side, rows, tile, major):
                assert PartLayout(part(side, dtype, rows), tile, major).tile is tile
            else:
                with pytest.raises(ValueError, match=rf"is no {major}-major operand: \S"):
                    PartLayout(part(side, dtype, rows), tile, major)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((part("a"), Tile((64, 64), "bf16", Swizzle.B128), "M"), "major is 'M': use"),
        ((part("a"), Tile((64, 64), "u16", Swizzle.B128)), "mma.sync does not multiply u16"),
        ((part("b"), Tile((32, 128), "e4m3", Swizzle.B128), "MN"), "ldmatrix transposes elements"),
        ((part("a"), Tile((64, 64), "bf16")), "swizzle NONE has bank conflicts: use B32, B64, B1"),
        ((part("a"), Tile((2, 64, 64), "bf16", Swizzle.B128)), "a matrix has two axes"),
        ((part("a"), Tile((64, 32), "bf16", Swizzle.B128)),
         "its rows have 64 B, and one span of B128 is 128 B"),
        ((part("b"), Tile((24, 64), "bf16", Swizzle.B128), "MN"), "its K is 24: use a multiple of"),
        ((part("a"), Tile((56, 64), "bf16", Swizzle.B128)), "it has 56 rows, and 64 are loaded"),
        ((part("b", rows=48), Tile((16, 56), "bf16", Swizzle.B32), "MN"),
         "it has 56 rows: use a multiple of 16"),
        ((part("a"), Tile((16, 64), "bf16", Swizzle.B64), "MN"), "come in blocks of 64: use swizz"),
    ],
)  # fmt: skip
def test_an_error_says_what_is_wrong_with_a_tile(given, text):
    with pytest.raises(ValueError) as caught:
        PartLayout(*given)
    assert text in str(caught.value)


def layouts():
    """Yield a layout of each side, major, swizzle and size of elements."""
    for (swizzle, span), side in itertools.product(SPANS.items(), UNITS):
        for dtype in ("bf16", "e4m3", "tf32"):
            tile = Tile((1, 128, span // as_dtype(dtype).itemsize), dtype, swizzle)
            yield PartLayout(part(side, dtype, 128), tile)
        if side == "b" or span == 128:
            yield PartLayout(part(side, "f16", 128), Tile((48, 192), "f16", swizzle), "MN")


def at(layout, row, byte):
    """Return where a byte along K of a row lies, by the tile's own layout."""
    k, inside = divmod(byte, layout.tile.itemsize)
    leading = (0,) * (layout.tile.ndim - 2)
    return layout.tile.offset(*leading, *((row, k) if layout.major == "K" else (k, row))) + inside


@pytest.mark.parametrize("layout", list(layouts()), ids=str)
def test_each_register_has_the_elements_that_ptx_says(layout):
    """As the PTX ISA draws the fragments of mma.m16n8: a row of 4 lanes, 4 bytes each."""
    for lane, warp, step in itertools.product((0, 1, 5, 18, 31), range(4), range(layout.k_steps)):
        found = layout.word_addresses(lane, warp, step)
        assert found.shape == (layout.part.registers, 2)
        for register, half in np.ndindex(*found.shape):
            group, number = divmod(register, 4)
            if layout.part.side == "a":  # a1 is 8 rows below a0, and a2 is 16 bytes behind it
                row = 64 * group + 16 * warp + lane // 4 + (8 if number in (1, 3) else 0)
                behind = number in (2, 3)
            else:  # b1 is 16 bytes behind b0; the next two are those of the next 8 columns
                row = 16 * group + lane // 4 + (8 if number in (2, 3) else 0)
                behind = number in (1, 3)
            byte = 32 * step + 4 * (lane % 4) + (16 if behind else 0) + 2 * half
            assert found[register, half] == at(layout, row, byte)


@pytest.mark.parametrize("layout", list(layouts()), ids=str)
def test_ldmatrix_brings_each_register_its_halves(layout):
    """Lane 8 i + j gives the address of row j of matrix i, which is register i of its group."""
    lanes = np.arange(32)
    for warp, step, group in np.ndindex(4, layout.k_steps, min(3, layout.part.groups)):
        turn, apart = layout.moves(group, step)
        given = (layout.lane_offset(lanes, warp) ^ turn) + apart
        words = np.array([layout.word_addresses(lane, warp, step) for lane in lanes])
        for i, half in np.ndindex(4, 2):
            if layout.major == "K":
                found = given[8 * i + lanes // 4] + 4 * (lanes % 4) + 2 * half
            else:  # transposed
                found = given[8 * i + 2 * (lanes % 4) + half] + 2 * (lanes // 4)
            np.testing.assert_array_equal(found, words[:, 4 * group + i, half])


@pytest.mark.parametrize("layout", list(layouts()), ids=str)
def test_steps_and_units_of_rows(layout):
    rows, k = layout.tile.shape[-2:] if layout.major == "K" else layout.tile.shape[::-1]
    assert layout.k_steps == k * layout.tile.itemsize // 32
    for first in range(layout.row_unit, rows, layout.row_unit):
        # The swizzle's pattern begins again.
        apart = first // layout.row_unit * layout.unit_nbytes
        for row, byte in itertools.product(range(layout.row_unit), range(0, 32, 4)):
            assert at(layout, first + row, byte) == at(layout, row, byte) + apart
    for step in range(layout.k_steps):
        assert layout.check_step(step) == step
    for step in (-1, layout.k_steps, "0", None, 1.0):
        with pytest.raises(ValueError, match=f"use a literal from 0 to {layout.k_steps - 1}$"):
            layout.check_step(step)
