"""The matrix that a descriptor denotes is the one that the tile holds."""

import functools
import itertools
import re

import numpy as np
import pytest

from numba_tma import MatrixLayout, Swizzle, Tile, reference_matrix, reference_tile
from numba_tma.host.dtypes import names
from numba_tma.host.matrix_layout import LEGAL, MatrixFields, decode_descriptor, matrix_addresses
from tests import matrix_table
from tests.kernels.matrix_operands import Operand, noise, operands
from tests.tiers import every

ADDRESS = 7 * 1024
EVERY = [(i, o) for i in LEGAL for o in operands(i)]


def bits(array):
    return array.view(f"u{array.dtype.itemsize}")


def memory_with(operand, matrix):
    """Return shared memory with the matrix's tile at ADDRESS, as a TMA load puts it there."""
    # random around the tile: a read past it must not look right
    memory = np.random.default_rng(1).integers(0, 256, ADDRESS + 200_000, np.uint8)
    tile = operand.tile
    tensor = bits(operand.as_tensor(matrix))
    plain = Tile(tile.shape, f"u{8 * tile.itemsize}", tile.swizzle)
    image = reference_tile(tensor, plain, (0,) * tile.ndim)
    memory[ADDRESS : ADDRESS + image.size] = image
    return memory


@pytest.mark.parametrize(("instruction", "operand"), every(5, EVERY), ids=lambda x: str(x))
def test_a_descriptor_denotes_what_the_tile_holds(instruction, operand):
    matrix = noise(operand.dtype, (operand.rows, operand.k))
    memory, layout = memory_with(operand, matrix), operand.layout(instruction)
    assert (layout.rows, layout.k) == matrix.shape
    step = layout.k_per_step
    assert step == 32 // matrix.itemsize and layout.num_k_steps * step == operand.k
    starts = range(0, operand.rows, layout.row_unit)
    for k_step, row in itertools.product(range(layout.num_k_steps), starts):
        descriptor = layout.descriptor(ADDRESS, k_step, row)
        # all the rows that are left, and the fewest that an instruction takes
        for rows in {operand.rows - row, min(8, operand.rows - row)}:
            read = reference_matrix(memory, descriptor, rows, operand.dtype, operand.major)
            part = matrix[row : row + rows, k_step * step : (k_step + 1) * step]
            np.testing.assert_array_equal(bits(read), bits(np.ascontiguousarray(part)))


def test_every_legal_combination_is_tried():
    tried = {(i, o.major, o.tile.itemsize, o.swizzle) for i, o in EVERY}
    legal = {
        (i, major, size, swizzle)
        for i, majors in LEGAL.items()
        for major, sizes in majors.items()
        for size, swizzles in sizes.items()
        for swizzle in swizzles
    }
    assert tried == legal


def test_leading_axes_are_rows():
    flat = MatrixLayout(Tile((128, 64), "bf16", Swizzle.B128))
    deep = MatrixLayout(Tile((1, 2, 64, 64), "bf16", Swizzle.B128))
    assert (deep.rows, deep.k) == (128, 64)
    assert deep.descriptor(0, 3, 64) == flat.descriptor(0, 3, 64)


def test_an_unswizzled_tile_of_one_chunk_needs_no_axis_for_it():
    flat, deep = (MatrixLayout(Tile(s, "f16"), "MN") for s in ((32, 8), (1, 32, 8)))
    assert flat.descriptor(128, 1) == deep.descriptor(128, 1)
    assert (flat.rows, flat.k) == (deep.rows, deep.k) == (8, 32)


# ------------------------------------------------------------------------------- bits


def test_a_k_major_descriptor_that_ran_on_an_h200():
    # 128x64 bf16: leading 16 B (not used), stride 1024 B, 128-byte swizzle; a step is 2 chunks
    layout = MatrixLayout(Tile((128, 64), "bf16", Swizzle.B128))
    expected = 1 << 62 | 64 << 32 | 1 << 16 | (ADDRESS >> 4)
    assert [layout.descriptor(ADDRESS, k) - expected for k in range(4)] == [0, 2, 4, 6]
    assert layout.descriptor(ADDRESS, row=64) - expected == 64 * 128 >> 4


def test_an_mn_major_descriptor_that_ran_on_an_h200():
    # V of attention, 128 x 128 bf16: the slabs of 64 columns are half a stage apart; a step is 16
    # lines of 128 B
    layout = MatrixLayout(Tile((128, 128), "bf16", Swizzle.B128), "MN")
    expected = 1 << 62 | 64 << 32 | (128 * 128 >> 4) << 16
    assert [layout.descriptor(0, k) - expected for k in range(8)] == [128 * k for k in range(8)]


@pytest.mark.parametrize(("instruction", "operand"), every(5, EVERY), ids=lambda x: str(x))
def test_the_fields_come_back(instruction, operand):
    layout = operand.layout(instruction)
    for address in (0, ADDRESS, 226 * 1024):
        descriptor = layout.descriptor(address)
        assert descriptor >> 64 == 0
        assert decode_descriptor(descriptor) == MatrixFields(
            address, layout.leading, layout.stride, 0, operand.swizzle, instruction
        )


