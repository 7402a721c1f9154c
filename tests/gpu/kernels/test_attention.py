"""Attention against float64: lengths, head dims, types, masks, shared heads, views, same bits.

The bound on an error follows from the roundings: of scores, of weights, of sums of products in
float32, of which the tensor cores keep a few bits less, and of the result.
"""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import driver
from numba import cuda

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels._host import memo
from numba_tma.kernels._host.launch import stream_key
from numba_tma.kernels.attention import attention
from numba_tma.kernels.attention.choice import CANDIDATES, FP8_CANDIDATES, HEAD_DIMS, plan_for
from numba_tma.kernels.attention.choice import PLANS as PLANS_OF_DEPTHS
from numba_tma.kernels.attention.plan import AttentionPlan, AttentionProblem
from tests.gpu.kernels.test_kernels import EPS32, TYPES, assert_close, normal
from tests.gpu.kernels.test_matmul import Device
from tests.gpu.worker import on_gpu

LIMIT = 240  # seconds: kernels are compiled
LENGTHS = [
    *((n, n) for n in (1, 63, 64, 65, 1000, 4096)),
    *((1, 4096), (4096, 1), (65, 1000), (1000, 65), (63, 64), (129, 257), (1000, 1001)),
]
ALL_ROWS = 1024  # of longer ones, so many are compared
PLANS = {
    "64 queries": (64, AttentionPlan(1, 64)),
    "64 queries, 3 stages": (128, AttentionPlan(1, 128, stages=3)),
    "128 queries of depth 64": (64, AttentionPlan(2, 128)),
    "96 keys": (64, AttentionPlan(3, 96)),
    "160 keys": (128, AttentionPlan(2, 160)),
    "64 queries of depth 256": (256, AttentionPlan(1, 64)),
    "64 keys of depth 256": (256, AttentionPlan(2, 64)),
    "always decaying": (128, AttentionPlan(2, 128, votes=False)),
    "4 heads together": (128, AttentionPlan(2, 128, heads_together=4)),
    "all heads together": (128, AttentionPlan(2, 128, heads_together=0)),
    "2 parts": (128, AttentionPlan(2, 128, splits=2)),
    "more parts than are loaded at a time": (64, AttentionPlan(1, 64, splits=9)),
    "3 parts of depth 96": (96, AttentionPlan(3, 112, splits=3)),
    "3 parts of depth 256": (256, AttentionPlan(2, 80, splits=3)),
    "2 stages of queries": (128, AttentionPlan(2, 128, q_stages=2)),
    "2 stages of queries of depth 64": (64, AttentionPlan(3, 128, 3, votes=False, q_stages=2)),
    "turns": (128, AttentionPlan(2, 128, q_stages=2, turns=True)),
    "turns of three": (64, AttentionPlan(3, 128, 3, votes=False, turns=True)),
    "turns, 3 parts of depth 256": (256, AttentionPlan(2, 80, splits=3, turns=True)),
}
PACKS = {  # 64, 128 or 192 rows of 2, 4 or 8 heads
    "64 x 2": (64, AttentionPlan(1, 128, packed_heads=2)),
    "192 x 4": (64, AttentionPlan(3, 96, packed_heads=4)),
    "128 x 8, 2 stages": (96, AttentionPlan(2, 128, packed_heads=8, q_stages=2)),
    "128 x 4": (128, AttentionPlan(2, 128, packed_heads=4)),
    "128 x 2": (256, AttentionPlan(2, 64, packed_heads=2)),
}
by_mask = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def arrays(queries, keys, heads=2, kv_heads=None, depth=128, name="bf16", batch=2):
    """Return q, k and v on the host."""
    kv = (batch, keys, kv_heads or heads, depth)
    shapes = ((batch, queries, heads, depth), kv, kv)
    return [normal(shape, name, seed) for seed, shape in enumerate(shapes)]


def seen_by(rows, queries, keys, window):
    """Return which keys these queries see, (rows, keys)."""
    left, right = (keys + queries if side is None else side for side in window)
    beside = np.arange(keys) - (np.asarray(rows)[:, None] + keys - queries)
    return (beside >= -left) & (beside <= right)


