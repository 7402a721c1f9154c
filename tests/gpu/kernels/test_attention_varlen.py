"""Attention over packed sequences: each is as if it were alone, and no other row is written."""

import numpy as np
import pytest
from numba import cuda

from numba_tma.kernels.attention import attention, attention_varlen
from numba_tma.kernels.attention.choice import HEAD_DIMS, PLANS
from numba_tma.kernels.attention.plan import AttentionPlan
from tests.gpu.kernels.test_attention import LIMIT, exact, logs_of_sums
from tests.gpu.kernels.test_kernels import assert_close, normal
from tests.gpu.kernels.test_matmul import Device
from tests.gpu.worker import on_gpu

by_mask = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
LENGTHS = {
    "some are empty": ((0, 70, 0, 300, 64, 1, 0), (9, 65, 5, 130, 0, 1000, 0)),
    "one": ((1000,), (777,)),
    "short ones": ((1,) * 300, tuple(range(300))),
    "all kinds": ((3000, 1, 129, 128, 127, 700), (3000, 900, 129, 1, 500, 64)),
}


def check(queries, keys, heads=4, kv_heads=2, depth=128, name="bf16", plan=None, **options):
    """Compare sequences of these lengths, between rows that belong to none and are not used."""
    starts_q, starts_k = (np.cumsum([5, *n], dtype=np.int32) for n in (queries, keys))
    rows, kv_rows = int(starts_q[-1]) + 3, int(starts_k[-1]) + 2
    q = normal((rows, heads, depth), name, 1)
    k, v = (normal((kv_rows, kv_heads, depth), name, seed) for seed in (2, 3))
    for x, starts in ((q, starts_q), (k, starts_k), (v, starts_k)):
        x[: starts[0]] = x[starts[-1] :] = np.nan
    out, lse = Device(np.full(q.shape, 7, q.dtype)), Device(np.full((heads, rows), 7, np.float32))
    starts = cuda.to_device(starts_q), cuda.to_device(starts_k)
    given = {"lse": lse, "plan": plan, **options}
    assert attention_varlen(*map(Device, (q, k, v)), *starts, out, **given) is out
    got, logs = out.get(), lse.get()
    for i in range(len(queries)):
        mine, theirs = (slice(*s[i : i + 2]) for s in (starts_q, starts_k))
        if not queries[i]:
            continue
        if not keys[i]:
            assert (got[mine] == 0).all() and (logs[:, mine] == -np.inf).all()
            continue
        alone = q[None, mine], k[None, theirs], v[None, theirs]
        expected, slack = exact(*alone, np.arange(queries[i]), **options)
        what = f"sequence {i} of {queries[i]} x {keys[i]} {name} depth {depth} {options}"
        assert_close(got[None, mine], expected, q.dtype, slack, 0.5, what)
        found = logs_of_sums(*alone[:2], **options)[0]
        bent = 2.0**-10.9 * options.get("softcap", 0)
        np.testing.assert_allclose(logs[:, mine], found, rtol=2e-6, atol=2e-4 + bent)
    for array in (got, logs.T):
        assert (array[: starts_q[0]] == 7).all() and (array[starts_q[-1] :] == 7).all()


@by_mask
@pytest.mark.parametrize("depth", HEAD_DIMS)
@pytest.mark.parametrize("lengths", LENGTHS)
@on_gpu(limit=LIMIT)
def test_lengths(lengths, depth, causal):
    check(*LENGTHS[lengths], depth=depth, causal=causal)


@by_mask
@on_gpu(limit=LIMIT)
def test_types_heads_and_plans(causal):
    lengths = (300, 1, 0, 200), (200, 50, 8, 333)
    check(*lengths, name="f16", causal=causal)
    check(*lengths, heads=8, kv_heads=1, depth=64, causal=causal)
    check(*lengths, heads=3, kv_heads=3, depth=64, plan=AttentionPlan(1, 64), causal=causal)
    check(*lengths, plan=AttentionPlan(2, 96, stages=3), depth=96, causal=causal)
    check(*lengths, plan=AttentionPlan(2, 128, q_stages=2), causal=causal)
    check(*lengths, plan=AttentionPlan(3, 96, 3, votes=False, q_stages=2), depth=64, causal=causal)


