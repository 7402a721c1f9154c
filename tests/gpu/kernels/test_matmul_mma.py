"""The matmul kernel by mma.sync on a GPU, which need not be one of compute capability 12.x."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from numba_tma.kernels.matmul import MmaConfig, matmul
from tests.gpu.worker import on_gpu

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
NAMES = {BF16: "bf16", E4M3: "e4m3", E5M2: "e5m2"}
CONFIGS = [
    MmaConfig(),
    MmaConfig(k=128),
    MmaConfig(256, 64),
    MmaConfig(64, 32, k=128),
    MmaConfig(128, 128, 1),
    MmaConfig(128, 96),
]


def integers(shape, kind):
    """Return small integers, whose products and sums are exact in every type."""
    low = 0 if kind == np.uint8 else -2
    return np.random.default_rng(sum(shape)).integers(low, 3, shape).astype(kind)


def given(array):
    """Return the array on the GPU, as bits if Numba lacks the type."""
    bits = {1: np.uint8, 2: np.uint16}[array.itemsize] if array.dtype.type in NAMES else array.dtype
    return cuda.to_device(np.ascontiguousarray(array).view(bits))


def product(rows, columns, k, a_type, b_type, out, config, layout="TN"):
    """Return the kernel's result of integers, and NumPy's."""
    a, b = integers((rows, k), a_type), integers((k, columns), b_type)
    left = given(a) if layout[0] == "T" else given(a.T).T
    right = given(b.T).T if layout[1] == "N" else given(b)
    result = cuda.to_device(np.zeros((rows, columns), out))
    kinds = tuple(NAMES.get(kind, kind) for kind in (a_type, b_type))
    matmul(left, right, result, dtype=kinds, config=config)
    return result.copy_to_host(), a.astype(np.int64) @ b.astype(np.int64)


@on_gpu
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("shape", [(512, 384, 256), (300, 200, 72), (5, 35, 40), (64, 64, 0)])
def test_shapes(shape, config):
    got, expected = product(*shape, BF16, BF16, np.float32, config)
    np.testing.assert_array_equal(got, expected)


@on_gpu
@pytest.mark.parametrize("config", [MmaConfig(), MmaConfig(k=128)], ids=str)
@pytest.mark.parametrize(
    ("a_type", "b_type", "out"),
    [
        (np.float16, np.float16, np.float32),
        (np.float32, np.float32, np.float32),
        (E4M3, E5M2, np.float32),
        (E5M2, E4M3, np.float32),
        (np.int8, np.uint8, np.int32),
        (np.uint8, np.int8, np.int32),
    ],
)
def test_types(a_type, b_type, out, config):
    got, expected = product(300, 200, 336, a_type, b_type, out, config)
    np.testing.assert_array_equal(got, expected)


@on_gpu
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("layout", ["TT", "NN", "NT"])
def test_layouts(layout, config):
    got, expected = product(304, 200, 264, BF16, BF16, np.float32, config, layout)
    np.testing.assert_array_equal(got, expected)


@on_gpu
def test_a_large_product_reuses_all_stages():
    got, expected = product(2048, 2304, 1000, np.float16, np.float16, np.float32, MmaConfig())
    np.testing.assert_array_equal(got, expected)


@on_gpu
@pytest.mark.parametrize("columns", [200, 201])
def test_everything_at_once(columns):
    rows, k = 300, 128
    a, b = integers((rows, k), np.float16), integers((k, columns), np.float16)
    old, added = (integers((rows, columns), np.float32) for _ in range(2))
    bias, scale = integers((columns,), np.float32), integers((rows,), np.float32)
    result = cuda.to_device(old)
    more = {"bias": bias, "residual": added, "row_scale": scale}
    arrays = {name: cuda.to_device(array) for name, array in more.items()}
    matmul(
        cuda.to_device(a), cuda.to_device(b), result, **arrays,
        alpha=0.5, beta=2.0, activation="relu", config=MmaConfig(),
    )  # fmt: skip
    sums = 0.5 * scale[:, None] * (a.astype(np.float64) @ b.astype(np.float64)) + 2 * old + bias
    np.testing.assert_array_equal(result.copy_to_host(), np.maximum(sums, 0) + added)