def exact(q, k, v, rows, causal=False, scale=None, whole=False, window=(None, None), softcap=None):
    """Return these rows of attention in float64, and what float32 and the weights' type may add.

    Scores of whole numbers are summed exactly.
    """
    queries, keys, depth = q.shape[1], *k.shape[1::2]
    scale = depth**-0.5 if scale is None else scale
    expected, slack = (np.zeros((len(q), len(rows), *q.shape[2:])) for _ in range(2))
    info = ml_dtypes.finfo(q.dtype)
    seen = seen_by(rows, queries, keys, (window[0], 0 if causal else window[1]))
    for batch, head in np.ndindex(len(q), q.shape[2]):
        shared = head // (q.shape[2] // k.shape[2])
        a = q[batch, rows, head].astype(np.float64)
        b, c = (x[batch, :, shared].astype(np.float64) for x in (k, v))
        scores = a @ b.T * scale
        bent = 0.0
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
            bent = 2.0**-10.9 * np.abs(scores).max(axis=1, keepdims=True)  # tanh.approx
        scores[~seen] = -np.inf
        top = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - np.where(top > -np.inf, top, 0))
        total = np.maximum(weights.sum(axis=1, keepdims=True), 1)  # 0 if no key is seen
        size = weights / total @ np.abs(c)
        sums = 0 if whole else 2 * depth
        wrong = (sums + 2) * EPS32 * np.abs(a) @ np.abs(b).T * scale
        wrong = wrong.max(axis=1, keepdims=True) + bent
        relative = np.expm1(2 * wrong) + float(info.eps) / 2 + 2 * keys * EPS32
        smallest = float(info.smallest_subnormal) / 2  # weights are rounded to a multiple of it
        expected[batch, :, head] = weights / total @ c
        slack[batch, :, head] = relative * size + smallest * np.abs(c).sum(axis=0) / total + 1e-30
    return expected, slack


def whole_plan(q, causal):
    """Return the plan in which each block of threads sees all keys of its queries."""
    if q.dtype.itemsize == 1:
        return FP8_CANDIDATES[q.shape[3], causal][0].plan
    return PLANS_OF_DEPTHS[q.shape[3]]


def check(q, k, v, causal=False, plan=None, scale=None, out=None, whole=False, **options):
    """Compute and compare; return what was computed.

    Without a plan, attention is computed twice: few queries use split-K.
    """
    if plan is None:
        check(q, k, v, causal, whole_plan(q, causal), scale, out, whole, **options)
    target = Device(np.full(q.shape, 7, q.dtype) if out is None else out)
    device = [Device(x) for x in (q, k, v)]
    given = {"causal": causal, "scale": scale, "plan": plan, **options}
    assert attention(*device, target, **given) is target
    queries, got = q.shape[1], target.get()
    rows = np.unique(np.linspace(0, queries - 1, min(queries, ALL_ROWS)).astype(int))
    expected, slack = exact(q, k, v, rows, causal, scale, whole, **options)
    what = f"{q.shape} x {k.shape} {q.dtype}{' causal' * causal} {options or ''}"
    assert_close(got[:, rows], expected, q.dtype, slack, 0.5, what)
    return got


@by_mask
@pytest.mark.parametrize("name", ["bf16", "f16"])
@pytest.mark.parametrize("depth", HEAD_DIMS)
@on_gpu(limit=LIMIT)
def test_lengths(depth, name, causal):
    for queries, keys in LENGTHS:
        check(*arrays(queries, keys, depth=depth, name=name), causal)


@by_mask
@pytest.mark.parametrize("heads", [(3, 3), (4, 1), (8, 2), (8, 1), (40, 5)])
@on_gpu(limit=LIMIT)
def test_heads_share_keys(heads, causal):
    for depth in (64, 128):
        check(*arrays(300, 333, *heads, depth=depth, batch=3), causal)


@by_mask
@pytest.mark.parametrize("plan", PLANS)
@on_gpu(limit=LIMIT)
def test_plans(plan, causal):
    depth, how = PLANS[plan]
    for queries, keys in ((1, 1), (130, 129), (1000, 777), (777, 1000)):
        check(*arrays(queries, keys, 6, 2, depth), causal, how)
    # Several tiles of queries for each block.
    check(*arrays(300, 777, 6, 2, depth, batch=24), causal, how)


@by_mask
@pytest.mark.parametrize("plan", PACKS)
@on_gpu(limit=LIMIT)
def test_heads_in_one_tile(plan, causal):
    depth, how = PACKS[plan]
    for queries, keys in ((1, 1), (63, 65), (130, 129), (1000, 777), (300, 65)):
        check(*arrays(queries, keys, 2 * how.packed_heads, 2, depth), causal, how)
        check(*arrays(queries, keys, 2 * how.packed_heads, 1, depth), causal, how)
    # Several tiles of queries for each block.
    check(*arrays(300, 400, 2 * how.packed_heads, 2, depth, batch=16), causal, how)


