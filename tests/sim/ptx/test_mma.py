"""mma.sync in the simulator, against NumPy."""

import numpy as np
import pytest
from numba import cuda

from numba_tma import ptx, simulator
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


@pytest.mark.parametrize("row", ROWS)
def test_a_product(row):
    a, b, c = kernels.operands(row)
    out = np.zeros_like(c)
    kernels.kernel_of(row)[1, 32](a.view(np.uint32), b.view(np.uint32), c, out)
    np.testing.assert_array_equal(out, kernels.expected(a, b, c))


def test_tf32_has_no_last_13_bits():
    a, b, c = kernels.operands(kernels.m16n8k8_tf32)
    near = [(x.view(np.uint32) | 0x1FFF * (x != 0)).astype(np.uint32) for x in (a, b)]
    out = np.zeros_like(c)
    kernels.kernel_of(kernels.m16n8k8_tf32)[1, 32](*near, c, out)
    np.testing.assert_array_equal(out, kernels.expected(a, b, c))


def test_sums_of_integers_wrap_around():
    a, b, c = kernels.operands(kernels.m16n8k32_s8_u8)
    a[:], b[:], c[:] = 1, 1, 2**31 - 1
    out = np.zeros_like(c)
    kernels.kernel_of(kernels.m16n8k32_s8_u8)[1, 32](a.view(np.uint32), b.view(np.uint32), c, out)
    np.testing.assert_array_equal(out, -(2**31) + 31)


def test_the_whole_warp_multiplies():
    @cuda.jit
    def half():
        ptx.mma_m16n8k8_tf32((0, 0, 0, 0), (0, 0), (0.0, 0.0, 0.0, 0.0))

    with pytest.raises(simulator.BadOperand, match="16 threads of the warp execute it"):
        half[1, 16]()