def test_tcgen05_differs_by_the_bits_that_its_manual_fixes():
    tile = Tile((128, 64), "bf16", Swizzle.B128)
    for major in ("K", "MN"):
        there, here = (MatrixLayout(tile, major, i).descriptor(0) for i in ("tcgen05", "wgmma"))
        assert there ^ here == 0b001 << 46
    wide = MatrixLayout(Tile((8, 64), "tf32", Swizzle.B128_ATOM_32B), "MN", "tcgen05")
    assert wide.descriptor(0) >> 61 == 1 and wide.stride == 4 * 128


# ----------------------------------------------------------------------------- errors


def message(*arguments):
    with pytest.raises(ValueError) as caught:
        MatrixLayout(*arguments)
    return str(caught.value)


NO_TYPE, SIZES = "the tensor cores have no", "only types of 16 bits can be MN-major: use f16, bf16"
ODD = "rows (M or N): use a multiple of"


@pytest.mark.parametrize(
    ("instruction", "major", "shape", "dtype", "swizzle", "said"),
    [
        ("wgmma", "K", (64, 64), "f64", Swizzle.B128, f"{NO_TYPE} f64 here: use f16, bf16, e4m3"),
        ("wgmma", "K", (64, 64), "i32", Swizzle.B128, f"{NO_TYPE} i32 here"),
        ("wgmma", "MN", (64, 32), "f32", Swizzle.B128, f"{SIZES}, or a tile with K innermost"),
        ("wgmma", "MN", (64, 64), "e4m3", Swizzle.B64, SIZES),
        ("wgmma", "MN", (4, 64, 16), "i8", Swizzle.NONE, SIZES),
        ("tcgen05", "MN", (64, 32), "tf32", Swizzle.B128, "B128 is not read so: use B128_ATOM_32B"),
        ("wgmma", "K", (64, 64), "bf16", Swizzle.B128_ATOM_32B, "use NONE, B32, B64, B128"),
        ("tcgen05", "MN", (64, 64), "bf16", Swizzle.B128_ATOM_64B, "B128_ATOM_64B is not read so"),
        ("wgmma", "K", (64, 64), "bf16", Swizzle.NONE, "use Tile((chunks, rows, 8), bf16), or a"),
        ("wgmma", "MN", (64, 64), "bf16", Swizzle.NONE, "use Tile((chunks, K, 8), bf16), or a"),
        ("wgmma", "K", (64, 8), "bf16", Swizzle.NONE, "chunks of 16 B as its first axis"),
        ("wgmma", "K", 64, "bf16", Swizzle.B128, "a matrix has two axes"),
        ("wgmma", "K", (60, 64), "bf16", Swizzle.B128, f"it has 60 {ODD} 8"),
        ("wgmma", "MN", (64, 60), "bf16", Swizzle.B128, f"it has 60 {ODD} 8"),
        ("tcgen05", "MN", (64, 24), "i8", Swizzle.B32, f"it has 24 {ODD} 16"),
        ("wgmma", "K", (64, 72), "bf16", Swizzle.B128, "its K is 72: use a multiple of 16, which"),
        ("wgmma", "MN", (8, 64), "bf16", Swizzle.B128, "its K is 8: use a multiple of 16"),
        ("wgmma", "K", (64, 48), "e4m3", Swizzle.B128, "its K is 48: use a multiple of 32"),
        (
            "wgmma",
            "K",
            (2, 20_000, 8),
            "f16",
            Swizzle.NONE,
            "leading dimension offset is 320,000 B",
        ),
        ("wgmma", "MN", (2, 20_000, 8), "f16", Swizzle.NONE, "stride dimension offset is 320,000"),
    ],
)
def test_what_cannot_be_read(instruction, major, shape, dtype, swizzle, said):
    text = message(Tile(shape, dtype, swizzle), major, instruction)
    assert said in text
    assert f"is no {major}-major operand of {instruction}: " in text
    assert f"{instruction} reads: K-major (rows, K) of f16, bf16" in text
    assert "MN-major (K, rows) of f16, bf16" in text


def test_offsets_have_14_bits_of_chunks():
    layout = MatrixLayout(Tile((2, 0x3FF8, 8), "f16"), "K")
    assert layout.leading == 0x3FF8 << 4 == layout.low >> 16 << 4
    with pytest.raises(ValueError, match="leading dimension offset is 262,144 B, more than the 26"):
        MatrixLayout(Tile((2, 0x4000, 8), "f16"), "K")


def test_several_broken_rules_are_all_said():
    text = message(Tile((60, 72), "bf16", Swizzle.B128))
    assert "60 rows" in text and "its K is 72" in text


def test_what_is_no_choice():
    tile = Tile((64, 64), "bf16", Swizzle.B128)
    assert "major is 'N': use \"K\" for a tile with K innermost" in message(tile, "N")
    assert "instruction is 'mma': use 'wgmma' or 'tcgen05'" in message(tile, "K", "mma")


def test_every_type_is_decided():
    for name in names:
        try:
            MatrixLayout(Tile((64, 128), name, Swizzle.B128))
        except ValueError as error:
            assert f"have no {name} here" in str(error)