@by_mask
@pytest.mark.parametrize("number", range(max(map(len, CANDIDATES.values()))))
@pytest.mark.parametrize("depth", HEAD_DIMS)
@on_gpu(limit=LIMIT)
def test_plans_that_lengths_choose(depth, number, causal):
    """One head in a tile, and four; several tiles for each block."""
    for plan, _ in CANDIDATES[depth, causal][number : number + 1]:
        for packed in (1, 4):
            how = replace(plan, packed_heads=packed, heads_together=0 if causal else 1)
            for queries, keys, batch in ((1, 1, 2), (130, 129, 2), (1000, 777, 2), (300, 401, 16)):
                check(*arrays(queries, keys, 8, 2, depth, batch=batch), causal, how)


@on_gpu(limit=LIMIT)
def test_queries_that_see_no_key_give_0():
    for depth in HEAD_DIMS:
        got = check(*arrays(1000, 300, depth=depth), causal=True)
        assert (got[:, :700] == 0).all() and (got[:, 700:] != 0).any(axis=3).all()


def logs_of_sums(q, k, causal=False, scale=None, window=(None, None), softcap=None):
    """Return log(sum(exp(score))) in float64, (batch, heads, queries), -inf where none is seen."""
    queries, keys, depth = q.shape[1], *k.shape[1::2]
    scale = depth**-0.5 if scale is None else scale
    q, k = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k))
    scores = q @ np.repeat(k, q.shape[1] // k.shape[1], axis=1).swapaxes(2, 3) * scale
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    window = (window[0], 0 if causal else window[1])
    scores[..., ~seen_by(np.arange(queries), queries, keys, window)] = -np.inf
    return np.logaddexp.reduce(scores, axis=3)


@by_mask
@pytest.mark.parametrize("depth", HEAD_DIMS)
@on_gpu(limit=LIMIT)
def test_windows(depth, causal):
    for queries, keys in ((1, 300), (300, 300), (1000, 777), (777, 2000), (4096, 4096)):
        for window in ((0, 0), (10, 500), (127, None), (None, 64), (256, 1), (640, 640)):
            check(*arrays(queries, keys, 4, 2, depth), causal, window=window)


@by_mask
@on_gpu(limit=LIMIT)
def test_lse_of_windows(causal):
    for queries, keys in ((1, 1000), (300, 200), (300, 1000)):
        q, k, v = arrays(queries, keys)
        out, lse = Device(np.full(q.shape, 7, q.dtype)), Device(np.full((2, 2, queries), 7, "f4"))
        for window in ((0, 0), (30, 40), (None, 50), (100, None)):
            expected = logs_of_sums(q, k, causal, window=window)
            for plan in (None, whole_plan(q, causal)):
                given = {"causal": causal, "window": window, "plan": plan}
                attention(*map(Device, (q, k, v)), out, lse=lse, **given)
                np.testing.assert_allclose(lse.get(), expected, rtol=2e-6, atol=2e-4)


@on_gpu(limit=LIMIT)
def test_what_lies_outside_a_window_is_not_read():
    q, k, v = arrays(200, 3000)
    expected = check(q, k, v, causal=True, window=(300, 0)).view(np.uint16)
    k[:, :2304], v[:, :2304] = np.nan, np.nan  # whole tiles, of which nobody sees a key
    got = Device(np.full(q.shape, 7, q.dtype))
    attention(*map(Device, (q, k, v)), got, causal=True, window=300)
    np.testing.assert_array_equal(got.get().view(np.uint16), expected)


@by_mask
@pytest.mark.parametrize("depth", HEAD_DIMS)
@on_gpu(limit=LIMIT)
def test_soft_caps(depth, causal):
    """Scores are as wrong as tanh.approx is; larger ones are pressed against the cap."""
    for queries, keys, name in ((1, 300, "bf16"), (1000, 777, "f16"), (777, 1000, "bf16")):
        for softcap, scale in ((50.0, None), (30.0, 3.0), (1.0, 1.0)):
            q, k, v = arrays(queries, keys, 4, 2, depth, name)
            check(q, k, v, causal, softcap=softcap, scale=scale)
            check(q, k, v, causal, softcap=softcap, scale=scale, window=(100, 200))
            lse = Device(np.full((2, 4, queries), 7, np.float32))
            out = Device(np.full(q.shape, 7, q.dtype))
            given = {"causal": causal, "softcap": softcap, "scale": scale}
            expected, limit = logs_of_sums(q, k, **given), 2.0**-10.9 * softcap
            for plan in (None, whole_plan(q, causal)):
                attention(*map(Device, (q, k, v)), out, lse=lse, plan=plan, **given)
                np.testing.assert_allclose(lse.get(), expected, rtol=2e-6, atol=limit)


@by_mask
@pytest.mark.parametrize("depth", HEAD_DIMS)
@on_gpu(limit=LIMIT)
def test_lse(depth, causal):
    """Its error is that of the products, of the sum, and of float32 as large as the scores."""
    for queries, keys, name in ((1, 1, "bf16"), (130, 257, "f16"), (1000, 300, "bf16")):
        for scale in (None, 2.0):
            q, k, v = arrays(queries, keys, 4, 2, depth, name)
            device = [Device(x) for x in (q, k, v)]
            outs = [Device(np.full(q.shape, 7, q.dtype)) for _ in range(2)]
            memory = np.full(8 + 2 * 4 * queries + 8, 7, np.float32)
            lse = Device(memory[8:-8].reshape(2, 4, queries))
            expected = logs_of_sums(q, k, causal, scale)
            largest = np.abs(q.astype(float)).sum(axis=3).max() * np.abs(k.astype(float)).max()
            limit = 8 * EPS32 * (scale or depth**-0.5) * largest + 1e-5
            for plan in (None, whole_plan(q, causal)):
                given = {"causal": causal, "scale": scale, "plan": plan}
                attention(*device, outs[0], **given)
                given |= {"lse": lse, "return_lse": True}
                assert attention(*device, outs[1], **given) == (outs[1], lse)
                np.testing.assert_array_equal(*(out.get().view(np.uint16) for out in outs))
                np.testing.assert_allclose(lse.get(), expected, rtol=2e-6, atol=limit)
                around = lse.memory.copy_to_host().view(np.float32)
                assert (around[:8] == 7).all() and (around[-8:] == 7).all()


@on_gpu(limit=LIMIT)
def test_lse_of_a_new_array():
    q, k, v = (cuda.to_device(x.view(np.uint16)) for x in arrays(70, 300))
    out, lse = attention(q, k, v, dtype="bf16", causal=True, return_lse=True)
    assert out.shape == q.shape and lse.shape == (2, 2, 70) and lse.dtype == np.float32
    expected = logs_of_sums(*arrays(70, 300)[:2], causal=True)
    np.testing.assert_allclose(lse.copy_to_host(), expected, rtol=2e-6, atol=1e-4)


@by_mask
@on_gpu(limit=LIMIT)
def test_huge_scores(causal):
    for name in ("bf16", "f16"):
        for factor in (10, 1000):
            q, k, v = arrays(257, 515, name=name)
            q, k = np.sign(q) * q.dtype.type(factor), np.sign(k)
            check(q, k, v, causal, whole=True)
            same = np.ones_like(k)  # all scores are equal, and far from 0
            check(np.abs(q), same, v, causal, whole=True)
            check(-np.abs(q), same, v, causal, whole=True)


@on_gpu(limit=LIMIT)
def test_equal_scores_weigh_the_same_in_all_steps():
    """However large they are: the maximum stays, and nothing decays."""
    q, k, v = arrays(64, 16384, name="f16")
    k[:], v[:] = 1, np.arange(128).repeat(128)[:, None, None]  # each step's keys have its number
    for size in (60000, 50001, 777):
        q[:] = size
        got = Device(np.zeros_like(q))
        attention(*map(Device, (q, k, v)), got)
        np.testing.assert_allclose(got.get().astype(float), 127 / 2, 2.0**-10)


@on_gpu(limit=LIMIT)
def test_scales():
    q, k, v = arrays(200, 300)
    for scale in (1e-6, 0.5, 1, 3):
        check(q, k, v, causal=True, scale=scale)


@by_mask
@on_gpu(limit=LIMIT)
def test_views_leave_what_is_around_them(causal):
    qkv = np.stack(arrays(300, 300, heads=3, depth=320), axis=2)
    for depth in HEAD_DIMS:
        q, k, v = (qkv[:, :, i, 1:, 64 : 64 + depth] for i in range(3))
        memory = np.full((2, 3, 304, 272), 7, qkv.dtype)  # heads before queries
        out = memory[:, 1:, 2:302, 8 : 8 + depth].transpose(0, 2, 1, 3)
        target = Device(out)
        attention(*map(Device, (q, k, v)), target, causal=causal)
        expected, slack = exact(q, k, v, np.arange(300), causal)
        assert_close(target.get(), expected, q.dtype, slack, 0.5, f"views {depth}")
        around = target.memory.copy_to_host().view(qkv.dtype)
        around[:, 1:, 2:302, 8 : 8 + depth] = 7
        assert (around == 7).all()


@on_gpu(limit=LIMIT)
def test_heads_before_positions():
    q, k, v = (x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for x in arrays(500, 500, 4))
    check(q, k, v, causal=True, out=np.full((2, 4, 500, 128), 7, q.dtype).transpose(0, 2, 1, 3))


@on_gpu(limit=LIMIT)
def test_minus_infinity_masks():
    """A score of -inf weighs nothing, and a query that has no other gives 0."""
    q, k, v = arrays(200, 400)
    q[..., 0] = 1
    k[:, 5::7, :, 0] = -np.inf
    k[:, :200, :, 0] = -np.inf  # whole tiles: the maximum is -inf until the next
    left = [i for i in range(400) if k[0, i, 0, 0] > -np.inf]
    got = Device(np.full(q.shape, 7, q.dtype))
    attention(*map(Device, (q, k, v)), got)
    expected, slack = exact(q, k[:, left], v[:, left], np.arange(200))
    assert_close(got.get(), expected, q.dtype, 2 * slack, 0.5, "-inf")
    k[..., 0] = -np.inf
    attention(*map(Device, (q, k, v)), got)
    assert (got.get() == 0).all()


@on_gpu(limit=LIMIT)
def test_nan_stays_in_the_rows_that_see_it():
    for name in ("bf16", "f16"):
        q, k, v = arrays(300, 300, name=name)
        q[0, 3, 0], k[0, 270, 1] = np.nan, np.nan
        got = Device(np.full(q.shape, 7, q.dtype))
        attention(*map(Device, (q, k, v)), got, causal=True)
        bad = np.isnan(got.get())
        assert (bad.all(axis=3) == bad.any(axis=3)).all()
        expected = np.zeros(bad.shape[:3], bool)
        expected[0, 3, 0], expected[0, 270:, 1] = True, True
        np.testing.assert_array_equal(bad.all(axis=3), expected)
    for key in (3, 270):
        q, k, v = arrays(300, 300)
        v[1, key, 0, 5] = np.nan
        got = Device(np.full(q.shape, 7, q.dtype))
        attention(*map(Device, (q, k, v)), got)
        expected = np.zeros(q.shape, bool)
        expected[1, :, 0, 5] = True
        np.testing.assert_array_equal(np.isnan(got.get()), expected)


@on_gpu(limit=LIMIT)
def test_nothing():
    q, k, v = arrays(64, 64)
    out = Device(np.full(q.shape, 7, q.dtype))
    attention(Device(q[:0]), Device(k[:0]), Device(v[:0]), Device(out.host[:0]))
    attention(Device(q[:, :0]), Device(k), Device(v), Device(out.host[:, :0]))
    assert (out.get() == 7).all()


@by_mask
@pytest.mark.parametrize("depth", HEAD_DIMS)
@on_gpu(limit=LIMIT)
def test_few_queries_on_many_keys(depth, causal):
    """As many parts as there are blocks for, one query of all heads that share keys, windows."""
    for queries, heads, name in ((1, (2, 1), "bf16"), (1, (32, 8), "f16"), (64, (2, 2), "f16")):
        q, k, v = arrays(queries, 9000, *heads, depth, name, batch=1)
        problem = AttentionProblem(depth, as_dtype(name), causal and queries > 1)
        assert plan_for(problem, queries, k.shape[1], heads[1], 1, 132).splits > 8
        check(q, k, v, causal)
        check(q, k, v, causal, window=(4000, 0))
        check(q, k, v, causal, window=(0, 0))


@on_gpu(limit=LIMIT)
def test_a_part_without_a_score_weighs_nothing():
    q, k, v = arrays(200, 1024)
    q[..., 0], k[:, 256:512, :, 0] = 1, -np.inf
    left = np.r_[:256, 512:1024]
    got = Device(np.full(q.shape, 7, q.dtype))
    plan = AttentionPlan(2, 128, splits=4)
    attention(*map(Device, (q, k, v)), got, plan=plan)
    expected, slack = exact(q, k[:, left], v[:, left], np.arange(200))
    assert_close(got.get(), expected, q.dtype, 2 * slack, 0.5, "-inf")
    k[..., 0] = -np.inf
    assert (attention(*map(Device, (q, k, v)), got, plan=plan).get() == 0).all()


@on_gpu(limit=LIMIT)
def test_a_graph_keeps_the_memory_of_parts():
    """Also when so many other calls have been made that they are all that is remembered."""
    q, k, v = arrays(100, 3000)
    device, target = [Device(x) for x in (q, k, v)], Device(np.full(q.shape, 7, q.dtype))
    stream = cuda.stream()
    attention(*device, target, stream=stream)
    stream.synchronize()
    handle, most = driver.CUstream(stream_key(stream)), memo._MOST_BYTES
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    succeeded(driver.cuStreamBeginCapture(handle, mode))
    attention(*device, target, stream=stream)
    graph = succeeded(driver.cuStreamEndCapture(handle))
    graph = succeeded(driver.cuGraphInstantiate(graph, 0))
    try:
        memo._MOST_BYTES = 1
        others = [Device(np.full(q.shape, 7, q.dtype)) for _ in range(4)]
        for other in others:
            attention(*device, other, stream=stream)
        cuda.current_context().deallocations.clear()
        taken = [cuda.to_device(np.full(n, np.nan, "f4")) for n in (1 << 18, 1 << 20, 1 << 22)]
    finally:
        memo._MOST_BYTES = most
    target.memory.copy_to_device(np.full(q.shape, 7, np.uint16))
    cuda.synchronize()
    succeeded(driver.cuGraphLaunch(graph, handle))
    stream.synchronize()
    expected, slack = exact(q, k, v, np.arange(100))
    assert_close(target.get(), expected, q.dtype, slack, 0.5, "a graph")
    assert all(np.isnan(memory.copy_to_host()).all() for memory in taken)


@on_gpu(limit=LIMIT)
def test_a_graph_captures_a_call_of_new_arrays():
    """As torch captures it, where nobody may allocate memory; kernels were compiled before."""
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(1, n, 4, 128, device="cuda").bfloat16() for n in (100, 3000, 3000))
    expected = attention(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = attention(q, k, v, stream=torch.cuda.current_stream())
    got.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(got, expected)


def succeeded(answer):
    """Return what a function of the driver gives."""
    error, *values = answer
    assert not error, error
    return values[0] if values else None


@on_gpu(limit=LIMIT)
def test_arrays_of_numba():
    for name, bits in (("f16", np.float16), ("bf16", np.uint16)):
        q, k, v = arrays(100, 200, name=name)
        device = [cuda.to_device(x.view(bits)) for x in (q, k, v)]
        got = attention(*device, dtype=name).copy_to_host()
        assert got.dtype == bits and got.shape == q.shape
        expected, slack = exact(q, k, v, np.arange(100))
        assert_close(got.view(TYPES[name]), expected, q.dtype, slack, 0.5, name)


@on_gpu(limit=LIMIT)
def test_calls_with_the_same_arrays():
    """The second call repeats the launch of the first, and sees what the arrays hold by then."""
    stream = cuda.stream()
    q, k, v = arrays(200, 300)
    device, out = [Device(x) for x in (q, k, v)], Device(np.zeros_like(q))
    for scale in (None, None, 0.25):
        out.memory.copy_to_device(np.full(q.shape, 7, np.uint16))
        cuda.synchronize()
        attention(*device, out, scale=scale, stream=stream)
        stream.synchronize()
        expected, slack = exact(q, k, v, np.arange(200), scale=scale)
        assert_close(out.get(), expected, q.dtype, slack, 0.5, f"scale {scale}")
        v = v[:, ::-1]
        device[2].memory.copy_to_device(np.ascontiguousarray(v).view(np.uint16))


@by_mask
@pytest.mark.parametrize("depth", HEAD_DIMS)
@on_gpu(limit=LIMIT)
def test_the_same_bits_again(depth, causal):
    """A stage that is refilled too early changes few elements, and seldom."""
    q, k, v = map(Device, arrays(4096, 4096, 16, 4, depth))
    out = Device(np.full(q.shape, 7, q.dtype))
    first = attention(q, k, v, out, causal=causal).get().view(np.uint16).copy()
    for _ in range(20):
        again = attention(q, k, v, out, causal=causal).get().view(np.uint16)
        np.testing.assert_array_equal(again, first)
