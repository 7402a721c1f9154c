"""Sparse and weight-stationary products, masks of lanes and the collector, in the simulator."""

import numpy as np
import pytest

import numba_tma as tma
from numba_tma import simulator as sim
from tests.kernels.tensor_gemm import integers
from tests.kernels.tensor_variants import (
    INTEGERS,
    NAMES,
    ROLES,
    integer_weights,
    masked,
    sparse,
    sparse_rows,
    stationary,
)
from tests.tiers import every, quick

THREADS = ROLES.threads


@pytest.mark.parametrize(
    ("dtype", "k", "m", "ws"),
    every(
        2,
        [
            ("bf16", 128, 128, False),
            ("f16", 128, 64, True),
            ("e4m3", 256, 128, False),
            ("tf32", 64, 32, True),
            ("i8", 128, 32, True),
            ("tf32", 64, 128, False),
        ],
    ),
)
def test_sparse_products(dtype, k, m, ws):
    tiles, kernel = sparse(64, dtype, k, m, ws)
    a, b = sparse_rows(m, k, dtype), integers((64, k), NAMES[dtype], 1)
    stored, metadata = tma.sparse_compress(a, m=m, dtype=dtype)
    out = np.zeros((m, 64), np.float64)
    kernel[1, THREADS](
        *(tma.tensor_map(x, t, dtype=t.dtype) for x, t in zip((stored, b, metadata), tiles)), out
    )
    np.testing.assert_array_equal(out, a.astype(np.float64) @ b.astype(np.float64).T)


WAYS = [(m, inside) for m in (32, 64, 128) for inside in (False, True)]


@pytest.mark.parametrize(("m", "in_tensor_memory"), quick([(32, True), (64, False)], WAYS))
def test_weight_stationary_products(m, in_tensor_memory):
    tiles, kernel = stationary(m, in_tensor_memory)
    a, b = integers((m, 64), "bfloat16", 2), integers((64, 64), "bfloat16", 3)
    out = np.zeros((m, 64), np.float32)
    maps = (tma.tensor_map(x, t) for x, t in zip((a, b), tiles))
    kernel[1, THREADS](*maps, a.astype(np.float32), out)
    sign = 1 if in_tensor_memory else -1
    np.testing.assert_array_equal(out, sign * a.astype(np.float64) @ b.astype(np.float64).T)


@pytest.mark.parametrize("m", every(2, [32, 64, 128]))
def test_zero_columns(m):
    zero = (([True] * 2 + [False] * 3) * 13)[1:]
    tiles, kernel = stationary(m, True, tma.zero_column_mask(zero, m))
    a, b = integers((m, 64), "bfloat16", 2), integers((64, 64), "bfloat16", 3)
    out = np.zeros((m, 64), np.float32)
    maps = (tma.tensor_map(x, t) for x, t in zip((a, b), tiles))
    kernel[1, THREADS](*maps, a.astype(np.float32), out)
    product = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_array_equal(out, np.where(zero, 0, product))


def test_integers_in_tensor_memory():
    x, b = integers((128, 32), "int64", 6, -128, 128), integers((32, 32), "int8", 7, -128, 128)
    out = np.zeros((128, 32), np.int32)
    integer_weights[1, THREADS](tma.tensor_map(b, INTEGERS), x, out)
    np.testing.assert_array_equal(out, x @ b.astype(np.int64).T)


def test_masked_lanes_and_the_collector():
    tiles, kernel = masked()
    a, b = integers((128, 64), "bfloat16", 4), integers((32, 64), "bfloat16", 5)
    out = np.zeros((128, 64), np.float32)
    kernel[1, THREADS](*(tma.tensor_map(x, t) for x, t in zip((a, b), tiles)), out)
    once = a.astype(np.float64) @ b.astype(np.float64).T
    twice = 2 * once
    twice[[1, 64]] = once[[1, 64]]
    np.testing.assert_array_equal(out, np.concatenate([once, twice], 1))


@pytest.mark.parametrize(
    ("first", "second", "other", "text"),
    [
        ("discard", "use", 0, "kind::f16.collector::a::use: the buffer is empty"),
        ("lastuse", "use", 0, "kind::f16.collector::a::lastuse: the buffer is empty"),
        ("fill", "lastuse", 1, "a::lastuse: A in memory is not the A of the product that filled"),
    ],
)
def test_a_collector_that_does_not_hold_the_operand(first, second, other, text):
    tiles, kernel = masked(first, second, other)
    a, b = integers((128, 64), "bfloat16", 4), integers((32, 64), "bfloat16", 5)
    with pytest.raises(sim.BadOperand, match=text):
        maps = (tma.tensor_map(x, t) for x, t in zip((a, b), tiles))
        kernel[1, THREADS](*maps, np.zeros((128, 64), np.float32))