@pytest.mark.parametrize(
    ("major", "k_step", "row", "said"),
    [
        ("K", 8, 0, "k_step is 8; {tile} has 8 steps of 16 along K: use 0 to 7"),
        ("K", -1, 0, "k_step is -1;"),
        (
            "K",
            0,
            4,
            "row is 4; parts of {tile} start at multiples of 8 rows: use one from 0 to 120",
        ),
        ("K", 0, 128, "row is 128;"),
        ("MN", 0, 32, "start at multiples of 64 rows: use one from 0 to 64"),
        ("MN", 0, -64, "row is -64;"),
    ],
)
def test_parts_that_there_are_not(major, k_step, row, said):
    tile = Tile((128, 128), "bf16", Swizzle.B128)
    with pytest.raises(ValueError, match=re.escape(said.format(tile=tile))):
        MatrixLayout(tile, major).offset(k_step, row)


@pytest.mark.parametrize("major", ["K", "MN"])
def test_the_first_part_is_meant_where_none_is_given(major):
    layout = MatrixLayout(Tile((128, 128), "bf16", Swizzle.B128), major)
    for at in (layout.offset, functools.partial(layout.descriptor, ADDRESS)):
        assert at() == at(k_step=0, row=0) != at(k_step=1, row=0) != at(k_step=0, row=64) != at()
        assert at(k_step=1) == at(k_step=1, row=0) and at(row=64) == at(k_step=0, row=64)


def test_a_base_inside_the_pattern_is_refused():
    layout = MatrixLayout(Tile((64, 64), "bf16", Swizzle.B128))
    with pytest.raises(
        ValueError, match="at address 0x200: a matrix starts at a multiple of 1024 B"
    ):
        layout.words(512)
    with pytest.raises(ValueError, match="below 256 KiB"):
        layout.words(1 << 18)
    descriptor = layout.descriptor(0) | 1 << 49
    with pytest.raises(ValueError, match="has base offset 1: matrices start where the swizzle's"):
        matrix_addresses(descriptor, 8, 2)


def test_what_is_no_descriptor():
    for descriptor in (1 << 61, 3 << 61, 2 << 46, 1 << 46 | 7 << 61):
        with pytest.raises(ValueError, match="is no matrix descriptor: bits 46 to 48 are"):
            decode_descriptor(descriptor)


def test_a_read_past_memory_is_refused():
    descriptor = Operand(64, 64, "bf16").layout().descriptor(0)
    end = int(matrix_addresses(descriptor, 64, 2).max()) + 2
    reference_matrix(np.zeros(end, np.uint8), descriptor, 64, "bf16")
    for nbytes in (end - 1, end - 2, 4096):
        with pytest.raises(ValueError, match="reads 64 rows up to address 0x1f"):
            reference_matrix(np.zeros(nbytes, np.uint8), descriptor, 64, "bf16")


# ------------------------------------------------------------------------------- docs


def test_the_page_has_the_tables_that_the_code_gives():
    page = matrix_table.FILE.read_text()
    assert page == matrix_table.text(page), "run `make goldens`"
    assert page.count("\n| K | ") == 4 and page.count("\n| MN | ") == 5


# ----------------------------------------------------------------- types of 4 and 6 bits


@pytest.mark.parametrize("dtype", ["e2m1", "e2m1_unpacked", "e2m3", "e3m2"])
@pytest.mark.parametrize("k_steps", [4, 8])
def test_narrow_types_are_read_in_steps_of_32_bytes(dtype, k_steps):
    """As bytes, packed elements are half as many of 8 bits, and unpacked ones as many."""
    step = 64 if dtype == "e2m1" else 32
    narrow = MatrixLayout(Tile((128, step * k_steps), dtype, Swizzle.B128), "K", "tcgen05")
    plain = MatrixLayout(Tile((128, 32 * k_steps), "u8", Swizzle.B128), "K", "tcgen05")
    assert (narrow.k_per_step, narrow.num_k_steps, narrow.rows) == (step, k_steps, 128)
    for k_step, row in itertools.product(range(k_steps), (0, 64)):
        wanted = plain.descriptor(ADDRESS, k_step, row)
        assert narrow.descriptor(ADDRESS, k_step, row) == wanted


@pytest.mark.parametrize(
    ("major", "shape", "dtype", "swizzle", "said"),
    [
        ("MN", (64, 128), "e2m1", Swizzle.B128, "can be MN-major: use f16"),
        ("MN", (64, 128), "e3m2", Swizzle.B128, "or a tile with K innermost"),
        ("K", (64, 128), "e2m3", Swizzle.B64, "swizzle B64 is not read so: use NONE, B128"),
        ("K", (64, 96), "e2m1", Swizzle.B128, "its K is 96: use a multiple of 64"),
    ],
)
def test_narrow_types_that_cannot_be_read(major, shape, dtype, swizzle, said):
    assert said in message(Tile(shape, dtype, swizzle), major, "tcgen05")


def test_hopper_has_no_narrow_types():
    assert "have no e2m1 here: use f16" in message(Tile((64, 64), "e2m1", Swizzle.B128))
