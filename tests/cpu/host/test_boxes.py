"""Tiles larger than a box: slabs, their copies, the folded form, and `explain`."""

import math
import pickle
import re
import sys
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numba import types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma import Swizzle, TensorMapType, Tile
from numba_tma.backend.lowering.types import type_of
from numba_tma.device import shared
from numba_tma.host import encoding as _encoding
from numba_tma.host.boxes import Copies, copies_of, copies_violations, fold_violations
from numba_tma.host.layout import box_violations, cut
from numba_tma.host.reference import reference_store, reference_tile
from numba_tma.host.tensor_map import describe_kind
from numba_tma.tools.testing import compile_ptx, instructions, ptxas

WIDE = Tile((128, 256), "bf16", Swizzle.B128)
LOADS, STORES = "cp.async.bulk.tensor.{}d.shared", "cp.async.bulk.tensor.{}d.global"

few = settings(max_examples=60, deadline=None)


class Array:
    """Looks like a GPU array of 2-byte words."""

    def __init__(self, shape, typestr="<u2"):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (1 << 40, False),
            "version": 3,
        }


def wide_map(shape, tile, **options):
    """Return a map made without a driver, and what the driver would have been asked."""
    module = sys.modules["numba_tma.host.tensor_map"]  # not the function of that name
    asked = []
    typestr = f"<u{tile.itemsize}" if isinstance(tile, Tile) else "<u2"
    if isinstance(tile, Tile):
        options.setdefault("dtype", tile.dtype)
    with (
        mock.patch.object(module, "current_device", lambda: 0),
        mock.patch("numba_tma.host.encoding.encode_tiled", lambda *given: asked.append(given) or 1),
    ):
        _encoding.encode.cache_clear()
        made = tma.tensor_map(Array(shape, typestr), tile, **options)
        _encoding.encode.cache_clear()
    return made, asked[0][2:6]


def refusals(shape, tile, **options):
    with pytest.raises(ValueError) as caught:
        wide_map(shape, tile, **options)
    _, *rules, _ = str(caught.value).split("\n")
    return [rule.split(". ", 1)[1] for rule in rules]


# ------------------------------------------------------------------------------ layout


def test_a_wide_swizzled_tile_lies_in_slabs():
    assert (WIDE.slab, WIDE.num_slabs, WIDE.pitch) == (64, 4, 128)
    assert WIDE.slab_nbytes == 128 * 128
    assert WIDE.nbytes == WIDE.shared_nbytes == 128 * 256 * 2
    assert WIDE.box == (128, 64)
    assert WIDE.boxes() == [
        (0, (0, 0)),
        (16384, (0, 64)),
        (32768, (0, 128)),
        (49152, (0, 192)),
    ]
    assert WIDE.offset(1, 64) == 16384 + 128 + 16  # chunk 0 of line 1 lies at chunk 1
    assert pickle.loads(pickle.dumps(WIDE)) == WIDE


def test_the_last_slab_is_whole_and_slabs_are_aligned():
    tile = Tile((3, 80), "bf16", Swizzle.B128)
    assert tile.nbytes == 3 * 128 * 2  # what the engine brings
    assert tile.slab_nbytes == 1024 and tile.shared_nbytes == 2048
    assert tile.size == 240
    assert tile.boxes() == [(0, (0, 0)), (1024, (0, 64))]


def test_rows_without_a_swizzle_stay_together():
    tile = Tile((4, 1024), "f32")
    assert tile.num_slabs == 1 and tile.offset(1, 3) == 4108
    assert tile.box == (1, 256) and len(tile.boxes()) == 16
    assert Tile(4096, "u8").boxes()[1] == (256, (256,))


