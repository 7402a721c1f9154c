"""The compiled matmul kernel of Blackwell's tensor cores: registers, targets, the main loop."""

import re

import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.matmul.choice import MatmulProblem, choose_tcgen05
from numba_tma.kernels.matmul.epilogue import Epilogue
from numba_tma.kernels.matmul.plan import Tcgen05Config
from numba_tma.kernels.matmul.tcgen05_kernel import tcgen05_kernel
from numba_tma.tools.testing import compile_ptx
from tests.kernels.matmul_forms import EVERYTHING, tcgen05_form, tcgen05_signature
from tests.machine_code import all_in_registers
from tests.tiers import quick

form = tcgen05_form
TARGETS = [(10, 0, "a"), (10, 3, "a"), (11, 0, "a")]
FORMS = {
    "bf16": form(),
    "bias": form(epilogue=Epilogue(alpha=True, bias=as_dtype("bf16"), activation="gelu")),
    "everything": form(epilogue=EVERYTHING, out="f32"),
    "odd": form(epilogue=EVERYTHING, addressable=False),
    "NT": form(layout="NT"),
    "TT": form("f16", out="f16", layout="TT", config=Tcgen05Config(96)),
    "tf32": form("tf32", out="f32"),
    "fp8": form("e4m3", "e5m2", epilogue=Epilogue(alpha=True), config=Tcgen05Config(128)),
    "narrow": form(config=Tcgen05Config(32)),
}


def compiled(name, cc=TARGETS[0]):
    return compile_ptx(tcgen05_kernel(FORMS[name]), tcgen05_signature(FORMS[name]), cc=cc)


@pytest.mark.parametrize("name", quick(["narrow"], FORMS))
def test_nothing_is_in_local_memory(name):
    all_in_registers(compiled(name))


@pytest.mark.slow
@pytest.mark.parametrize("cc", TARGETS[1:])
def test_every_target(cc):
    all_in_registers(compiled("bias", cc))


@pytest.mark.slow
def test_a_stage_is_four_products_and_one_commit():
    ptx = compiled("bf16")
    assert len(re.findall(r"\btcgen05\.mma\.cta_group::1\.kind::f16 ", ptx)) == 4
    assert len(re.findall(r"\btcgen05\.commit\.", ptx)) >= 2  # of the stages, of the accumulator


def test_plans():
    plan = form()
    assert (plan.stages, plan.accumulators, plan.out_columns) == (4, 2, 64)
    assert (plan.product.k_steps, plan.product.columns) == (4, 256)
    with pytest.raises(ValueError, match="n is a multiple of 32 up to 256"):
        Tcgen05Config(300)


def test_the_widest_tile_that_occupies_all_sms():
    def n(rows, columns, batch=1):
        return choose_tcgen05(MatmulProblem(rows, columns, 4096, batch), 148).n

    assert [n(8192, 8192), n(2048, 2048), n(1024, 4096), n(8, 8), n(8, 4096)] == [
        *(256, 192, 192, 32, 64),
    ]  # fmt: skip
