"""Gradients of attention in the simulator: masks, odd lengths, shared heads, what sees nothing."""

import ml_dtypes
import numpy as np
import pytest

from numba_tma.kernels.attention_backward import attention_backward

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
    # of S, P, dP and dS, relative to the type's precision
    wrong = weights * np.abs(dout) @ np.abs(v.swapaxes(2, 3)) if False else np.abs(ds)
    eps = float(info.eps)
    results = [
        (ds @ k * scale, wrong @ np.abs(k) * scale),
        (ds.swapaxes(2, 3) @ q * scale, wrong.swapaxes(2, 3) @ np.abs(q) * scale),
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
    for name, gradient, like, (value, error) in zip(("dq", "dk", "dv"), got, (q, k, v), expected):
        assert gradient.dtype == q.dtype and gradient.shape == like.shape
        wrong = np.abs(gradient.astype(np.float64) - value)
        assert (wrong <= error).all(), (name, (wrong / error).max())
    return got


by_mask = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


@by_mask
@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize(("queries", "keys"), [(64, 128), (1, 1), (65, 63), (70, 200), (150, 129)])
def test_lengths(queries, keys, depth, causal):
    check(*arrays(queries, keys, depth=depth), causal)
