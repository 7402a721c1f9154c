"""The compiled matmul kernels: every form and configuration in registers, the main loop."""

import re

import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.matmul.arguments import Epilogue
from numba_tma.kernels.matmul.choice import CONFIGS
from numba_tma.kernels.matmul.kernel import (
    conversion,
    matmul_kernel,
    tile_epilogue,
    tile_write,
)
from numba_tma.kernels.matmul.plan import Config
from numba_tma.tools.testing import compile_ptx, find_tool, sass
from tests.kernels.matmul_forms import EVERYTHING, form, signature
from tests.machine_code import all_in_registers
from tests.tiers import quick

needs_nvdisasm = pytest.mark.skipif(find_tool("nvdisasm") is None, reason="needs nvdisasm")
BIAS = Epilogue(alpha=True, bias=as_dtype("bf16"))
PAIRS = Config(cluster=2)

FORMS = {
    "bf16": form(),
    "pairs": form(config=PAIRS),
    "bias": form(epilogue=BIAS, config=PAIRS),
    "beta": form(epilogue=Epilogue(beta=True), config=PAIRS),
    "residual": form(epilogue=Epilogue(residual=True), config=PAIRS),
    "everything": form(epilogue=EVERYTHING, config=PAIRS),
    "odd": form(epilogue=BIAS, addressable=False),
    "NN": form(layout="NN", config=PAIRS),
    "NT": form(layout="NT", config=PAIRS),
    "TT": form(layout="TT", config=PAIRS),
    "tf32": form("tf32", out="f32", config=PAIRS),
    "fp8": form("e4m3", "e5m2", epilogue=Epilogue(alpha=True), config=PAIRS),
    "i8": form("i8", out="i32"),
    "u8": form("u8", "i8", epilogue=Epilogue(row_scale=True, column_scale=True)),
    **{str(config): form(config=config) for config in CONFIGS},
    "narrow, NT": form(layout="NT", config=CONFIGS[-1]),
    "everything, narrow": form(epilogue=EVERYTHING, out="f32", config=CONFIGS[-1]),
}

#: Of each kind of code one, which every change compiles.
QUICK = ("i8", "everything, narrow")


def compiled(form):
    return compile_ptx(matmul_kernel(form), signature(form))


@pytest.mark.parametrize("name", quick(QUICK, FORMS))
def test_registers_hold_everything(name):
    report = all_in_registers(compiled(FORMS[name]))
    if FORMS[name].config.m == 128:
        assert report.registers == 168  # of each thread at launch


@needs_nvdisasm
def test_the_loop_multiplies_and_does_little_else():
    code = re.sub(r"/\*.*?\*/", "", sass(compiled(FORMS["pairs"]))).splitlines()
    products = [i for i, line in enumerate(code) if "HGMMA" in line]
    assert len(products) == 4  # of 16 along K each, and so not unrolled further
    between = code[products[0] : products[-1]]
    assert not any(re.search(r"\b(BRA|SYNCS|LDS|MOV|STL|LDL) ", line) for line in between)
    assert not any("CALL" in line for line in code)  # such as divisions of 64 bits


@pytest.mark.parametrize("part", [tile_epilogue, tile_write])
def test_the_tiles_of_a_kernel_share_their_device_functions(part):
    assert part(FORMS["bias"]) is part(form(epilogue=BIAS, config=PAIRS))
    assert part(FORMS["bias"]) is not part(FORMS["odd"])
    assert conversion("f32") is conversion("f32") is not conversion("bf16")
