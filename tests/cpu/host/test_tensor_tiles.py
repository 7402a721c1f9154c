"""Matrices in tensor memory: their columns, what is refused, and columns that two of them share."""

import contextlib

import pytest

from numba_tma.host.layout import Tile
from numba_tma.host.scale_factors import scale_tile
from numba_tma.host.tensor_tiles import (
    ColumnClaim,
    accumulator,
    allocated_columns,
    check_columns,
    part_of_scales,
    tensor_metadata,
    tensor_operand,
    tensor_scales,
)


@pytest.mark.parametrize(("used", "columns"), [(0, 0), (1, 32), (33, 64), (192, 256), (512, 512)])
def test_a_power_of_two_is_allocated(used, columns):
    assert allocated_columns(used) == columns


@pytest.mark.parametrize(
    ("m", "n", "cta_group", "columns"),
    [(128, 256, 1, 256), (64, 24, 1, 24), (256, 128, 2, 128), (128, 128, 2, 64)],
)
def test_columns_of_an_accumulator(m, n, cta_group, columns):
    assert accumulator(m, n, "f32", cta_group).columns == columns


@pytest.mark.parametrize(
    ("cta_group", "ws", "rows"),
    [(1, False, [64, 128]), (2, False, [128, 256]), (1, True, [32, 64, 128]), (2, True, [])],
)
def test_rows_and_columns_that_products_have(cta_group, ws, rows):
    def taken(make, values):
        found = []
        for value in values:
            with contextlib.suppress(ValueError):
                made = make(value)
                found.append(value)
                # The lanes of fewer than 128 rows of a weight-stationary product are others.
                assert made.ws == (ws and made.m < 128) and made.cta_group == cta_group
        return found

    def operands(name):
        return lambda k: tensor_operand(128, k, name, cta_group, ws)

    some = range(0, 300)
    assert taken(lambda m: accumulator(m, 128, "f32", cta_group, ws), some) == rows
    assert taken(lambda m: tensor_operand(m, 64, "bf16", cta_group, ws), some) == rows
    sparse = rows if ws else [128 * cta_group]
    assert taken(lambda m: tensor_metadata(m, 64, "bf16", cta_group, ws), some) == sparse
    if rows:
        step = 8 * cta_group
        columns = [64, 128, 256] if ws else [*range(step, 513, step)]
        assert taken(lambda n: accumulator(rows[0], n, "f32", cta_group, ws), range(600)) == columns
        for name, size in (("bf16", 2), ("e4m3", 1), ("f32", 4)):
            steps = [*range(32 // size, 600, 32 // size)]
            assert taken(operands(name), range(600)) == steps


@pytest.mark.parametrize("operand", [tensor_operand, tensor_metadata])
def test_rows_of_weight_stationary_products_are_taken_by_their_name_alone(operand):
    assert operand(32, 64, "bf16", 1, ws=True).ws
    with pytest.raises(ValueError, match="m is 32"):
        operand(32, 64, "bf16", 1)


def test_operands_are_packed():
    columns = {name: tensor_operand(128, 128, name, 1).columns for name in ("bf16", "e4m3", "f32")}
    assert columns == {"bf16": 64, "e4m3": 32, "f32": 128}


def test_atoms_of_scale_factors_follow_each_other_along_k_in_memory_and_along_rows_in_columns():
    scales = tensor_scales(scale_tile(256, 384), None, 1)
    assert (scales.rows, scales.k, scales.columns) == (256, 384, 24)
    assert scales.atoms() == [(0, 0), (8, 512), (16, 1024), (4, 1536), (12, 2048), (20, 2560)]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: accumulator(96, 128, "f32", 1), "m is 96; with cta_group 1 .* has 64 or 128 rows"),
        (lambda: accumulator(64, 128, "f32", 2), "both blocks' together, 128 or 256 rows"),
        (lambda: accumulator(128, 100, "f32", 1), "n is 100; .* 8 to 512 .* steps of 8"),
        (lambda: accumulator(128, 128, "bf16", 1), "dtype is 'bf16'; it is f32 or f16 or i32"),
        (lambda: accumulator(128, "n", "f32", 1), "n is n; .* known at compile time"),
        (lambda: tensor_operand(128, 24, "bf16", 1), "k is 24; .* 16 elements of bf16"),
        (lambda: tensor_operand(128, 32, "i16", 1), "dtype is 'i16'"),
        (
            lambda: tensor_scales(scale_tile(128, 128), 64, 1),
            "ue8m0 is for 32 or 16 el",
        ),
        (lambda: tensor_scales(Tile((128, 4), "ue8m0"), None, 1), "is no tile of scale factors"),
        (lambda: tensor_scales(128, None, 1), "tile is 128; use scale_tile"),
        (
            lambda: check_columns(accumulator(128, 256, "f32", 1), 300, 512, "TMEM"),
            "takes columns 300 to 555, and TMEM has 512: use a column from 0 to 256",
        ),
        (
            lambda: check_columns(accumulator(128, 256, "f32", 1), 0, 128, "TMEM"),
            "takes 256 columns, and TMEM has 128: use a smaller matrix, or allocate more",
        ),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_a_part_of_scale_factors_is_of_whole_halves_of_atoms():
    scales = tensor_scales(scale_tile(256, 128), None, 1)
    for row, num in ((None, 128), (0, 128), (128, 128), (192, 64), (0, 256)):
        assert part_of_scales(scales, row, num).part == num
    for row in (-64, 32, 192):
        with pytest.raises(ValueError, match=f"row is {row} and num 128; .* of 64 up to 128"):
            part_of_scales(scales, row, 128)
    for num in (0, 32, 320):
        with pytest.raises(ValueError, match=f"num is {num}; of .* a multiple of 64 up to 256"):
            part_of_scales(scales, 0, num)


def test_a_matrix_lies_in_the_columns_that_are_allocated():
    scales = tensor_scales(scale_tile(128, 128), None, 1)  # of 4 columns
    for column in (0, 28):
        check_columns(scales, column, 32, "it")
    for column in (-1, 29):
        with pytest.raises(ValueError, match=f"column {column} .* use a column from 0 to 28"):
            check_columns(scales, column, 32, "it")
    check_columns(scales, 0, 4, "it")
    with pytest.raises(ValueError, match="takes 4 columns, and it has 3: use a smaller"):
        check_columns(scales, 0, 3, "it")


def test_two_matrices_share_no_columns():
    one = ColumnClaim("TMEM", 0, 128, "one")
    one.check(one)
    one.check(ColumnClaim("TMEM", 128, 8, "two"))
    one.check(ColumnClaim("OTHER", 0, 8, "two"))
    with pytest.raises(
        ValueError, match="one from column 0 on and two .* share columns 120 to 127"
    ):
        one.check(ColumnClaim("TMEM", 120, 128, "two"))
