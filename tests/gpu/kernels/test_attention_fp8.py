"""Attention of e4m3 against float64: lengths, masks, shared heads, scales, options, the same bits.

Inputs are exact in float64. The bound on an error follows from the roundings. Each weight is
rounded to 4 bits, so that errors add up as random numbers do. The tensor cores keep about 13 bits
of the sums of a product, and round towards 0 at each 32 keys, up to the end of a tile. Scores are
summed in the same way.
"""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from numba_tma.kernels.attention import attention
from numba_tma.kernels.attention.choice import FP8_CANDIDATES, FP8_HEAD_DIMS
from numba_tma.kernels.attention.plan import AttentionPlan
from tests.gpu.kernels.test_attention import ALL_ROWS, LENGTHS, LIMIT, by_mask, seen_by, whole_plan
from tests.gpu.kernels.test_kernels import TYPES
from tests.gpu.kernels.test_matmul import Device
from tests.gpu.worker import on_gpu

E4M3 = ml_dtypes.float8_e4m3fn
# Of the magnitude of its terms a sum of the tensor cores may be wrong by so much, each time, and by
# so much again for each 32 of up to 256 keys of a tile.
SUMS, TILE = 2.0**-12, 256
PLANS = {
    "64 queries": (64, AttentionPlan(1, 64)),
    "64 queries, 3 stages": (128, AttentionPlan(1, 128, stages=3)),
    "64 keys": (64, AttentionPlan(3, 64)),
    "96 keys of depth 128": (128, AttentionPlan(2, 96)),
    "160 keys": (64, AttentionPlan(2, 160)),
    "256 keys": (64, AttentionPlan(2, 256)),
    "always decaying": (64, AttentionPlan(3, 96, votes=False)),
    "4 heads together": (128, AttentionPlan(2, 128, heads_together=4)),
    "3 parts": (128, AttentionPlan(2, 128, splits=3)),
    "9 parts": (64, AttentionPlan(1, 64, splits=9)),
}
#: Those that lengths may choose.
PLANS |= {
    f"plan {number} of depth {depth}{', causal' * causal}": (depth, plan)
    for (depth, causal), candidates in FP8_CANDIDATES.items()
    for number, (plan, _) in enumerate(candidates)
}


def arrays(queries, keys, heads=2, kv_heads=None, depth=128, batch=2):
    """Return q, k and v on the host."""
    kv = (batch, keys, kv_heads or heads, depth)
    shapes = ((batch, queries, heads, depth), kv, kv)
    return [
        np.random.default_rng(seed).standard_normal(shape).astype(E4M3)
        for seed, shape in enumerate(shapes)
    ]


def random_scales(q, k):
    """Return scales of the heads of q, k and v."""
    rng = np.random.default_rng(9)
    return [rng.uniform(0.3, 3, (len(x), x.shape[2])).astype(np.float32) for x in (q, k, k)]


def exact(q, k, v, rows, causal, scaled, scale=None, window=(None, None), softcap=None):
    """Return these rows in float64, what they may be wrong by, and the same of lse."""
    q, k, v = (
        x.astype(np.float64) * (1 if s is None else s[:, None, :, None])
        for x, s in zip((q, k, v), scaled)
    )
    (queries, heads), (keys, kv_heads), depth = q.shape[1:3], k.shape[1:3], q.shape[3]
    scale = depth**-0.5 if scale is None else scale
    seen = seen_by(rows, queries, keys, (window[0], 0 if causal else window[1]))
    expected, slack = (np.zeros((len(q), len(rows), heads, depth)) for _ in range(2))
    logs, wrong_logs = (np.zeros((len(q), heads, len(rows))) for _ in range(2))
    for batch, head in np.ndindex(len(q), heads):
        shared = head // (heads // kv_heads)
        a, b, c = q[batch, rows, head], k[batch, :, shared], v[batch, :, shared]
        scores = a @ b.T * scale
        wrong = SUMS * (np.abs(a) @ np.abs(b).T * scale).max(axis=1, keepdims=True)
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
            wrong = wrong + 2.0**-10.9 * np.abs(scores).max(axis=1, keepdims=True)
        scores[~seen] = -np.inf
        top = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - np.where(top > -np.inf, top, 0))
        total = weights.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            logs[batch, head] = (np.where(total > 0, top, 0) + np.log(total))[:, 0]
        wrong_logs[batch, head] = wrong[:, 0]
        weights /= np.maximum(total, 1)
        expected[batch, :, head] = weights @ c
        size, spread = weights @ np.abs(c), np.sqrt(weights**2 @ c**2)
        rounded = np.minimum(2.0**-4 * size, 2.0**-2 * spread)  # all the same way, or at random
        rounded += 2.0**-17 * np.abs(c).sum(axis=0) / np.maximum(total, 1)
        summed = SUMS * (1 + min(keys, TILE) / 32) * size
        slack[batch, :, head] = rounded + summed + np.expm1(2 * wrong) * size
    return expected, slack, logs, wrong_logs


