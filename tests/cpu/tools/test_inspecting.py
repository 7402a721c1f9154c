"""numba_tma.testing.inspect and numba_tma.map_type: kernels without a GPU."""

import re

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma.tools import inspecting, testing
from tests.kernels.golden_kernels import GOLDENS
from tests.ptx_contract import FORMS, form_text

TILE = tma.Tile((8, 32), "f32")
PIPE = tma.TilePipeline(2, x=TILE)


@cuda.jit
def scale(x, y, n_tiles):
    pipe = PIPE.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, n_tiles, 1):
            x.load(stage.x, (tile * 8, 0), stage.barrier)
    elif pipe.is_consumer():
        for tile, stage in pipe.consume(0, n_tiles, 1):
            y[tile, cuda.threadIdx.x % 32] = stage.x[0, cuda.threadIdx.x % 32]


SIGNATURE = tma.map_type(TILE), types.float32[:, ::1], types.int64


@pytest.fixture(scope="module")
def found():
    return testing.inspect(scale, SIGNATURE, 160)


def test_what_a_kernel_takes_of_an_sm(found):
    assert (found.name, found.threads) == ("scale", 160)
    assert len(testing.instructions(found.ptx)) > 50 and ".target sm_90a" in found.ptx
    assert found.report == testing.ptxas(found.ptx)
    assert found.report.shared >= PIPE.nbytes and found.report.spill_stores == 0
    assert (found.blocks, found.limited_by) == (12, "threads")  # 12 x 160 of 2,048
    assert found.occupancy == 12 * 160 / 2048
    lines = repr(found).splitlines()
    assert lines[0] == "scale for sm_90a" and lines[1].split() == ["block", "160", "threads"]
    assert f"{found.report.registers} a thread; spilled: 0 B stored, 0 B loaded" in lines[2]
    assert lines[3].split() == ["shared", f"{found.report.shared:,}", "B"]
    assert lines[4].endswith("12 x 160 of an SM's 2,048 threads, limited by threads")


def test_an_sm_of_another_architecture_holds_other_blocks():
    found = testing.inspect(scale, SIGNATURE, 160, (12, 0, "a"))
    assert (found.blocks, found.occupancy) == (9, 9 * 160 / 1536)
    large = testing.inspect(scale, SIGNATURE, 1024)
    registers = large.report.registers  # a warp takes multiples of 256
    assert large.blocks == min(2, 65536 // (-(-registers * 32 // 256) * 256 * 32))


def test_without_ptxas(monkeypatch):
    monkeypatch.setattr(inspecting, "find_tool", lambda name: None)
    found = testing.inspect(scale, SIGNATURE)
    assert (found.report, found.blocks, found.occupancy, found.limited_by) == (None, None, None, "")
    assert "unknown: ptxas was not found" in repr(found) and found.threads == 128
    assert "cp_async_bulk_tensor_load: " in found.ptx_listing()


def comments(listing):
    return {line.split(" // ", 1)[1] for line in listing.splitlines() if " // " in line}


def test_listings_say_what_instructions_do(found):
    listing = found.ptx_listing()
    code = [line for line in listing.splitlines() if "cp.async.bulk.tensor.2d" in line]
    assert code and all("cp_async_bulk_tensor_load: start to copy the box" in line for line in code)
    assert all(name in listing for name in ("mbarrier_init: ", "mbarrier_arrive_expect_tx: "))
    assert "inline asm" not in listing
    said = comments(found.sass_listing())
    assert "the copy engine loads a box through a tensor map" in said
    assert "asks whether a barrier's phase has completed" in said


def test_every_form_of_the_table_is_recognised():
    """Where a row has a part of what another one has, one of the two is named."""
    patterns = inspecting._patterns()
    for form in FORMS.values():
        text = re.sub(r"^@%\w+ ", "", form_text(form).rstrip(";"))
        word = re.split(r"[.{ ]", text)[0]
        named = [said.split(":")[0] for pattern, said in patterns[word] if pattern.fullmatch(text)]
        assert form.row.name in named and len(named) <= 3, text
        assert inspecting._of_ptx(f"\t@%p1 {text};").split(":")[0] == named[0]


@pytest.mark.parametrize(
    ("line", "comment"),
    [
        ("/*0040*/  UTMALDG.2D.MULTICAST [UR8], [UR4] ;", "loads a box"),
        ("/*0040*/  @!P0 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R2] ;", "arrives at a barrier"),
        ("/*0040*/  @UP1 UTMASTG.3D [UR8], [UR4] ;", "stores a box"),
        ("/*0040*/  FENCE.VIEW.ASYNC ;", "before the copy engine"),
        ("/*0040*/  STL [R1], R2 ;", "LOCAL MEMORY"),
        ("/*0040*/  BARRIERS R1 ;", ""),
        ("/*0040*/  IMAD R1, R2, R3, R4 ;", ""),
        ("\t.section\t.text", ""),
    ],
)
def test_machine_code(line, comment):
    assert comment in inspecting._of_sass(line) and bool(comment) == bool(inspecting._of_sass(line))


def test_products_have_comments():
    make, cc = GOLDENS["matmul"]
    kernel, signature = make()
    said = " ".join(comments(testing.inspect(kernel, signature, 384, cc).ptx_listing()))
    assert "multiplies on the tensor cores" in said and "setmaxnreg_inc" in said


# ------------------------------------------------------------------------------ types of maps


def test_the_type_of_a_tiles_map():
    assert tma.map_type(TILE) == tma.TensorMapType(2, TILE)
    assert tma.map_type(tma.Tile((2, 8, 32), "f32")).rank == 3


def test_the_type_of_an_arrays_map():
    array = np.zeros((100, 64), np.float32)
    assert tma.map_type(array, TILE) == tma.TensorMapType(2, TILE)
    assert tma.map_type(array, (8, 32)) == tma.TensorMapType(2, TILE)
    swizzled = tma.map_type(array, (8, 32), swizzle=tma.Swizzle.B128)
    assert swizzled.tile == tma.Tile((8, 32), "f32", tma.Swizzle.B128)
    bits = np.zeros((100, 64), np.uint16)
    assert tma.map_type(bits, (8, 64), dtype="bf16").tile == tma.Tile((8, 64), "bf16")
    odd = np.zeros((100, 64), np.float32)[:, :50]  # rows of 200 B, 256 B apart
    assert tma.map_type(odd, TILE).partial_rows and not tma.map_type(array, TILE).partial_rows
    assert not tma.map_type(odd, TILE, overwrite_padding=True).partial_rows
    strided = tma.map_type(array, (8, 32), element_strides=[2, 1])
    assert strided.tile.shape == (4, 32)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((TILE, TILE), {}, "a Tile has a type of its own: leave out tile_or_box"),
        ((TILE,), {"fold": True}, "leave out fold"),
        ((np.zeros((8, 32), np.float32),), {}, "an array has a type with a tile"),
        ((np.zeros((8, 32), np.float32), TILE), {"rows": 1}, "no option 'rows'"),
        (([1], TILE), {}, "map_type: tile_or_array is a list"),
        ((np.zeros((8, 32), np.float32), TILE), {"swizzle": []}, "swizzle"),
    ],
)
def test_wrong_arguments(arguments, options, words):
    with pytest.raises(TypeError, match=re.escape(words)):
        tma.map_type(*arguments, **options)


def test_the_rules_of_maps_hold():
    with pytest.raises(ValueError, match="map_type"):
        tma.map_type(np.zeros((8, 33), np.float32), TILE)
    with pytest.raises(ValueError, match="map_type"):
        tma.map_type(np.zeros((8, 32), np.float64), TILE)
