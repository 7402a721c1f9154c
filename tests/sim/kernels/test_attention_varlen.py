"""Attention over packed sequences in the simulator: each is as if it were alone."""

import ml_dtypes
import numpy as np
import pytest

from numba_tma.kernels.attention import attention_varlen
from numba_tma.kernels.attention.plan import AttentionPlan
from tests.sim.kernels.test_attention import exact
from tests.tiers import quick

BF16 = ml_dtypes.bfloat16
ONE = AttentionPlan(1, 64)


def check(queries, keys, heads=2, kv_heads=1, depth=64, plan=ONE, **options):
    """Compare sequences of these lengths, between rows that belong to none and are not used."""
    rng = np.random.default_rng(sum(queries) + depth)
    starts_q, starts_k = (np.cumsum([2, *n], dtype=np.int32) for n in (queries, keys))
    rows, kv_rows = starts_q[-1] + 3, starts_k[-1] + 1
    q = rng.standard_normal((rows, heads, depth)).astype(BF16)
    k, v = (rng.standard_normal((kv_rows, kv_heads, depth)).astype(BF16) for _ in range(2))
    for x in (k, v):
        x[: starts_k[0]] = x[starts_k[-1] :] = np.nan
    out, lse = np.full(q.shape, 7, BF16), np.full((heads, rows), 7, np.float32)
    given = {"lse": lse, "plan": plan, **options}
    assert attention_varlen(q, k, v, starts_q, starts_k, out, **given) is out
    for i in range(len(queries)):
        mine, theirs = (slice(*s[i : i + 2]) for s in (starts_q, starts_k))
        if not queries[i]:
            continue
        if not keys[i]:
            assert (out[mine] == 0).all() and (lse[:, mine] == -np.inf).all()
            continue
        expected, error, logs = exact(q[None, mine], k[None, theirs], v[None, theirs], **options)
        assert (np.abs(out[mine].astype(np.float64) - expected[0]) <= error[0]).all()
        np.testing.assert_allclose(lse[:, mine], logs[0], rtol=1e-6, atol=2e-6)
    for array in (out, lse.T):
        assert (array[: starts_q[0]] == 7).all() and (array[starts_q[-1] :] == 7).all()


@pytest.mark.parametrize("causal", quick([True], [False, True]), ids=["full", "causal"])
def test_lengths(causal):
    """Some are empty, and some have no keys."""
    check((0, 70, 0, 3, 64, 0), (9, 65, 5, 130, 0, 0), causal=causal)


@pytest.mark.parametrize("causal", quick([True], [False, True]), ids=["full", "causal"])
def test_two_warpgroups_and_parts_of_another_swizzle(causal):
    check((70, 20), (40, 100), depth=96, plan=AttentionPlan(2, 64), causal=causal)


def test_more_sequences_than_a_warp_has_lanes():
    """And two stages of queries, for which more tiles are drawn ahead."""
    plan = AttentionPlan(1, 64, q_stages=2)
    check((1, 0, 0, 0, 3, 0) * 6, (2, 1, 0, 0, 0, 3) * 6, heads=1, plan=plan, causal=True)


def test_windows_and_caps():
    check((40, 90), (100, 70), window=(20, 10), softcap=2.0)


def test_nan_stays_in_its_sequence():
    """Tiles of the sequence before reach into it."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((40, 1, 64)).astype(BF16) for _ in range(3))
    for x in (q, k, v):
        x[20:] = np.nan
    starts = np.array([0, 20, 40], np.int32)
    out, lse = attention_varlen(q, k, v, starts, starts, plan=ONE, return_lse=True)
    assert not np.isnan(out[:20].astype(float)).any() and np.isnan(out[20:].astype(float)).all()
    assert not np.isnan(lse[:, :20]).any() and np.isnan(lse[:, 20:]).all()


def test_nothing():
    q, k, v = (np.ones((5, 2, 64), BF16) for _ in range(3))
    out = np.full(q.shape, 7, BF16)
    attention_varlen(q, k, v, np.zeros(1, np.int32), np.zeros(1, np.int32), out)
    attention_varlen(q, k, v, np.zeros(4, np.int32), np.zeros(4, np.int32), out, plan=ONE)
    assert (out == 7).all()
    assert attention_varlen(q[:0], k, v, np.zeros(2, "i4"), np.zeros(2, "i4")).shape == (0, 2, 64)
