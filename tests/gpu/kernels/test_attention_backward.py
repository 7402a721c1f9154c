"""Gradients of attention against float64: lengths, types, masks, shared heads, views.

The bound on an error follows from the roundings: of weights and gradients of scores to the arrays'
type, of exponents in float32, and of the result.
"""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from numba_tma.kernels.attention.backward import attention_backward
from numba_tma.kernels.attention.backward.plan import BackwardPlan
from tests.gpu.kernels.test_attention import by_mask
from tests.gpu.kernels.test_kernels import EPS32, TYPES, normal
from tests.gpu.kernels.test_matmul import Device
from tests.gpu.worker import on_gpu

LIMIT = 280  # seconds: kernels are compiled, and the references are computed on the CPU
LENGTHS = [
    *((n, n) for n in (1, 63, 64, 65, 1000)),
    *((1, 4096), (4096, 1), (65, 1000), (1000, 65), (63, 64), (129, 257), (1000, 1001)),
]
PLANS = {
    "one stage of dQ": (128, BackwardPlan(2, 1)),
    "5 heads together": (64, BackwardPlan(heads_together=5)),
    "2 heads together": (128, BackwardPlan(heads_together=2)),
}
NAMES = ("dq", "dk", "dv")


def arrays(queries, keys, heads=2, kv_heads=None, depth=128, name="bf16", batch=2):
    """Return dout, q, k and v on the host."""
    rows, kv = (batch, queries, heads, depth), (batch, keys, kv_heads or heads, depth)
    return [normal(shape, name, seed) for seed, shape in enumerate((rows, rows, kv, kv))]


def exact(dout, q, k, v, causal=False, scale=None):
    """Return out and lse, and dq, dk, dv in float64 with what they may be wrong by."""
    (batch, queries, heads, depth), (keys, kv_heads) = q.shape, k.shape[1:3]
    scale = depth**-0.5 if scale is None else scale
    info = ml_dtypes.finfo(q.dtype)
    half, tiny = float(info.eps) / 2, float(info.smallest_subnormal) / 2
    out, lse = np.zeros_like(q), np.zeros((batch, heads, queries), np.float32)
    gradients, errors = ([np.zeros(x.shape) for x in (q, k, v)] for _ in range(2))
    seen = np.arange(keys) <= np.arange(queries)[:, None] + (keys - queries)
    for one, head in np.ndindex(batch, heads):
        shared = head // (heads // kv_heads)
        a, g = (x[one, :, head].astype(np.float64) for x in (q, dout))
        b, c = (x[one, :, shared].astype(np.float64) for x in (k, v))
        scores = a @ b.T * scale
        if causal:
            scores[~seen] = -np.inf
        top = scores.max(axis=1, keepdims=True)
        top = np.where(top > -np.inf, top, 0)
        total = np.exp(scores - top).sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            lse[one, head] = (np.log(total) + top)[:, 0]
        weights = np.exp(scores - top) / np.where(total == 0, 1, total)
        out[one, :, head] = (weights @ c).astype(q.dtype)
        terms = g * out[one, :, head].astype(np.float64)
        delta = terms.sum(axis=1, keepdims=True)
        product = g @ c.T
        ds = weights * (product - delta)
        # Exponents are off by the sums of S and by the rounding of lse, the products by their sums.
        exponent = 2 * (depth + 2) * EPS32 * np.abs(a) @ np.abs(b).T * scale
        exponent += 4 * EPS32 * np.abs(lse[one, head][:, None]) * (total > 0)
        exponent = np.where(weights > 0, exponent, 0)
        wrong_weights = np.expm1(exponent) * weights + half * weights + tiny
        sums = np.abs(g) @ np.abs(c).T + np.abs(terms).sum(axis=1, keepdims=True)
        sums *= 2 * depth * EPS32
        wrong_ds = np.expm1(exponent) * np.abs(ds) + half * np.abs(ds) + weights * sums + tiny
        pairs = (
            (0, head, ds @ b * scale, wrong_ds @ np.abs(b) * scale),
            (1, shared, ds.T @ a * scale, wrong_ds.T @ np.abs(a) * scale),
            (2, shared, weights.T @ g, wrong_weights.T @ np.abs(g)),
        )
        for i, place, value, error in pairs:
            gradients[i][one, :, place] += value
            errors[i][one, :, place] += error
    # Sums over rows of products in float32, and the rounding of the result.
    for i, (value, error) in enumerate(zip(gradients, errors)):
        errors[i] = 1.05 * error + (half + 1e-4) * np.abs(value) + tiny + 1e-6
    return out, lse, gradients, errors


