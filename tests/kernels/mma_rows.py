"""The plain rows of mma.sync: a kernel for a GPU and the simulator, and what it computes."""

import ml_dtypes
import numpy as np
from numba import cuda

from numba_tma import ptx


def m16n8k16_f16(a, b, c):
    """Return A B + C of f16."""
    return ptx.mma_m16n8k16(a, b, c, "f16")


def m16n8k16_bf16(a, b, c):
    """Return A B + C of bf16."""
    return ptx.mma_m16n8k16(a, b, c, "bf16")


def m16n8k8_tf32(a, b, c):
    """Return A B + C of tf32."""
    return ptx.mma_m16n8k8_tf32(a, b, c)


def m16n8k32_e4m3_e5m2(a, b, c):
    """Return A B + C of e4m3 and e5m2."""
    return ptx.mma_m16n8k32_f8(a, b, c, "e4m3", "e5m2")


def m16n8k32_e5m2_e4m3(a, b, c):
    """Return A B + C of e5m2 and e4m3."""
    return ptx.mma_m16n8k32_f8(a, b, c, "e5m2", "e4m3")


def m16n8k32_s8_u8(a, b, c):
    """Return A B + C of signed and unsigned integers."""
    return ptx.mma_m16n8k32_i8(a, b, c, "s8", "u8")


def m16n8k32_u8_s8(a, b, c):
    """Return A B + C of unsigned and signed integers."""
    return ptx.mma_m16n8k32_i8(a, b, c, "u8", "s8")


E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
#: The types of A, B and C.
TYPES = {
    m16n8k16_f16: (np.float16, np.float16, np.float32),
    m16n8k16_bf16: (ml_dtypes.bfloat16, ml_dtypes.bfloat16, np.float32),
    m16n8k8_tf32: (np.float32, np.float32, np.float32),
    m16n8k32_e4m3_e5m2: (E4M3, E5M2, np.float32),
    m16n8k32_e5m2_e4m3: (E5M2, E4M3, np.float32),
    m16n8k32_s8_u8: (np.int8, np.uint8, np.int32),
    m16n8k32_u8_s8: (np.uint8, np.int8, np.int32),
}


def kernel_of(row):
    """Return the kernel in which a warp multiplies words (16, 8) and (8, 8), and adds (16, 8)."""
    multiply = cuda.jit(device=True)(row)

    @cuda.jit
    def kernel(a, b, c, out):
        lane = ptx.laneid()
        i, t = lane // 4, lane % 4
        left = (a[i, t], a[i + 8, t], a[i, t + 4], a[i + 8, t + 4])
        right = (b[i, t], b[i, t + 4])
        start = (c[i, 2 * t], c[i, 2 * t + 1], c[i + 8, 2 * t], c[i + 8, 2 * t + 1])
        sums = multiply(left, right, start)
        out[i, 2 * t], out[i, 2 * t + 1] = sums[0], sums[1]
        out[i + 8, 2 * t], out[i + 8, 2 * t + 1] = sums[2], sums[3]

    return kernel


def operands(row):
    """Return A (16, K), B (8, K) and C of small integers, whose sums are exact."""
    rng = np.random.default_rng(3)
    a_type, b_type, c_type = TYPES[row]

    def integers(rows, dtype):
        k = 32 // np.dtype(dtype).itemsize
        low = 0 if dtype == np.uint8 else -4
        return rng.integers(low, 5, (rows, k)).astype(dtype)

    return integers(16, a_type), integers(8, b_type), rng.integers(-9, 9, (16, 8)).astype(c_type)


def expected(a, b, c):
    """Return A B + C; every sum is exact."""
    kind = np.int64 if c.dtype == np.int32 else np.float64
    return (a.astype(kind) @ b.astype(kind).T + c.astype(kind)).astype(c.dtype)
