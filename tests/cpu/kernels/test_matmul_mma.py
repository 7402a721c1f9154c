"""The compiled matmul kernel by mma.sync: registers, targets, the main loop, plans."""

import re

import numpy as np
import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.warp_rules import PartLayout, WarpPart
from numba_tma.kernels.matmul.arguments import Epilogue
from numba_tma.kernels.matmul.choice import MatmulProblem, choose_mma
from numba_tma.kernels.matmul.mma_kernel import mma_kernel
from numba_tma.kernels.matmul.plan import MmaConfig
from numba_tma.tools.testing import compile_ptx, ptxas
from tests.kernels.matmul_forms import EVERYTHING, mma_form, mma_signature
from tests.machine_code import all_in_registers
from tests.tiers import quick

form = mma_form
TARGETS = [(12, 0, "a"), (12, 1, "a"), (9, 0, "a")]
FORMS = {
    "bf16": form(),
    "bias": form(epilogue=Epilogue(alpha=True, bias=as_dtype("bf16"), activation="gelu")),
    "everything": form(epilogue=EVERYTHING, out="f32"),
    "NT": form(layout="NT"),
    "TT": form("f16", out="f16", layout="TT", config=MmaConfig(128, 96)),
    "tf32": form("tf32", out="f32"),
    "fp8": form("e4m3", "e5m2", config=MmaConfig(k=128)),
    "i8": form("i8", "u8", out="i32"),
    "one warpgroup": form(config=MmaConfig(warpgroups=1)),
    "tall": form(config=MmaConfig(256, 64)),
    "narrow": form(config=MmaConfig(64, 32, k=128)),
}


def compiled(name, cc=TARGETS[0]):
    return compile_ptx(mma_kernel(FORMS[name]), mma_signature(FORMS[name]), cc=cc)


@pytest.mark.parametrize("name", quick(["narrow"], FORMS))
def test_nothing_is_in_local_memory(name):
    all_in_registers(compiled(name))


@pytest.mark.slow
@pytest.mark.parametrize("cc", TARGETS[1:])
@pytest.mark.parametrize("name", ["bf16", "everything"])
def test_every_target(name, cc):
    all_in_registers(compiled(name, cc))


@pytest.mark.slow
def test_threads_that_store_keep_two_words_in_local_memory():
    # The result's address, across both roles and outside the main loop.
    odd = form(epilogue=EVERYTHING, addressable=False, config=MmaConfig(128, 64))
    report = ptxas(compile_ptx(mma_kernel(odd), mma_signature(odd), cc=TARGETS[0]))
    assert report.stack_frame <= 8


@pytest.mark.slow
def test_a_step_loads_each_operand_once():
    ptx, plan = compiled("bf16"), FORMS["bf16"]
    products = plan.blocks * plan.columns // 8
    # Two steps in the loop, and the last operands behind it.
    assert len(re.findall(r"\bmma\.sync\.aligned\.m16n8k16\.", ptx)) == 3 * products
    assert len(re.findall(r"\bldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.", ptx)) == 2 * (2 + 4)
    transposed = re.findall(r"\bldmatrix\.sync\.aligned\.m8n8\.x4\.trans\.", compiled("NT"))
    assert len(transposed) == 2 * (2 + 4)


def test_plans():
    plan = form()
    assert (plan.stages, plan.blocks, plan.columns, plan.k_steps) == (5, 2, 64, 2)
    with pytest.raises(ValueError, match="n is a multiple of 32 up to 256 with 2 warpgroups"):
        MmaConfig(n=48)
    with pytest.raises(ValueError, match="would hold 128 sums, and 64 leave registers"):
        MmaConfig(256, 128)
    with pytest.raises(ValueError, match="two of them do not fit into 99,328 B"):
        form(out="f32", config=MmaConfig(256, 64, k=128, out_stages=4))


def test_the_largest_tile_that_occupies_all_sms():
    def tile(rows, columns):
        config = choose_mma(MatmulProblem(rows, columns, 4096), 170)
        return config.m, config.n

    assert [tile(4096, 4096), tile(1024, 2048), tile(8, 4096)] == [(128, 128), (128, 64), (64, 32)]


# ------------------------------------------------------------------- parts of operands

SPANS = {32: Swizzle.B32, 64: Swizzle.B64, 128: Swizzle.B128}
LAYOUTS = [
    *((side, "K", span, dtype) for side in "ab" for span in SPANS for dtype in ("bf16", "e4m3")),
    *(("b", "MN", span, "bf16") for span in SPANS),
    ("a", "MN", 128, "f16"),
]


@pytest.mark.parametrize(("side", "major", "span", "dtype"), LAYOUTS)
def test_ldmatrix_brings_each_lane_its_words_without_bank_conflicts(side, major, span, dtype):
    kind, rows = as_dtype(dtype), 128
    shape = (rows, span // kind.itemsize) if major == "K" else (32, rows)
    layout = PartLayout(WarpPart(side, kind, rows), Tile(shape, kind, SPANS[span]), major)
    for step, warp in np.ndindex(layout.k_steps, 4):
        words = np.array([layout.word_addresses(lane, warp, step) for lane in range(32)])
        for group in range(layout.part.groups):
            turn, apart = layout.moves(group, step)
            given = [(layout.lane_offset(lane, warp) ^ turn) + apart for lane in range(32)]
            matrices = np.array(given).reshape(4, 8)
            for register, starts in enumerate(matrices):
                assert len(set(starts // 16 % 8)) == 8  # the eight rows lie in different banks
                lane = np.arange(32)
                if major == "K":
                    first = starts[lane // 4] + 4 * (lane % 4)
                    found = np.stack([first, first + 2], 1)
                else:
                    pairs = (starts[2 * (lane % 4) + i] + 2 * (lane // 4) for i in range(2))
                    found = np.stack(list(pairs), 1)
                np.testing.assert_array_equal(words[:, 4 * group + register], found)


@pytest.mark.parametrize(
    ("tile", "major", "problem"),
    [
        (Tile((128, 32), "bf16"), "K", "swizzle NONE has bank conflicts"),
        (Tile((128, 64), "bf16", Swizzle.B64), "K", "one span of B64 is 64 B"),
        (Tile((32, 128), "e4m3", Swizzle.B128), "MN", "transposes elements of 16 bits"),
        (Tile((64, 32), "bf16", Swizzle.B64), "K", "it has 64 rows, and 128 are loaded"),
        (Tile((32, 128), "bf16", Swizzle.B64), "MN", "rows of A come in blocks of 64"),
        (Tile((128, 16), "f64", Swizzle.B128), "K", "mma.sync does not multiply f64"),
    ],
)
def test_tiles_that_are_no_operand(tile, major, problem):
    with pytest.raises(ValueError, match=problem):
        PartLayout(WarpPart("a", tile.dtype, 128), tile, major)
