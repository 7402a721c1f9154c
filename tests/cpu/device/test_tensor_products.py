"""tcgen05_mma and tcgen05_copy in kernels: the PTX of each kind, and the errors of a compile."""

import re

import pytest
from numba import types
from numba.core.errors import TypingError

import numba_tma as tma
from numba_tma.host.matrix_layout import MatrixLayout
from numba_tma.host.scale_factors import scale_tile
from numba_tma.host.tensor_products import ProductOptions, product_call
from numba_tma.host.tensor_tiles import accumulator, tensor_operand, tensor_scales
from numba_tma.tools.testing import compile_ptx, ptxas
from tests.kernels.tensor_gemm import SWIZZLE, V, gemm, paired, scaled, weights

SM_90A, SM_100A = (9, 0, "a"), (10, 0, "a")
OUT, N = types.float32[:, ::1], types.int64


def compiled(tiles, kernel, *before):
    maps = [tma.TensorMapType(tile.ndim, tile) for tile in tiles]
    rest = (OUT,) if before else (OUT, N)
    text = compile_ptx(kernel.py_func, (*before, *maps, *rest), cc=SM_100A)
    report = ptxas(text)
    assert (report.warnings, report.spill_stores, report.stack_frame) == ((), 0, 0)
    return text


def products(text):
    """Return the products' texts without registers, and their instruction descriptors."""
    constants = {
        name: int(value) for name, value in re.findall(r"mov\.b32\s+(%r\d+), (\d+);", text)
    }
    found = re.findall(r"tcgen05\.mma\.(\S+) \[%r\d+\], (\[?)%r\w+\]?, %rd\d+, (%r\d+),", text)
    return [
        (f"{form} {'[a]' if bracket else 'a'}", hex(constants[i])) for form, bracket, i in found
    ]


def test_a_matmul_in_bf16():
    text = compiled(*gemm(128, "bf16", 64))
    assert products(text) == [("cta_group::1.kind::f16 a", "0x8200490")] * 4
    first, *others = re.findall(r"setp\.ne\.u32 p, (%r\d+), 0; tcgen05\.mma", text)
    assert len(set(others)) == 1 != first  # a step after the first always accumulates
    high = (1 << 46 | 2 << 61 | 1024 >> 4 << 32 | 1 << 16) & ~0xFFFFFFFF
    assert all(int(d) & ~0xFFFFFFFF == high for d in re.findall(r"or\.b64\s.* (\d{15,});", text))


@pytest.mark.slow
def test_8_bit_floats_to_f16():
    text = compiled(*gemm(64, "e4m3", 128, "f16"))
    assert products(text) == [("cta_group::1.kind::f8f6f4 a", "0x8100000")] * 4


@pytest.mark.slow
def test_mxf8_has_an_id_of_scale_factors_for_each_step():
    text = compiled(*scaled(128, "e4m3", 128, "ue8m0", 32))
    kind = "cta_group::1.kind::mxf8f6f4.block_scale.block32 a"
    ids = [0x8A00000 | i << 29 | i << 4 for i in range(4)]
    assert products(text) == [(kind, hex(idesc)) for idesc in ids]
    assert text.count("tcgen05.cp.cta_group::1.32x128b.warpx4") == 2


@pytest.mark.slow
def test_nvfp4_takes_the_atom_of_each_step():
    text = compiled(*scaled(192, "e2m1", 256, "ue4m3", 16))
    kind = "cta_group::1.kind::mxf4nvf4.block_scale.block16 a"
    assert products(text) == [(kind, "0x8300480")] * 4
    assert text.count("tcgen05.cp.cta_group::1.32x128b.warpx4") == 4 + 8


@pytest.mark.slow
def test_a_pair_multiplies_in_its_even_block():
    text = compiled(*paired(256))
    assert products(text) == [("cta_group::2.kind::f16 a", "0x10400490")] * 4


