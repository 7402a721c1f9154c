"""Gradients of attention in the simulator: masks, odd lengths, shared heads, empty rows."""

import ml_dtypes
import numpy as np
import pytest

from numba_tma.kernels.attention.backward import attention_backward
from numba_tma.kernels.attention.backward.plan import BackwardPlan
from tests.tiers import quick

BF16 = ml_dtypes.bfloat16


def arrays(queries, keys, heads=1, kv_heads=None, depth=64, batch=1, dtype=BF16):
    """Return dout, q, k and v."""
    rng = np.random.default_rng(queries + keys)
    shapes = ((queries, heads), (queries, heads), *[(keys, kv_heads or heads)] * 2)
    return [rng.standard_normal((batch, *shape, depth)).astype(dtype) for shape in shapes]


def exact(dout, q, k, v, causal=False, scale=None):
    """Return out and lse, and dq, dk, dv with what the roundings of P and dS may change."""
    info, sharing = ml_dtypes.finfo(q.dtype), q.shape[2] // k.shape[2]
    dout, q, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (dout, q, k, v))
    k, v = (np.repeat(x, sharing, axis=1) for x in (k, v))
    scale = q.shape[3] ** -0.5 if scale is None else scale
    scores = q @ k.swapaxes(2, 3) * scale
    if causal:
        first = scores.shape[3] - scores.shape[2] + 1
        seen = np.arange(scores.shape[3]) < np.arange(scores.shape[2])[:, None] + first
        scores = np.where(seen, scores, -np.inf)
    top = scores.max(axis=3, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    total = np.exp(scores - top).sum(axis=3, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + top
    weights = np.exp(scores - np.where(np.isfinite(lse), lse, np.inf))
    out = (weights @ v).astype(info.dtype)
    delta = (dout * out.astype(np.float64)).sum(axis=3, keepdims=True)
    ds = weights * (dout @ v.swapaxes(2, 3) - delta)
    eps, size = float(info.eps), np.abs(ds)
    results = [
        (ds @ k * scale, size @ np.abs(k) * scale),
        (ds.swapaxes(2, 3) @ q * scale, size.swapaxes(2, 3) @ np.abs(q) * scale),
        (weights.swapaxes(2, 3) @ dout, weights.swapaxes(2, 3) @ np.abs(dout)),
    ]
    folded = []
    for i, pair in enumerate(results):
        value, slack = pair
        if i:
            value, slack = (
                x.reshape(x.shape[0], -1, sharing, *x.shape[2:]).sum(axis=2) for x in pair
            )
        error = 0.51 * eps * (slack + np.abs(value)) + 1e-4
        folded.append([x.transpose(0, 2, 1, 3) for x in (value, error)])
    return out.transpose(0, 2, 1, 3), lse[..., 0].astype(np.float32), folded


def check(dout, q, k, v, causal=False, **options):
    out, lse, expected = exact(dout, q, k, v, causal, options.get("scale"))
    got = attention_backward(dout, q, k, v, out, lse, causal=causal, **options)
    assert_right(got, q, k, v, expected)
    return got


def assert_right(got, q, k, v, expected):
    for name, gradient, like, (value, error) in zip(("dq", "dk", "dv"), got, (q, k, v), expected):
        assert gradient.dtype == q.dtype and gradient.shape == like.shape
        wrong = np.abs(gradient.astype(np.float64) - value)
        assert (wrong <= error).all(), (name, (wrong / error).max())


LENGTHS = [(1, 1, 64), (65, 63, 128), (150, 129, 64), (70, 129, 128)]


FULL_AND_CAUSAL = [(*lengths, causal) for lengths in LENGTHS for causal in (False, True)]


@pytest.mark.parametrize(
    ("queries", "keys", "depth", "causal"),
    quick([(1, 1, 64, False), (65, 63, 128, True)], FULL_AND_CAUSAL),
)
def test_lengths(queries, keys, depth, causal):
    check(*arrays(queries, keys, depth=depth), causal)


def test_queries_that_see_no_key_have_no_gradient():
    dq, dk, dv = check(*arrays(100, 30), causal=True)
    assert (dq[:, :70] == 0).all() and (dq[:, 70:] != 0).any(axis=3).all()
    assert (dk != 0).any(axis=3).all() and (dv != 0).any(axis=3).all()


def test_two_heads_share_keys():
    check(*arrays(66, 40, heads=2, kv_heads=1, batch=1), causal=True)


@pytest.mark.parametrize(
    ("splits", "causal", "depth", "deterministic"),
    quick(
        [(2, True, 64, False)],
        [(1, True, 64, False), (2, True, 64, False), (4, False, 128, False), (2, True, 64, True)],
    ),
)
def test_blocks_share_the_heads_that_share_keys(splits, causal, depth, deterministic):
    """Each writes dK and dV of its heads for the keys that there are; both are written whole."""
    given = arrays(34, 70, heads=4, kv_heads=1, depth=depth, batch=1)
    plan = BackwardPlan(splits=splits, heads_together=2)
    check(*given, causal, plan=plan, deterministic=deterministic)


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
def test_splits_of_several_heads_and_sequences(deterministic):
    given = arrays(70, 150, heads=12, kv_heads=2, batch=2)
    check(*given, causal=True, plan=BackwardPlan(splits=3), deterministic=deterministic)


def test_two_blocks_of_keys_take_turns():
    check(*arrays(66, 140, batch=1), causal=True, deterministic=True)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [64, 128])
def test_heads_share_keys(depth):
    """The walk over queries goes on with the next head, where the mask begins anew."""
    check(*arrays(130, 150, heads=4, kv_heads=2, batch=2, depth=depth), causal=True)


@pytest.mark.slow
def test_heads_together_that_do_not_divide_all():
    check(*arrays(64, 140, heads=3, batch=1), causal=True, plan=BackwardPlan(heads_together=2))


@pytest.mark.slow
def test_blocks_of_keys_take_turns():
    given = arrays(130, 300, heads=2, kv_heads=1)
    for causal in (False, True):
        check(*given, causal=causal, deterministic=True)


def test_float16_and_a_scale():
    check(*arrays(65, 70, dtype=np.float16), causal=True, scale=0.5)


def test_huge_scores():
    """Keys behind the end have a score of 0, which would weigh more than all others."""
    dout, q, k, v = arrays(64, 70)
    q, k = -np.abs(np.sign(q)) * BF16(100), np.ones_like(k)
    dq, dk, dv = check(dout, q, k, v)
    assert all(np.isfinite(x.astype(np.float32)).all() for x in (dq, dk, dv))


def test_views_leave_what_is_around_them():
    qkv = np.stack(arrays(20, 20, heads=3, depth=128), axis=2)  # (1, 20, 4, 3, 128)
    given = [qkv[:, :, i, 1:, 64:] for i in range(4)]
    memory = [np.full((1, 3, 22, 64), 7, BF16) for _ in range(3)]  # heads before rows
    into = [m[:, 1:, 1:21].transpose(0, 2, 1, 3) for m in memory]
    got = check(*given, causal=True, **dict(zip(("dq", "dk", "dv"), into)))
    assert all(a is b for a, b in zip(got, into))
    for view, whole in zip(into, memory):
        view[:] = 7
        assert (whole == 7).all()


def test_bits_of_bf16():
    given = arrays(64, 64)
    out, lse, expected = exact(*given)
    bits = attention_backward(*(x.view(np.uint16) for x in (*given, out)), lse, dtype="bf16")
    assert [x.dtype for x in bits] == [np.uint16] * 3
    assert_right([x.view(BF16) for x in bits], *given[1:], expected)


def test_nothing():
    given = arrays(64, 64)
    out, lse, _ = exact(*given)
    got = attention_backward(*(x[:0] for x in (*given, out)), lse[:0])
    assert [x.shape for x in got] == [(0, 64, 1, 64)] * 3
