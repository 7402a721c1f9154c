"""The kernels that tests/gpu/device/test_matrix_descriptor.py runs assemble without a remark."""

import pytest

from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.gpu.device.test_matrix_descriptor import ACCUMULATORS, CASES, NARROW
from tests.kernels.mma_kernels import product
from tests.tiers import every

# One of each type, and one of each major-ness of a type that has both.
SOME = [CASES[0], CASES[5], CASES[8], *CASES[16::4], NARROW[3]]


@pytest.mark.parametrize(("a", "b"), every(3, SOME), ids=str)
def test_a_product_assembles(a, b):
    ptx = compile_ptx(*product(a, b, b.rows, ACCUMULATORS[a.dtype]))
    assert any(line.startswith("wgmma.mma_async") for line in instructions(ptx))
    report = ptxas(ptx)
    assert report.warnings == ()  # C7510 would say that wgmma is serialised
    assert (report.stack_frame, report.spill_stores) == (0, 0)