@pytest.mark.slow
def test_an_operand_in_tensor_memory():
    text = compiled((V,), weights, OUT)
    assert products(text) == [("cta_group::1.kind::f16 [a]", "0x8114490")] * 2


# ------------------------------------------------------------------ what follows from tiles


def operand(rows, k, dtype="bf16", major="K"):
    tile = tma.Tile((rows, k) if major == "K" else (k, rows), dtype, SWIZZLE)
    return MatrixLayout(tile, major, "tcgen05")


ACC = accumulator(128, 128, "f32", 1)


def test_steps_along_k():
    call = product_call(ACC, operand(128, 128), operand(128, 128))
    assert call.row == "tcgen05_mma" and call.forms == {"kind": "f16", "cta_group": 1}
    assert [step.a for step in call.steps] == [0, 32, 64, 96, *range(16384, 16512, 32)]
    held = tensor_operand(128, 64, "bf16", 1)
    call = product_call(ACC, held, operand(128, 64, major="MN"))
    assert call.row == "tcgen05_mma_tmem" and [step.a for step in call.steps] == [0, 8, 16, 24]


def test_atoms_of_each_step():
    a, b = operand(128, 512, "e2m1"), operand(192, 512, "e2m1")
    scales = tuple(tensor_scales(scale_tile(rows, 512, "nvfp4"), None, 1) for rows in (128, 192))
    call = product_call(accumulator(128, 192, "f32", 1), a, b, scales)
    assert [step.scale_a for step in call.steps] == list(range(0, 32, 4))
    assert [step.scale_b for step in call.steps] == list(range(0, 64, 8))


SMALL = tensor_scales(scale_tile(128, 128), None, 1)
REFUSED = [
    ((ACC, operand(128, 64), operand(64, 64)), {}, "b is .* with 64 rows, and n is 128"),
    ((ACC, operand(128, 64, "f16"), operand(128, 64)), {}, "there is no f16 x bf16 -> f32"),
    ((ACC, operand(128, 64), operand(128, 128)), {}, "a has K 64 and b has K 128"),
    ((ACC, ACC, operand(128, 64)), {}, "a is tile.*; an operand in tensor memory is tmem.operand"),
    (
        (tensor_operand(128, 64, "bf16", 1), operand(128, 64), operand(128, 64)),
        {},
        "accumulator is",
    ),
    (
        (accumulator(64, 64, "f32", 1), tensor_operand(128, 64, "bf16", 1), operand(64, 64)),
        {},
        "in tensor memory both have the same rows",
    ),
    (
        (accumulator(128, 512, "f32", 1), operand(128, 64), operand(512, 64)),
        {},
        "n is 512; with kind f16, .* 16 to 256 in steps of 16",
    ),
    (
        (ACC, operand(128, 128, "e4m3"), operand(128, 128, "e4m3")),
        {"scale_input_d": 2},
        "only kinds f16 and tf32 divide their accumulator, .* of kind f8f6f4",
    ),
    (
        (ACC, operand(128, 256, "e4m3"), operand(128, 256, "e4m3"), (SMALL, SMALL)),
        {},
        r"a_scale is scales of 128 rows x 128 .* factors of 128 rows x 256 .* scale_tile\(128, 256",
    ),
    (
        (
            ACC,
            operand(128, 256, "e2m1"),
            operand(128, 256, "e2m1"),
            (SMALL, tensor_scales(scale_tile(128, 256, "nvfp4"), None, 1)),
        ),
        {},
        "both operands have one type of scale factors",
    ),
    ((ACC, operand(128, 256, "e2m1"), operand(128, 256, "e2m1")), {}, "e2m1 needs scale factors"),
]


@pytest.mark.parametrize(("args", "given", "text"), REFUSED)
def test_refused_products(args, given, text):
    with pytest.raises(ValueError, match=text):
        product_call(*args, options=ProductOptions(**given))


# --------------------------------------------------------------------- errors of a compile

TMEM = tma.TensorMemory(64)
A, B = tma.Tile((128, 64), "bf16", SWIZZLE), tma.Tile((32, 64), "bf16", SWIZZLE)
SFA = scale_tile(128, 128)


