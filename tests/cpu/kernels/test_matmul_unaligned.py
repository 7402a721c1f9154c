"""The compiled matmul kernel for operands of any alignment: every form in registers."""

import re

import pytest

from numba_tma.kernels.matmul.plan import UnalignedConfig
from numba_tma.kernels.matmul.unaligned_kernel import unaligned_kernel
from numba_tma.tools.testing import compile_ptx, find_tool, ptxas, sass
from tests.kernels.matmul_forms import EVERYTHING, unaligned_form, unaligned_signature
from tests.machine_code import all_in_registers, shortest_loop
from tests.tiers import quick

needs_nvdisasm = pytest.mark.skipif(find_tool("nvdisasm") is None, reason="needs nvdisasm")

FORMS = {
    "few columns": unaligned_form(config=UnalignedConfig("a", 24)),
    "few rows": unaligned_form(layout="NT", config=UnalignedConfig("b", 8, 4, k=256)),
    "everything": unaligned_form(
        epilogue=EVERYTHING, out="f32", config=UnalignedConfig("b", 64, cluster=2)
    ),
    "widest": unaligned_form("f16", out="f16", layout="TT", config=UnalignedConfig("a", 128)),
    "NN": unaligned_form(layout="NN", config=UnalignedConfig("a", 64, 2)),
}
QUICK = ("few columns", "everything")
#: Forms whose loading threads spill two words once a tile: they have 80 registers each, since two
#: blocks of 384 threads share an SM.
SPILLED = ("NN",)


def compiled(form):
    return compile_ptx(unaligned_kernel(form), unaligned_signature(form))


@pytest.mark.parametrize("name", quick(QUICK, [name for name in FORMS if name not in SPILLED]))
def test_registers_hold_everything(name):
    all_in_registers(compiled(FORMS[name]))


@needs_nvdisasm
@pytest.mark.parametrize("name", SPILLED)
def test_registers_hold_everything_from_stage_to_stage(name):
    ptx = compiled(FORMS[name])
    loop = shortest_loop(ptx, lambda code: "LDG.E.128" in code)
    operations = [operation for operation, _ in loop]
    assert operations.count("LDG") >= 8 and not {"LDL", "STL"} & set(operations)
    assert ptxas(ptx).spill_stores <= 8


@needs_nvdisasm
def test_loads_of_several_chunks_are_under_way_together():
    """An inner stage of 128 x 64 has 4 chunks of two words for each thread, loaded without a test.

    No thread writes one before it has started to load the last one.
    """
    code = re.sub(r"/\*.*?\*/", "", sass(compiled(FORMS["NN"])))
    kinds = re.findall(r"(@!?P\d )?\b(LDG\.E\.128|STS\.128|BRA)\b", code)
    steps = "".join("x" if test else name[0] for test, name in kinds)
    assert "L" * 8 + "S" in steps, steps


def test_forms_that_do_not_fit():
    with pytest.raises(ValueError, match=r"two of them do not fit into the .* n, k or cluster"):
        unaligned_form(config=UnalignedConfig("a", 104, 8))
    with pytest.raises(ValueError, match="whose kernel reads f16 and bf16, but a is e4m3"):
        unaligned_form("e4m3")
