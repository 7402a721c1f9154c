"""What runs under compute-sanitizer: the shipped kernels, and every kind of pipeline.

``python -c "from tests.gpu import sanitized; sanitized.main()"`` prints ``all right`` at its end.
"""

import functools
import warnings

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma.kernels.block_scaled import ScaledConfig, block_scaled_matmul
from numba_tma.kernels.copy import copy
from numba_tma.kernels.grouped_matmul import grouped_matmul
from numba_tma.kernels.matmul import Config, matmul
from numba_tma.kernels.pointwise import scale_add
from numba_tma.kernels.rmsnorm import rmsnorm
from tests import ring_kernels as rings
from tests.gpu import test_kv_gpu, test_output_pipeline_gpu, test_store_gpu

CASE = rings.Case(cuda.to_device, lambda array: array.copy_to_host())
W = tma.Warps


def shipped():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, 100_003, np.uint8)
    y = cuda.to_device(np.zeros_like(x))
    copy(cuda.to_device(x), y)
    assert (y.copy_to_host() == x).all()
    a, b = (rng.standard_normal((33, 520)).astype(np.float32) for _ in range(2))
    out = cuda.to_device(np.zeros_like(a))
    copy(cuda.to_device(a)[:, :200], out[:, :200])
    assert (out.copy_to_host()[:, :200] == a[:, :200]).all()
    result = scale_add(cuda.to_device(a), cuda.to_device(b), 2.0, 3.0).copy_to_host()
    assert np.allclose(result, 2 * a + 3 * b)
    for columns in (64, 1024, 4096, 8192):
        x = rng.standard_normal((301, columns)).astype(np.float32)
        w = rng.standard_normal(columns).astype(np.float32)
        y = rmsnorm(cuda.to_device(x), cuda.to_device(w)).copy_to_host()
        exact = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-6) * w
        assert np.allclose(y, exact, rtol=1e-5, atol=1e-6)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((200, 264), (264, 328)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for config in (Config(128, 128, 2), Config(64, 64, splits=2)):
        result = matmul(cuda.to_device(a), cuda.to_device(b), config=config, activation="relu")
        assert np.allclose(result.copy_to_host(), np.maximum(exact, 0), rtol=2e-3, atol=2e-2)
    sizes = np.array([70, 0, 129], np.int32)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((200, 136), (3, 136, 264)))
    exact = np.concatenate([a[:70] @ b[0], a[70:199] @ b[2]]).astype(np.float64)
    result = grouped_matmul(*map(cuda.to_device, (a, b, sizes)), config=Config(128, 128, 2))
    assert np.allclose(result.copy_to_host()[:199], exact, rtol=1e-2, atol=1e-1)
    bits = np.full((300, 272), 0x38, np.uint8), np.full((200, 272), 0x38, np.uint8)  # of 1.0
    scales = np.ones((300, 3), np.float32), np.ones((3, 2), np.float32)
    a, b, x, y = map(cuda.to_device, (*bits, *scales))
    for config in (ScaledConfig(256, 128, 2, out_stages=1), ScaledConfig(128, 160)):
        result = cuda.to_device(np.zeros((300, 200), np.float32))
        block_scaled_matmul(a, b.T, x, y, result, dtype="e4m3", config=config)
        assert (result.copy_to_host() == 272).all()


def in_process(case, *args):
    """Run a GPU case here and not in a worker."""
    case.__wrapped__(*args)


def few_tiles(module):
    module.counts = lambda stages: [0, 2 * stages + 1]
    return module


def tma_rings():
    for n_tiles in (0, 7):
        CASE.payload(3, (W(1), W(2)), 2, "standard", 1, n_tiles)
        CASE.payload(2, (W(2), W(1), W(3), W(1)), 1, "dataclass", 0, n_tiles)
        CASE.block_scaled(2, (W(1), W(2)), 1, n_tiles)
        CASE.one_input(rings.alternate_kernel(4, (W(1), W(2), W(2))), True, n_tiles, 2)
        CASE.one_input(rings.try_kernel(3, (W(1), W(2))), True, n_tiles)
        CASE.one_input(rings.register_kernel(3, 2, 40), True, n_tiles)


def filled_by(what):
    for n_tiles in (0, 7):
        for groups in ((W(4), W(2)), (tma.Threads(48), tma.Threads(32))):
            CASE.one_input(rings.filled_kernel(3, groups, what), False, n_tiles)


def clusters():
    for n_tiles in (0, 7):
        for cluster, shared, grid in (
            ((2, 1), (("a", "x"),), (4, 1)),
            ((2, 2), (("a", "x"), ("b", "y")), (2, 2)),
            ((4, 1), (("a", "x"),), (4, 1)),
        ):
            CASE.multicast(3, cluster, shared, (W(1), W(2)), grid, n_tiles)


def stores():
    module = few_tiles(test_store_gpu)
    in_process(module.test_stores, 3)
    in_process(module.test_stores_and_reductions_of_one_group, 2)


def outputs():
    module = few_tiles(test_output_pipeline_gpu)
    in_process(module.test_groups, 2, (W(4), W(3)))


def keys_and_values():
    module = few_tiles(test_kv_gpu)
    in_process(module.test_stages_and_sub_stages, 3, 2)
    in_process(module.test_products_through_get_k_and_get_v, "bf16", 64, 4, 1, 3)


def one_ring_of_keys_and_values():
    """K in parts and V in one ring: each in stages of its own, and both in turns."""
    module = few_tiles(test_kv_gpu)
    in_process(module.test_stages_and_sub_stages, 2, 2)
    in_process(module.test_stages_and_sub_stages, 3, 1)
    for stages, parts in ((1, 2), (3, 4)):
        test_kv_gpu.CASE.order("plain", stages, parts, True, 2, 2, 7)
    in_process(module.test_products_through_get_k_and_get_v, "bf16", 128, 2, 2, 7)


PARTS = {
    "shipped": shipped,
    "tma": tma_rings,
    "cp_async": functools.partial(filled_by, "cp_async"),
    "threads": functools.partial(filled_by, "threads"),
    "clusters": clusters,
    "stores": stores,
    "outputs": outputs,
    "keys_and_values": keys_and_values,
    "one_ring_of_keys_and_values": one_ring_of_keys_and_values,
}


def main(*names):
    warnings.simplefilter("ignore")
    for name in names or PARTS:
        PARTS[name]()
    cuda.synchronize()
    print("all right")
