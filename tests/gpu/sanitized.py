"""The programs for compute-sanitizer: the shipped kernels, and every kind of pipeline.

``python -c "from tests.gpu import sanitized; sanitized.main()"`` prints ``all right`` at its end.
"""

import functools
import warnings

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma.kernels.copy.api import copy
from numba_tma.kernels.copy.plan import CopyPlan
from numba_tma.kernels.matmul import Config, StreamKConfig, SwappedConfig, UnalignedConfig, matmul
from numba_tma.kernels.matmul.block_scaled import ScaledConfig
from numba_tma.kernels.pointwise.api import plan_for, scale_add
from numba_tma.kernels.rows.rmsnorm import rmsnorm
from tests.gpu.kernels import test_attention as test_attention_gpu
from tests.gpu.kernels import test_attention_backward as test_attention_backward_gpu
from tests.gpu.kernels import test_attention_fp8 as test_attention_fp8_gpu
from tests.gpu.kernels import test_attention_varlen as test_attention_varlen_gpu
from tests.gpu.kernels import test_block_scaled as test_block_scaled_gpu
from tests.gpu.kernels import test_grouped_matmul as test_grouped_matmul_gpu
from tests.gpu.kernels import test_norms as test_norms_gpu
from tests.gpu.kernels import test_reductions as test_reductions_gpu
from tests.gpu.kernels import test_transpose as test_transpose_gpu
from tests.gpu.pipeline import test_kv as test_kv_gpu
from tests.gpu.pipeline import test_output_pipeline as test_output_pipeline_gpu
from tests.gpu.pipeline import test_store as test_store_gpu
from tests.kernels import ring_kernels as rings

CASE = rings.Case(cuda.to_device, lambda array: array.copy_to_host())
W = tma.Warps


def shipped():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, 100_003, np.uint8)
    y = cuda.to_device(np.zeros_like(x))
    copy(cuda.to_device(x), y, plan=CopyPlan())
    assert (y.copy_to_host() == x).all()
    for source, target in ((slice(0, -1), slice(1, None)), (slice(1, None), slice(0, -1))):
        y = cuda.to_device(np.zeros_like(x))  # the units of neither end are whole
        copy(cuda.to_device(x)[source], y[target])
        assert (y.copy_to_host()[target] == x[source]).all()
    a, b = (rng.standard_normal((33, 520)).astype(np.float32) for _ in range(2))
    for tiles, ring in ((None, None), (CopyPlan(), plan_for(2))):
        out = cuda.to_device(np.zeros_like(a))
        copy(cuda.to_device(a)[:, :200], out[:, :200], plan=tiles)
        assert (out.copy_to_host()[:, :200] == a[:, :200]).all()
        result = scale_add(cuda.to_device(a), cuda.to_device(b), 2.0, 3.0, plan=ring)
        assert np.allclose(result.copy_to_host(), 2 * a + 3 * b)
    for columns in (64, 1024, 4096, 8192):
        x = rng.standard_normal((301, columns)).astype(np.float32)
        w = rng.standard_normal(columns).astype(np.float32)
        y = rmsnorm(cuda.to_device(x), cuda.to_device(w)).copy_to_host()
        exact = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-6) * w
        assert np.allclose(y, exact, rtol=1e-5, atol=1e-6)


def in_process(case, *args):
    """Run a GPU case here and not in a worker."""
    case.__wrapped__(*args)


def rows_and_columns():
    """Rows of a part of a warp, of clusters, of rings; their gradients; columns; transposes."""
    for regime in ("part of a warp", "bulk, rows", "cluster 8, bulk, ragged"):
        in_process(test_norms_gpu.test_regimes, "layernorm", regime)
    in_process(test_norms_gpu.test_rmsnorm_through_a_pipeline, 1000, 128)
    for regime in ("staged, partial", "cluster 2, staged, partial"):
        in_process(test_norms_gpu.test_regimes, "softmax", regime)
    in_process(test_norms_gpu.test_gradients, (301, 1000), "f32")
    in_process(test_reductions_gpu.test_columns, (3000, 1000), "f32")
    in_process(test_transpose_gpu.test_rows_with_gaps_and_odd_starts, 2)


