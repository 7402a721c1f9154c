"""Sparse and weight-stationary products, masks, the collector: their PTX, and what is refused."""

import re

import pytest
from numba import types
from numba.core.errors import TypingError

import numba_tma as tma
from numba_tma.host.architectures import TCGEN05, TCGEN05_I8, capability_of
from numba_tma.host.matrix_layout import MatrixLayout
from numba_tma.host.scale_factors import scale_tile
from numba_tma.host.tensor_products import ProductOptions, copy_call, product_call
from numba_tma.host.tensor_tiles import (
    accumulator,
    tensor_metadata,
    tensor_operand,
    tensor_scales,
)
from numba_tma.tools.testing import compile_ptx, ptxas
from tests.kernels.tensor_variants import (
    INTEGERS,
    SWIZZLE,
    integer_weights,
    masked,
    sparse,
    stationary,
)
from tests.tiers import quick

SM_100A = (10, 0, "a")
OUT = types.float32[:, ::1]


def compiled(tiles, kernel, *rest, cc=SM_100A):
    maps = [tma.TensorMapType(tile.ndim, tile) for tile in tiles]
    text = compile_ptx(kernel.py_func, (*maps, *rest, OUT), cc=cc)
    report = ptxas(text)
    assert (report.warnings, report.spill_stores, report.stack_frame) == ((), 0, 0)
    return text


def mmas(text):
    return re.findall(r"tcgen05\.(mma\.\S+)", text)


def test_a_sparse_product_selects_its_metadata():
    text = compiled(*sparse(64, "bf16", 128))
    assert mmas(text) == ["mma.sp.cta_group::1.kind::f16"] * 4
    assert text.count("tcgen05.cp.cta_group::1.128x128b") == 1
    constants = dict(re.findall(r"mov\.b32\s+(%r\d+), (\d+);", text))
    given = re.findall(r"tcgen05\.mma\.sp.*\], (%r\d+), p;", text)
    said = [int(constants[name]) for name in given]
    assert [word & 7 for word in said] == [4, 5, 4, 5]  # sparse; selectors 0, 1, 0, 1
    assert len(set(re.findall(r"tcgen05\.mma\.sp\S+ \S+ \S+ \S+ (\[%r\d+\])", text))) == 2


@pytest.mark.slow
def test_a_weight_stationary_sparse_product():
    text = compiled(*sparse(64, "i8", 128, 32, True))
    assert mmas(text) == ["mma.ws.sp.cta_group::1.kind::i8.collector::b0::discard"] * 2


@pytest.mark.parametrize("inside", quick([True], [False, True]))
def test_weight_stationary(inside):
    text = compiled(*stationary(64, inside), OUT)
    buffer = "b0::discard" if inside else "b2::discard"
    assert mmas(text) == [f"mma.ws.cta_group::1.kind::f16.collector::{buffer}"] * 4


def test_zero_columns_are_an_operand_of_each_step():
    mask = tma.zero_column_mask([True, False] * 32, 64)
    text = compiled(*stationary(64, True, mask), OUT)
    constants = dict(re.findall(r"mov\.b64\s+(%rd\d+), (\d+);", text))
    given = re.findall(r"tcgen05\.mma\.ws.*, p, (%rd\d+);", text)
    assert [int(constants[name]) for name in given] == [mask] * 4


def test_integers_in_tensor_memory_saturate():
    text = compiled((INTEGERS,), integer_weights, types.int32[:, ::1])
    assert mmas(text) == ["mma.cta_group::1.kind::i8"]
    words = {int(word) for word in re.findall(r"mov\.b32\s+%r\d+, (\d+);", text)}
    idesc = 1 << 3 | 2 << 4 | 1 << 7 | 1 << 10 | 32 >> 3 << 17 | 128 >> 4 << 24
    assert idesc in words  # saturate, sums of i32, i8 twice, N 32, M 128


