"""Matmul for few rows, with A and B swapped, in the simulator."""

import numpy as np
import pytest

from numba_tma.kernels.matmul import matmul
from numba_tma.kernels.matmul.plan import SwappedConfig
from tests.sim.kernels.test_matmul import (
    BF16,
    E4M3,
    E5M2,
    check,
    check_everything_at_once,
    exact,
    factors,
    values,
)
from tests.tiers import quick

ONE = SwappedConfig(64, 8, k=128, stages=2)
PARTS = SwappedConfig(64, 8, cluster=4, k=128, stages=2)
WIDE = SwappedConfig(128, 16, cluster=2, k=128, stages=3)
SENDER = SwappedConfig(128, 16, cluster=3, k=128, stages=2)  # whose last block has no share


@pytest.mark.parametrize(
    ("shape", "config"),
    quick(
        [((1, 72, 136), ONE), ((5, 66, 330), PARTS), ((13, 100, 200), SENDER)],
        [
            *(((1, 72, 136), ONE), ((5, 66, 330), PARTS), ((8, 64, 64), PARTS)),
            *(((16, 128, 256), WIDE), ((21, 150, 100), WIDE), ((3, 300, 70), ONE)),
            *(((13, 100, 200), SENDER), ((13, 150, 200), SENDER)),
        ],
    ),
)
def test_shapes(shape, config):
    m, n, k = shape
    check(*factors(m, n, k), config=config)


COLUMNS = SwappedConfig(64, 24, cluster=3, k=128, stages=2, first="a")
COLUMNS_OF_TWO = SwappedConfig(128, 40, k=128, stages=2, first="a")


@pytest.mark.parametrize("layout", quick(["NT"], ["TN", "TT", "NN", "NT"]))
@pytest.mark.parametrize("config", quick([COLUMNS], [COLUMNS, COLUMNS_OF_TWO]))
def test_few_columns(config, layout):
    """a is the first operand of wgmma, and nothing is transposed."""
    check(*factors(70, 24, 136, layout=layout), config=config)


@pytest.mark.slow
def test_everything_at_once_for_few_columns():
    check_everything_at_once(140, 35, 136, COLUMNS_OF_TWO)
    check_everything_at_once(70, 24, 136, COLUMNS)


def test_writes_nothing_else():
    memory = np.full((9, 80), 7, BF16)
    a, b = factors(3, 70, 72)
    check(a, b, out=memory[2:5, 5:75], config=PARTS)
    outside = np.ones(memory.shape, bool)
    outside[2:5, 5:75] = False
    assert (memory[outside] == 7).all()


@pytest.mark.parametrize("layout", quick(["NT"], ["TN", "TT", "NN", "NT"]))
def test_layouts(layout):
    check(*factors(9, 72, 136, layout=layout), config=ONE)
    check(*factors(3, 71, 37, layout=layout), config=PARTS)  # copied first


@pytest.mark.parametrize(
    ("a", "b", "out"),
    quick(
        [(E4M3, E5M2, BF16)],
        [(E4M3, E5M2, BF16), (BF16, BF16, np.float32), (np.float16, np.float16, np.float16)],
    ),
)
def test_types(a, b, out):
    got = check(*factors(9, 72, 130, a, b_dtype=b), config=ONE, out_dtype=out)
    assert got.dtype == out


def test_float32_is_rounded_to_tf32():
    a, b = factors(5, 64, 70, np.float32)
    near = [(x.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32) for x in (a, b.T)]
    assert check(a, b, exact(near[0], near[1].T), config=PARTS).dtype == np.float32


@pytest.mark.parametrize("config", quick([PARTS], [PARTS, WIDE]))
def test_everything_at_once(config):
    check_everything_at_once(10, 72, 300, config)


def test_batches():
    a, b = factors(3, 40, 136, batch=(2,))
    rows = values((2, 3), np.float32, 3)
    for left, right, config in ((a, b, PARTS), (a, b[0], ONE), (a[1], b, ONE)):
        check(left, right, config=config)
    for right in (b, b[0]):
        check(a, right, rows[..., None] * exact(a, right), config=ONE, row_scale=rows)


def test_nothing_to_add_up():
    check(np.empty((3, 0), BF16), np.empty((0, 72), BF16), np.zeros((3, 72)), config=PARTS)


def test_what_is_chosen_for_few_rows():
    check(*factors(3, 136, 300), config=None)  # two tiles of columns
    check(np.empty((3, 0), BF16), np.empty((0, 72), BF16), np.zeros((3, 72)), config=None)


def test_the_order_of_the_sums_is_that_of_k():
    """Parts are added up from the first to the last, in float32."""
    a, b = np.ones((1, 256), BF16), np.zeros((256, 64), BF16)
    b[0], b[64], b[128] = 2.0**30, 1, -(2.0**30)  # in three of four parts
    got = matmul(a, b, config=PARTS, out_dtype=np.float32)
    np.testing.assert_array_equal(got, 0)  # the 1 is lost before the third part comes
    b[64], b[192] = 0, 1
    np.testing.assert_array_equal(matmul(a, b, config=PARTS, out_dtype=np.float32), 1)


def test_integers_are_refused():
    with pytest.raises(ValueError, match="whose kernel adds up float32, but a is i8"):
        matmul(*factors(3, 64, 64, np.int8), config=ONE)
