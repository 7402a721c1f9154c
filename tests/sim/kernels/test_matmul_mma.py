"""The matmul kernel by mma.sync in the simulator, against NumPy."""

import ml_dtypes
import numpy as np
import pytest

from numba_tma.kernels.matmul import MmaConfig, matmul
from tests.sim.kernels.test_matmul import (
    BF16,
    E4M3,
    E5M2,
    assert_close,
    check,
    check_everything_at_once,
    exact,
    factors,
    values,
)
from tests.tiers import quick

SMALL = MmaConfig(64, 32, stages=2)
ONE = MmaConfig(64, 64, 1, k=128, stages=2)
TALL = MmaConfig(128, 64, stages=2)


def integers(rows, columns, k, a_type, b_type):
    """Return small integers, whose products and sums are exact in every type."""
    rng = np.random.default_rng(2)
    return (
        rng.integers(-2, 3, s).astype(t) for s, t in (((rows, k), a_type), ((k, columns), b_type))
    )


@pytest.mark.parametrize(
    ("shape", "config"),
    quick(
        [((70, 40, 40), SMALL)],
        [((70, 40, 40), SMALL), ((128, 64, 64), TALL), ((130, 72, 40), TALL), ((65, 72, 136), ONE)],
    ),
)  # fmt: skip
def test_shapes(shape, config):
    check(*factors(*shape), config=config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a_type", "b_type", "out"),
    [
        (np.float16, np.float16, np.float32),
        (BF16, BF16, np.float32),
        (np.float32, np.float32, np.float32),
        (E4M3, E5M2, np.float32),
        (E5M2, E4M3, np.float32),
        (np.int8, np.int8, np.int32),
    ],
)
@pytest.mark.parametrize("config", [SMALL, ONE], ids=["64", "128"])
def test_sums_that_are_exact(a_type, b_type, out, config):
    a, b = integers(66, 34, 70, a_type, b_type)
    got = matmul(a, b, config=config, out_dtype=out)
    np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["TT", "NN", "NT"])
@pytest.mark.parametrize("config", [SMALL, TALL], ids=["32", "64"])
def test_layouts(layout, config):
    check(*factors(70, 66, 75, layout=layout), config=config)


@pytest.mark.slow
def test_more_tiles_than_blocks():
    check(*factors(200, 72, 72), config=SMALL)


@pytest.mark.slow
def test_float32_is_rounded_to_tf32():
    a, b = factors(64, 64, 70, np.float32)
    near = [(x.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32) for x in (a, b.T)]
    check(a, b, exact(near[0], near[1].T), config=SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("n", [72, 71])
def test_everything_at_once(n):
    check_everything_at_once(100, n, 72, TALL)


def test_a_batch_of_an_odd_result_that_threads_store():
    a, b = factors(5, 35, 40, batch=(2,))
    got = matmul(a, b, config=SMALL)
    assert_close(got, exact(a, b))


def test_a_sum_of_nothing_is_the_bias():
    a, b, bias = np.zeros((3, 0), BF16), np.zeros((0, 8), BF16), values(8, BF16, 1)
    got = matmul(a, b, bias=bias, config=SMALL)
    np.testing.assert_array_equal(got, np.broadcast_to(bias, (3, 8)))
    assert got.dtype == ml_dtypes.bfloat16
