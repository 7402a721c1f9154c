"""Attention of e4m3 in the simulator: its scales, its types, and V turned round.

Inputs are exact in float64 then; what may be wrong is the rounding of the weights and the result.
"""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from numba_tma.kernels.attention import attention
from numba_tma.kernels.attention.arrays import read_heads
from numba_tma.kernels.attention.plan import AttentionPlan
from numba_tma.kernels.attention.transpose_v import transposed_v
from tests.sim.kernels.test_attention import arrays as any_arrays
from tests.sim.kernels.test_attention import exact
from tests.tiers import quick

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
ONE = AttentionPlan(1, 64)
ORDER = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]  # of keys, in each 16


def arrays(*args, **options):
    return any_arrays(*args, dtype=E4M3, **options)


def scales(q, k):
    """Return scales of q, k and v, each different."""
    rng = np.random.default_rng(7)
    return [rng.uniform(0.3, 3, (len(x), x.shape[2])).astype(np.float32) for x in (q, k, k)]


def check(q, k, v, causal=False, plan=ONE, scaled=(None,) * 3, out_dtype=None, **options):
    real = [
        x.astype(np.float64) * (1 if s is None else s[:, None, :, None])
        for x, s in zip((q, k, v), scaled)
    ]
    changes = {name: options[name] for name in ("scale", "window", "softcap") if name in options}
    expected, _, logs = exact(*real, causal, **changes)
    size = exact(real[0], real[1], np.abs(real[2]), causal, **changes)[0]
    given = dict(zip(("q_scale", "k_scale", "v_scale"), scaled))
    given |= {"causal": causal, "plan": plan, "return_lse": True, "out_dtype": out_dtype, **options}
    got, lse = attention(q, k, v, **given)
    kind = ml_dtypes.finfo(BF16 if out_dtype in (None, "bf16") else np.float16)
    assert got.dtype == kind.dtype and got.shape == q.shape
    np.testing.assert_allclose(lse, logs, rtol=1e-6, atol=1e-5)
    # Weights are rounded to 4 bits, those below 2**-14 of the largest to a multiple of 2**-17.
    most = np.abs(real[2]).max() * k.shape[1]
    error = 2.0**-4 * size + 2.0**-17 * most + float(kind.eps) * np.abs(expected) + 1e-6
    assert (np.abs(got.astype(np.float64) - expected) <= error).all()
    return got


LENGTHS = [(1, 1, 64), (65, 63, 128), (70, 200, 64)]
FULL_AND_CAUSAL = [(*lengths, causal) for lengths in LENGTHS for causal in (False, True)]


@pytest.mark.parametrize(
    ("queries", "keys", "depth", "causal"),
    quick([(1, 1, 64, False), (65, 63, 128, True), (70, 200, 64, False)], FULL_AND_CAUSAL),
)
def test_lengths(queries, keys, depth, causal):
    check(*arrays(queries, keys, depth=depth), causal)


def test_the_plan_that_is_chosen():
    check(*arrays(140, 140, depth=128), causal=True, plan=None)


@pytest.mark.parametrize("block_k", [96, 192])
def test_tiles_of_other_swizzles(block_k):
    check(*arrays(5, 200), plan=AttentionPlan(1, block_k))


def test_scales_of_heads():
    """Of several sequences, and heads that share keys."""
    q, k, v = arrays(3, 20, heads=4, kv_heads=2, batch=2)
    check(q, k, v, True, ONE, scales(q, k))
    q, k, v = q[:1, :, :2], k[:1, :, :1], v[:1, :, :1]
    for i in range(3):
        check(q, k, v, scaled=[s if i == j else None for j, s in enumerate(scales(q, k))])


def test_weights_use_the_range_of_e4m3():
    """One key outweighs each of the others by up to 2**14, and all of them hardly."""
    q, k, v = arrays(9, 200)
    q[:], k[:] = 1, 0
    k[:, 0] = 1
    v[:, 0], v[:, 1:] = 0, 1
    for first in (0, 199):  # where the maximum is known from the first, and where it comes last
        k[:, 0], k[:, first] = 0, 1
        v[:, 0], v[:, first] = 1, 0
        for power in (2, 14):
            got = attention(q, k, v, scale=power * np.log(2) / 64, plan=ONE)
            np.testing.assert_allclose(got.astype(float), 199 / (199 + 2**power), rtol=2**-7)


