"""What tcgen05.mma multiplies, and what it does not."""

import contextlib
import re

import pytest

from numba_tma import MatrixLayout, Swizzle, Tile
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.tcgen05_descriptor import decode_instruction_descriptor
from numba_tma.host.tcgen05_rules import (
    FORMS,
    ScaleFactors,
    TensorMemoryOperand,
    check_product,
    find_form,
    legal_m,
    legal_n,
)

MX, NV = ScaleFactors("ue8m0", 32), ScaleFactors("ue4m3", 16)


def operand(rows, k, dtype="bf16", major="K"):
    outer, inner = (rows, k) if major == "K" else (k, rows)
    mn32 = major == "MN" and dtype in ("f32", "tf32")
    swizzle = Swizzle.B128_ATOM_32B if mn32 else Swizzle.B128
    return MatrixLayout(Tile((outer, inner), dtype, swizzle), major, "tcgen05")


def product(
    d="f32", m=128, n=128, dtype="bf16", k=64, majors="KK", tmem=False, b_dtype=None, **options
):
    group = options.get("cta_group", 1)
    names = {"K": "K", "M": "MN"}
    a_k = k // 2 if options.get("sparse") else k
    m_rows, n_rows = (-(-extent // group // 16) * 16 for extent in (m, n))
    a = operand(m_rows, a_k, dtype, names[majors[0]])
    if tmem:
        a = TensorMemoryOperand(as_dtype(dtype), m_rows, a_k)
    b = operand(n_rows, k, b_dtype or dtype, names[majors[1]])
    return check_product(as_dtype(d), m, n, a, b, **options)


@pytest.mark.parametrize(
    ("options", "kind", "k", "steps", "idesc"),
    [
        ({}, "f16", 16, 4, 0x08200490),
        ({"m": 256, "n": 256, "cta_group": 2}, "f16", 16, 4, 0x10400490),
        ({"d": "f16", "dtype": "f16"}, "f16", 16, 4, 0x08200000),
        ({"dtype": "f32", "k": 32}, "tf32", 8, 4, 0x08200910),
        ({"dtype": "tf32", "k": 32, "majors": "MM"}, "tf32", 8, 4, 0x08218910),
        ({"dtype": "e4m3", "b_dtype": "e5m2", "k": 128}, "f8f6f4", 32, 4, 0x08200410),
        (
            {"dtype": "i8", "b_dtype": "u8", "d": "i32", "k": 128, "saturate": True},
            "i8",
            32,
            4,
            0x082000A8,
        ),
        ({"majors": "MK", "negate_b": True}, "f16", 16, 4, 0x0820C490),
        ({"sparse": True, "k": 128}, "f16", 32, 4, 0x08200494),
        ({"m": 32, "n": 256, "ws": True}, "f16", 16, 4, 0x02400490),
        ({"tmem": True, "m": 64, "n": 24}, "f16", 16, 4, 0x04060490),
        ({"k": 256, "k_steps": 3}, "f16", 16, 3, 0x08200490),
        ({"dtype": "e4m3", "k": 256, "scales": MX}, "mxf8f6f4", 32, 8, 0x08A00000),
        (
            {"dtype": "e4m3", "m": 256, "n": 256, "k": 256, "scales": MX, "cta_group": 2},
            "mxf8f6f4",
            32,
            8,
            0x10C00000,
        ),
    ],
)
def test_products(options, kind, k, steps, idesc):
    found = product(**options)
    assert (found.kind, found.k, found.k_steps, hex(found.idesc)) == (kind, k, steps, hex(idesc))
    assert found.b_steps == (2 if options.get("sparse") else 1)


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({}, 128),
        ({"m": 64}, 128),
        ({"m": 256, "n": 256, "cta_group": 2}, 256),
        ({"m": 128, "n": 256, "cta_group": 2}, 128),
        ({"m": 128, "n": 256, "cta_group": 2, "sparse": True, "k": 128}, 256),
        ({"m": 32, "n": 256, "ws": True}, 64),
        ({"m": 64, "n": 256, "ws": True}, 128),
        ({"m": 128, "n": 256, "ws": True}, 256),
    ],
)
def test_columns_of_the_accumulator(options, columns):
    assert product(**options).columns == columns


def test_scale_factors_of_each_step():
    """An atom has four factors of a row: it serves four steps of mxf8f6f4."""
    found = product(dtype="e4m3", n=256, k=256, scales=MX)
    assert (found.block, found.scales_per_step, found.steps_per_atom) == ("block32", 1, 4)
    assert found.scale_columns == (4, 8)
    ids = [found.idesc_of(step) ^ found.idesc for step in range(8)]
    assert ids == [i << 29 | i << 4 for i in (0, 1, 2, 3)] * 2
    assert [found.scale_offsets(step) for step in range(8)] == [(0, 0)] * 4 + [(4, 8)] * 4


