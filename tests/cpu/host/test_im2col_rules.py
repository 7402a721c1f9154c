"""The rules of im2col maps one by one, on both sides of each bound, with axis and repair."""

import itertools
from functools import partial

import pytest

from numba_tma.host import im2col_rules as rules
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Swizzle
from numba_tma.host.pixel_box import PixelBox

#: Corners and offsets that cuTensorMapEncodeIm2col takes, by the rank of the tensor.
CORNERS = {3: (-32768, 32767), 4: (-128, 127), 5: (-16, 15)}
OFFSETS = {3: 65535, 4: 255, 5: 31}


def test_the_largest_corners_and_offsets_of_each_rank():
    assert {rank: rules.corner_range(rank) for rank in CORNERS} == CORNERS
    assert {rank: rules.offset_limit(rank) for rank in OFFSETS} == OFFSETS


@pytest.mark.parametrize("rank", range(8))
def test_a_tensor_has_one_to_three_spatial_axes(rank):
    found = rules.rank_violations(rank)
    assert len(found) == (rank not in CORNERS)
    if rank < 3:
        assert found[0].endswith(f": add axes of extent 1, array[{'None, ' * (3 - rank)}...]")
    elif found:
        assert found[0].startswith(f"array has rank {rank}; ")
        assert found[0].endswith(": index or merge some axes")


@pytest.mark.parametrize(
    ("given", "axes", "numbers", "wrong"),
    [
        (None, 2, (7, 7), ""), (3, 2, (3, 3), ""), ([1, 2], 2, (1, 2), ""), ((4,), 1, (4,), ""),
        ((1, 2), 3, (7,) * 3, "x is (1, 2), of length 2; the array has 3 spatial axes: give one e"),
        ((1, 2), 1, (7,), "x is (1, 2), of length 2; the array has 1 spatial axis: give one each"),
        (2.5, 2, (7, 7), "x is 2.5; give an integer, or one per spatial axis"),
        ((1, True), 2, (7, 7), "x is (1, True); give an integer, or one per spatial axis"),
        ("12", 2, (7, 7), "x is '12'; give an integer, or one per spatial axis"),
    ],
)
def test_an_option_is_one_number_or_one_for_each_axis(given, axes, numbers, wrong):
    found, texts = rules.per_axis("x", given, axes, 7)
    assert found == numbers and len(texts) == bool(wrong)
    assert wrong in "".join(texts)
    if given is not None:
        kept, _ = rules.per_axis("x", given, axes)
        assert kept == (numbers if not wrong else (0,) * axes)


@pytest.mark.parametrize(
    ("given", "axes", "pairs", "wrong"),
    [
        (1, 2, ((1, 1), (1, 1)), ""), ((1, 2), 2, ((1, 1), (2, 2)), ""),
        (((1, 2), 3), 2, ((1, 2), (3, 3)), ""), (((0, 4),), 1, ((0, 4),), ""),
        ((1, 2), 3, ((0, 0),) * 3, "padding is (1, 2), of length 2; the array has 3 spatial axes"),
        (((1, 2, 3), 1), 2, ((0, 0),) * 2, "padding is ((1, 2, 3), 1); give an integer, or per sp"),
        (((1, 2.5), 1), 2, ((0, 0),) * 2, "integer or (before, after)"),
        ("11", 2, ((0, 0),) * 2, "padding is '11'; give an integer"),
    ],
)
def test_padding_is_a_number_or_a_pair_for_each_axis(given, axes, pairs, wrong):
    found, texts = rules.padding_per_axis(given, axes)
    assert found == pairs and len(texts) == bool(wrong)
    assert wrong in "".join(texts)


@pytest.mark.parametrize("rank", CORNERS)
def test_each_axis_of_a_filter(rank):
    axes, limit = rank - 2, OFFSETS[rank]
    plain = [(3, (1, 1), 1)] * axes
    cases = {
        (1, (0, 0), 1): "", (0, (0, 0), 1): "filter is 0; a filter has at least 1",
        (3, (0, 0), 0): "dilation is 0; 1 means no gaps", (3, (-1, 0), 1): "padding is (-1, 0); it",
        (3, (0, -1), 1): "padding is (0, -1); it", (limit + 1, (0, 0), 1): "",
        (limit + 2, (0, 0), 1): f"{limit + 1}; im2col of rank {rank} takes 0 to {limit}: split the",
        (2, (0, 0), limit): "",
        (2, (0, 0), limit + 1): f"{limit + 1}; im2col of rank {rank} takes 0 to {limit}: split the",
    }  # fmt: skip
    for axis, (case, wrong) in itertools.product(range(axes), cases.items()):
        given = [*plain[:axis], case, *plain[axis + 1 :]]
        found = rules.filter_violations(*map(tuple, zip(*given, strict=True)))
        assert len(found) == bool(wrong), case
        if wrong:
            assert found[0].startswith(f"axis {axis + 1}: ") and wrong in found[0]


PAD, SLICE = "pad the array itself, and shift the coordinates", "slice the array, or make maps of p"