def check(dout, q, k, v, causal=False, plan=None, scale=None, deterministic=False):
    """Compute and compare; return what was computed."""
    out, lse, expected, errors = exact(dout, q, k, v, causal, scale)
    targets = [Device(np.full(x.shape, 7, q.dtype)) for x in (q, k, v)]
    device = [Device(x) for x in (dout, q, k, v, out)]
    got = attention_backward(
        *device,
        cuda.to_device(lse),
        causal=causal,
        plan=plan,
        scale=scale,
        deterministic=deterministic,
        **dict(zip(NAMES, targets)),
    )
    assert got == tuple(targets)
    results = [target.get() for target in targets]
    for name, result, value, error in zip(NAMES, results, expected, errors):
        ratio = np.abs(result.astype(np.float64) - value) / error
        what = f"{name} of {q.shape} x {k.shape} {q.dtype}{' causal' * causal}"
        print(f"{what}: {np.nanmax(ratio):.2f} of what is allowed")
        worst = np.unravel_index(np.argmax(np.where(ratio <= 1, ratio, np.inf)), ratio.shape)
        assert (ratio <= 1).all(), f"{what} at {worst}: {result[worst]} and not {value[worst]}"
    return results


@by_mask
@pytest.mark.parametrize("name", ["bf16", "f16"])
@pytest.mark.parametrize("depth", [64, 128])
@on_gpu(limit=LIMIT)
def test_lengths(depth, name, causal):
    for queries, keys in LENGTHS:
        check(*arrays(queries, keys, depth=depth, name=name), causal)


@by_mask
@pytest.mark.parametrize("depth", [64, 128])
@on_gpu(limit=LIMIT)
def test_long_sequences(depth, causal):
    check(*arrays(4096, 4096, 2, 1, depth, batch=1), causal)


@by_mask
@pytest.mark.parametrize("heads", [(3, 3), (4, 1), (8, 2), (8, 1)])
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


@by_mask
@pytest.mark.parametrize("splits", [2, 4, 8])
@on_gpu(limit=LIMIT)
def test_blocks_share_the_heads_that_share_keys(splits, causal):
    plan = BackwardPlan(splits=splits, heads_together=2)
    for depth in (64, 128):
        for queries, keys in ((1, 1), (130, 129), (65, 1000), (1000, 65)):
            given = arrays(queries, keys, 8, 1, depth)
            for deterministic in (False, True):
                check(*given, causal, plan, deterministic=deterministic)


@on_gpu(limit=LIMIT)
def test_queries_that_see_no_key_have_no_gradient():
    for depth in (64, 128):
        dq, dk, dv = check(*arrays(1000, 300, depth=depth), causal=True)
        assert (dq[:, :700] == 0).all()
        assert (dq[:, 701:] != 0).any(axis=3).all()  # of a query with one key, it is 0 or rounding
        assert (dk != 0).any(axis=3).all() and (dv != 0).any(axis=3).all()


@by_mask
@on_gpu(limit=LIMIT)
def test_huge_scores(causal):
    """One key has all the weight, or keys share it; exponents of anything but differences end."""
    for name in ("bf16", "f16"):
        for factor in (10, 1000):
            dout, q, k, v = arrays(257, 515, name=name)
            q, k = np.sign(q) * q.dtype.type(factor), np.sign(k)
            check(dout, q, k, v, causal)
            check(dout, np.abs(q), np.ones_like(k), v, causal)
            check(dout, -np.abs(q), np.ones_like(k), v, causal)


@on_gpu(limit=LIMIT)
def test_scales():
    for scale in (1e-6, 0.5, 1):
        check(*arrays(200, 300), causal=True, scale=scale)


