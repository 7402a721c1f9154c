"""The grouped matmul in the simulator: groups of any size, and rows outside the groups."""

import numpy as np
import pytest

from numba_tma.kernels.matmul.grouped import grouped_matmul
from numba_tma.kernels.matmul.plan import Config
from tests.sim.kernels.test_matmul import BF16, E4M3, E5M2, assert_close, values
from tests.tiers import quick

ONE, PAIRS = Config(64, 64, stages=2), Config(64, 64, stages=2, cluster=2)


def check(sizes, n=72, k=72, kinds=(BF16, BF16), out=BF16, behind=3, config=ONE, **options):
    """Multiply groups of these sizes; rows behind the last are left alone."""
    ends = np.cumsum(sizes)
    layout, by_ends = options.pop("layout", "N"), options.pop("by_ends", False)
    a = values((ends[-1] + behind, k), kinds[0], 1)
    b = values((len(sizes), n, k) if layout == "N" else (len(sizes), k, n), kinds[1], 2)
    b = b.swapaxes(1, 2) if layout == "N" else b
    got = np.full((len(a), n), 7, out)
    rows = {"offsets" if by_ends else "group_sizes": (ends if by_ends else sizes).astype(np.int32)}
    assert grouped_matmul(a, b, out=got, config=config, **rows, **options) is got
    scales = options.get("scales", np.ones(len(sizes))) * options.get("alpha", 1)
    for g, (start, end) in enumerate(zip(ends - sizes, ends)):
        wide = a[start:end].astype(np.float64), b[g].astype(np.float64)
        assert_close(got[start:end], scales[g] * (wide[0] @ wide[1]), g) if end > start else None
    assert (got[ends[-1] :] == 7).all()


SIZES = {
    "odd": [5, 66, 1],
    "none": [0, 0, 0],
    "some empty": [0, 70, 0, 0, 1, 0],
    "all in one": [0, 130, 0],
    "even": [64, 64],
}


@pytest.mark.parametrize(
    ("name", "by_ends"),
    quick(
        lambda case: case[1] == (case[0] in ("odd", "none")) or case[0] == "some empty",
        [(name, by_ends) for name in SIZES for by_ends in (False, True)],
    ),
)
def test_sizes(name, by_ends):
    check(np.array(SIZES[name]), by_ends=by_ends)


@pytest.mark.parametrize("name", ["odd", "all in one"])
def test_pairs_share_b(name):
    check(np.array(SIZES[name]), config=PAIRS, n=72)


def test_b_however_it_lies():
    check(np.array([5, 66]), layout="T", n=40)
    check(np.array([5, 66]), layout="T", n=40, kinds=(E4M3, E5M2))


@pytest.mark.parametrize(
    ("kinds", "out"), [((np.float16, np.float16), np.float32), ((E4M3, E5M2), BF16)]
)
def test_types(kinds, out):
    check(np.array([5, 66]), kinds=kinds, out=out)


def test_scales():
    scales = np.array([0.5, 3, -2], np.float32)
    check(np.array(SIZES["odd"]), scales=scales, alpha=0.25, n=40)
    check(np.array(SIZES["odd"]), scales=scales, kinds=(E4M3, E4M3), n=64)
    check(np.array([5, 66]), alpha=4.0, n=40)


@pytest.mark.parametrize("alpha", quick([2.0], [1.0, 2.0]))
def test_rows_that_tma_cannot_write(alpha):
    check(np.array([5, 66]), n=71, k=37, alpha=alpha)


@pytest.mark.parametrize(
    ("config", "n"),
    quick([(ONE, 40), (PAIRS, 39)], [(ONE, 72), (ONE, 71), (ONE, 40), (PAIRS, 72), (PAIRS, 39)]),
)
def test_each_group_in_its_place(config, n):
    sizes = np.array([70, 0, 33, 1], np.int32)
    a, b = values((4, 70, 72), BF16, 1), values((4, 72, n), BF16, 2)
    got = np.full((4, 70, n), 7, BF16)
    grouped_matmul(a, b, sizes, got, config=config)
    for g, size in enumerate(sizes):
        wide = a[g, :size].astype(np.float64) @ b[g].astype(np.float64)
        assert_close(got[g, :size], wide) if size else None
        assert (got[g, size:] == 7).all()


def test_a_new_array():
    sizes = np.array([3, 61], np.int32)
    a, b = values((64, 64), E4M3, 1), values((2, 64, 64), E4M3, 2)
    assert grouped_matmul(a, b, sizes, config=ONE).dtype == BF16
    assert grouped_matmul(a[:0], b, sizes * 0).shape == (0, 64)
