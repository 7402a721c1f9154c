"""The attention kernel of Blackwell's tensor cores in the simulator, against NumPy."""

import numpy as np
import pytest

from numba_tma import simulator
from numba_tma.kernels.attention import attention
from numba_tma.kernels.attention.tcgen05_plan import Tcgen05AttentionPlan
from numba_tma.kernels.attention.tcgen05_softmax import exponential_by_polynomial
from tests.sim.kernels.test_attention import BF16, arrays, check
from tests.tiers import quick

NARROW, WIDE = Tcgen05AttentionPlan(32, stages=3), Tcgen05AttentionPlan(stages=4)
TOGETHER = Tcgen05AttentionPlan(32, 2, heads_together=2, polynomial_period=0)

LENGTHS = [(1, 1), (1, 130), (65, 63), (70, 100), (150, 129), (257, 20), (300, 70), (256, 64)]
FULL_AND_CAUSAL = [(*lengths, causal) for lengths in LENGTHS for causal in (False, True)]


@pytest.mark.parametrize(
    ("queries", "keys", "causal"),
    quick([(150, 129, True), (257, 20, False)], FULL_AND_CAUSAL),
)
def test_lengths(queries, keys, causal):
    """More K/V tiles than stages; queries and keys that fill no tile; queries without a key.

    Of 257 queries one is in a second tile of the schedule.
    """
    check(*arrays(queries, keys), causal, NARROW, return_lse=True)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [64, 96, 128])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_head_dims(depth, causal):
    check(*arrays(140, 150, depth=depth), causal, WIDE)


@pytest.mark.parametrize("kv_heads", quick([1], [1, 3]))
def test_heads_share_keys(kv_heads):
    """More tiles than blocks, so that each block has two and uses every barrier again."""
    given = arrays(40, 40, heads=3, kv_heads=kv_heads)
    check(*given, causal=True, plan=TOGETHER, return_lse=True)


@pytest.mark.slow
@pytest.mark.parametrize("window", [(69, None), (0, 5), (None, 3), (40, 0)])
def test_windows(window):
    check(*arrays(150, 200), plan=NARROW, window=window)
    check(*arrays(150, 200), causal=True, plan=NARROW, window=window)


@pytest.mark.slow
def test_half_precision_and_a_scale():
    check(*arrays(70, 140, dtype=np.float16), plan=WIDE, scale=0.5, return_lse=True)


@pytest.mark.slow
def test_a_soft_cap():
    q, k, v = arrays(70, 140)
    got = attention(q, k, v, softcap=3.0, plan=NARROW).astype(np.float64)
    scores = np.einsum("bqhd,bkhd->bhqk", *(x.astype(np.float64) for x in (q, k))) / 8
    weights = np.exp(3 * np.tanh(scores / 3))
    weights /= weights.sum(axis=3, keepdims=True)
    expected = np.einsum("bhqk,bkhd->bqhd", weights, v.astype(np.float64))
    np.testing.assert_allclose(got, expected, atol=0.02)


def one_hot(keys, chosen):
    """Return q and k of which query i has a large score with key ``chosen[i]`` alone."""
    basis = np.where(np.arange(keys)[:, None] >> np.arange(6) & 1, 1.0, -1.0)
    k = np.zeros((1, keys, 1, 64), BF16)
    k[0, :, 0, :6] = 16 * basis
    q = np.zeros((1, len(chosen), 1, 64), BF16)
    q[0, :, 0, :6] = 16 * basis[chosen]
    return q, k


def integers(keys, seed=3):
    return np.random.default_rng(seed).integers(-64, 65, (1, keys, 1, 64)).astype(BF16)


@pytest.mark.parametrize("seed", quick([0], range(4)))
def test_weights_of_one_key_are_exact_in_any_order_of_the_threads(seed):
    """Scores of other keys are at least 512 less, so that their weights are 0."""
    chosen = np.random.default_rng(seed).permutation(256)[:140] % 64
    q, k = one_hot(64, chosen)
    v = integers(64)
    simulator.seed(seed)
    got = attention(q, k, v, scale=1.0, plan=NARROW)
    np.testing.assert_array_equal(got[0, :, 0], v[0, chosen, 0])


@pytest.mark.slow
def test_equal_weights_are_a_mean():
    """Of 64 integers with an even sum of 64: sums and the division are exact."""
    q, k = np.zeros((1, 130, 1, 64), BF16), integers(64)
    v = integers(64)
    v[0, 0, 0] -= (v[0, :, 0].astype(np.float32).sum(axis=0) % 64).astype(BF16)
    got, lse = attention(q, k, v, plan=NARROW, return_lse=True)
    mean = v[0, :, 0].astype(np.float32).mean(axis=0)
    np.testing.assert_array_equal(got[0, :, 0], np.broadcast_to(mean, (130, 64)).astype(BF16))
    np.testing.assert_allclose(lse, np.log(64), rtol=1e-6)


@pytest.mark.parametrize("growth", quick([40.0], [0.5, 5.0, 40.0]))
def test_maxima_that_grow_with_every_key(growth):
    """Below 8 in log2 a row's maximum stays, above it O is rescaled."""
    q, k, v = arrays(70, 96)
    q[..., 0], k[0, :, 0, 0] = 8, np.arange(96) // 32 * growth
    check(q, k, v, plan=NARROW, return_lse=True)


def test_the_polynomial_is_as_exact_as_ex2():
    one, zero = np.float32(1), np.float32(0)
    x = np.random.default_rng(0).uniform(-126, 8, 3000).astype(np.float32)
    got = np.array([exponential_by_polynomial(each, one, zero) for each in x], np.float64)
    np.testing.assert_allclose(got, 2.0 ** x.astype(np.float64), rtol=2.0**-22)
    with np.errstate(invalid="ignore"):
        ends = [np.float32(each) for each in (-np.inf, -1e30, -127, 0, 3, np.nan)]
        found = [exponential_by_polynomial(each, one, zero) for each in ends]
    np.testing.assert_array_equal(found, [0, 0, 0, 1, 8, np.nan])


def test_scores_that_are_minus_infinity():
    """Of the first K/V tile in one head, of all keys in the other."""
    q, k, v = arrays(3, 64, heads=2)
    q[..., 0], k[:, :32, 0, 0], k[:, :, 1, 0] = 1, -np.inf, -np.inf
    got = check(q, k, v, plan=NARROW, return_lse=True)
    assert (got[:, :, 1] == 0).all() and (got[:, :, 0] != 0).any()