def test_the_metadata_of_each_step_of_16_bits_is_the_other_half_of_a_column():
    wide, narrow = product(sparse=True, k=256), product(sparse=True, k=256, dtype="e4m3")
    steps = [decode_instruction_descriptor(wide.idesc_of(i), "f16") for i in range(wide.k_steps)]
    assert [step.selector for step in steps] == [0, 1] * 4
    assert {narrow.idesc_of(i) for i in range(narrow.k_steps)} == {narrow.idesc}


def test_a_sparse_product_reads_64_bytes_of_each_row_of_b():
    a = operand(128, 64)
    for swizzle, wide in ((Swizzle.B32, False), (Swizzle.B64, True), (Swizzle.B128, True)):
        b = MatrixLayout(Tile((128, 128), "bf16", swizzle), "K", "tcgen05")
        said = pytest.raises(ValueError, match="swizzle has rows of 32 B; with a sparse A an instr")
        with contextlib.nullcontext() if wide else said:
            assert check_product(as_dtype("f32"), 128, 128, a, b, sparse=True).k == 32


def test_packed_types():
    """The idesc of nvfp4 128 x 128 is known; an atom's four factors are those of one step."""
    found = product(dtype="e2m1", k=256, scales=NV)
    assert (found.kind, found.block, found.k, found.k_steps) == ("mxf4nvf4", "block16", 64, 4)
    assert [found.idesc_of(step) for step in range(4)] == [0x08200480] * 4
    assert [found.scale_offsets(step)[0] for step in range(4)] == [0, 4, 8, 12]
    found = product(dtype="e2m1", k=256, scales=MX)
    assert (found.kind, found.block) == ("mxf4", "block32")
    assert [found.idesc_of(step) ^ found.idesc for step in range(3)] == [0, 2 << 29 | 2 << 4, 0]
    found = product(dtype="e2m1_unpacked", b_dtype="e4m3", k=128)
    assert (found.kind, found.description.a, found.k_steps) == ("f8f6f4", "e2m1", 4)


def test_scale_columns_of_a_pair():
    """A block has the factors of its own rows of A, and of all rows of B."""
    found = product(dtype="e4m3", m=256, n=192, k=128, scales=MX, cta_group=2)
    assert found.scale_columns == (4, 8)


def message(**options):
    with pytest.raises(ValueError) as caught:
        product(**options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"d": "f16"},
            "there is no bf16 x bf16 -> f16. tcgen05.mma multiplies f16: f16 -> f16 or f32",
        ),
        ({"b_dtype": "f16"}, "there is no bf16 x f16 -> f32"),
        ({"d": "f64"}, "there is no bf16 x bf16 -> f64"),
        ({"scales": MX}, "there is no bf16 x bf16 -> f32 with a ue8m0 for 32 elements"),
        (
            {"dtype": "e4m3", "k": 128, "scales": NV},
            "there is no e4m3 x e4m3 -> f32 with a ue4m3 for 16",
        ),
        ({"m": 96}, "m is 96; with kind f16, cta_group 1 it is 64 or 128"),
        ({"m": 256}, "m is 256; with kind f16, cta_group 1 it is 64 or 128"),
        ({"m": 64, "cta_group": 2}, "m is 64; with kind f16, cta_group 2 it is 128 or 256"),
        (
            {"m": 64, "dtype": "e4m3", "k": 128, "scales": MX},
            "m is 64; with kind mxf8f6f4, cta_group 1 it is 128",
        ),
        (
            {"m": 128, "dtype": "e4m3", "k": 128, "scales": MX, "cta_group": 2},
            "cta_group 2 it is 256",
        ),
        (
            {"m": 16, "ws": True, "n": 64},
            "m is 16; with kind f16, ws, cta_group 1 it is 32 or 64 or 128",
        ),
        (
            {"n": 32, "ws": True},
            "n is 32; with kind f16, ws, cta_group 1, m 128 it is 64 or 128 or 256",
        ),
        ({"n": 256, "ws": True, "sparse": True, "k": 128}, "m 128 it is 64 or 128"),
        ({"n": 24}, "n is 24; with kind f16, cta_group 1, m 128 it is 16 to 256 in steps of 16"),
        ({"m": 64, "n": 20}, "m 64 it is 8 to 256 in steps of 8"),
        ({"n": 272}, "it is 16 to 256 in steps of 16"),
        (
            {"n": 48, "m": 128, "tmem": True, "cta_group": 2},
            "m 128, a in tensor memory it is 32 to 256 in steps of 32",
        ),
        (
            {"m": 64, "n": 40, "dtype": "i8", "d": "i32", "k": 128},
            "m 64 it is 8 or 16 or 24 or 32 or 48",
        ),
        (
            {"n": 16, "m": 256, "majors": "KM", "dtype": "e4m3", "k": 128, "cta_group": 2},
            "b of e4m3 MN-major it is 32 to",
        ),
        ({"cta_group": 3}, "cta_group is 3; use 1, or 2 for a pair of blocks"),
        ({"ws": True, "cta_group": 2}, "ws does not go with cta_group 2: leave ws out"),
        (
            {"ws": True, "dtype": "e4m3", "k": 128, "scales": MX},
            "ws does not go with kind mxf8f6f4",
        ),
        ({"saturate": True}, "saturate is for integers, and the kind is f16: leave it out"),
        ({"dtype": "i8", "d": "i32", "k": 128, "negate_a": True}, "kind i8 negates no operand"),
        ({"k_steps": 5}, "k_steps is 5; a has K 64 and b has K 64, 4 steps of 16: use 1 to 4"),
    ],
)
def test_what_is_not_legal(options, text):
    assert text in message(**options)