def test_a_mask_of_lanes_and_the_collector():
    text = compiled(*masked())
    form = "mma.cta_group::1.kind::f16"
    collected = [f"{form}.collector::a::{op}" for op in ("fill", "lastuse")]
    assert sorted(set(mmas(text))) == sorted({form, *collected})
    words = r"\{(%r\d+, ){3}%r\d+\}"
    assert len(re.findall(rf"tcgen05\.{re.escape(form)} .*, {words}, p;", text)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("target", TCGEN05)
def test_each_target_has_the_variants(target):
    cc = capability_of(target)
    compiled(*stationary(32), OUT, cc=cc)
    compiled(*masked(), cc=cc)
    compiled(*sparse(64, "e4m3", 256), cc=cc)
    if target in TCGEN05_I8:
        compiled(*sparse(64, "i8", 128), cc=cc)
    else:
        with pytest.raises(TypingError, match=f"i8.* needs sm_100a or 110a; .* sm_{target}"):
            compiled(*sparse(64, "i8", 128), cc=cc)


# ----------------------------------------------------------------------- what is refused


def operand(rows, k, dtype="bf16", major="K", swizzle=SWIZZLE):
    tile = tma.Tile((rows, k) if major == "K" else (k, rows), dtype, swizzle)
    return MatrixLayout(tile, major, "tcgen05")


ACC, WS = accumulator(128, 64, "f32", 1), accumulator(64, 64, "f32", 1, True)
A, B, HALF = operand(128, 64), operand(64, 64), operand(128, 32)
SP = tensor_metadata(128, 64, "bf16", 1)
FP8 = operand(128, 128, "e4m3"), operand(64, 128, "e4m3")
SCALES = tuple(tensor_scales(scale_tile(rows, 128), None, 1) for rows in (128, 64))

REFUSED = [
    ((ACC, A, B), {"collector": "fill"}, "collector is 'fill', .* 4 instructions .* k_steps=1"),
    ((ACC, A, B), {"saturate": True}, "saturate is for integers, and the kind is f16"),
    ((WS, operand(64, 64), B), {}, "lanes are those of a weight-stationary .* use tcgen05_mma_ws"),
    (
        (accumulator(64, 64, "f32", 1), operand(64, 64), B),
        {"buffer": "b0"},
        r"it is tmem.tile\(64, 64, ws=True\)",
    ),
    (
        (accumulator(128, 32, "f32", 1), A, operand(32, 64)),
        {"buffer": "b0"},
        "n is 32; with kind f16, ws, .* 64 or 128 or 256",
    ),
    (
        (WS, tensor_operand(64, 64, "bf16", 1), B),
        {"buffer": "b0"},
        "in tensor memory both have the same rows",
    ),
    ((ACC, *FP8, SCALES), {"buffer": "b0"}, "ws does not go with kind mxf8f6f4"),
    ((ACC, A, B, None, SP), {}, r"a has K 128 \(twice the stored half\) and b has K 64"),
    ((ACC, HALF, B, None, ACC), {}, r"a_metadata is tile.*; use tmem.metadata\(128, 64, 'bf16'\)"),
    (
        (ACC, HALF, B, None, tensor_metadata(128, 64, "f16", 1)),
        {},
        r"of 128 rows x 64 elements of bf16, .* use tmem.metadata\(128, 64, 'bf16'\)",
    ),
    (
        (ACC, A, operand(64, 128), None, SP),
        {},
        r"metadata\(128, 64, bf16\); the product takes that of 128 rows x 128",
    ),
    (
        (ACC, operand(128, 64, "e4m3", swizzle=tma.Swizzle.B64), FP8[1], SCALES, SP),
        {},
        "use tma.ptx.tcgen05_mma_block_scaled_sp",
    ),
    (
        (ACC, HALF, operand(64, 64, swizzle=tma.Swizzle.B32), None, SP),
        {},
        "rows of 32 B; with a sparse A .* 64 B .* use a swizzle of 64 or 128 B",
    ),
]


def test_a_sparse_pair():
    a, b = operand(128, 64), operand(32, 128)
    d, which = accumulator(256, 64, "f32", 2), tensor_metadata(256, 128, "bf16", 2)
    call = product_call(d, a, b, None, which)
    assert (call.row, call.forms) == ("tcgen05_mma_sp", {"kind": "f16", "cta_group": 2})
    assert [(step.a, step.b, step.metadata) for step in call.steps] == [
        (0, 0, 0), (32, 64, 0), (64, 4096, 2), (96, 4160, 2),
    ]  # fmt: skip
    assert [step.idesc & 7 for step in call.steps] == [4, 5, 4, 5]


@pytest.mark.parametrize(("args", "given", "text"), REFUSED)
def test_refused_products(args, given, text):
    with pytest.raises(ValueError, match=text):
        product_call(*args, options=ProductOptions(**given))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: accumulator(48, 64, "f32", 1, True), "m is 48, .* 32 or 64 or 128 rows, and one"),
        (lambda: accumulator(64, 64, "f32", 2, True), "cta_group 2; a weight-stationary product"),
        (lambda: accumulator(64, 32, "f32", 1, True), "n is 32; .* 64 or 128 or 256 columns of D"),
        (lambda: tensor_metadata(64, 64, "bf16", 1), "m is 64; a sparse product .* 128 rows. PTX"),
        (lambda: tensor_metadata(128, 48, "bf16", 1), "k is 48; .* use a multiple of 32"),
        (
            lambda: tensor_metadata(128, 64, "e2m1", 1),
            "dtype is 'e2m1'; a sparse operand is one of",
        ),
        (
            lambda: copy_call(SP, tma.Tile((128, 4), "u32")),
            r"tcgen05_copy: the tile is .*: use metadata_tile\(64, 'bf16'\)",
        ),
    ],
)
def test_refused_matrices(make, text):
    with pytest.raises(ValueError, match=text):
        make()