def check(q, k, v, causal=False, plan=None, scaled=(None,) * 3, name="bf16", out=None, **options):
    """Compute and compare, between what must stay; return what was computed.

    Without a plan, attention is computed twice: few queries use split-K.
    """
    if plan is None:
        check(q, k, v, causal, whole_plan(q, causal), scaled, name, out, **options)
    queries, heads = q.shape[1:3]
    out = np.full(q.shape, 7, TYPES[name]) if out is None else out
    memory = np.full(8 + len(q) * heads * queries + 8, 7, np.float32)
    target, lse = Device(out), Device(memory[8:-8].reshape(len(q), heads, queries))
    given = {f"{x}_scale": None if s is None else Device(s) for x, s in zip("qkv", scaled)}
    given |= {"causal": causal, "plan": plan, "lse": lse, "return_lse": True, **options}
    assert attention(*map(Device, (q, k, v)), target, **given) == (target, lse)
    got = target.get()
    rows = np.unique(np.linspace(0, queries - 1, min(queries, ALL_ROWS)).astype(int))
    expected, slack, logs, wrong_logs = exact(q, k, v, rows, causal, scaled, **options)
    last = float(ml_dtypes.finfo(TYPES[name]).eps)
    error = np.abs(got[:, rows].astype(np.float64) - expected)
    over = error / (slack + last * np.abs(expected) + 1e-6)
    what = f"{q.shape} x {k.shape}{' causal' * causal} {options or ''}"
    print(f"{what}: max abs error {error.max():.3g}, {over.max():.2f} of what is allowed")
    assert over.max() <= 1, what
    found = lse.get()[:, :, rows]
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(logs))
    finite = np.isfinite(logs)
    off = np.abs(np.where(finite, found, 0) - np.where(finite, logs, 0))
    assert (off <= wrong_logs + 1e-3).all(), what
    around = lse.memory.copy_to_host().view(np.float32)
    assert (around[:8] == 7).all() and (around[-8:] == 7).all()
    return got


@by_mask
@pytest.mark.parametrize("depth", FP8_HEAD_DIMS)
@on_gpu(limit=LIMIT)
def test_lengths(depth, causal):
    for queries, keys in LENGTHS:
        check(*arrays(queries, keys, depth=depth), causal)


@by_mask
@pytest.mark.parametrize("plan", PLANS)
@on_gpu(limit=LIMIT)
def test_plans(plan, causal):
    depth, how = PLANS[plan]
    for queries, keys in ((1, 1), (130, 129), (1000, 777), (777, 1000)):
        check(*arrays(queries, keys, 6, 2, depth), causal, how)


@by_mask
@pytest.mark.parametrize("depth", FP8_HEAD_DIMS)
@on_gpu(limit=LIMIT)
def test_long_sums_of_one_sign(depth, causal):
    """The tensor cores alone would lose a quarter of them, and more of longer ones."""
    q, k, v = arrays(65, 16384, depth=depth)
    for values in (np.ones_like(v), np.abs(v)):
        got = check(q, k, values, causal, name="f16").astype(float)
        expected = exact(q, k, values, np.arange(65), causal, (None,) * 3)[0]
        error = got / expected - 1
        print(f"relative error {np.abs(error).max():.2g}, in the mean {error.mean():.2g}")
        assert np.abs(error).max() < 2.0**-7 and np.abs(error.mean()) < 2.0**-8