@pytest.mark.parametrize("cta_group", [1, 2])
@pytest.mark.parametrize("tmem", [False, True])
@pytest.mark.parametrize("major", ["K", "M"])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "e4m3", "e5m2"])
def test_the_operand_that_asks_for_a_step_of_n_is_named(dtype, major, tmem, cta_group):
    """B of 8 bits that is MN-major; and of pairs, A in tensor memory."""
    narrow = dtype not in ("bf16", "f16") and major == "M"
    step = 8 * cta_group * (2 if narrow or (tmem and cta_group == 2) else 1)
    reason = ""
    if step > 8 * cta_group:
        reason = f", b of {dtype} MN-major" if narrow else ", a in tensor memory"
    options = {"m": 64 if cta_group == 1 else 256, "dtype": dtype, "k": 128, "majors": f"K{major}"}
    text = message(n=20, tmem=tmem, cta_group=cta_group, **options)
    assert f"m {options['m']}{reason} it is {step} to 256 in steps of {step}" in text


@pytest.mark.parametrize("major", ["K", "M"])
@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_integers_have_steps_of_n_of_their_own(dtype, major):
    """24 is one of them for M = 64, unless B is MN-major."""
    options = {"d": "i32", "m": 64, "dtype": dtype, "k": 128, "majors": f"K{major}"}
    assert product(n=48, **options).kind == "i8"
    if major == "K":
        assert product(n=24, **options).kind == "i8"
    else:
        assert f"m 64, b of {dtype} MN-major it is 16 to 256 in" in message(n=24, **options)


def test_operands_that_are_too_small():
    d = as_dtype("f32")
    with pytest.raises(
        ValueError, match=r"a is Tile\(\(64, 64\), bf16, B128\) with 64 rows, and m is 128: us"
    ):
        check_product(d, 128, 128, operand(64, 64), operand(128, 64))
    text = "with 64 rows, and n is 256; each block of a pair has n / 2: use an operand of 128 rows"
    with pytest.raises(ValueError, match=re.escape(text)):
        check_product(d, 256, 256, operand(128, 64), operand(64, 64), cta_group=2)
    with pytest.raises(
        ValueError, match="a has K 64 and b has K 128: use operands of one K, a mult"
    ):
        check_product(d, 128, 128, operand(128, 64), operand(128, 128))
    with pytest.raises(ValueError, match=r"a has K 128 \(twice the stored half\) and b has K 64"):
        check_product(d, 128, 128, operand(128, 64), operand(128, 64), sparse=True)


def test_packed_types_need_scale_factors():
    with pytest.raises(
        ValueError, match='Packed e2m1 needs scale factors; without them use "e2m1_'
    ):
        find_form("e2m1", "e2m1", "f32")
    assert find_form("e2m1", "e2m1", "f32", NV).kind == "mxf4nvf4"
    assert find_form("e2m1", "e2m1", "f32", MX).kind == "mxf4"
    assert find_form("e2m1_unpacked", "e3m2", "f32", MX).kind == "mxf8f6f4"
    assert find_form("e2m1_unpacked", "e3m2", "f16").kind == "f8f6f4"


def test_the_shapes_are_those_of_the_manual():
    """Every M and N that PTX and CUTLASS both have, by kind and group."""
    for form in FORMS:
        for group in (1, 2):
            for m in legal_m(form, group, False, False):
                ns = legal_n(form, m, group, False, False)
                assert all(8 <= n <= 256 and n % (8 * group) == 0 for n in ns)
                assert max(ns) == 256
                if form.kind == "i8":
                    assert all(n <= 32 or n % 16 == 0 for n in ns)
    f16, i8 = FORMS[0], next(f for f in FORMS if f.kind == "i8")
    assert len(legal_n(f16, 64, 1, False, False)) == 32
    assert legal_n(i8, 64, 1, False, False)[:6] == (8, 16, 24, 32, 48, 64)
