"""The kernels that tests/gpu/test_matrix_descriptor_gpu.py runs assemble without a remark."""

import pytest
from numba import types

from numba_tma import TensorMapType
from numba_tma.testing import compile_ptx, instructions, ptxas
from tests.gpu.test_matrix_descriptor_gpu import CASES, NARROW, product_kernel

# One of each type, and one of each major-ness of a type that has both.
SOME = [CASES[0], CASES[5], CASES[8], *CASES[16::4], NARROW[3]]


@pytest.mark.parametrize(("a", "b"), SOME, ids=str)
def test_a_product_assembles(a, b):
    maps = [TensorMapType(o.tile.ndim, o.tile) for o in (a, b)]
    kernel = product_kernel(a, b, b.rows)
    ptx = compile_ptx(kernel, (*maps, types.int64, types.uint64[::1], types.int32[::1]))
    assert any(line.startswith("wgmma.mma_async") for line in instructions(ptx))
    report = ptxas(ptx)
    assert report.warnings == ()  # C7510 would say that wgmma is serialised
    assert (report.stack_frame, report.spill_stores) == (0, 0)