@pytest.mark.parametrize(
    ("order", "votes"),
    quick([(1, True), (1, False), (-1, True)], [(o, v) for o in (1, -1) for v in (True, False)]),
)
def test_sums_decay_from_tile_to_tile(order, votes):
    q, _, v = arrays(9, 300)
    q[:], k = 1, np.zeros_like(v)
    k[..., 0] = (np.arange(300)[::order] // 16 / 2)[:, None]
    plan = replace(ONE, votes=votes)
    check(q, k, v, plan=plan, scale=1.0)
    check(q, k, np.abs(v), plan=plan, scale=1.0)


def test_options():
    q, k, v = arrays(70, 200)
    check(q, k, v, scaled=scales(q, k), softcap=2.0)
    check(q, k, v, scaled=scales(q, k), window=(30, 9), out_dtype="f16", scale=0.3)


def test_queries_that_see_no_key_give_0():
    got = check(*arrays(100, 30), causal=True)
    assert (got[:, :70] == 0).all() and (got[:, 70:] != 0).any(axis=3).all()


def test_bits():
    """Arrays that hold e4m3, and the result's bf16, as integers."""
    q, k, v = arrays(64, 64)
    bits, out = [x.view(np.uint8) for x in (q, k, v)], np.full(q.shape, 7, np.uint16)
    assert attention(*bits, out, dtype="e4m3", out_dtype="bf16", plan=ONE) is out
    np.testing.assert_array_equal(out.view(BF16), attention(q, k, v, plan=ONE))


def test_nan_stays_in_the_rows_that_see_it():
    q, k, v = arrays(70, 70)
    q[0, 3] = k[0, 66] = np.nan
    got = attention(q, k, v, causal=True, plan=ONE).astype(float)
    assert set(np.flatnonzero(np.isnan(got[0, :, 0]).all(axis=1))) == {3, 66, 67, 68, 69}
    q, k, v = arrays(70, 70)
    v[0, 66, 0, 5] = np.nan
    got = attention(q, k, v, plan=ONE).astype(float)
    assert (np.isnan(got) == (np.arange(64) == 5)).all()


def test_views_leave_what_is_around_them():
    qkv = np.stack(arrays(20, 20, heads=3, depth=192), axis=2)  # (1, 20, 3, 3, 192)
    q, k, v = (qkv[:, :, i, 1:, 64:128] for i in range(3))
    memory = np.full((1, 3, 22, 64), 7, BF16)  # heads before queries
    out = memory[:, 1:, 1:21].transpose(0, 2, 1, 3)
    assert attention(q, k, v, out, causal=True, plan=ONE) is out
    same = attention(*(x.copy() for x in (q, k, v)), causal=True, plan=ONE)
    np.testing.assert_array_equal(out, same)
    out[:] = 7
    assert (memory == 7).all()


@pytest.mark.parametrize("depth", [64, 128])
def test_values_turn_round(depth):
    """Keys of each 16 come in another order, with zeros behind the last."""
    v = np.random.default_rng(0).integers(0, 256, (2, 150, 2, depth), np.uint8)
    kept = []
    transposed_v(read_heads("attention", "v", v, "e4m3"), None, kept)
    padded = np.zeros((2, 256, 2, depth), np.uint8)
    padded[:, :150] = v
    order = np.add.outer(np.arange(0, 256, 16), ORDER).ravel()
    np.testing.assert_array_equal(kept[0], padded[:, order].transpose(0, 2, 3, 1))


def test_nothing():
    q, k, v = arrays(64, 64)
    assert attention(q[:, :0], k, v).shape == (1, 0, 1, 64)
    assert attention(q[:0], k[:0], v[:0]).shape == (0, 64, 1, 64)
