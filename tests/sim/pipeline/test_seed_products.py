"""The seeds' examples with products of the tensor cores: input ring, block scales, K and V."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from tests.kernels import seed_attention, seed_usage
from tests.kernels.tensor_gemm import integers
from tests.tiers import seeds


@seeds(1, 4)
@pytest.mark.parametrize("groups", [1, 3])
def test_the_usage_example_of_tile_pipeline(groups, seeds):
    tiles, k = 3, groups * seed_usage.k_group_size * seed_usage.K
    a = integers((tiles * seed_usage.M, k), "bfloat16", 0)
    b = integers((seed_usage.N, k), "bfloat16", 1)
    maps = tma.tensor_map(a, seed_usage.A), tma.tensor_map(b, seed_usage.B)
    for seed in seeds:
        sim.seed(seed)
        out = np.zeros((tiles * seed_usage.M, seed_usage.N), np.float32)
        cuda.jit(seed_usage.usage)[1, seed_usage.ROLES.threads](*maps, out, tiles, groups)
        np.testing.assert_array_equal(out, a.astype(np.float32) @ b.astype(np.float32).T)


@seeds(1, 4)
def test_BlockScaledTilePayload(seeds):
    payload, groups = seed_usage.SCALED, 3
    k = groups * seed_usage.k_group_size * seed_usage.SCALED_K
    rng = np.random.default_rng(0)
    a, b = (integers((rows, k), "float8_e4m3fn", rows) for rows in (seed_usage.M, seed_usage.N))
    powers = [rng.integers(0, 4, (len(x), k // 32)) for x in (a, b)]
    scales = [tma.to_blocked(np.exp2(p).astype(ml_dtypes.float8_e8m0fnu)) for p in powers]
    maps = [
        *(tma.tensor_map(x, tile) for x, tile in zip((a, b), (payload.a, payload.b))),
        *(
            tma.tensor_map(x.view(np.uint8), tile, dtype=tile.dtype)
            for x, tile in zip(scales, (payload.sfa, payload.sfb))
        ),
    ]
    for seed in seeds:
        sim.seed(seed)
        out = np.zeros((seed_usage.M, seed_usage.N))
        cuda.jit(seed_usage.block_scaled)[1, seed_usage.ROLES.threads](*maps, out, groups)
        wide = [x.astype(float) * np.repeat(2.0**p, 32, 1) for x, p in zip((a, b), powers)]
        np.testing.assert_array_equal(out, wide[0] @ wide[1].T)


@seeds(1, 4)
@pytest.mark.parametrize("tiles", [1, 4])
def test_the_order_of_TMAConsumerPipeline(tiles, seeds):
    q, k, v = (
        integers((rows, seed_attention.DEPTH), "bfloat16", rows + i, -1, 2)
        for i, rows in enumerate((2 * seed_attention.ROWS, *[tiles * seed_attention.BN] * 2))
    )
    KV = seed_attention.KV
    maps = [tma.tensor_map(*p) for p in ((q, seed_attention.Q), (k, KV.k_tile), (v, KV.v_tile))]
    wide = [x.astype(np.float32) for x in (q, k, v)]
    for seed in seeds:
        sim.seed(seed)
        out = np.zeros((2 * seed_attention.ROWS, seed_attention.DEPTH), np.float32)
        cuda.jit(seed_attention.attend)[1, seed_attention.ROLES.threads](*maps, out, tiles)
        np.testing.assert_array_equal(out, wide[0] @ wide[1].T @ wide[2])
