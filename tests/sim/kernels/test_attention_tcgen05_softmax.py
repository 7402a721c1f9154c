"""The softmax of attention on Blackwell's tensor cores, row by row, without a kernel around it."""

from types import SimpleNamespace

import numpy as np
import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.attention.plan import AttentionProblem
from numba_tma.kernels.attention.tcgen05_plan import Tcgen05AttentionForm, Tcgen05AttentionPlan
from numba_tma.kernels.attention.tcgen05_softmax import (
    exponential_by_polynomial,
    load_scores,
    next_maximum,
)

KEYS = 32


def form(**masks):
    problem = AttentionProblem(64, as_dtype("bf16"), **masks)
    return Tcgen05AttentionForm(problem, Tcgen05AttentionPlan(KEYS))


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_a_maximum_is_replaced_where_p_would_be_larger_than_256(scale):
    """2**8: bf16 and f16 hold it, and O and the row sums need no rescaling meanwhile."""
    scale = np.float32(scale)
    row = np.zeros(KEYS, np.float32)
    for growth in (-3.0, 0.0, 1.0, 7.99, 8.0, 8.01, 9.0, 20.0):
        row[5] = new = np.float32(1 + growth / scale)
        found = next_maximum(row, np.float32(1), scale)
        if growth > 8:
            assert found.value == new
            np.testing.assert_allclose(found.factor, 2.0**-growth, 1e-5)
        else:
            assert (found.value, found.factor) == (1, 1)
    first = next_maximum(row, np.float32(-np.inf), scale)
    assert (first.value, first.factor) == (row[5], 0)


def test_the_polynomial_is_as_exact_as_ex2():
    """To 2**-22, in every octave down to the least normal number, and 0 below."""
    x = np.random.default_rng(1).uniform(-126, 1, 2000).astype(np.float32)
    got = np.array([exponential_by_polynomial(v, np.float32(1), np.float32(0)) for v in x])
    exact = np.exp2(x.astype(np.float64))
    assert (np.abs(got - exact) < 2.0**-22 * exact).all()
    assert exponential_by_polynomial(np.float32(-200), np.float32(1), np.float32(0)) == 0


@pytest.mark.parametrize("lane", [0, 1, 31, 127])
@pytest.mark.parametrize(
    ("masks", "start", "end", "stop"),
    [
        ({}, 0, 20, 0),
        ({}, 0, KEYS, 0),
        ({}, 0, 0, 0),
        ({"causal": True}, 0, 0, 1),
        ({"causal": True}, 0, 0, -40),
        ({"right": True}, 0, 28, 3),
        ({"left": True}, -4, KEYS, 0),
        ({"left": True}, -200, KEYS, 0),
        ({"left": True}, -127, KEYS, 0),  # the last lane sees every key
        ({"left": True}, -126, KEYS, 0),  # the last lane alone does not see the first key
        ({"left": True, "causal": True}, -30, 0, -20),
    ],
)
def test_a_row_sees_the_keys_of_its_window(masks, start, end, stop, lane):
    """Row r sees columns from start + r on, before stop + r, and before the end."""
    scores = np.random.default_rng(2).standard_normal(KEYS).astype(np.float32)
    rows = SimpleNamespace(start=np.int32(start), end=np.int32(end), stop=np.int32(stop))
    tile = SimpleNamespace(load=lambda first, count: scores[first : first + count])
    found = load_scores(form(**masks), tile, rows, lane, None)
    column, seen = np.arange(KEYS), np.ones(KEYS, bool)
    if "left" in masks:
        seen &= column >= start + lane
    if "right" in masks or "causal" in masks:
        seen &= column < stop + lane
    if "causal" not in masks:
        seen &= column < end
    np.testing.assert_array_equal(np.array(list(found)), np.where(seen, scores, -np.inf))