def no_accumulate(n):
    tma.tcgen05_mma(TMEM.start().tile(128, 32), tma.shared_tile(A), tma.shared_tile(B))


def accumulate_a_number(n):
    a, b = tma.shared_tile(A), tma.shared_tile(B)
    tma.tcgen05_mma(TMEM.start().tile(128, 32), a, b, accumulate=n)


def into_registers(n):
    tma.tcgen05_mma(tma.fragment(32), tma.shared_tile(A), tma.shared_tile(B), accumulate=False)


def of_a_number(n):
    tma.tcgen05_mma(TMEM.start().tile(128, 32), n, tma.shared_tile(B), accumulate=False)


def one_scale(n):
    tmem, a, b = TMEM.start(), tma.shared_tile(A), tma.shared_tile(B)
    scales = tmem.scales(SFA, 32)
    tma.tcgen05_mma(tmem.tile(128, 32), a, b, accumulate=False, a_scale=scales)


def steps_at_run_time(n):
    a, b = tma.shared_tile(A), tma.shared_tile(B)
    tma.tcgen05_mma(TMEM.start().tile(128, 32), a, b, accumulate=False, k_steps=n)


def exponent(n):
    a, b = tma.shared_tile(A), tma.shared_tile(B)
    tma.tcgen05_mma(TMEM.start().tile(128, 32), a, b, accumulate=True, scale_input_d=16)


def copy_of_an_operand(n):
    tma.tcgen05_copy(TMEM.start().scales(SFA), tma.shared_tile(A))


def copy_to_an_accumulator(n):
    tma.tcgen05_copy(TMEM.start().tile(128, 32), tma.shared_tile(SFA))


def rows_of_an_accumulator(n):
    TMEM.start().tile(128, 32).scale_rows(n, 64)


def rows_in_the_middle(n):
    TMEM.start().scales(SFA).scale_rows(n, 96)


def wgmma_here(n):
    a = tma.shared_tile(A).matrix_descriptor()
    tma.wgmma(tma.fragment(32), a, a)


ERRORS = [
    (no_accumulate, SM_100A, "missing a required .*argument: .accumulate"),
    (accumulate_a_number, SM_100A, r"tcgen05_mma\(accumulate=...\) takes a bool, not int64"),
    (into_registers, SM_100A, r"tcgen05_mma\(accumulator=...\) takes a tile in tensor memory"),
    (
        of_a_number,
        SM_100A,
        r"tcgen05_mma\(a=...\) takes a shared tile, its matrix_descriptor\(\), ",
    ),
    (one_scale, SM_100A, "one of a_scale and b_scale is missing"),
    (steps_at_run_time, SM_100A, r"tcgen05_mma\(k_steps=...\) must be a compile-time constant"),
    (exponent, SM_100A, "scale_input_d=.* 0 to 15"),
    (copy_of_an_operand, SM_100A, "is no tile of scale factors"),
    (copy_to_an_accumulator, SM_100A, r"tcgen05_copy: destination is tile\(128, 32"),
    (
        rows_of_an_accumulator,
        SM_100A,
        r"scale_rows: the tile is tile\(.*, and not of scale factors",
    ),
    (rows_in_the_middle, SM_100A, "scale_rows: num is 96; .* a multiple of 64 up to 128"),
    (into_registers, SM_90A, r"tcgen05_mma\(\) needs sm_100a.* for sm_90a: .* use wgmma"),
    (copy_of_an_operand, SM_90A, "needs sm_100a.* for sm_90a: .* use wgmma"),
    (wgmma_here, SM_100A, r"wgmma\(\) needs sm_90a; .* sm_100a"),
]


@pytest.mark.parametrize(("kernel", "cc", "text"), ERRORS)
def test_errors(kernel, cc, text):
    with pytest.raises(TypingError, match=text):
        compile_ptx(kernel, (N,), cc=cc)
