"""The second kernel of split keys alone: it combines what the splits found."""

import ml_dtypes
import numpy as np
import pytest

from numba_tma.host.arrays import Array
from numba_tma.kernels.attention.split_kv import combine_splits, new_partials

BF16 = ml_dtypes.bfloat16


def combined(o, logs, dtype, transposed=False, return_lse=True):
    """Return O and lse, of partial results (batch, heads, queries, splits, head dim)."""
    batch, heads, queries, splits, depth = o.shape
    out = np.full((batch, queries, heads, depth), 7, dtype)
    if transposed:  # memory of (batch, heads, queries, head dim)
        out = np.full((batch, heads, queries, depth), 7, dtype).transpose(0, 2, 1, 3)
    lse = np.full((batch, heads, queries), 7, np.float32) if return_lse else None
    given = Array.read("attention", "out", out)
    memory = []
    addresses = new_partials(given, splits, memory)
    for space, values in zip(memory, (o, logs)):
        space[...] = values.reshape(space.shape)
    array = None if lse is None else Array.read("attention", "lse", lse)
    combine_splits(*addresses, splits, given, array, None)
    return out, lse


def check(shape, dtype, hidden=(), **how):
    """Compare with float64; of the splits `hidden` no query has seen a key."""
    rng = np.random.default_rng(sum(shape))
    o, logs = rng.standard_normal(shape), 3 * rng.standard_normal(shape[:-1])
    o, logs = o.astype(np.float32), logs.astype(np.float32)
    o[..., list(hidden), :], logs[..., list(hidden)] = 0, -np.inf
    out, lse = combined(o, logs, dtype, **how)
    weights = np.exp(logs.astype(np.float64))
    total = weights.sum(axis=-1)
    expected = (weights[..., None] * o).sum(axis=-2) / np.where(total, total, 1)[..., None]
    error = 0.51 * float(ml_dtypes.finfo(dtype).eps) * np.abs(expected) + 1e-6
    assert (np.abs(out.transpose(0, 2, 1, 3).astype(np.float64) - expected) <= error).all()
    if lse is not None:
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(lse, np.log(total), rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 1, 1, 2, 64), np.float16),
        ((2, 3, 2, 3, 96), BF16),
        ((1, 2, 3, 8, 128), np.float16),
        ((1, 1, 2, 9, 256), BF16),
        ((1, 1, 1, 40, 64), np.float16),
    ],
)
def test_a_weighted_mean_of_any_number_of_splits(shape, dtype):
    """Up to 8 are loaded at a time, of more 32."""
    check(shape, dtype)


@pytest.mark.parametrize("hidden", [(0,), (1, 2), (0, 1, 2)])
def test_splits_without_a_key_count_for_nothing(hidden):
    check((2, 2, 3, 3, 64), np.float16, hidden)


def test_where_the_result_lies():
    check((2, 2, 3, 2, 64), np.float16, transposed=True)


def test_no_logarithms():
    check((1, 2, 3, 2, 64), np.float16, return_lse=False)