@pytest.mark.parametrize(
    ("tile", "box"),
    [
        (Tile((512, 64), "bf16", Swizzle.B128), (256, 64)),
        (Tile((304, 64), "f16", Swizzle.B128), (152, 64)),
        (Tile((2, 512, 32), "f32", Swizzle.B128), (1, 256, 32)),
        (Tile((2, 8, 96), "f32", Swizzle.B128), (2, 8, 32)),
        (Tile((384, 4), "f32"), (192, 4)),
        (Tile((2, 300, 8), "f32"), (1, 100, 8)),
        (Tile(1536, "f32"), (256,)),
        (Tile((2, 2, 320, 2, 32), "u8", Swizzle.B32), (1, 1, 160, 2, 32)),
        (Tile((2, 256, 32), "f32", Swizzle.B128), (2, 256, 32)),
        (Tile((257, 8, 64), "bf16", Swizzle.B128), (1, 8, 64)),  # 257 is prime
    ],
)
def test_a_box_is_the_largest_part_in_one_piece(tile, box):
    assert tile.box == box
    assert box_violations(tile) == []


def test_element_strides_make_boxes_smaller():
    tile = Tile((256, 64), "bf16", Swizzle.B128)
    assert cut(tile) == (256, 64) and cut(tile, (8, 1)) == (32, 64)
    assert [cut(Tile((2, 8, 64), "bf16"), (n, 1, 1)) for n in (256, 999)] == 2 * [(1, 8, 64)]
    assert Copies(tile, (8, 1)).starts[1] == (32 * 128, (256, 0))


@st.composite
def tiles(draw, *, copied=False):
    """Tiles of up to 65,536 elements; with `copied`, ones that copies can move."""
    itemsize = draw(st.sampled_from([1, 2, 4, 8]))
    swizzle = draw(st.sampled_from(Swizzle))
    chunk = 16 // itemsize
    lead = draw(st.lists(st.integers(1, 6), max_size=3))
    if draw(st.booleans()) and lead:
        lead[0] = draw(st.sampled_from([8, 16, 264, 320, 512]))
    inner = draw(st.integers(1, 24)) * chunk
    if swizzle is Swizzle.NONE and draw(st.booleans()):
        inner = draw(st.sampled_from([256, 512, 768])) * chunk // 4
    tile = Tile((*lead, inner), f"u{8 * itemsize}", swizzle)
    assume(tile.size <= 1 << 16)
    if copied:
        assume(not copies_violations(copies_of(tile), None) and not box_violations(tile))
    return tile


@few
@given(tiles())
def test_every_element_has_a_place_of_its_own(tile):
    places = np.ravel(tile.offset(*np.indices(tile.shape)))
    assert np.unique(places).size == tile.size
    assert places.min() >= 0 and places.max() + tile.itemsize <= tile.shared_nbytes
    assert not np.any(places % tile.itemsize)