@on_gpu(limit=LIMIT)
def test_sums_decay_from_tile_to_tile():
    """Scores rise, or fall, at each tile and within it."""
    for depth in FP8_HEAD_DIMS:
        q, _, v = arrays(200, 1000, depth=depth)
        q[:], k = 1, np.zeros_like(v)
        for order in (1, -1):
            k[..., 0] = (np.arange(1000)[::order] // 16 / 4)[:, None]
            check(q, k, v, scale=1.0)


@by_mask
@pytest.mark.parametrize("heads", [(3, 3), (4, 1), (8, 2), (40, 5)])
@on_gpu(limit=LIMIT)
def test_scales_of_heads_that_share_keys(heads, causal):
    for depth in FP8_HEAD_DIMS:
        q, k, v = arrays(300, 333, *heads, depth=depth, batch=3)
        check(q, k, v, causal, scaled=random_scales(q, k))


@on_gpu(limit=LIMIT)
def test_each_scale_by_itself():
    q, k, v = arrays(200, 300)
    for i, name in enumerate(("bf16", "f16", "bf16")):
        one = [s if i == j else None for j, s in enumerate(random_scales(q, k))]
        check(q, k, v, scaled=one, name=name)


@on_gpu(limit=LIMIT)
def test_scales_are_read_when_the_kernel_runs():
    """A launch that is repeated sees those of that moment, and V of that moment."""
    q, k, v = arrays(200, 300)
    whole = random_scales(q, k)
    device, target = [Device(x) for x in (q, k, v)], Device(np.full(q.shape, 7, TYPES["bf16"]))
    names = ("q_scale", "k_scale", "v_scale")
    held = dict(zip(names, map(Device, whole)))
    for turn in range(3):
        attention(*device, target, **held)
        expected, slack, _, _ = exact(q, k, v, np.arange(200), False, whole)
        error = np.abs(target.get().astype(float) - expected)
        assert (error <= slack + 2.0**-8 * np.abs(expected) + 1e-6).all(), turn
        whole = [np.float32(1.5) * s[:, ::-1] for s in whole]
        for name, scales in zip(names, whole):
            held[name].memory.copy_to_device(np.ascontiguousarray(scales).view(np.uint32))
        v = v[:, ::-1]
        device[2].memory.copy_to_device(np.ascontiguousarray(v).view(np.uint8))


@by_mask
@on_gpu(limit=LIMIT)
def test_options(causal):
    for queries, keys in ((300, 300), (1000, 777)):
        q, k, v = arrays(queries, keys, 4, 2)
        whole = random_scales(q, k)
        check(q, k, v, causal, window=(127, 64))
        check(q, k, v, causal, scaled=whole, softcap=20.0, scale=0.2)
        check(q, k, v, causal, scaled=whole, softcap=2.0, window=(None, 30))


@on_gpu(limit=LIMIT)
def test_weights_use_the_range_of_e4m3():
    """One key outweighs each of the others by up to 2**12, and all of them hardly."""
    q, k, v = arrays(64, 4000)
    for first in (0, 2000, 3999):  # the maximum is known from the first, or comes later
        q[:], k[:], v[:] = 1, 0, 1
        k[:, first], v[:, first] = 1, 0
        for power in (2, 8, 12):
            got = Device(np.full(q.shape, 7, TYPES["bf16"]))
            attention(*map(Device, (q, k, v)), got, scale=power * np.log(2) / 128)
            found, expected = got.get().astype(float), 3999 / (3999 + 2**power)
            np.testing.assert_allclose(found, expected, rtol=2**-7)


@on_gpu(limit=LIMIT)
def test_queries_that_see_no_key_give_0():
    for depth in FP8_HEAD_DIMS:
        got = check(*arrays(1000, 300, depth=depth), causal=True)
        assert (got[:, :700] == 0).all() and (got[:, 700:] != 0).any(axis=3).all()


@on_gpu(limit=LIMIT)
def test_huge_scores():
    q, k, v = arrays(257, 515)
    q, k = np.sign(q.astype(float)) * 448, np.sign(k.astype(float)) * 448
    for causal in (False, True):
        check(q.astype(E4M3), k.astype(E4M3), v, causal, scale=2.0**-14)


@on_gpu(limit=LIMIT)
def test_nan_stays_in_the_rows_that_see_it():
    q, k, v = arrays(300, 300)
    q[0, 3, 0] = k[0, 270, 1] = np.nan
    got = Device(np.full(q.shape, 7, TYPES["bf16"]))
    attention(*map(Device, (q, k, v)), got, causal=True)
    expected = np.zeros(q.shape[:3], bool)
    expected[0, 3, 0], expected[0, 270:, 1] = True, True
    bad = np.isnan(got.get().astype(float))
    np.testing.assert_array_equal(bad, np.broadcast_to(expected[..., None], bad.shape))
    for key in (3, 270):
        q, k, v = arrays(300, 300)
        v[1, key, 0, 5] = np.nan
        attention(*map(Device, (q, k, v)), got)
        expected = np.zeros(q.shape, bool)
        expected[1, :, 0, 5] = True
        np.testing.assert_array_equal(np.isnan(got.get().astype(float)), expected)


@by_mask
@on_gpu(limit=LIMIT)
def test_views_leave_what_is_around_them(causal):
    qkv = np.stack(arrays(300, 300, heads=3, depth=320), axis=2)
    for depth in FP8_HEAD_DIMS:
        q, k, v = (qkv[:, :, i, 1:, 64 : 64 + depth] for i in range(3))
        memory = np.full((2, 3, 304, 272), 7, TYPES["bf16"])  # heads before queries
        out = memory[:, 1:, 2:302, 8 : 8 + depth].transpose(0, 2, 1, 3)
        target = Device(out)
        attention(*map(Device, (q, k, v)), target, causal=causal)
        expected, slack, _, _ = exact(q, k, v, np.arange(300), causal, (None,) * 3)
        error = np.abs(target.get().astype(float) - expected)
        assert (error <= slack + 2.0**-8 * np.abs(expected) + 1e-6).all()
        around = target.memory.copy_to_host().view(memory.dtype)
        around[:, 1:, 2:302, 8 : 8 + depth] = 7
        assert (around == 7).all()


@on_gpu(limit=LIMIT)
def test_arrays_of_numba():
    q, k, v = arrays(100, 200)
    device = [cuda.to_device(x.view(np.uint8)) for x in (q, k, v)]
    expected, slack, _, _ = exact(q, k, v, np.arange(100), False, (None,) * 3)
    for name, held in ((None, np.uint16), ("bf16", np.uint16), ("f16", np.float16)):
        got = attention(*device, dtype="e4m3", out_dtype=name).copy_to_host()
        assert got.dtype == held and got.shape == q.shape
        error = np.abs(got.view(TYPES[name or "bf16"]).astype(float) - expected)
        assert (error <= slack + 2.0**-8 * np.abs(expected) + 1e-6).all()


@by_mask
@pytest.mark.parametrize("depth", FP8_HEAD_DIMS)
@on_gpu(limit=LIMIT)
def test_the_same_bits_again(depth, causal):
    """A stage that is refilled too early changes few elements, and seldom."""
    q, k, v = map(Device, arrays(4096, 4096, 16, 4, depth))
    out = Device(np.full(q.shape, 7, TYPES["bf16"]))
    first = attention(q, k, v, out, causal=causal).get().view(np.uint16).copy()
    for _ in range(20):
        again = attention(q, k, v, out, causal=causal).get().view(np.uint16)
        np.testing.assert_array_equal(again, first)