def matmuls():
    """Tiles that edges cut, parts of K that are added up, hand-overs, empty groups, scales."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((200, 264), (264, 328)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for config in (Config(128, 128, 2), Config(64, 64, splits=2)):
        result = matmul(cuda.to_device(a), cuda.to_device(b), config=config, activation="relu")
        assert np.allclose(result.copy_to_host(), np.maximum(exact, 0), rtol=2e-3, atol=2e-2)
    for swapped in (SwappedConfig(64, 8, 4), SwappedConfig(64, 16, 2, blocks=2)):
        few = matmul(cuda.to_device(a[:11]), cuda.to_device(b), config=swapped)
        assert np.allclose(few.copy_to_host(), exact[:11], rtol=2e-3, atol=2e-2)
    long = rng.standard_normal((100, 3000)).astype(np.float16)
    for divided in (StreamKConfig(64, 64), StreamKConfig(128, 128, 2)):
        result = matmul(cuda.to_device(long), cuda.to_device(long).T, config=divided)
        expected = long.astype(np.float64) @ long.T.astype(np.float64)
        assert np.allclose(result.copy_to_host(), expected, rtol=2e-3, atol=0.2)
    odd = cuda.to_device(a[:11, :263].copy()), cuda.to_device(b[:263, :45].copy())
    expected = a[:11, :263].astype(np.float64) @ b[:263, :45].astype(np.float64)
    for unaligned in (UnalignedConfig("a", 24), UnalignedConfig("b", 16, 4)):
        few = matmul(*odd, config=unaligned)
        assert np.allclose(few.copy_to_host(), expected, rtol=2e-3, atol=2e-2)
    check = test_grouped_matmul_gpu.check
    check([70, 0, 129], 264, 136, ("f16", "f16"), "f16", config=Config(128, 128, 2))
    scales = np.array([0.5, 3, -2], np.float32)
    check([70, 0, 129], 264, 144, ("e4m3", "e5m2"), by_ends=True, scales=scales)
    given = test_block_scaled_gpu.operands(300, 200, 272)
    pairs, parts = ScaledConfig(256, 128, 2, out_stages=1), ScaledConfig(64, 64, splits=3)
    for config in (pairs, ScaledConfig(128, 160), parts):
        test_block_scaled_gpu.check(*given, config=config)


def attention():
    """Lengths of whole tiles and of none, parts, queries that see no key, windows, caps, lse."""
    arrays, check = test_attention_gpu.arrays, test_attention_gpu.check
    for queries, keys in ((129, 257), (384, 256)):
        for depth, causal in ((64, False), (128, True), (256, True)):
            check(*arrays(queries, keys, 4, 2, depth), causal)
        check(*arrays(queries, keys, 4, 2), window=(100, 30), softcap=20.0)
    in_process(test_attention_gpu.test_lse, 128, True)


def attention_of_packed_sequences():
    lengths = (0, 70, 300, 64, 1), (9, 65, 130, 0, 500)
    for depth, options in ((64, {}), (128, {"causal": True}), (256, {"window": (100, 30)})):
        test_attention_varlen_gpu.check(*lengths, depth=depth, **options)


def attention_of_8_bits():
    module = test_attention_fp8_gpu
    for queries, keys in ((129, 257), (384, 256)):
        for depth, causal in ((64, False), (128, True)):
            q, k, v = module.arrays(queries, keys, 4, 2, depth)
            module.check(q, k, v, causal, scaled=module.random_scales(q, k))
        module.check(*module.arrays(queries, keys), window=(100, 30), softcap=20.0)


def attention_backward():
    module = test_attention_backward_gpu
    for queries, keys in ((130, 257), (257, 130)):
        for depth, causal in ((64, False), (128, True)):
            for deterministic in (False, True):
                given = module.arrays(queries, keys, 4, 2, depth)
                module.check(*given, causal, deterministic=deterministic)


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
    "rows_and_columns": rows_and_columns,
    "matmuls": matmuls,
    "attention": attention,
    "attention_of_packed_sequences": attention_of_packed_sequences,
    "attention_of_8_bits": attention_of_8_bits,
    "attention_backward": attention_backward,
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