@by_mask
@on_gpu(limit=LIMIT)
def test_views_leave_what_is_around_them(causal):
    qkv = np.stack(arrays(300, 300, heads=3, depth=192), axis=2)
    for depth in (64, 128):
        given = [qkv[:, :, i, 1:, 64 : 64 + depth] for i in range(4)]
        memory = [np.full((2, 3, 304, 136), 7, qkv.dtype) for _ in NAMES]  # heads before rows
        into = [m[:, 1:, 2:302, 8 : 8 + depth].transpose(0, 2, 1, 3) for m in memory]
        out, lse, expected, errors = exact(*given, causal)
        targets = [Device(x) for x in into]
        device = [Device(x) for x in (*given, out)]
        attention_backward(*device, cuda.to_device(lse), causal=causal, **dict(zip(NAMES, targets)))
        for target, host, value, error in zip(targets, memory, expected, errors):
            assert (np.abs(target.get().astype(np.float64) - value) <= error).all()
            whole = target.memory.copy_to_host().view(host.dtype).reshape(host.shape)
            whole[:, 1:, 2:302, 8 : 8 + depth] = 7
            assert (whole == 7).all()


@on_gpu(limit=LIMIT)
def test_arrays_of_numba():
    for name, bits in (("f16", np.float16), ("bf16", np.uint16)):
        given = arrays(100, 200, name=name)
        out, lse, expected, errors = exact(*given)
        device = [cuda.to_device(x.view(bits)) for x in (*given, out)]
        got = attention_backward(*device, cuda.to_device(lse), dtype=name)
        for result, value, error in zip(got, expected, errors):
            numbers = result.copy_to_host().view(TYPES[name]).astype(np.float64)
            assert (np.abs(numbers - value) <= error).all()


@on_gpu(limit=LIMIT)
def test_calls_with_the_same_arrays():
    """The second call repeats the launches of the first: sums of dQ begin at 0 again."""
    stream = cuda.stream()
    dout, q, k, v = arrays(200, 300)
    out, lse, expected, errors = exact(dout, q, k, v)
    device = [Device(x) for x in (dout, q, k, v, out)]
    targets, numbers = [Device(np.zeros_like(x)) for x in (q, k, v)], cuda.to_device(lse)
    for _ in range(3):
        for target in targets:
            target.memory.copy_to_device(np.full(target.shape, 7, np.uint16))
        cuda.synchronize()
        attention_backward(*device, numbers, stream=stream, **dict(zip(NAMES, targets)))
        stream.synchronize()
        for target, value, error in zip(targets, expected, errors):
            assert (np.abs(target.get().astype(np.float64) - value) <= error).all()


@by_mask
@pytest.mark.parametrize("heads", [(2, 2), (4, 1)])
@on_gpu(limit=LIMIT)
def test_blocks_of_keys_take_turns(heads, causal):
    for depth in (64, 128):
        for queries, keys in ((1, 1), (300, 333), (65, 1000), (1000, 65), (1000, 1001)):
            given = arrays(queries, keys, *heads, depth=depth)
            check(*given, causal, deterministic=True)


@by_mask
@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("deterministic", [False, True])
@on_gpu(limit=LIMIT)
def test_the_same_bits_again(deterministic, depth, causal):
    """Of dK and dV, and where blocks take turns of dQ.

    A stage that is refilled too early changes few elements, and seldom.
    """
    given = arrays(4096, 4096, 16, 4, depth)
    q, k = given[1:3]
    lse = np.full((2, 16, 4096), 9, np.float32)  # about right: the weights need not sum to 1
    device, numbers = [Device(x) for x in (*given, q)], cuda.to_device(lse)
    targets = [Device(np.full(x.shape, 7, q.dtype)) for x in (q, k, k)]
    first = None
    for _ in range(20):
        how = {"causal": causal, "deterministic": deterministic}
        attention_backward(*device, numbers, **how, **dict(zip(NAMES, targets)))
        dq, dk, dv = (target.get() for target in targets)
        if first is None:
            first = dq.copy(), dk.copy(), dv.copy()
        np.testing.assert_array_equal(dk.view(np.uint16), first[1].view(np.uint16))
        np.testing.assert_array_equal(dv.view(np.uint16), first[2].view(np.uint16))
        if deterministic:
            np.testing.assert_array_equal(dq.view(np.uint16), first[0].view(np.uint16))
        else:
            numbers_of_dq, expected = (x.astype(np.float32) for x in (dq, first[0]))
            size = np.abs(expected).max()
            np.testing.assert_allclose(numbers_of_dq, expected, rtol=2**-7, atol=1e-4 * size)
