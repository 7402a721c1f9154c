"""The kernels before and after attention's backward kernel, each alone, in the simulator."""

import math

import ml_dtypes
import numpy as np
import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.attention.backward import passes
from numba_tma.kernels.attention.backward.passes import (
    THREADS,
    add_splits_kernel,
    finish_kernel,
    prepare_kernel,
)
from numba_tma.kernels.attention.plan import AttentionProblem

BF16 = ml_dtypes.bfloat16


def strided(shape, seed):
    """Return (batch, queries, heads, depth) with memory between rows, heads and batches."""
    batch, queries, heads, depth = shape
    whole = batch + 1, heads + 2, queries + 3, 2, depth
    memory = np.random.default_rng(seed).standard_normal(whole)
    return memory.astype(BF16)[:batch, 1 : heads + 1, 2 : queries + 2, 1].swapaxes(1, 2)


def address(array):
    return array.ctypes.data


class Loads:
    """Loads, none of which is of what is not there: a whole share takes no limit."""

    def __init__(self, load):
        self.load = load

    def __call__(self, share, address, first, limit):
        assert limit or not share.whole
        return self.load(share, address, first, limit)


def test_prepare(monkeypatch):
    """Two tiles of queries, the second with an end; some rows see no key."""
    monkeypatch.setattr(passes, "block_q", lambda head_dim: 16)
    monkeypatch.setattr(passes, "load_global", Loads(passes.load_global))
    prepare_kernel.cache_clear()
    batch, queries, heads, depth, padded = 2, 21, 3, 64, 32
    dout, out = (strided((batch, queries, heads, depth), seed) for seed in (1, 2))
    lse = np.random.default_rng(3).standard_normal((batch, heads, queries)).astype(np.float32)
    lse[:, 1, 4:6] = -np.inf
    rows, parts = batch * heads * padded, 50
    scaled, delta = (np.full(rows + 2, 7, np.float32) for _ in range(2))
    sums, turns = np.full(rows * depth + 4, 7, np.float32), np.full(parts + 2, 7, np.float32)
    blocks = rows * (depth // 8) // THREADS
    prepare_kernel(AttentionProblem(depth, as_dtype("bf16")))[blocks, THREADS](
        *(address(dout), dout.strides[:3], address(out), out.strides[:3], address(lse)),
        *(address(scaled), address(delta), address(sums)),
        *(address(turns), parts, queries, heads, 2),
    )
    prepare_kernel.cache_clear()
    product = (dout.astype(np.float64) * out.astype(np.float64)).sum(axis=3).swapaxes(1, 2)
    expected = np.zeros((batch, heads, padded))
    expected[:, :, :queries] = product
    np.testing.assert_allclose(delta[:rows].reshape(expected.shape), expected, 1e-5, 1e-5)
    expected[:] = np.inf  # of P a row without keys, and one behind the end, has none
    expected[:, :, :queries] = np.where(np.isfinite(lse), lse * math.log2(math.e), np.inf)
    np.testing.assert_allclose(scaled[:rows].reshape(expected.shape), expected, 1e-6)
    assert (sums[:-4] == 0).all() and (turns[:-2] == 0).all()
    for written, behind in ((delta, 2), (scaled, 2), (sums, 4), (turns, 2)):
        assert (written[-behind:] == 7).all()


@pytest.mark.parametrize(
    ("depth", "batch", "queries", "heads"), [(64, 2, 70, 1), (128, 1, 67, 2)], ids=["64", "128"]
)
def test_finish(depth, batch, queries, heads):
    """Of 128 x 64 elements a warpgroup adds up half of the rows, of 64 x 128 half the columns."""
    tile = 8192 // depth
    q_tiles = math.ceil(queries / tile)
    rng = np.random.default_rng(4)
    whole = rng.standard_normal((batch, heads, q_tiles * tile, depth)).astype(np.float32)
    blocks = whole.reshape(batch * heads * q_tiles, tile // 64, 64, depth // 64, 64)
    blocks = blocks.transpose(0, 1, 3, 2, 4).reshape(-1, 64, 64)
    # As threads hold a product of 64 x 64: by 8 columns, by thread, (row, row + 8) x 2 columns.
    thread, chunk, element = np.ogrid[:128, :8, :4]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (element // 2)
    held = blocks[:, row, 8 * chunk + 2 * (thread % 4) + element % 2]
    sums = np.ascontiguousarray(held.transpose(0, 2, 1, 3))
    memory = np.full((batch + 1, heads + 2, queries + 3, 2, depth), 7, BF16)
    dq = memory[:batch, 1 : heads + 1, 2 : queries + 2, 1]
    finish_kernel(as_dtype("bf16"), depth)[len(sums), THREADS](
        *(address(sums), address(dq), [dq.strides[i] for i in (0, 2, 1)]),
        *(queries, heads, q_tiles, np.float32(0.5)),
    )
    np.testing.assert_array_equal(dq, (whole[:, :, :queries] * np.float32(0.5)).astype(BF16))
    dq[:] = 7
    assert (memory == 7).all()


@pytest.mark.parametrize(
    ("depth", "batch", "keys", "kv_heads", "splits"),
    [(64, 2, 21, 3, 2), (128, 1, 19, 1, 5)],
    ids=["64", "128"],
)
def test_add_splits(depth, batch, keys, kv_heads, splits):
    """In their order, in float32."""
    rng = np.random.default_rng(5)
    rows = batch * kv_heads * keys
    shape = batch, kv_heads, splits, keys, depth
    parts = [rng.standard_normal(shape).astype(np.float32) for _ in "kv"]
    for part in parts:  # what comes after the first two loses digits if it comes before them
        part[:, :, 0] *= 2**24
        part[:, :, 1] -= part[:, :, 0]
    memory = [np.full((batch + 1, kv_heads + 2, keys + 3, 2, depth), 7, BF16) for _ in "kv"]
    views = [m[:batch, 1 : kv_heads + 1, 2 : keys + 2, 1] for m in memory]
    dk, dv = ((address(view), [view.strides[i] for i in (0, 2, 1)]) for view in views)
    blocks = -(-rows * (depth // 8) // THREADS)
    add_splits_kernel(as_dtype("bf16"), depth)[blocks, THREADS](
        *(*map(address, parts), *dk, *dv, rows, keys, kv_heads, splits)
    )
    for view, part in zip(views, parts):
        sums = np.zeros((batch, kv_heads, keys, depth), np.float32)
        for split in range(splits):
            sums += part[:, :, split]
        np.testing.assert_array_equal(view, sums.astype(BF16))
        view[:] = 7
    assert all((m == 7).all() for m in memory)