@by_mask
@on_gpu(limit=LIMIT)
def test_windows_and_caps(causal):
    lengths = (300, 1, 0, 900), (200, 50, 8, 1000)
    for window in ((0, 0), (100, 30), (None, 200), (300, None)):
        check(*lengths, causal=causal, window=window)
        check(*lengths, causal=causal, window=window, softcap=20.0, scale=1.0, depth=64)


@by_mask
@on_gpu(limit=LIMIT)
def test_equal_lengths_are_a_batch(causal):
    """The same bits, whichever way they are told, with the same plan."""
    for depth in HEAD_DIMS:
        plan = PLANS[depth]
        q, k, v = (normal((6, 300, 4, depth), "bf16", seed) for seed in range(3))
        batch = Device(np.zeros_like(q))
        attention(*map(Device, (q, k, v)), batch, causal=causal, plan=plan)
        rows = [Device(x.reshape(-1, 4, depth)) for x in (q, k, v)]
        out = Device(np.zeros((1800, 4, depth), q.dtype))
        starts = cuda.to_device(np.arange(7, dtype=np.int32) * 300)
        attention_varlen(*rows, starts, starts, out, causal=causal, plan=plan)
        got = out.get().reshape(q.shape).view(np.uint16)
        np.testing.assert_array_equal(got, batch.get().view(np.uint16))


@on_gpu(limit=LIMIT)
def test_lengths_may_change_between_calls():
    """They are read when the kernel runs: a repeated launch sees what is there by then."""
    q, k, v = (normal((500, 2, 64), "bf16", seed) for seed in range(3))
    device, out = [Device(x) for x in (q, k, v)], Device(np.zeros_like(q))
    starts = cuda.to_device(np.zeros(4, np.int32))
    for lengths in ((100, 200, 200), (500, 0, 0), (1, 1, 1)):
        ends = np.cumsum([0, *lengths], dtype=np.int32)
        starts.copy_to_device(ends)
        out.memory.copy_to_device(np.full(q.shape, 7, q.dtype).view(np.uint16))
        attention_varlen(*device, starts, starts, out, causal=True)
        got = out.get()
        for first, last in zip(ends, ends[1:]):
            if first < last:
                alone = (x[None, first:last] for x in (q, k, v))
                expected, slack = exact(*alone, np.arange(last - first), causal=True)
                assert_close(got[None, first:last], expected, q.dtype, slack, 0.5, str(lengths))
        assert (got[ends[-1] :] == 7).all()


@on_gpu(limit=LIMIT)
def test_views_of_one_array():
    """Queries, keys and values beside each other, heads apart."""
    qkv = normal((700, 3, 4, 192), "bf16", 0)
    q, k, v = (qkv[:, i, 1:, 64:] for i in range(3))
    memory = np.full((700, 4, 136), 7, qkv.dtype)
    out = Device(memory[:, 1:, :128])
    starts = np.array([0, 300, 301, 700], np.int32)
    on_device = cuda.to_device(starts)
    attention_varlen(*map(Device, (q, k, v)), on_device, on_device, out, causal=True)
    for first, last in zip(starts, starts[1:]):
        alone = (x[None, first:last] for x in (q, k, v))
        expected, slack = exact(*alone, np.arange(last - first), causal=True)
        assert_close(out.get()[None, first:last], expected, q.dtype, slack, 0.5, f"from {first}")
    around = out.memory.copy_to_host().view(qkv.dtype)
    around[:, 1:, :128] = 7
    assert (around == 7).all()


@by_mask
@on_gpu(limit=LIMIT)
def test_the_same_bits_again(causal):
    lengths = np.random.default_rng(0).integers(0, 3000, 16)
    starts = cuda.to_device(np.cumsum([0, *lengths], dtype=np.int32))
    q, k, v = (Device(normal((int(lengths.sum()), 8, 128), "bf16", seed)) for seed in range(3))
    out = Device(np.zeros(q.shape, q.dtype))
    attention_varlen(q, k, v, starts, starts, out, causal=causal)
    first = out.get().view(np.uint16).copy()
    for _ in range(20):
        attention_varlen(q, k, v, starts, starts, out, causal=causal)
        np.testing.assert_array_equal(out.get().view(np.uint16), first)
