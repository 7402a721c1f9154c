"""The compiled matmul kernel for few rows: every form in registers."""

import re

import pytest

from numba_tma.kernels.matmul.plan import SwappedConfig
from numba_tma.kernels.matmul.swapped_kernel import swapped_kernel
from numba_tma.tools.testing import compile_ptx, find_tool, sass
from tests.kernels.matmul_forms import EVERYTHING, swapped_form, swapped_signature
from tests.machine_code import all_in_registers
from tests.tiers import quick

needs_nvdisasm = pytest.mark.skipif(find_tool("nvdisasm") is None, reason="needs nvdisasm")

FORMS = {
    "one block": swapped_form(),
    "parts": swapped_form(config=SwappedConfig(n=16, cluster=4, blocks=2)),
    "everything": swapped_form(epilogue=EVERYTHING, out="f32", config=SwappedConfig(128, 64, 2)),
    "most rows": swapped_form(config=SwappedConfig(128, 128, 2, k=128)),
    "NT": swapped_form(layout="NT", config=SwappedConfig(n=16)),
    "tf32": swapped_form("tf32", out="f32"),
    "fp8": swapped_form("e4m3", "e5m2", config=SwappedConfig(cluster=8)),
    "f16": swapped_form("f16", out="f16"),
}

QUICK = ("everything",)


def compiled(form):
    return compile_ptx(swapped_kernel(form), swapped_signature(form))


@pytest.mark.parametrize("name", quick(QUICK, FORMS))
def test_registers_hold_everything(name):
    all_in_registers(compiled(FORMS[name]))


@needs_nvdisasm
def test_products_are_as_narrow_as_the_rows():
    """And the loop multiplies: nothing waits between the products of a stage."""
    code = re.sub(r"/\*.*?\*/", "", sass(compiled(FORMS["parts"]))).splitlines()
    products = [i for i, line in enumerate(code) if "HGMMA" in line]
    assert len(products) == 8 and all("HGMMA.64x16x16" in code[i] for i in products)
    between = code[products[0] : products[-1]]
    assert not any(re.search(r"\b(BRA|SYNCS|LDS|STL|LDL)\b", line) for line in between)


def test_forms_that_do_not_fit():
    with pytest.raises(
        ValueError, match="and two of them do not fit into the 0 B.* a smaller cluster"
    ):
        swapped_form(config=SwappedConfig(128, 104, 8))  # 13 times 8 columns have no shares