@pytest.mark.parametrize("rank", CORNERS)
@pytest.mark.parametrize("from_filter", [False, True])
def test_each_axis_of_a_pixel_box(rank, from_filter):
    (low, high), axes, extent = CORNERS[rank], rank - 2, 100_000
    lower, upper = "the lower corner is ", "the upper corner is "
    of_lower, of_upper = (
        (" = -padding", " = padding - (filter - 1) * dilation") if from_filter else ("", "")
    )
    takes = f"; im2col of rank {rank} takes {low} to {high}: "
    cases = {  # (lower corner, upper corner, stride) of a long axis to what is said
        (low, low, 1): "", (high, high, 8): "",
        (low - 1, 0, 1): f"{lower}{low - 1}{of_lower}{takes}{PAD}",
        (high + 1, 0, 1): f"{lower}{high + 1}{of_lower}{takes}{SLICE}",
        (0, low - 1, 1): f"{upper}{low - 1}{of_upper}{takes}{SLICE}",
        (0, high + 1, 1): f"{upper}{high + 1}{of_upper}{takes}{PAD}",
        (0, 0, 0): "stride is 0; TMA takes 1 to 8: use 1",
        (0, 0, 9): "stride is 9; TMA takes 1 to 8: view the array with every 9th pixel, stride 1",
    }  # fmt: skip
    for axis, (case, said) in itertools.product(range(axes), cases.items()):
        given = [(0, 0, 1)] * axis + [case] + [(0, 0, 1)] * (axes - 1 - axis)
        box = PixelBox(*map(tuple, zip(*given, strict=True)))
        found = rules.pixel_box_violations((1, *[extent] * axes, 1), box, from_filter)
        assert len(found) == bool(said), case
        if said:
            assert found[0].startswith(f"axis {axis + 1}: {said}")


@pytest.mark.parametrize("axis", range(2))
def test_a_pixel_box_has_a_pixel(axis):
    for extent, lower, upper in itertools.product((0, 1, 2, 5), (-2, 0, 3), (-6, -4, -1, 0, 2)):
        shape, corners = [1, 50, 50, 1], [[0, 0], [0, 0]]
        shape[1 + axis], corners[0][axis], corners[1][axis] = extent, lower, upper
        box = PixelBox(*map(tuple, corners), (1, 1))
        for from_filter, why in ((True, "pad more"), (False, "or lower the lower one")):
            found = rules.pixel_box_violations(tuple(shape), box, from_filter)
            # An axis without elements breaks a rule of all maps.
            assert len(found) == (extent > 0 and not range(lower, extent + upper))
            if found:
                assert found[0].startswith(f"axis {axis + 1}: no pixel lies in the box, from ")
                assert found[0].endswith(why)


@pytest.mark.parametrize("dtype", ["u8", "f16", "f32"])
def test_a_column_has_pixels_and_channels(dtype):
    kind = as_dtype(dtype)

    def violations(pixels, channels, interleave=None, swizzle=Swizzle.NONE):
        return rules.column_violations((pixels, channels), kind, swizzle, interleave)

    for pixels in (0, 1, 2, 1023, 1024, 1025, 2048, 2049):
        repair = f"use {-(-pixels // 1024)} copies" if pixels else "use at least 1"
        wrong = [f"pixels is {pixels}; a copy takes 1 to 1024: {repair}"]
        assert violations(pixels, 16) == (wrong if not 1 <= pixels <= 1024 else [])
    for channels in (0, 257, 512, 513):
        repair = f"use {-(-channels // 256)} copies" if channels else "use at least 1"
        for interleave in (None, 32):
            assert violations(1, channels, interleave) == [
                f"channels is {channels}; a copy takes 1 to 256: {repair}"
            ]
    assert violations(1, 256) == []
    for channels, slice_ in itertools.product(range(1, 65), (16, 32)):
        found = violations(8, channels, slice_)
        assert len(found) == (channels * kind.itemsize != slice_)
        assert all(text.endswith(f"per pixel: use {slice_ // kind.itemsize}") for text in found)
        found = violations(8, channels)
        assert len(found) == (channels * kind.itemsize % 16 > 0)
        assert all(text.startswith("channels is ") for text in found)
    for column in ((64,), (1, 64, 64)):
        (found,) = rules.column_violations(column, kind, Swizzle.NONE, None)
        assert f"the tile {column} has rank {len(column)}" in found


def test_what_the_wide_modes_lack():
    swizzled = {Swizzle.B64, Swizzle.B128, Swizzle.B128_ATOM_32B}
    for pixels, mode, swizzle, capability in itertools.product(
        (64, 127, 128, 129), ("w", "w128", "h"), Swizzle, (None, (9, 0), (10, 0), (12, 0))
    ):
        found = rules.wide_violations((pixels, 64), mode, swizzle, capability)
        expected = [
            f'mode is {mode!r}; TMA has "w" and "w128"' if mode == "h" else "",
            f"pixels is {pixels}; mode" if mode == "w128" and pixels != 128 else "",
            f"swizzle is {swizzle.name}; the wide" if swizzle not in swizzled else "",
            "this GPU has compute capability 9.0; the wide" if capability == (9, 0) else "",
        ]
        starts = [text for text in expected if text]
        assert len(found) == len(starts)
        assert all(text.startswith(start) for text, start in zip(found, starts, strict=True))
    assert rules.wide_violations((64,), "w128", Swizzle.B64, None) == []  # its rank is wrong


def test_a_wide_copy_walks_over_one_row():
    box, extents = PixelBox((-1, -2), (0, -1), (2, 3)), (5, 9)
    row = box.at_row(extents, (3, 4))
    assert row.output_shape(extents) == (1, box.output_shape(extents)[1])
    places = itertools.product(range(-9, 9), range(-9, 19))
    assert [*filter(partial(row.holds, extents), places)] == [(3, w) for w in range(-2, 8)]
    assert row.stride[1] == 3
