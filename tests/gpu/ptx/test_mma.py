"""mma.sync on a GPU, against NumPy."""

import numpy as np
import pytest
from numba import cuda

from tests.gpu.worker import on_gpu
from tests.kernels import mma_rows as kernels

ROWS = [
    kernels.m16n8k16_f16,
    kernels.m16n8k16_bf16,
    kernels.m16n8k8_tf32,
    kernels.m16n8k32_e4m3_e5m2,
    kernels.m16n8k32_e5m2_e4m3,
    kernels.m16n8k32_s8_u8,
    kernels.m16n8k32_u8_s8,
]


@on_gpu
@pytest.mark.parametrize("row", ROWS)
def test_a_product(row):
    a, b, c = kernels.operands(row)
    out = cuda.to_device(np.zeros_like(c))
    given = (cuda.to_device(x) for x in (a.view(np.uint32), b.view(np.uint32), c))
    kernels.kernel_of(row)[1, 32](*given, out)
    np.testing.assert_array_equal(out.copy_to_host(), kernels.expected(a, b, c))