def slow_offset(tile, index):
    """Where an element lies, by walking the slabs."""
    *lead, column = index
    width = tile.shape[-1]
    if tile.swizzle is not Swizzle.NONE:
        width = min(width, tile.swizzle.span // tile.itemsize)
    row = 0
    for i, extent in zip(lead, tile.shape):
        row = row * extent + i
    pitch = width * tile.itemsize if tile.swizzle is Swizzle.NONE else tile.swizzle.span
    base = 0
    while column >= width:
        column -= width
        base += math.prod(tile.shape[:-1]) * pitch
        base = -(-base // tile.alignment) * tile.alignment
    place = base + row * pitch + column * tile.itemsize
    atom = tile.swizzle.atom
    line, chunk = place // 128, place % 128 // atom
    return line * 128 + (chunk ^ line % (tile.swizzle.span // atom)) * atom + place % atom


@few
@given(tiles(), st.randoms(use_true_random=False))
def test_an_element_lies_where_a_walk_finds_it(tile, random):
    for _ in range(20):
        index = [random.randrange(extent) for extent in tile.shape]
        assert tile.offset(*index) == slow_offset(tile, index)


# ------------------------------------------------------------------------------ copies


@st.composite
def moves(draw):
    """A tile that takes several copies, an array, and where the tile starts in it."""
    tile = draw(tiles(copied=True))
    steps = [draw(st.sampled_from([1, 1, 2, 3])) for _ in tile.shape[:-1]] + [1]
    assume(not copies_violations(Copies(tile, tuple(steps)), None))
    unit = 16 // tile.itemsize
    shape = [draw(st.integers(1, min(40, 2 * extent))) for extent in tile.shape[:-1]]
    shape.append(draw(st.integers(1, 2 * tile.shape[-1])))
    coords = [draw(st.integers(-extent, extent)) for extent in shape]
    coords[-1] = coords[-1] // unit * unit
    return tile, tuple(steps), tuple(shape), tuple(coords)


def noise(shape, itemsize):
    return (
        np.random.default_rng(len(shape))
        .integers(1, 256, (*shape, itemsize), np.uint8)
        .view(f"u{itemsize}")[..., 0]
    )


def loaded(copies, array, coords):
    """What the copies of one load put into shared memory, one box after the other."""
    image = np.zeros(copies.tile.shared_nbytes, np.uint8)
    steps, view = copies.encoded_steps(copies.element_strides), copies.view(array)
    brought = 0
    for offset, start in copies.each(coords):
        assert offset % copies.tile.alignment == 0
        part = reference_tile(view, copies.box, start, element_strides=steps)
        image[offset : offset + part.size] = part
        brought += copies.box.nbytes
    assert brought == copies.tile.nbytes
    return image


@few
@given(moves())
def test_the_boxes_are_the_tile(move):
    tile, steps, shape, coords = move
    copies, array = Copies(tile, steps), noise(shape, tile.itemsize)
    assert all(extent * step <= 256 for extent, step in zip(copies.box.shape, steps))
    assert copies.count == len(copies.starts)
    expected = reference_tile(array, tile, coords, element_strides=steps)
    np.testing.assert_array_equal(loaded(copies, array, coords), expected)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_extent_that_is_advised_can_be_cut(data):
    extents = [1, 2, 3, 16, 100, 259, 264, 320, 509]
    chunk = 16 // (itemsize := data.draw(st.sampled_from([1, 2, 4, 8])))
    lead = data.draw(st.lists(st.sampled_from(extents), max_size=3))
    shape = (*lead, data.draw(st.integers(1, 70)) * chunk)
    tile = Tile(shape, f"u{8 * itemsize}", data.draw(st.sampled_from(Swizzle)))
    steps = *(data.draw(st.integers(1, 8)) for _ in lead), 1
    for text in copies_violations(Copies(tile, steps), None):
        if found := re.match(r"tile axis (\d) is (\d+);.*: use (\d+)$", text):
            axis, extent, advised = map(int, found.groups())
            assert tile.shape[axis] == extent < advised
            shape = (*tile.shape[:axis], advised, *tile.shape[axis + 1 :])
            box = cut(Tile(shape, tile.dtype, tile.swizzle), steps)
            assert all(extent * step <= 256 for extent, step in zip(box, steps))


@few
@given(moves())
def test_the_boxes_store_the_tile(move):
    tile, steps, shape, coords = move
    coords = tuple(max(0, c) for c in coords)
    copies, array = Copies(tile, steps), noise(shape, tile.itemsize)
    image = np.random.default_rng(0).integers(0, 256, tile.shared_nbytes, np.uint8)
    expected = array.copy()
    reference_store(expected, image, tile, coords, steps)
    for offset, start in copies.each(coords):
        part = image[offset : offset + copies.box.shared_nbytes]
        reference_store(array, part, copies.box, start, steps)
    np.testing.assert_array_equal(array, expected)


@st.composite
def folds(draw):
    """A tile and an array of which the tile can be moved in one copy, in bounds or out."""
    itemsize = draw(st.sampled_from([1, 2, 4, 8]))
    swizzle = draw(st.sampled_from(Swizzle))
    lead = draw(st.lists(st.integers(1, 4), max_size=2)) + [8 * draw(st.integers(1, 3))]
    if swizzle is Swizzle.NONE:
        inner = draw(st.sampled_from([512, 768, 1024, 272, 1000]))
    else:
        inner = swizzle.span // itemsize + draw(st.integers(1, 100))
    tile = Tile((*lead, inner), f"u{8 * itemsize}", swizzle)
    steps = tuple(draw(st.sampled_from([1, 1, 2])) for _ in lead) + (1,)
    copies = Copies(tile, steps, fold=True)
    shape = [draw(st.integers(1, 2 * extent)) for extent in lead]
    shape.append(draw(st.integers(1, 5)) * copies.part)
    assume(not fold_violations(copies, tuple(shape), None))
    coords = [draw(st.integers(-extent, extent)) for extent in shape]
    coords[-1] = coords[-1] // copies.part * copies.part
    return copies, tuple(shape), tuple(coords)


@few
@given(folds())
def test_the_folded_copy_is_the_tile_in_bounds_and_out(fold):
    copies, shape, coords = fold
    array, tile = noise(shape, copies.tile.itemsize), copies.tile
    assert len(copies.starts) == 1 and box_violations(copies.box) == []
    expected = reference_tile(array, tile, coords, element_strides=copies.element_strides)
    np.testing.assert_array_equal(loaded(copies, array, coords), expected)


@few
@given(folds())
def test_the_folded_copy_stores_the_tile(fold):
    copies, shape, coords = fold
    unit = copies.part
    coords = (*(max(0, c) for c in coords[:-1]), max(0, coords[-1]) // unit * unit)
    array, tile = noise(shape, copies.tile.itemsize), copies.tile
    image = np.random.default_rng(0).integers(0, 256, tile.shared_nbytes, np.uint8)
    expected = array.copy()
    reference_store(expected, image, tile, coords, copies.element_strides)
    ((_, start),) = copies.each(coords)
    steps = copies.encoded_steps(copies.element_strides)
    reference_store(copies.view(array), image, copies.box, start, steps)
    np.testing.assert_array_equal(array, expected)


def test_a_slab_past_the_tile_holds_what_follows_in_the_array():
    array = np.arange(8 * 64, dtype=np.float32).reshape(8, 64)
    tile = Tile((8, 40), "f32", Swizzle.B128)
    image = reference_tile(array, tile, (0, 0)).view(np.float32)
    wide = reference_tile(array, Tile((8, 64), "f32", Swizzle.B128), (0, 0)).view(np.float32)
    np.testing.assert_array_equal(image, wide)


# -------------------------------------------------------------------------------- maps


def test_a_map_of_a_wide_tile_encodes_one_box():
    made, asked = wide_map((4096, 4096), WIDE)
    assert asked == ((4096, 4096), (8192, 2), (128, 64), (1, 1))
    assert made.box == (128, 64) and made.tile == WIDE
    assert [coords for _, coords in made.copies.each((3, 8))] == [
        (3, 8), (3, 72), (3, 136), (3, 200),
    ]  # fmt: skip
    assert "box (128, 64), tile Tile((128, 256), bf16, B128), 4 copies," in repr(made)


def test_a_folded_map_has_an_axis_more():
    made, asked = wide_map((4096, 4096), WIDE, fold=True)
    assert asked == ((64, 4096, 64), (128, 8192, 2), (4, 128, 64), (1, 1, 1))
    assert (made.rank, made.shape, made.box) == (2, (4096, 4096), (128, 256))
    assert list(made.copies.each((3, -64))) == [(0, (-1, 3, 0))]
    assert "folded," in repr(made)


def test_rows_without_a_swizzle_fold_beside_the_innermost_axis():
    _, asked = wide_map((40, 1024), Tile((8, 1024), "bf16"), fold=True)
    assert asked == ((40, 4, 256), (2048, 512, 2), (8, 4, 256), (1, 1, 1))


def test_folding_one_box_changes_nothing():
    tile = Tile((64, 64), "bf16", Swizzle.B128)
    made, asked = wide_map((128, 128), tile, fold=True)
    assert asked == ((128, 128), (256, 2), (64, 64), (1, 1))
    assert type_of(made) == type_of(wide_map((128, 128), tile)[0])


def test_element_strides_go_on_from_box_to_box():
    made, asked = wide_map(
        (4096, 64), Tile((256, 64), "bf16", Swizzle.B128), element_strides=(4, 1)
    )
    assert asked[2:] == ((256, 64), (4, 1))
    assert [coords[0] for _, coords in made.copies.each((0, 0))] == [0, 256, 512, 768]


LEAVE = "; or leave fold out for one copy per box"


@pytest.mark.parametrize(
    ("shape", "tile", "options", "rules"),
    [
        (
            (400, 64),
            Tile((259, 64), "bf16", Swizzle.B128),
            {},
            [
                "tile axis 0 is 259; TMA copies 1 to 256 elements along an axis, and no box of 256 "
                "or fewer divides Tile((259, 64), bf16, B128) into parts aligned to 1024 B: use 264"
            ],
        ),
        (
            (400, 1000),
            Tile((8, 1000), "bf16"),
            {},
            [
                "tile axis 1 is 1000; TMA copies 1 to 256 elements along an axis, and no box of "
                "256 or fewer divides Tile((8, 1000), bf16, NONE) into parts aligned to 128 B: "
                "use 1024"
            ],
        ),
        (
            (400, 400),
            Tile((264, 272), "u8"),
            {},
            [
                "tile axis 1 is 272; TMA copies 1 to 256 elements along an axis, and no box of "
                "256 or fewer divides Tile((264, 272), u8, NONE) into parts aligned to 128 B: "
                "use 384"
            ],
        ),
        (
            (65536, 65536),  # of an array as a tile copies are counted, not listed
            Tile((65536, 65536), "f32"),
            {},
            [
                "tile Tile((65536, 65536), f32, NONE) takes 16777216 copies of the box (1, 256); a "
                "load is unrolled into at most 64: use a smaller tile, a swizzle, or fold=True"
            ],
        ),
        (
            (64, 4096),
            Tile((32, 4096), "bf16"),
            {},
            [
                "tile Tile((32, 4096), bf16, NONE) takes 512 copies of the box (1, 256); a load is "
                "unrolled into at most 64: use a smaller tile, a swizzle, or fold=True"
            ],
        ),
        (
            (2, 4, 600, 16),
            Tile((1, 1, 512, 16), "bf16", Swizzle.B32),
            {"interleave": 32},
            [
                "tile Tile((1, 1, 512, 16), bf16, B32) takes 2 copies, but with interleave=32 a "
                "load is one: use tiles like Tile((1, 1, 256, 16), bf16, B32), and several"
            ],
        ),
        (
            (64, 64),
            (8, 64),
            {"fold": True},
            ["fold=True needs a Tile; the box (8, 64) is one copy: leave fold out"],
        ),
        (
            (400, 104),
            Tile((512, 100), "bf16", Swizzle.B128),
            {"fold": True},
            [
                "fold=True moves the 512 elements along axis 0 at once, and TMA copies 1 to 256: "
                "use a tile of 256 or fewer there" + LEAVE,
                "fold=True takes axis 1 in parts of 64 elements, and the array has 104 there: the "
                "last part would read on into the next row; pad the rows to 128 columns" + LEAVE,
            ],
        ),
        (
            (800, 128),
            Tile((88, 128), "bf16", Swizzle.B128),
            {"fold": True, "element_strides": (3, 1)},
            [
                "fold=True moves the 264 elements along axis 0 at once, and TMA copies 1 to 256: "
                "use a tile of 85 or fewer there" + LEAVE
            ],
        ),
        (
            (400, 128),
            Tile((12, 100), "bf16", Swizzle.B128),
            {"fold": True},
            [
                "fold=True puts slabs side by side, and slabs of 12 rows are not aligned to "
                "1024 B: use a multiple of 8 rows" + LEAVE
            ],
        ),
        (
            (1, 1, 1, 8, 128),
            Tile((1, 1, 1, 8, 128), "bf16", Swizzle.B128),
            {"fold": True},
            ["fold=True adds an axis to the 5 of the array, and TMA takes 5" + LEAVE],
        ),
        (
            (8, 1024),
            Tile((8, 1020), "bf16"),
            {"fold": True},
            [
                "fold=True takes axis 1 of Tile((8, 1020), bf16, NONE) in parts of 4 = 8 B, and "
                "TMA needs a multiple of 16 B" + LEAVE
            ],
        ),
        (
            (8, 4112),
            Tile((8, 2056), "bf16"),
            {"fold": True},
            [
                "fold=True takes axis 1 of Tile((8, 2056), bf16, NONE) in 257 parts of 8, and TMA "
                "copies 1 to 256" + LEAVE
            ],
        ),
    ],
)
def test_rules(shape, tile, options, rules):
    assert refusals(shape, tile, **options) == rules


def test_explain():
    made, _ = wide_map((4096, 4096), WIDE)
    assert made.explain() == (
        """\
TensorMap of bf16, shape (4096, 4096), strides (8192, 2) B
  tile       Tile((128, 256), bf16, B128): a load brings 65,536 B to its barrier
  shared     65,536 B, aligned to 1,024 B; 4 slabs of 64 columns, 16,384 B from one to the next
  copies     4 of the box (128, 64), 16,384 B each, to 0, 16,384, 32,768, 49,152 B in shared memory
  swizzle    B128: chunk c of 16 B in line r of 128 B lies at c ^ (r % 8)
  outside    a load reads zeros; a store writes nothing
  stores     allowed
  L2         fetches at least 128 B
rules met
  axis 0     4,096 elements (1 to 2**32), stride 8,192 B (a multiple of 16, below 2**40), """
        """box 128 (1 to 256)
  axis 1     4,096 elements (1 to 2**32), contiguous (2 B), box 64 (1 to 256), 128 B """
        """(a multiple of 16, at most 128), coordinates in multiples of 8
  address    0x10000000000, a multiple of 16 B"""
    )


def test_explain_names_the_fold():
    text = wide_map((40, 1024), Tile((8, 1024), "bf16"), fold=True, l2_promotion=None)[0].explain()
    for part in (
        "copies     1, folded: the box (8, 4, 256) of an array of shape (40, 4, 256), 16,384 B",
        "swizzle    NONE: rows lie as they are",
        "L2         no promotion",
        "4 parts of 256 (1 to 256 each), 512 B (a multiple of 16), coordinates in multiples of 256",
    ):
        assert part in text


def test_explain_names_padding_steps_interleave_and_forbidden_stores():
    narrow = Tile((8, 24), "bf16", Swizzle.B64)
    text = wide_map((40, 104), narrow, element_strides=(3, 1), oob_fill="nan")[0].explain()
    assert "512 B, aligned to 512 B; rows of 48 B, 64 B apart" in text
    assert "element stride 3 (1 to 8), box 24 (1 to 256)" in text
    assert "a load reads nan" in text
    text = wide_map((40, 104), Tile((8, 80), "bf16", Swizzle.B128))[0].explain()
    assert "stores     not compiled: Tile((8, 80), bf16, B128) lies in slabs" in text
    boxed = wide_map((8, 8, 64, 16), (1, 1, 8, 16), swizzle=Swizzle.B32, interleave=32)
    assert describe_kind(boxed[0]) == "Tile((1, 1, 8, 16), u16, B32), interleave=32"
    assert "interleave 32 B: the last axis is a slice, and a copy takes" in boxed[0].explain()


# ----------------------------------------------------------------------------- kernels


def copy_a_tile(x, t):
    tile, full = tma.shared_tile(WIDE), tma.shared_barrier()
    x.load(tile, (t * 128, t * 64), full)
    x.store(tile, (128, 64))


FOLDED = TensorMapType(2, WIDE, copies=Copies(WIDE, (1, 1), fold=True))


def text_of(kernel, *arguments):
    text = compile_ptx(kernel, arguments)
    ptxas(text)
    return text


def test_a_load_is_one_copy_per_box():
    text = text_of(copy_a_tile, TensorMapType(2, WIDE), types.int64)
    assert text.count(LOADS.format(2)) == text.count(STORES.format(2)) == 4
    for offset in (16384, 32768, 49152):
        assert re.search(rf"add\.s32.*, {offset};", text)


def test_a_folded_load_is_one_copy_of_an_axis_more():
    text = text_of(copy_a_tile, FOLDED, types.int64)
    assert text.count(LOADS.format(3)) == text.count(STORES.format(3)) == 1
    assert LOADS.format(2) not in text
    assert "selp" not in text  # t * 64 is seen to be a multiple of 64


def copy_anywhere(x, t):
    x.load(tma.shared_tile(WIDE), (0, t), tma.shared_barrier())


def test_a_column_inside_a_part_is_no_wrong_result():
    assert re.search("selp|min|set", text_of(copy_anywhere, FOLDED, types.int64))


def at_column_8(x):
    x.load(tma.shared_tile(WIDE), (0, 8), tma.shared_barrier())


def message(kernel, *arguments):
    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(kernel, arguments)
    return re.sub(r"\s+", " ", str(caught.value))


def test_a_literal_column_inside_a_part():
    compile_ptx(at_column_8, (TensorMapType(2, WIDE),))
    text = message(at_column_8, FOLDED)
    assert (
        "TensorMap.load: the innermost coordinate is 8; a map with fold=True moves parts of 64 "
        "elements: use a multiple of 64, or a map without fold" in text
    )


def test_of_a_map_of_which_only_the_rank_is_known():
    text = message(copy_anywhere, TensorMapType(2), types.int64)
    assert "Tile((128, 256), bf16, B128) takes 4 copies, but of TensorMap(2d) only the rank" in text
    one_box, any_map = TensorMapType(2, Tile((8, 64), "bf16")), TensorMapType(2)
    assert one_box.can_convert_to(None, any_map) is not None
    assert one_box.can_convert_to(None, TensorMapType()) is not None
    assert one_box.can_convert_to(None, TensorMapType(3)) is None
    # What a kernel that only knows the rank would copy otherwise than the map needs.
    pixels = TensorMapType(2, Tile((8, 64), "bf16"), mode="im2col")
    for other in (TensorMapType(2, WIDE), FOLDED, pixels):
        assert other.can_convert_to(None, any_map) is None
        assert other.can_convert_to(None, TensorMapType()) is None


PADDED = Tile((8, 80), "bf16", Swizzle.B128)


def store_padded(x, t):
    x.store(tma.shared_tile(PADDED), (t, 0))


def test_a_store_does_not_overwrite_what_follows_the_tile():
    text = message(store_padded, type_of(wide_map((64, 160), PADDED)[0]), types.int64)
    assert (
        "TensorMap.store: Tile((8, 80), bf16, B128) lies in slabs of 64 columns, and TMA stores "
        "whole slabs: columns 80 to 127 past the tile's start would be overwritten, of an array "
        "that has 160; use a tile of 128 or 64 columns" in text
    )
    text_of(store_padded, type_of(wide_map((64, 80), PADDED)[0]), types.int64)
    assert "whole slabs" in message(
        store_padded,
        type_of(wide_map((64, 160), PADDED, overwrite_padding=True)[0]),
        types.int64,
    )


def test_maps_that_copy_otherwise_have_other_types():
    tall = Tile((256, 64), "bf16", Swizzle.B128)
    steps = [type_of(wide_map((4096, 64), tall, element_strides=(s, 1))[0]) for s in (1, 2, 4)]
    assert len({*steps, type_of(wide_map((4096, 64), tall)[0])}) == 3
    assert len({str(t) for t in steps}) == 3
    assert "folded" in str(FOLDED) and FOLDED != TensorMapType(2, WIDE)


def elements(x, out, i, j):
    tile = tma.shared_tile(WIDE)
    tile.write_vector((i, j), tile.read_vector((j, i)) + 1)
    out[0] = tile[i, j] + tile[3, 200]


def test_elements_and_vectors_of_a_wide_tile():
    text = text_of(elements, TensorMapType(2, WIDE), types.float32[::1], types.int64, types.int64)
    assert "ld.shared.v4" in text and "st.shared.v4" in text
    assert "div" not in text and "rem" not in text
    assert not [i for i in instructions(text) if i.startswith("call")]


PIPE = tma.TilePipeline(2, x=WIDE)


def test_a_pipeline_expects_the_bytes_of_all_boxes():
    assert PIPE.tx_bytes == WIDE.nbytes and PIPE.tile_offset("x") == 0
    padded = tma.TilePipeline(2, x=Tile((3, 80), "bf16", Swizzle.B128))
    assert padded.tx_bytes == 3 * 128 * 2 and padded.barriers_offset == 2 * 2048


def flatten(x, out):
    tile = tma.shared_tile(WIDE)
    out[0] = tile.view(OTHER)[0, 0]


OTHER = Tile((64, 512), "bf16", Swizzle.B128)
BITS = Tile((128, 256), "u16", Swizzle.B128)


def test_a_view_keeps_the_slabs():
    text = message(flatten, TensorMapType(2, WIDE), types.float32[::1])
    assert "a swizzled tile keeps its swizzle and the bytes of its innermost axis" in text
    shared.check_view(WIDE, BITS)