TMEM = tma.TensorMemory(128)
TILES = tma.Tile((128, 128), "e4m3", SWIZZLE), tma.Tile((64, 128), "e4m3", SWIZZLE)
SF = scale_tile(128, 128), scale_tile(64, 128)


def masked_and_scaled():
    tmem, a, b = TMEM.start(), tma.shared_tile(TILES[0]), tma.shared_tile(TILES[1])
    sa, sb = tmem.scales(SF[0], 64), tmem.scales(SF[1], 68)
    tma.tcgen05_mma(
        tmem.tile(128, 64), a, b, accumulate=False, a_scale=sa, b_scale=sb,
        disable_output_lanes=(1, 0, 0, 0),
    )  # fmt: skip


def three_words():
    a, b = tma.shared_tile(TILES[0]), tma.shared_tile(TILES[1])
    tile = TMEM.start().tile(128, 64)
    tma.tcgen05_mma(tile, a, b, accumulate=False, disable_output_lanes=(1, 0, 0))


def another_buffer():
    a, b = tma.shared_tile(TILES[0]), tma.shared_tile(TILES[1])
    tma.tcgen05_mma_ws(TMEM.start().tile(128, 64), a, b, accumulate=False, buffer="b4")


def into_registers():
    a = tma.shared_tile(TILES[0])
    tma.tcgen05_mma_ws(tma.fragment(32), a, a, accumulate=False)


def loaded_metadata():
    TMEM.start().metadata(128, 64, "bf16").load(0, 4)


@pytest.mark.parametrize(
    ("kernel", "cc", "text"),
    [
        (masked_and_scaled, SM_100A, "disable_output_lanes does not go with kind mxf8f6f4"),
        (three_words, SM_100A, "disable_output_lane=.*4"),
        (another_buffer, SM_100A, "buffer=.* one of 'b0', 'b1', 'b2', 'b3', not 'b4'"),
        (into_registers, (9, 0, "a"), r"tcgen05_mma_ws\(\) needs sm_100a.* use wgmma"),
        (loaded_metadata, SM_100A, r"tile.load: the tile is metadata\(128, 64, bf16\)"),
    ],
)
def test_errors(kernel, cc, text):
    with pytest.raises(TypingError, match=text):
        compile_ptx(kernel, (), cc=cc)
