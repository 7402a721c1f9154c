"""Attention in the simulator: masks, odd lengths, shared heads, views, and infinities."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from numba_tma import ptx
from numba_tma.kernels.attention import attention, turns
from numba_tma.kernels.attention.launch import sides
from numba_tma.kernels.attention.plan import AttentionPlan
from tests.tiers import quick

BF16 = ml_dtypes.bfloat16
ONE, TWO = AttentionPlan(1, 64), AttentionPlan(2, 64)
TOGETHER = AttentionPlan(1, 64, heads_together=4)


def arrays(queries, keys, heads=1, kv_heads=None, depth=64, batch=1, dtype=BF16):
    """Return q, k and v."""
    rng = np.random.default_rng(queries + keys)
    shapes = ((queries, heads), (keys, kv_heads or heads), (keys, kv_heads or heads))
    return [rng.standard_normal((batch, *shape, depth)).astype(dtype) for shape in shapes]


def exact(q, k, v, causal=False, scale=None, window=(None, None), softcap=None):
    """Return attention in float64, what the rounding of its weights may change, and lse."""
    info = ml_dtypes.finfo(q.dtype)
    q, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    queries, keys = scores.shape[2:]
    left, right = (queries + keys if side is None else side for side in window)
    right = 0 if causal else right
    beside = np.arange(keys) - (np.arange(queries)[:, None] + keys - queries)
    seen = (beside >= -left) & (beside <= right)
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(axis=3, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=3, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.where(total == 0, 0, top) + np.log(total))[..., 0]
    weights /= np.where(total == 0, 1, total)
    error = 0.51 * float(info.eps) * (weights @ np.abs(v) + np.abs(weights @ v)) + 1e-6
    return *(x.transpose(0, 2, 1, 3) for x in (weights @ v, error)), lse


def check(q, k, v, causal=False, plan=ONE, **options):
    changes = {name: options[name] for name in ("scale", "window", "softcap") if name in options}
    expected, error, lse = exact(q, k, v, causal, **changes)
    got = attention(q, k, v, causal=causal, plan=plan, **options)
    if options.get("return_lse"):
        got, logs = got
        assert logs.dtype == np.float32
        np.testing.assert_allclose(logs, lse, rtol=1e-6, atol=2e-6)
    assert got.dtype == q.dtype and got.shape == q.shape
    assert (np.abs(got.astype(np.float64) - expected) <= error).all()
    return got


LENGTHS = [(64, 64), (1, 1), (1, 130), (65, 63), (70, 200), (150, 129)]
FULL_AND_CAUSAL = [(*lengths, causal) for lengths in LENGTHS for causal in (False, True)]


@pytest.mark.parametrize(
    ("queries", "keys", "causal"),
    quick([(1, 1, True), (1, 130, False), (65, 63, False), (70, 200, True)], FULL_AND_CAUSAL),
)
def test_lengths(queries, keys, causal):
    check(*arrays(queries, keys), causal)


@pytest.mark.parametrize("causal", quick([True], [False, True]), ids=["full", "causal"])
def test_two_warpgroups(causal):
    check(*arrays(130, 200), causal, TWO)


@pytest.mark.parametrize("depth", quick([96], [64, 96, 128]))
def test_the_plan_that_is_chosen(depth):
    check(*arrays(140, 140, depth=depth), causal=True, plan=None)


def test_results_where_the_queries_were():
    """There is no room beside them; the next queries are loaded when the results are stored."""
    q, k, v = arrays(70, 90, heads=2, depth=256)
    check(q, k, v, True, None, return_lse=True)


def test_queries_that_see_no_key_give_0():
    q, k, v = arrays(100, 30)
    got = check(q, k, v, causal=True)
    assert (got[:, :70] == 0).all() and (got[:, 70:] != 0).any(axis=3).all()


def test_two_heads_share_keys():
    check(*arrays(66, 34, heads=2, kv_heads=1, batch=2), causal=True, plan=TOGETHER)


#: Queries, heads of a tile, warpgroups: whole tiles and not, of one warpgroup and of two.
PACKS = [(45, 2, 1), (16, 8, 2), (1, 4, 1), (70, 4, 2), (33, 2, 2)]


@pytest.mark.parametrize("causal", quick([True], [False, True]), ids=["full", "causal"])
@pytest.mark.parametrize(("queries", "heads", "warpgroups"), quick(PACKS[:3], PACKS))
def test_heads_in_one_tile(queries, heads, warpgroups, causal):
    """Each query has a row for each head: masks, results and lse go by the query."""
    given = arrays(queries, queries + 9, heads=2 * heads, kv_heads=2, batch=1)
    check(*given, causal, AttentionPlan(warpgroups, 64, packed_heads=heads), return_lse=True)


def test_half_of_the_heads_that_share_keys_in_one_tile():
    given = arrays(40, 70, heads=8, kv_heads=2)
    check(*given, True, AttentionPlan(1, 64, packed_heads=2), return_lse=True)


def test_queries_that_see_no_key_in_a_tile_of_several_heads():
    q, k, v = arrays(50, 20, heads=2, kv_heads=1)
    plan = AttentionPlan(1, 64, packed_heads=2)
    got = check(q, k, v, causal=True, plan=plan, return_lse=True)[:, :30]
    assert (got == 0).all()


def test_heads_in_one_tile_leave_what_is_around_them():
    q, k, v = arrays(21, 30, heads=4, kv_heads=2)
    memory = np.full((1, 6, 24, 64), 7, BF16)  # heads before rows
    out = memory[:, 1:5, 2:23].transpose(0, 2, 1, 3)
    got = check(q, k, v, plan=AttentionPlan(1, 64, packed_heads=2), out=out)
    assert got is out
    out[:] = 7
    assert (memory == 7).all()


@pytest.mark.parametrize("causal", quick([True], [False, True]), ids=["full", "causal"])
def test_two_stages_of_queries(causal):
    """The queries of the next tile are loaded while these are multiplied."""
    plan = AttentionPlan(1, 64, q_stages=2, heads_together=2)
    check(*arrays(100, 130, heads=3), causal, plan, return_lse=True)


@pytest.mark.parametrize("warpgroups", [2, 3])
def test_warpgroups_take_turns(warpgroups, monkeypatch):
    """One after the other in every step but the first; the first one meets the last arrival."""
    taken, sync = [], turns.barrier_sync

    def noted(barrier, threads):
        sync(barrier, threads)
        warpgroup, thread = divmod(int(ptx.tid_x()), 128)
        if thread == 0:
            assert threads == 256
            taken.append((warpgroup, int(barrier) - turns.FIRST_TURN))

    monkeypatch.setattr(turns, "barrier_sync", noted)
    plan = AttentionPlan(warpgroups, 64, turns=True)
    check(*arrays(60 * warpgroups, 150, heads=1), plan=plan)  # three steps
    order = [*range(warpgroups)] * 2 + [0]
    assert taken == [(i, i) for i in order]


@pytest.mark.parametrize("causal", quick([True], [False, True]), ids=["full", "causal"])
def test_turns_of_several_tiles(causal):
    plan = AttentionPlan(2, 64, turns=True, q_stages=2, heads_together=2)
    check(*arrays(200, 130, heads=2), causal, plan, return_lse=True)


@pytest.mark.slow
@pytest.mark.parametrize(("kv_heads", "plan"), [(2, ONE), (1, TOGETHER)], ids=["2", "1"])
def test_heads_share_keys(kv_heads, plan):
    check(*arrays(70, 70, heads=4, kv_heads=kv_heads, batch=2), causal=True, plan=plan)


# Whole tiles and not, some parts without a key, and queries that see none.
PARTS = [(66, 130, 5), (3, 130, 5), (70, 200, 2), (150, 129, 3), (70, 30, 2)]


@pytest.mark.parametrize("causal", quick([True], [False, True]), ids=["full", "causal"])
@pytest.mark.parametrize(("queries", "keys", "splits"), quick([(3, 130, 5)], PARTS))
def test_parts(queries, keys, splits, causal):
    given = arrays(queries, keys, heads=2, kv_heads=1)
    check(*given, causal, replace(ONE, splits=splits), return_lse=True)


def test_parts_of_sequences_without_lse():
    check(*arrays(3, 130, heads=2, batch=2), plan=replace(ONE, splits=2))


def test_parts_of_a_window():
    check(*arrays(70, 300), True, replace(ONE, splits=3), window=(100, None), return_lse=True)


def test_more_parts_than_are_loaded_at_a_time():
    check(*arrays(3, 640), plan=replace(ONE, splits=10), return_lse=True)


def test_parts_of_which_all_scores_are_minus_infinity():
    q, k, v = arrays(20, 192)
    q[..., 0], k[:, 64:128, :, 0] = 1, -np.inf
    left = np.r_[:64, 128:192]
    got = attention(q, k, v, plan=replace(ONE, splits=3))
    expected, error, _ = exact(q, k[:, left], v[:, left])
    assert (np.abs(got.astype(np.float64) - expected) <= error).all()
    k[..., 0] = -np.inf
    some = k[:, :128], v[:, :128]
    got, lse = attention(q, *some, plan=replace(ONE, splits=2), return_lse=True)
    assert (got == 0).all() and np.isneginf(lse).all()


def test_a_nan_stays_in_the_rows_of_its_part():
    q, k, v = arrays(9, 128, heads=2)
    k[0, 100, 1] = np.nan
    got, lse = attention(q, k, v, plan=replace(ONE, splits=2), return_lse=True)
    assert np.isnan(got[:, :, 1]).all() and np.isfinite(got[:, :, 0]).all()
    assert np.isnan(lse[:, 1]).all() and np.isfinite(lse[:, 0]).all()


WINDOWS_OF_ONE = [(heads, window) for heads in (1, 2) for window in (None, (69, None), (0, 5))]


@pytest.mark.parametrize(
    ("kv_heads", "window"), quick([(2, None), (1, (69, None)), (2, (0, 5))], WINDOWS_OF_ONE)
)
def test_one_query(kv_heads, window):
    """Heads that share keys are its queries then, and of a window the last keys are all."""
    given = arrays(1, 300, heads=4, kv_heads=kv_heads, batch=2)
    check(*given, True, None, window=window or (None, None), return_lse=True)


def test_float16():
    check(*arrays(65, 70, dtype=np.float16), causal=True)


def test_a_scale():
    check(*arrays(64, 64), scale=0.5)


@pytest.mark.parametrize("causal", quick([True], [False, True]), ids=["full", "causal"])
@pytest.mark.parametrize(("queries", "keys"), quick([(40, 20)], [(3, 130), (40, 20), (100, 40)]))
def test_lse(queries, keys, causal):
    """Of queries that see no key, too: -inf."""
    q, k, v = arrays(queries, keys, heads=2, kv_heads=1, batch=2)
    got = check(q, k, v, causal, return_lse=True, scale=0.3)
    np.testing.assert_array_equal(got, attention(q, k, v, causal=causal, plan=ONE, scale=0.3))


@pytest.mark.parametrize(
    ("queries", "keys", "window"),
    [
        (70, 200, (10, 5)),  # inside of a tile
        pytest.param(130, 130, (70, None), marks=pytest.mark.slow),
        (130, 50, (None, 20)),  # and queries that see no key
        pytest.param(130, 70, (0, 0), marks=pytest.mark.slow),
        (64, 260, (33, 100)),  # the first tiles of keys, and the last, are not loaded
        pytest.param(140, 260, (64, 0), marks=pytest.mark.slow),
    ],
)
def test_windows(queries, keys, window):
    q, k, v = arrays(queries, keys)
    got = check(q, k, v, plan=TWO, window=window, return_lse=True)
    # What no query sees is not read at all, but for the tiles that others see.
    first = keys - queries - (keys if window[0] is None else window[0])
    if unseen := max(0, first // 64 * 64):
        k[:, :unseen] = v[:, :unseen] = np.nan
        np.testing.assert_array_equal(got, attention(q, k, v, window=window, plan=TWO))


def test_what_a_window_is():
    """A number is for both sides, but behind a causal mask there is nothing."""
    for same in (
        [(9, False), ((9, 9), False)],
        [(9, True), ((9, 9), True), ((9, 0), False), ([np.int32(9), 0], False)],
        [((None, 0), False), (None, True)],
        [((None, None), False), (None, False)],
    ):
        assert len({sides("attention", window, causal) for window, causal in same}) == 1
    q, k, v = arrays(20, 40)
    check(q, k, v, window=(9, 9))
    given = {"window": 9, "causal": True, "plan": ONE}
    np.testing.assert_array_equal(attention(q, k, v, **given), check(q, k, v, window=(9, 0)))


CAPS = [
    (False, 3.0, {"return_lse": True}),
    (True, 0.5, {"return_lse": True, "scale": 2.0}),
    (True, 3.0, {"window": (9, None)}),
    (True, 3.0, {"return_lse": True}),
    (False, 0.5, {"return_lse": True, "scale": 2.0}),
    (False, 3.0, {"window": (9, None)}),
]


@pytest.mark.parametrize(("causal", "softcap", "options"), quick(CAPS[:3], CAPS))
def test_a_soft_cap(causal, softcap, options):
    check(*arrays(40, 70), causal, softcap=softcap, **options)


def test_lse_where_it_is_told_to():
    q, k, v = arrays(70, 20, heads=2)
    memory = np.full(4 + 2 * 70 + 4, 7, np.float32)
    lse = memory[4:-4].reshape(1, 2, 70)
    out = attention(q, k, v, lse=lse, plan=ONE)
    assert out.shape == q.shape
    np.testing.assert_array_equal(lse, attention(q, k, v, return_lse=True, plan=ONE)[1])
    assert (memory[:4] == 7).all() and (memory[-4:] == 7).all()


def test_views_leave_what_is_around_them():
    qkv = np.stack(arrays(70, 70, heads=3, depth=128), axis=2)  # (1, 70, 3, 3, 128)
    q, k, v = (qkv[:, :, i, 1:, 64:] for i in range(3))
    memory = np.full((1, 3, 72, 64), 7, BF16)  # heads before queries
    out = memory[:, 1:, 1:71].transpose(0, 2, 1, 3)
    assert attention(q, k, v, out, causal=True, plan=ONE) is out
    expected, error, _ = exact(q, k, v, causal=True)
    assert (np.abs(out.astype(np.float64) - expected) <= error).all()
    out[:] = 7
    assert (memory == 7).all()


def test_bits_of_bf16():
    q, k, v = arrays(64, 64)
    bits = attention(*(x.view(np.uint16) for x in (q, k, v)), dtype="bf16", plan=ONE)
    assert bits.dtype == np.uint16
    np.testing.assert_array_equal(bits.view(BF16), attention(q, k, v, plan=ONE))


def test_huge_scores():
    """The largest has all the weight; exp of anything but differences would be infinite."""
    q, k, v = arrays(64, 130)
    check(q * BF16(1000), k, v)


@pytest.mark.parametrize("tile", quick([3], [0, 1, 2, 3, 5]))
def test_the_largest_weight_is_not_rounded(tile):
    """Of one key among equal ones, in whichever tile: the maximum never stays behind it."""
    keys = 64 * tile + 12
    q, k, v = (np.zeros_like(x) for x in arrays(64, keys))
    powers = np.linspace(0.05, 6, 64).astype(BF16)  # by which it outweighs each of the others
    q[0, :, 0, 0], k[0, 64 * tile + 7, 0, 0], v[0, 64 * tile + 7] = powers, 1, 1
    largest = np.exp2(powers.astype(np.float64))
    expected = (largest / (keys - 1 + largest)).astype(BF16)
    got = attention(q, k, v, scale=np.log(2), plan=ONE)
    np.testing.assert_array_equal(got[0, :, 0], np.broadcast_to(expected[:, None], (64, 64)))


@pytest.mark.parametrize("votes", [True, False])
def test_a_maximum_rises_again(votes):
    """In one tile, and in the next one again in some rows of a warp or in none."""
    q, k, v = (np.zeros_like(x) for x in arrays(64, 204))
    rises = np.repeat([0, 1, 1, 0, 0, 0], 8).tolist() + [0, 1] * 8
    powers = 6 + np.where(rises, 1, -1) * np.arange(1, 65) / 32
    q[0, :, 0, 0], k[0, 70, 0, 0] = 6, 1  # in the second tile
    q[0, :, 0, 1], k[0, 135, 0, 1] = powers, 1  # and the third
    v[0, 135, 0, :32] = v[0, 5, 0, 32:] = 1  # what is the largest at last, and what decays
    weights = np.stack([np.exp2(powers), np.ones(64)], axis=1)
    expected = (weights / (202 + 2**6 + weights[:, :1])).repeat(32, axis=1)
    got = attention(q, k, v, scale=np.log(2), plan=replace(ONE, votes=votes))[0, :, 0]
    np.testing.assert_allclose(got.astype(float), expected, rtol=2**-7)
    rising = powers > 6
    np.testing.assert_array_equal(got[rising, :32], expected[rising, :32].astype(BF16))


def test_minus_infinity_masks():
    """A score of -inf weighs nothing, and a query that has no other gives 0."""
    q, k, v = arrays(64, 130)
    q[..., 0] = 1
    k[:, 3::5, :, 0] = -np.inf
    k[:, :64, :, 0] = -np.inf  # a whole tile: the maximum is -inf until the next
    check(q, k, v)
    k[..., 0] = -np.inf
    assert (attention(q, k, v, plan=ONE) == 0).all()


def test_nan_stays_in_the_rows_that_see_it():
    q, k, v = arrays(70, 70)
    q[0, 3] = np.nan
    k[0, 66] = np.nan
    got = attention(q, k, v, causal=True, plan=ONE)
    assert set(np.flatnonzero(np.isnan(got[0, :, 0]).all(axis=1))) == {3, 66, 67, 68, 69}
    assert np.isnan(got).sum() == 5 * 64
    for key in (3, 66):  # in either tile of keys
        q, k, v = arrays(70, 70)
        v[0, key, 0, 5] = np.nan
        assert (np.isnan(attention(q, k, v, plan=ONE)) == (np.arange(64) == 5)).all()


def test_nothing():
    q, k, v = arrays(64, 64)
    assert attention(q[:, :0], k, v).shape == (1, 0, 1, 64)
    assert attention(q[:0], k[:0], v[:0]).shape == (0, 64, 1, 64)
